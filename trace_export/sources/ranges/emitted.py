"""The ranges in which PyTorch's emit_nvtx names operators and nodes of the autograd engine, as any profiler records
them.

The text of an operator ends with its number, `aten::linear, seq = 226, op_id = 68`; a node has its number in a range
inside its own (torch/csrc/profiler/standalone/nvtx_observer.cpp).
"""

from __future__ import annotations

import polars as pl

from trace_export.sources.ranges.dialects import OPERATION_SUFFIX

_NODE = "autograd::engine"
_OPERATOR = rf", op_id = \d|^{_NODE}"


def numbers_nodes(texts: pl.Series) -> bool:
    """Whether a node of the autograd engine is among them."""
    return bool(texts.str.starts_with(_NODE).any())


def operators(ranges: pl.DataFrame) -> pl.DataFrame:
    """The operators and nodes among `ranges` (thread, start, end, text and other columns): these other columns, thread,
    start, end, name, and seq, their number."""
    own = ranges.filter(pl.col("text").str.contains(_OPERATOR), pl.col("end") >= pl.col("start"))
    return own.with_columns(
        name=pl.col("text").str.replace(OPERATION_SUFFIX + "$", ""),
        seq=pl.col("text").str.extract(r", seq = (\d+), op_id = ").cast(pl.Int64, strict=False),
    ).drop("text")
