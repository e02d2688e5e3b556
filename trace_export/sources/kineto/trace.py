"""Opens a trace of torch.profiler, in whichever of its two formats it is written."""

from __future__ import annotations

from pathlib import Path

from trace_export.sources.kineto.event_stream import Trace as JsonTrace
from trace_export.sources.kineto.find import PERFETTO
from trace_export.sources.kineto.json_events import FRAME, Wanted
from trace_export.sources.kineto.perfetto_trace import PerfettoTrace

Trace = JsonTrace | PerfettoTrace


def open_trace(path: Path, wanted: Wanted, *, operators: bool = False, beginning: int = 0) -> Trace:
    """The trace at `path`, to be read once. Of JSON the `wanted` events are read, and with `beginning` not all of them,
    as `JsonTrace` says; of a Perfetto trace all that readers look at, but of operators only our marks unless all
    `operators` are wanted. As for PyTorch, which writes it, the name says the format. Raises SourceError."""
    return (
        PerfettoTrace(path, operators=operators, frames=wanted.has(FRAME))
        if is_perfetto(path.name)
        else JsonTrace(path, wanted, beginning)
    )


def is_perfetto(name: str) -> bool:
    return name.endswith(PERFETTO)
