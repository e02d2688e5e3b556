"""Opens a trace of torch.profiler, in whichever of its two formats it is written."""

from __future__ import annotations

from pathlib import Path

from trace_export.sources.kineto.event_stream import Trace as JsonTrace
from trace_export.sources.kineto.perfetto_trace import PerfettoTrace

Trace = JsonTrace | PerfettoTrace


def open_trace(path: Path, wanted: str, *, operators: bool = False, beginning: int = 0) -> Trace:
    """The trace at `path`, to be read once. Events whose text in JSON lacks `wanted`, a regular expression for Polars,
    may be left out; in a Perfetto trace they are all operators but our marks, unless `operators` are wanted, and what
    no reader looks at. `beginning` (of JSON): as `JsonTrace` says. As for PyTorch, which writes it, the name says the
    format. Raises SourceError."""
    return PerfettoTrace(path, operators=operators) if is_perfetto(path.name) else JsonTrace(path, wanted, beginning)


def is_perfetto(name: str) -> bool:
    return name.endswith((".pftrace", ".pftrace.gz"))
