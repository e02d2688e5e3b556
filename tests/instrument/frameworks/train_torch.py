"""torch.distributed.pipelining: SCHEDULE STEPS MICROBATCHES OUT [before|after|profiled] [linear|recomputed].

`before` and `after` the import of torch says when the marks are turned on; `profiled`: they go to torch.profiler, which
writes a trace to OUT, instead of to the stub. A stage's module is one linear layer, or two with activations, which
the backward runs again.
"""

import sys
from pathlib import Path

import off_core
import stub

stub.install()
off_core.install()
schedule_name, steps, microbatches, out = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4])
import trace_export.instrument as ti  # noqa: E402

if sys.argv[5] != "after":
    ti.auto("torch" if sys.argv[5] == "profiled" else None)

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
import torch.utils.checkpoint  # noqa: E402
from torch.distributed.pipelining import PipelineStage  # noqa: E402
from torch.distributed.pipelining import schedules as s  # noqa: E402

if sys.argv[5] == "after":
    ti.auto()

torch.set_num_threads(1)
torch.manual_seed(0)
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
schedule_class = s.get_schedule_class(schedule_name)
single = issubclass(schedule_class, s.PipelineScheduleSingle)


def example(gradient: bool) -> torch.Tensor:
    return torch.zeros(2, 8, requires_grad=gradient)


vee = schedule_name in ("ZBVZeroBubble", "DualPipeV")
total = world if single else 2 * world
indices = [rank] if single else [rank, total - 1 - rank if vee else rank + world]


class Recomputed(torch.nn.Sequential):
    def __init__(self) -> None:
        super().__init__(torch.nn.Linear(8, 8), torch.nn.GELU(), torch.nn.Linear(8, 8), torch.nn.Tanh())

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        return torch.utils.checkpoint.checkpoint(super().forward, batch, use_reentrant=False)


modules = [Recomputed() if sys.argv[6:] == ["recomputed"] else torch.nn.Linear(8, 8) for _ in indices]
stages = [
    PipelineStage(m, i, total, torch.device("cpu"), input_args=(example(i > 0),), output_args=(example(True),))
    for m, i in zip(modules, indices, strict=True)
]
optimizer = torch.optim.SGD([p for m in modules for p in m.parameters()], lr=0.1)
run = schedule_class(stages[0] if single else stages, microbatches, loss_fn=torch.nn.functional.mse_loss)
profiler = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU])
if sys.argv[5] == "profiled":
    profiler.start()
for _ in range(steps):
    batch = torch.randn(2 * microbatches, 8)
    named = {"target": batch, "losses": []} if total - 1 in indices else {}
    run.step(*((batch,) if 0 in indices else ()), **named)
    optimizer.step()
    optimizer.zero_grad()
dist.barrier()
if sys.argv[5] == "profiled":
    profiler.stop()
    profiler.export_chrome_trace(str(out / f"trace{rank}.pt.trace.json.gz"))
dist.destroy_process_group()
stub.write(out)
