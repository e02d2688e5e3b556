"""Marks every forward, backward, weight-gradient and optimizer block of a training run for its profiler.

One line in the training script, before or after the framework is imported:

    import trace_export.instrument as ti; ti.auto()

or none at all: `trace-export run -- torchrun … train.py`. Megatron-Core, torch.distributed.pipelining, DeepSpeed's
PipelineEngine and MindSpeed's DualPipeV are known; `forward`, `backward`, `weight`, `forward_backward`, `optimizer` and
`step` mark one's own loop. The marks go to NVTX and torch.profiler on CUDA, MSTX on Ascend, RecordEvent and NVTX on
Paddle; each carries micro-batch, chunk, stage, step and rank as far as they are known. No mark ever raises.
"""

from __future__ import annotations

from trace_export.instrument import marks
from trace_export.instrument.backends import choose, recorded
from trace_export.instrument.blocks import Block, Step, backward, forward, forward_backward, optimizer, step, weight
from trace_export.instrument.marks import Backend

__all__ = [
    "Backend",
    "Block",
    "Step",
    "auto",
    "backward",
    "forward",
    "forward_backward",
    "optimizer",
    "step",
    "weight",
]


def auto(marks_to: str | Backend | None = None) -> None:
    """Marks the blocks of every framework that is known, those imported already and those that will be.

    `marks_to`: `nvtx`, `torch`, `mstx`, `paddle`, `off`, or an object with `begin` and `end`; by default what the
    environment variable TRACE_EXPORT_MARKS names, else what fits the framework, chosen at the first block
    (`backends.recorder.Recorder` keeps the marks, for a test of one's own loop). A framework's unknown version is a
    warning in the log, and its blocks stay unmarked.
    """
    if isinstance(marks_to, str):
        name = marks_to
        marks.state.choose = lambda: choose(name)
    elif marks_to is not None:
        marks.state.backend = recorded(marks_to)
    from trace_export.instrument.frameworks import patch_all

    patch_all()
