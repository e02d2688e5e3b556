"""The launches of a trace, the GPU work that they launched, and which ranges it belongs to.

Which launch a kernel belongs to is known only when all of the file is read: their order in it tells nothing.
"""

from __future__ import annotations

import polars as pl

from trace_export.inference.kernel_names import COMMUNICATION
from trace_export.sources.kineto.json_events import thread
from trace_export.sources.ranges.by_launch import CAPTURES, CAPTURES_END, GRAPH_LAUNCHES, KERNEL_LAUNCHES

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

STREAM = (
    pl.col("device").cast(pl.Int64, strict=False).fill_null(-1) * (1 << 32)
    + pl.col("stream").cast(pl.Int64, strict=False).fill_null(0) % (1 << 32)
).alias("stream")
"""One number for the stream of a kernel: every device counts its own."""

_CALL = pl.Enum(list(CALLS))


def launches_in(events: pl.DataFrame) -> pl.DataFrame:
    """The launches among `events`, which have the columns of `json_events.SCHEMA`: start, thread, correlation, and
    `call`, which of `CALLS` each is."""
    name = pl.col("name")
    fitting = [pl.when(name.str.contains(expression)).then(pl.lit(pattern)) for pattern, expression in CALLS.items()]
    return events.filter(IS_CALL).select("start", thread(), _id(-1), call=pl.coalesce(fitting).cast(_CALL))


def append(pieces: list[pl.DataFrame], rows: pl.DataFrame) -> None:
    """Appends `rows` where there are any, and once in any case for their columns: a frame without rows takes 3 KB, and
    a large file has many thousands of pieces."""
    if rows.height or not pieces:
        pieces.append(rows)


def _id(none: int) -> pl.Expr:
    """The numbers that a launch shares with its tasks: the correlation id, which some devices lack; then the number of
    the operator that launched. No number of the one kind is one of the other."""
    operator = pl.col("External id")
    return pl.coalesce("correlation", pl.when(operator > 0).then(-2 - operator), none)


IS_NCCL = pl.col("name").str.contains(COMMUNICATION).fill_null(False)
"""Whether an event is a kernel of communication."""

KERNEL = (_id(-2), "start", "end", STREAM, IS_NCCL.alias("nccl"))
"""The columns of a kernel, see GpuActivity.take."""

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
