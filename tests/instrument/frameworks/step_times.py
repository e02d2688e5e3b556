"""1F1B by torch.distributed.pipelining, every other step recorded: STEPS FOLDER. Prints the seconds of each step.

The seconds are those of the processors, of this rank; the recorder writes to FOLDER in the steps 0, 3, 4, 7, 8, …, so
that neither kind always comes first.
"""

import json
import os
import sys
import time

steps, folder = int(sys.argv[1]), sys.argv[2]
os.environ.update(TRACE_EXPORT_RECORD=folder, TRACE_EXPORT_MARKS="off")
import trace_export.instrument as ti  # noqa: E402

ti.auto()
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch.distributed.pipelining import PipelineStage, Schedule1F1B  # noqa: E402

from trace_export.instrument import marks  # noqa: E402
from trace_export.instrument.backends import choose, profiler  # noqa: E402

SIZE, MICROBATCHES, WARM_UP = 512, 8, 4

torch.set_num_threads(1)
torch.manual_seed(0)
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
module = torch.nn.Sequential(*(torch.nn.Linear(SIZE, SIZE) for _ in range(4)))
batch = torch.randn(16 * MICROBATCHES, SIZE)
given, result = (torch.zeros(16, SIZE, requires_grad=gradient) for gradient in (rank > 0, True))
stage = PipelineStage(module, rank, world, torch.device("cpu"), input_args=(given,), output_args=(result,))
run = Schedule1F1B(stage, MICROBATCHES, loss_fn=torch.nn.functional.mse_loss)
optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
recorder, off = choose(), profiler()
seconds = []
for step in range(-WARM_UP, steps):
    marks.state.backend = recorder if step % 4 in (0, 3) else off
    dist.barrier()
    began = time.process_time()
    run.step(*((batch,) if rank == 0 else ()), **({"target": batch, "losses": []} if rank == world - 1 else {}))
    optimizer.step()
    optimizer.zero_grad()
    seconds.append(time.process_time() - began)
dist.destroy_process_group()
print(json.dumps(seconds[WARM_UP:]))
