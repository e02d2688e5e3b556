"""How many of something there are at a time, as the counters of a chart show it."""

from __future__ import annotations

import numpy as np
import polars as pl
from numpy.typing import NDArray


def running_count(begun: NDArray[np.int64], ended: NDArray[np.int64]) -> pl.DataFrame:
    """ts_ns, value: how many have begun and not ended, from each moment on at which that changes.

    `begun` and `ended` are times in any order; they are sorted the sooner the more of them stand in order.
    """
    times = np.concatenate([begun, ended])
    order = np.argsort(times, kind="stable")
    changes = np.where(order < len(begun), np.int8(1), np.int8(-1))
    moments, counts = times[order], np.cumsum(changes, dtype=np.int32)
    last = np.append(moments[1:] != moments[:-1], True)[: len(moments)]  # of those at one moment
    moments, counts = moments[last], counts[last]
    changed = np.diff(counts, prepend=np.int32(-1)) != 0
    return pl.DataFrame({"ts_ns": moments[changed], "value": counts[changed]})
