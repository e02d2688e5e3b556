"""DeepSpeed's PipelineEngine: its schedule names buffers, not micro-batches, and runs both passes in order.

So the micro-batch is the count of forwards, or of backwards, since the schedule began.
"""

from __future__ import annotations

from collections import Counter
from types import ModuleType
from typing import Any

from trace_export.instrument import marks
from trace_export.instrument.frameworks.patching import UnknownVersion, block, replace, schedule_pass
from trace_export.instrument.marks import Mark

_METHODS = {"_exec_forward_pass": "F", "_exec_backward_pass": "B", "_exec_optimizer_step": "OPT"}
_done: Counter[str] = Counter()


def patch(module: ModuleType) -> None:
    engine = module.PipelineEngine
    replace(engine, "_exec_schedule", schedule_pass(_prepare))
    instructions = engine._INSTRUCTION_MAP
    for name, kind in _METHODS.items():
        keys = [key for key, function in instructions.items() if function.__name__ == name]
        if not keys:
            raise UnknownVersion(f"no instruction runs {name}")
        replace(engine, name, block(_describe(kind)))
        # The engine calls what its map holds, not its attributes.
        for key in keys:
            instructions[key] = getattr(engine, name)


def _prepare(engine: Any, *args: Any, **kwargs: Any) -> None:
    _done.clear()
    marks.state.layout["pp_size"] = getattr(engine, "num_stages", None)


def _describe(kind: str) -> Any:
    def describe(engine: Any, *args: Any, **kwargs: Any) -> Mark:
        if kind == "OPT":
            return Mark(kind)
        microbatch = _done[kind]
        _done[kind] += 1
        return Mark(kind, microbatch, 0, stage=engine.stage_id)

    return describe
