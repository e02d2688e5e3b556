"""The processes of a source by the start of the job that they are of: a launcher that was recorded starts its ranks
again where one of them has died."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import polars as pl

PAUSE_NS = 10**9
"""A job is not started again within this."""


def in_starts(
    processes: Sequence[int], blocks: Iterable[pl.DataFrame], ranks_of: Callable[[list[int]], pl.DataFrame]
) -> list[list[int]]:
    """The `processes` of each start, the oldest first. `blocks`: rows with process, start, end; `ranks_of`: the rows of
    RANKS of some processes, where no others are.

    Processes that are at work at the same time are of one start. Those that begin after all before them have ended are
    of the next one where they are the same ranks, or where these are not recorded run the same devices. Example, where
    a and b are ranks 0 and 1, and so are c and d:

        a ────   c ────
        b ────     d ───      → [a, b], [c, d]
    """
    if len(processes) < 2:
        return [list(processes)]
    extents = pl.concat([rows.select("process", "start", "end") for rows in blocks]).group_by("process")
    times = extents.agg(pl.col("start").min(), pl.col("end").max()).filter(pl.col("process").is_in(list(processes)))
    starts: list[list[int]] = []
    ended = 0
    for process, begin, end in times.sort("start", "process").iter_rows():
        if starts and begin < ended + PAUSE_NS:
            starts[-1].append(process)
        else:
            starts.append([process])
        ended = max(ended, end)
    if len(starts) < 2:
        return [list(processes)]
    apart = [starts[0]]
    for later in starts[1:]:
        if _are_alike(ranks_of(apart[-1]), ranks_of(later)):
            apart.append(later)
        else:
            apart[-1] += later
    without_blocks = set(processes) - set(times["process"])
    apart[-1] += sorted(without_blocks)
    return [sorted(start) for start in apart]


def _are_alike(before: pl.DataFrame, after: pl.DataFrame) -> bool:
    """Whether a rank of both is the same."""
    one, other = ({*ranks.filter(rank_origin="recorded")["rank"]} for ranks in (before, after))
    if one and other:
        return not one.isdisjoint(other)
    devices = [ranks["device"].fill_null(-1) for ranks in (before, after)]
    return not set(devices[0]).isdisjoint(devices[1])
