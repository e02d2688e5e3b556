"""torch.distributed.pipelining: every schedule runs its micro-batches through the same three methods of a stage.

So one patch serves the single-stage schedules (GPipe, 1F1B), which mark nothing themselves, and the runtime of the
multi-stage ones, whose own `PP:` ranges also hold the waiting for messages. A chunk is the stage's place among the
stages of this process.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

from trace_export.instrument import marks
from trace_export.instrument.frameworks.patching import block, replace, safely, schedule_pass
from trace_export.instrument.marks import Mark

_chunks: dict[int, int] = {}
_has_loss = False


def patch_stage(module: ModuleType) -> None:
    stage = module._PipelineStageBase
    replace(stage, "forward_one_chunk", _forward, needs=("fwd_chunk_id",))
    replace(stage, "backward_one_chunk", block(_backward), needs=("bwd_chunk_id",))
    if hasattr(stage, "backward_weight_one_chunk"):
        replace(stage, "backward_weight_one_chunk", block(_weight), needs=("bwd_chunk_id",))


def patch_schedules(module: ModuleType) -> None:
    replace(module.PipelineScheduleSingle, "step", schedule_pass(_prepare))
    replace(module.PipelineScheduleMulti, "step", schedule_pass(_prepare))
    replace(module._PipelineSchedule, "_maybe_compute_loss", _loss)


def _prepare(schedule: Any, *args: Any, **kwargs: Any) -> None:
    global _has_loss
    stages = getattr(schedule, "_stages", None) or [schedule._stage]
    _chunks.clear()
    _chunks.update({index: chunk for chunk, index in enumerate(sorted(s.stage_index for s in stages))})
    _has_loss = schedule._loss_fn is not None
    marks.state.layout["pp_size"] = getattr(stages[0], "group_size", None)


def _mark(kind: str, stage: Any, microbatch: int) -> Mark:
    return Mark(kind, microbatch, _chunks.get(stage.stage_index), stage=stage.group_rank)


def _backward(stage: Any, bwd_chunk_id: int, *args: Any, **kwargs: Any) -> Mark | None:
    return _mark("B", stage, bwd_chunk_id) if stage.has_backward else None


def _weight(stage: Any, bwd_chunk_id: int, *args: Any, **kwargs: Any) -> Mark | None:
    return _mark("W", stage, bwd_chunk_id) if stage.has_backward else None


def _forward(function: Any) -> Any:
    """A forward on the last stage goes on until its loss is computed, which the schedule does just after it."""

    def call(stage: Any, fwd_chunk_id: int, *args: Any, **kwargs: Any) -> Any:
        mark = safely(_mark, "F", stage, fwd_chunk_id)
        opened = marks.begin(mark) if mark is not None else None
        try:
            result = function(stage, fwd_chunk_id, *args, **kwargs)
        except BaseException:
            marks.end(opened)
            raise
        if _has_loss and stage.is_last:
            marks.linger(opened)
        else:
            marks.end(opened)
        return result

    return call


def _loss(function: Any) -> Any:
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        finally:
            marks.close(lingering_only=True)

    return call
