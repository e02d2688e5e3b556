"""1F1B by torch.distributed.pipelining: PAIRS FOLDER. Of each pair of steps one is recorded to FOLDER, by lot.

Prints the seconds of the processor of this rank for the two of each pair, the recorded one first.
"""

import json
import os
import random
import sys
import time

wanted, folder = int(sys.argv[1]), sys.argv[2]
os.environ.update(TRACE_EXPORT_RECORD=folder, TRACE_EXPORT_MARKS="off")
import trace_export.instrument as ti  # noqa: E402

ti.auto()
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch.distributed.pipelining import PipelineStage, Schedule1F1B  # noqa: E402

from trace_export.instrument import marks  # noqa: E402
from trace_export.instrument.backends import choose, profiler  # noqa: E402

SIZE, MICROBATCHES, WARM_UP = 512, 8, 2

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
lot = random.Random(1)  # the same on all ranks


def seconds(backend: marks.Backend | None) -> float:
    """Of one step."""
    marks.state.backend = backend
    dist.barrier()
    began = time.process_time()
    run.step(*((batch,) if rank == 0 else ()), **({"target": batch, "losses": []} if rank == world - 1 else {}))
    optimizer.step()
    optimizer.zero_grad()
    return time.process_time() - began


pairs = []
for _ in range(WARM_UP + wanted):
    order = [recorder, off] if lot.random() < 0.5 else [off, recorder]
    taken = {backend: seconds(backend) for backend in order}
    pairs.append((taken[recorder], taken[off]))
dist.destroy_process_group()
print(json.dumps(pairs[WARM_UP:]))
