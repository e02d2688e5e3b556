"""Records of several fixed sizes, put into the order of their rows: what both trace encoders share."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import numpy as np
import polars as pl
from numpy.typing import NDArray

Words = NDArray[np.uint64]
Rows = NDArray[np.intp] | slice
Build = Callable[[Rows, int], Words]
"""(rows of one shape, one of them) → their records as an array (rows, words)."""

BLOCK: Final = 1 << 18
"""Rows whose columns are made ready at a time: Polars works best on many."""
CHUNK: Final = 1 << 15
"""Rows encoded at a time: the temporaries of a chunk stay in the processor's cache."""

_THREADS: Final = min(4, os.cpu_count() or 1)

_LIMIT: Final = 1 << 62


def raw(words: Words) -> memoryview:
    """The bytes of an array, not copied."""
    return words.data.cast("B")


def blocks(frame: pl.DataFrame) -> Iterator[pl.DataFrame]:
    """`frame` in pieces of `BLOCK` rows."""
    for at in range(0, len(frame), BLOCK):
        yield frame.slice(at, BLOCK)


def encoded(rows: int, at_once: int, encode: Callable[[slice], Words]) -> Iterator[Words]:
    """What `encode` makes of each `at_once` of so many rows, in order; numpy lets several threads work at a time."""
    pieces = [slice(at, min(at + at_once, rows)) for at in range(0, rows, at_once)]
    if len(pieces) == 1:
        yield encode(pieces[0])
        return
    with ThreadPoolExecutor(_THREADS) as pool:
        yield from pool.map(encode, pieces)


def distinct(texts: pl.Series) -> tuple[NDArray[np.intp], list[str]]:
    """Each row's place among the distinct texts, and these in the order of their first rows; null has any place."""
    if texts.dtype == pl.String:
        # Categories of their own are forgotten with the series; the common ones would be kept as long as the process.
        texts = texts.cast(pl.Categorical(pl.Categories.random()))
    codes = texts.to_physical().fill_null(0).to_numpy()
    rows = np.flatnonzero(texts.is_not_null().to_numpy()) if texts.null_count() else np.arange(len(texts))
    first = np.full(int(codes.max(initial=0)) + 1, len(texts))
    first[codes[rows[::-1]]] = rows[::-1]  # of several rows with one code the last assignment counts
    found = np.argsort(first)[: np.count_nonzero(first < len(texts))]
    place = np.zeros(len(first), np.intp)
    place[found] = np.arange(len(found))
    return place[codes], texts.gather(first[found]).cast(pl.String).to_list()


class Shapes:
    """A number per row that is equal where rows have records of the same shape, made up of one class per column."""

    def __init__(self, rows: int) -> None:
        self._key = np.zeros(rows, np.int64)
        self._range = 1

    def add(self, classes: NDArray[np.integer] | NDArray[np.bool_], count: int) -> None:
        """Tells rows apart by `classes`, whole numbers below `count`."""
        if self._range * count >= _LIMIT:
            found, self._key = np.unique(self._key, return_inverse=True)
            self._range = len(found)
        self._key = self._key * count + classes
        self._range *= count

    def interleave(self, build: Build) -> Words:
        """The records that `build` makes for the rows of each shape, in the order of the rows."""
        if self._range == 1:
            return build(slice(None), 0).reshape(-1)
        found, first, which = np.unique(self._key, return_index=True, return_inverse=True)
        if len(found) == 1:
            return build(slice(None), 0).reshape(-1)
        sizes = np.empty(len(which), np.int64)
        blocks = []
        for shape, example in enumerate(first.tolist()):
            rows = np.flatnonzero(which == shape)
            block = build(rows, example)
            sizes[rows] = block.shape[1]
            blocks.append((rows, block))
        starts = np.cumsum(sizes) - sizes
        out = np.empty(int(sizes.sum()), np.uint64)
        for rows, block in blocks:
            out[starts[rows][:, None] + np.arange(block.shape[1])] = block
        return out
