"""The launches of a trace, the GPU work that they launched, and which ranges it belongs to.

Which launch a kernel belongs to is known only when all of the file is read: their order in it is no rule.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Self

import numpy as np
import polars as pl

from trace_export.sources.kineto.json_events import thread
from trace_export.sources.ranges import lost_kernels
from trace_export.sources.ranges.attribution import GpuActivity, Launches, RangeIndex
from trace_export.sources.ranges.by_launch import WHOLE, Parts, by_part, of_parts, together
from trace_export.sources.shared.parted_rows import PartedRows, append

IS_CALL = pl.col("cat").str.contains("_(?:runtime|driver)$")
"""Whether an event is a call of CUDA or of another device."""
CALLERS = pl.col("pid").filter(pl.col("cat").is_in(["cuda_runtime", "cuda_driver"])).drop_nulls().unique()
"""The processes that call CUDA or HIP, among events: one, unless another program has merged several traces. Calls of
other devices may have another number as `pid`."""
CALLS = {
    lost_kernels.KERNELS: "Launch.*Kernel", lost_kernels.CAPTURES: "StreamBeginCapture",
    lost_kernels.CAPTURES_END: "StreamEndCapture",
}  # fmt: skip
"""The calls of which lost_kernels asks, as regular expressions."""

KERNELS = ("correlation", "start", "end", "nccl", "stream")
"""The columns of kernels; see GpuActivity.take."""
STREAM = (
    pl.col("device").cast(pl.Int64, strict=False).fill_null(-1) * (1 << 32)
    + pl.col("stream").cast(pl.Int64, strict=False).fill_null(0) % (1 << 32)
).alias("stream")
"""One number for the stream of a kernel, of which every device has its own."""

_CALL = pl.Enum(list(CALLS))
_LAUNCH = {"start": pl.Int64, "thread": pl.Int64, "correlation": pl.Int64}
_LAUNCHES, _KERNELS = "launches", "kernels"
_Part = dict[str, list[pl.DataFrame]]


class GpuWork:
    """What a trace has of launches (start, thread, correlation, and which of `CALLS` it is), and kernels
    (`KERNELS`)."""

    def __init__(self) -> None:
        self._rows = PartedRows("correlation", _LAUNCHES, _KERNELS)
        self._captures: list[pl.DataFrame] = []
        self.launched = False
        """Whether a call launches a kernel."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._rows.__exit__(*error)

    @property
    def launches(self) -> int:
        """How many there are."""
        return self._rows.count[_LAUNCHES]

    @property
    def kernels(self) -> int:
        return self._rows.count[_KERNELS]

    def add(self, events: pl.DataFrame) -> None:
        """Takes in the launches among `events`, which have the columns of `json_events.SCHEMA`. Raises
        OSError where the folder for temporary files takes no more, as all that add."""
        calls = events.filter(IS_CALL).select("start", thread(), _id(-1), _call())
        self._rows.add(_LAUNCHES, calls)
        captures = calls.filter(pl.col("call") != lost_kernels.KERNELS)
        append(self._captures, captures)
        self.launched = self.launched or calls["call"].len() - calls["call"].null_count() > captures.height

    def add_kernels(self, kernels: pl.DataFrame) -> None:
        """`kernels`: the columns of `KERNELS`."""
        self._rows.add(_KERNELS, kernels)

    def add_launches(self, launches: pl.DataFrame) -> None:
        """`launches`: start, thread, correlation; of no call in the trace."""
        self._rows.add(_LAUNCHES, launches.with_columns(call=pl.lit(None, _CALL)))

    def launch_pieces(self) -> Iterator[pl.DataFrame]:
        """All launches, in one piece or more."""
        yield pl.DataFrame(schema=_LAUNCH)
        for part in self._rows.parts():
            yield from (calls.select(_LAUNCH.keys()) for calls in part[_LAUNCHES])

    def activity(self, ranges: pl.DataFrame, parts: Parts = WHOLE) -> GpuActivity:
        """The work of `ranges` (id, process, role, thread, start, end), which are those of the `parts` of the process
        where it has some."""
        processes = list(parts[0].values()) if parts else [0]
        layers = [RangeIndex.both(ranges.filter(pl.col("process") == process)) for process in processes]
        activity = GpuActivity.none(ranges)
        for part in self._rows.parts():
            launches = {p: _joined(part, own) for p, own in zip(processes, layers, strict=True)}
            together(launches, parts)
            for tasks in part[_KERNELS]:
                columns = {column: tasks[column].to_numpy() for column in KERNELS}
                for process, piece in by_part([(0, columns)], parts):
                    activity.take(process, launches[process], piece)
            activity.lost += lost_kernels.count(launches, ranges.height, self._calls(part, parts))
        return activity

    def _calls(self, part: _Part, parts: Parts) -> Callable[[str], Iterator[lost_kernels.Piece]]:
        """The calls that fit a pattern of `CALLS`: of the part those that launch kernels, of the trace all others."""

        def fitting(pattern: str) -> Iterator[lost_kernels.Piece]:
            for calls in part[_LAUNCHES] if pattern == lost_kernels.KERNELS else self._captures:
                found = calls.filter(pl.col("call") == pattern)
                columns = {column: found[column].to_numpy() for column in ("start", "correlation")}
                yield from of_parts([(0, columns)], parts)

        return fitting


def _joined(part: _Part, layers: tuple[RangeIndex, RangeIndex]) -> Launches:
    """The launches of a part."""
    found = []
    for calls in part[_LAUNCHES]:  # piece by piece: a search takes several times the memory of its launches
        start, caller, correlation = (calls[c].to_numpy() for c in ("start", "thread", "correlation"))
        pipeline, call = (layer.find(start, caller).astype(np.int32) for layer in layers)
        found.append((correlation, pipeline, call))
    return Launches.of_parts(found)


def task_id() -> pl.Expr:
    """What a kernel or copy has in common with its launch, as `correlation`."""
    return _id(-2)


def _id(none: int) -> pl.Expr:
    """What a launch and its tasks have in common: the correlation id, which some devices lack; then the number of the
    operator that launched. No number of the one kind is one of the other."""
    operator = pl.col("External id")
    return pl.coalesce("correlation", pl.when(operator > 0).then(-2 - operator), none)


def _call() -> pl.Expr:
    """The pattern of `CALLS` that the name of an event fits."""
    name = pl.col("name")
    fitting = [pl.when(name.str.contains(expression)).then(pl.lit(pattern)) for pattern, expression in CALLS.items()]
    return pl.coalesce(fitting).cast(_CALL).alias("call")
