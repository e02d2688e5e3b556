"""Opens a trace of torch.profiler, in whichever of its two formats it is written."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import polars as pl

from trace_export.sources.kineto.find import PERFETTO
from trace_export.sources.kineto.json_events import Event, Wanted, columns_of, whole_number
from trace_export.sources.kineto.perfetto_trace import PerfettoTrace
from trace_export.sources.shared.chrome_json import JsonTrace


class KinetoTrace(JsonTrace[Event]):
    """A trace of Kineto in JSON. Its times are after `baseTimeNanoseconds` where that is given."""

    @property
    def offset_ns(self) -> int:
        """The offset that turns its time into unix time. Before Kineto had a base the times were unix microseconds."""
        base = whole_number(self.header.get("baseTimeNanoseconds"))
        return base if base is not None and 0 <= base < 1 << 62 else 0

    def events(self) -> Iterator[pl.DataFrame]:
        """The wanted events in the file's order, with the columns of `json_events.SCHEMA`.

        Raises SourceError when there is no list of events.
        """
        return map(columns_of, self.pieces())


Trace = KinetoTrace | PerfettoTrace


def open_trace(path: Path, wanted: Wanted, *, beginning: int = 0) -> Trace:
    """The trace at `path`, to be read once. Of JSON the `wanted` events are read, and with `beginning` not all of them,
    as `JsonTrace` says; of a Perfetto trace all that readers look at, and operators and frames of Python if they are
    wanted. As for PyTorch, which writes it, the name says the format. Raises SourceError."""
    if path.name.endswith(PERFETTO):
        return PerfettoTrace(path, wanted)
    return KinetoTrace(path, wanted.events, beginning)
