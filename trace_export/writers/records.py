"""Records of several fixed sizes, put into the order of their rows: what both trace encoders share."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Words = NDArray[np.uint64]
Rows = NDArray[np.intp] | slice
Build = Callable[[Rows, int], Words]
"""(rows of one shape, one of them) → their records as an array (rows, words)."""

_LIMIT = 1 << 62


def raw(words: Words) -> memoryview:
    """The bytes of an array, not copied."""
    return words.data.cast("B")


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
