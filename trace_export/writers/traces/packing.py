"""Records of several fixed sizes in the order of their rows, for both trace encoders.

The encoders are written by hand because they make whole columns of records at a time: about a hundred times as fast as
Perfetto's builder and eight times as fast as orjson on dicts (tests/benchmarks/bench_encoder.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

import numpy as np
import polars as pl
from numpy.typing import NDArray

Words = NDArray[np.uint64]
Rows = NDArray[np.intp] | slice
Build = Callable[[Rows, int], Words]
"""(rows of one shape, one of them) → their records as an array (rows, words)."""

BATCH_ROWS: Final = 1 << 18
"""Rows whose columns are prepared at a time: Polars works best on many."""
TILE_ROWS: Final = 1 << 15
"""Rows encoded at a time: the temporaries of a tile stay in the processor's cache."""

_LIMIT: Final = 1 << 62


def raw(words: Words) -> memoryview:
    """The bytes of an array, not copied."""
    return words.data.cast("B")


def batches(frame: pl.DataFrame) -> Iterator[pl.DataFrame]:
    """`frame` in parts of `BATCH_ROWS` rows."""
    for at in range(0, len(frame), BATCH_ROWS):
        yield frame.slice(at, BATCH_ROWS)


def is_text(column: pl.Series) -> bool:
    return isinstance(column.dtype, (pl.String, pl.Categorical, pl.Enum))


def distinct(texts: pl.Series) -> tuple[NDArray[np.unsignedinteger[Any]], NDArray[np.intp], list[str]]:
    """(a code per row, each code's place among the distinct texts, these by alphabet); null has any code."""
    filled = texts.drop_nulls()
    if filled.dtype == pl.String:
        # Categories of their own are forgotten with the series; the common ones would be kept as long as the process.
        filled = filled.cast(pl.Categorical(pl.Categories.random()))
    physical = filled.to_physical()
    codes = physical.to_numpy()
    counts = np.bincount(codes, minlength=1)
    used = np.flatnonzero(counts)
    words = pl.Series(used).cast(physical.dtype).cat.to(filled.dtype).cast(pl.String)
    order = words.arg_sort().to_numpy()
    index = np.zeros(len(counts), np.intp)
    index[used[order]] = np.arange(len(used))
    if len(filled) < len(texts):
        of_known, codes = codes, np.zeros(len(texts), codes.dtype)
        codes[texts.is_not_null().to_numpy()] = of_known
    return codes, index, words.gather(order).to_list()


def filled(numbers: pl.Series) -> NDArray[Any]:
    """The values of a column, 0 for null."""
    return (numbers.fill_null(0) if numbers.null_count() else numbers).to_numpy()


class Shapes:
    """A number per row that is equal where rows have records of the same shape, made up of one class per column."""

    def __init__(self, rows: int) -> None:
        self._key = np.zeros(rows, np.int64)
        self._range = 1

    def add(self, classes: NDArray[np.integer] | NDArray[np.bool_], count: int) -> None:
        """Tells rows apart by `classes`, whole numbers below `count`."""
        if (classes == classes[:1]).all():
            return
        if self._range * count >= _LIMIT:
            keys, self._key = np.unique(self._key, return_inverse=True)
            self._range = len(keys)
        self._key = self._key * count + classes
        self._range *= count

    def interleave(self, build: Build) -> Words:
        """The records that `build` makes for the rows of each shape, in the order of the rows."""
        if self._range == 1:
            return build(slice(None), 0).reshape(-1)
        few = self._range <= len(self._key)
        made = []
        sizes = np.empty(len(self._key), np.int64)
        for shape in np.flatnonzero(np.bincount(self._key)) if few else np.unique(self._key):
            rows = np.flatnonzero(self._key == shape)
            records = build(rows, int(rows[0]))
            sizes[rows] = records.shape[1]
            made.append((rows, records))
        starts = np.cumsum(sizes) - sizes
        out = np.empty(int(sizes.sum()), np.uint64)
        for rows, records in made:
            _scatter(records, starts[rows], out)
        return out


def _scatter(records: Words, starts: NDArray[np.int64], out: Words) -> None:
    """Puts each record into `out` from its start on. As one item each, records are copied four times as fast as their
    words by an index of each."""
    count = records.shape[1]
    whole = np.dtype((np.void, records.itemsize * count))
    windows = np.ndarray(len(out) - count + 1, whole, out, strides=(out.itemsize,))
    windows[starts] = records.view(whole)[:, 0]
