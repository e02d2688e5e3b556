"""Which block's result another one takes: the way of a micro-batch through the virtual stages of the model.

The edges of a recorded run, which its arrows show, and those of a schedule's model come from here.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]

LARGEST_KEY = 1 << 62


def data_edges(forward: npt.NDArray[np.bool_], same: Sequence[Ints], virtual: Ints) -> tuple[Ints, Ints]:
    """The producer and the consumer of each edge, as rows of the arguments.

    The forward of the next virtual stage takes the result of a forward, the backward of the one before that of a
    backward, where all numbers of `same` (step, replica, micro-batch, …) are equal. A row is a forward or a backward;
    `virtual`: its stage along the way of the data, as `schedule.virtual_stage` counts. Of rows that are one pass in
    several blocks, the first takes the input and the last gives the result. O(n log n).

    Example: rows 0 to 3 are micro-batch 0 on two stages: F of stage 0, F of stage 1, B of stage 1, B of stage 0. Row 1
    takes the result of row 0, and row 3 that of row 2.
    """
    if not len(virtual):
        return virtual, virtual
    key = _keys([forward.astype(np.int64), *same, virtual])
    # Blocks one virtual stage apart have keys one apart, so neighbours in order of the key are the edges. A backward
    # takes the result of the higher key, so its blocks stand the other way round.
    rows = np.concatenate([np.flatnonzero(forward), np.flatnonzero(~forward)[::-1]])
    order = rows[np.argsort(key[rows], kind="stable")]
    near, far = order[:-1], order[1:]
    linked = key[far] == key[near] + 1
    near, far = near[linked], far[linked]
    onward = forward[near]
    return np.where(onward, near, far), np.where(onward, far, near)


def _keys(parts: Sequence[Ints]) -> Ints:
    """One number for all `parts` of each row, which the last one counts up by one.

    Numbers in between are left free, so that a last virtual stage is never one below the first of something else.
    """
    key, reach = np.zeros_like(parts[-1]), 1
    for part in parts:
        number = _close(part)
        size = int(number.max()) + 2
        if reach * size > LARGEST_KEY:  # as numbers from a damaged file may be: only equality counts so far
            distinct, key = np.unique(key, return_inverse=True)
            reach = len(distinct)
        key *= size  # in place: a fresh array of a million costs more than to calculate
        key += number
        reach *= size
    return key


def _close(part: Ints) -> Ints:
    """`part` counted from 0, where it is spread wide with its gaps narrowed to one number."""
    least = int(part.min())
    if int(part.max()) - least < 1 << 24:
        return part - least if least else part
    values, index = np.unique(part, return_inverse=True)
    return np.append(0, np.cumsum(np.minimum(np.diff(values), 2)))[index]
