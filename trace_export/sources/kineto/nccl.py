"""NCCL's kernels in a trace of torch.profiler: transfers and collectives, with what PyTorch knows of each.

PyTorch adds to a kernel the collective's name, its process group, the global rank of the other side and the sizes
(since 2.4; torch/csrc/profiler/util.cpp). Kernels of older versions have only their own names.
"""

from __future__ import annotations

import polars as pl

from trace_export.sources.shared.nccl_names import COMMUNICATION

IS_NCCL = pl.col("name").str.contains(COMMUNICATION).fill_null(False)
"""Whether an event is a kernel of communication."""

_SIZES = {
    "Float": 4, "Double": 8, "Half": 2, "BFloat16": 2, "Long": 8, "Int": 4, "Short": 2, "Char": 1, "Byte": 1, "Bool": 1,
    "Float8_e4m3fn": 1, "Float8_e5m2": 1, "ComplexFloat": 8, "ComplexDouble": 16,
}  # fmt: skip
_KERNEL = COMMUNICATION + r"(?:Dev)?Kernel_?([A-Za-z]+?)(?:_|RING|Ring|TREE|Tree|COLLNET|$|\()"


def calls(kernels: pl.DataFrame) -> pl.DataFrame:
    """NCCL's kernels among those of `Trace.events` with their process: transfers.KERNELS; op is PyTorch's name,
    else NCCL's."""
    named = kernels.filter(IS_NCCL)
    elements = pl.max_horizontal("In msg nelems", "Out msg nelems")
    return named.select(
        "process",
        op=pl.coalesce("Collective name", pl.col("name").str.extract(_KERNEL)),
        group=pl.col("Process Group Name"),
        peer=pl.coalesce("Src Rank", "Dst Rank"),
        seq="Seq",
        bytes=elements * pl.col("dtype").replace_strict(_SIZES, default=None, return_dtype=pl.Int64),
        start="start",
        end="end",
        device=pl.col("device").cast(pl.Int64, strict=False),
    )
