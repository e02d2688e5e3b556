"""The launches of a trace, the GPU work that they launched, and which ranges it belongs to.

Which launch a kernel belongs to is known only when all of the file is read: their order in it tells nothing.
"""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from trace_export.inference.kernel_names import COMMUNICATION
from trace_export.sources.kineto.json_events import thread
from trace_export.sources.ranges.by_launch import CAPTURES, CAPTURES_END, GRAPH_LAUNCHES, KERNEL_LAUNCHES, Piece

IS_CALL = pl.col("cat").str.contains("_(?:runtime|driver)$")
"""Whether an event is a call of CUDA or of another device."""
CALLERS = pl.col("pid").filter(pl.col("cat").is_in(["cuda_runtime", "cuda_driver"])).drop_nulls().unique()
"""The processes that call CUDA or HIP, among events: one, unless another program has merged several traces. Calls of
other devices may have another number as `pid`."""
CALLS = {
    KERNEL_LAUNCHES: "Launch.*Kernel", GRAPH_LAUNCHES: "GraphLaunch", CAPTURES: "StreamBeginCapture",
    CAPTURES_END: "StreamEndCapture",
}  # fmt: skip
"""The calls that `by_launch.count_lost` asks for, as regular expressions."""

KERNELS = ("correlation", "start", "end", "nccl", "stream")
"""The columns of kernels; see GpuActivity.take."""
STREAM = (
    pl.col("device").cast(pl.Int64, strict=False).fill_null(-1) * (1 << 32)
    + pl.col("stream").cast(pl.Int64, strict=False).fill_null(0) % (1 << 32)
).alias("stream")
"""One number for the stream of a kernel: every device counts its own."""

_CALL = pl.Enum(list(CALLS))


class GpuWork:
    """The launches (start, thread, correlation, and which of `CALLS` it is) and kernels (`KERNELS`) of a trace.

    `launched`: whether a call launches a kernel; `replayed`: whether one launches a CUDA graph."""

    def __init__(self) -> None:
        self._launches: list[pl.DataFrame] = []
        self._kernels: list[pl.DataFrame] = []
        self.launched = False
        self.replayed = False

    @property
    def launches(self) -> int:
        """How many there are."""
        return sum(piece.height for piece in self._launches)

    @property
    def kernels(self) -> int:
        return sum(piece.height for piece in self._kernels)

    def add(self, events: pl.DataFrame) -> None:
        """Takes in the launches among `events`, which have the columns of `json_events.SCHEMA`."""
        called = events.filter(IS_CALL)
        calls = called.select("start", thread(), _id(-1), _call())
        append(self._launches, calls)
        self.launched = self.launched or bool((calls["call"] == KERNEL_LAUNCHES).any())
        self.replayed = self.replayed or bool((calls["call"] == GRAPH_LAUNCHES).any())

    def add_kernels(self, kernels: pl.DataFrame) -> None:
        """`kernels`: the columns of `KERNELS`."""
        append(self._kernels, kernels)

    def calls(self, pattern: str | None) -> Iterator[Piece]:
        """The calls that fit a pattern of `CALLS`, or all."""
        for calls in self._launches:
            matching = calls if pattern is None else calls.filter(pl.col("call") == pattern)
            yield 0, {column: matching[column].to_numpy() for column in ("start", "thread", "correlation")}

    def tasks(self) -> Iterator[Piece]:
        for tasks in self._kernels:
            yield 0, {column: tasks[column].to_numpy() for column in KERNELS}


def append(pieces: list[pl.DataFrame], rows: pl.DataFrame) -> None:
    """Appends `rows` where there are any, and once in any case for their columns: a frame without rows takes 3 KB, and
    a large file has many thousands of pieces."""
    if rows.height or not pieces:
        pieces.append(rows)


def task_id() -> pl.Expr:
    """The number that a kernel or copy shares with its launch, as `correlation`."""
    return _id(-2)


def _id(none: int) -> pl.Expr:
    """The numbers that a launch shares with its tasks: the correlation id, which some devices lack; then the number of
    the operator that launched. No number of the one kind is one of the other."""
    operator = pl.col("External id")
    return pl.coalesce("correlation", pl.when(operator > 0).then(-2 - operator), none)


def _call() -> pl.Expr:
    """The pattern of `CALLS` that the name of an event fits."""
    name = pl.col("name")
    fitting = [pl.when(name.str.contains(expression)).then(pl.lit(pattern)) for pattern, expression in CALLS.items()]
    return pl.coalesce(fitting).cast(_CALL).alias("call")


IS_NCCL = pl.col("name").str.contains(COMMUNICATION).fill_null(False)
"""Whether an event is a kernel of communication."""

_SIZES = {
    "Float": 4, "Double": 8, "Half": 2, "BFloat16": 2, "Long": 8, "Int": 4, "Short": 2, "Char": 1, "Byte": 1, "Bool": 1,
    "Float8_e4m3fn": 1, "Float8_e5m2": 1, "ComplexFloat": 8, "ComplexDouble": 16,
}  # fmt: skip
_OPERATION = COMMUNICATION + r"(?:Dev)?Kernel_?([A-Za-z]+?)(?:_|RING|Ring|TREE|Tree|COLLNET|$|\()"


def calls_of_nccl(kernels: pl.DataFrame) -> pl.DataFrame:
    """NCCL's kernels among those of `Trace.events` with their process: transfers.KERNELS; op is PyTorch's name,
    else NCCL's."""
    named = kernels.filter(IS_NCCL)
    elements = pl.max_horizontal("In msg nelems", "Out msg nelems")
    return named.select(
        "process",
        op=pl.coalesce("Collective name", pl.col("name").str.extract(_OPERATION)),
        group=pl.col("Process Group Name"),
        peer=pl.coalesce("Src Rank", "Dst Rank"),
        seq="Seq",
        bytes=elements * pl.col("dtype").replace_strict(_SIZES, default=None, return_dtype=pl.Int64),
        start="start",
        end="end",
        device=pl.col("device").cast(pl.Int64, strict=False),
    )
