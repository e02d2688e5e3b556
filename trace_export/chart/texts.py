"""Texts of a chart's slices; a column with millions of rows has few different ones."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import polars as pl

MOST_COMBINATIONS = 1 << 20


def by_combination(frame: pl.DataFrame, keys: Sequence[str | pl.Expr], texts: pl.Expr, dtype: pl.DataType) -> pl.Series:
    """`texts`, an expression of the `keys`, worked out once for each combination of these, as codes of type `dtype`.

    `keys` are whole numbers or Categorical; without any, all rows have the same text. Where there could be too many
    combinations, `texts` is worked out for each row.
    """
    code = np.zeros(frame.height, np.int32)
    combinations = 1
    for key in frame.select(keys).select(pl.all().to_physical()):
        if key.null_count() == len(key):
            continue
        low, high = int(key.min()), int(key.max())  # type: ignore[arg-type]
        size = high - low + 2
        combinations *= size
        if combinations > MOST_COMBINATIONS:
            return frame.select(texts.cast(dtype)).to_series()
        code *= size
        code += (key - low + 1).fill_null(0).to_numpy()
    row = np.full(combinations, -1)
    row[code] = np.arange(frame.height)
    used = np.flatnonzero(row >= 0)
    index = np.zeros(combinations, np.uint32)
    index[used] = np.arange(len(used), dtype=np.uint32)
    return frame[row[used]].select(texts.cast(dtype)).to_series().gather(index[code])
