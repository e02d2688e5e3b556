"""What a viewer of traces must know to place a trace of torch.profiler beside others."""

from __future__ import annotations

from pathlib import Path

from trace_export.sources.kineto.event_stream import Trace
from trace_export.sources.kineto.json_events import Wanted
from trace_export.sources.kineto.trace import is_perfetto
from trace_export.sources.source import OriginalTrace

_NOTHING = Wanted("")


def original(path: Path) -> OriginalTrace:
    """The trace at `path` as Perfetto reads it. Of JSON Perfetto takes `ts` as it is, without `baseTimeNanoseconds`.
    In its own format all times are BOOTTIME, which PyTorch gives the value of the wall clock. Raises SourceError."""
    if is_perfetto(path.name):
        return OriginalTrace(path, "pftrace", clock="BOOTTIME")
    with Trace(path, _NOTHING) as trace:
        return OriginalTrace(path, "json", zero_ns=trace.offset_ns)
