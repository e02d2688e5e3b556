"""How much of a run's time is due to stragglers, by type of operation, replica, stage and rank.

The metrics of "Understanding Stragglers in Large Model Training Using What-if Analysis" (OSDI'25, arXiv 2505.05713), on
the measured graph. A step is replayed without delays with the lengths that its operations had, and again with ideal
ones: the mean of their type, of communication the median. The quotient is the slowdown S. With everything ideal but
one part, the slowdown is that part's share.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import polars as pl

from trace_export.analysis.typical import Typical
from trace_export.model import INT, REAL, STEP_KEY, TEXT, Schema
from trace_export.steps.graph import OPTIMIZER, POINT, TRANSFER, WORK, Flags, Floats, Graph, Ints, of_parts
from trace_export.steps.replay import Replay

SLOWEST_PERCENT = 3
"""M_W is the cost of the slowest 3 % of the ranks (the study's share)."""

PARTS: Schema = {"part": TEXT, "name": TEXT, "rank": INT, "stage": INT, "replica": INT, "slowdown": REAL}
"""The slowdown of a part with all else ideal: `part` is type, replica, stage or rank; the columns say which."""


@dataclass(frozen=True)
class Slowdown:
    """`total`: S. `parts` has the columns of `PARTS`. `last_stage` (M_S) and `slowest_ranks` (M_W): the share of the
    lost time that is won back with the last stage, or the slowest `SLOWEST_PERCENT` of the ranks, ideal; None where no
    time is lost. `steps`: run, step, slowdown."""

    total: float
    parts: pl.DataFrame
    last_stage: float | None
    slowest_ranks: float | None
    steps: pl.DataFrame


def slowdown(graph: Graph) -> Slowdown | None:
    """The slowdown of a run; None where no step has a length."""
    typical, replay = Typical(graph), Replay(graph, with_first=True).without_launches()
    if not len(replay.windows):
        return None
    actual, ideal, begin = typical.length, _ideal(typical), _common_starts(graph)
    members = _Members(typical)
    parts = list(_parts(typical, members))
    times = replay.step_lengths(
        [(actual, begin), (ideal, begin), *((np.where(of, actual, ideal), begin) for _, of in parts)]
    )
    mean = times.mean(axis=0)
    if not mean[1] > 0:
        return None
    of_parts = pl.DataFrame([row for row, _ in parts], schema=PARTS).with_columns(
        slowdown=pl.Series(mean[2:] / mean[1])
    )
    ranks = of_parts.filter(pl.col("part") == "rank").sort("slowdown", "rank", descending=[True, False])
    slowest = ranks["rank"].head(max(1, int(len(ranks) * SLOWEST_PERCENT / 100 + 0.5))).to_numpy()
    last = ranks.filter(pl.col("stage") == pl.col("stage").max())["rank"].to_numpy()
    repaired = replay.means([(np.where(members.all_of(some), ideal, actual), begin) for some in (last, slowest)])
    lost = float(mean[0] - mean[1])
    won = [float(mean[0] - each) / lost if lost > 0 else None for each in repaired]
    named = graph.recorded.steps[replay.windows.step].select(STEP_KEY).with_columns(
        actual=pl.Series(times[:, 0]), ideal=pl.Series(times[:, 1])
    )  # fmt: skip
    each = named.group_by(STEP_KEY, maintain_order=True).agg(slowdown=pl.col("actual").mean() / pl.col("ideal").mean())
    return Slowdown(float(mean[0] / mean[1]), of_parts, won[0], won[1], each)


class _Members:
    """The ranks that take part in each operation."""

    def __init__(self, typical: Typical) -> None:
        graph, count = typical.graph, len(typical.graph)
        alone = np.flatnonzero(graph.sort <= OPTIMIZER)
        moved, of_member = np.flatnonzero(graph.sort == TRANSFER), of_parts(graph.recorded, graph.sort)
        members = graph.recorded.parts["rank"].to_numpy()
        self._operation = np.concatenate([alone, moved, moved, of_member])
        self._rank = np.concatenate([graph.rank[alone], graph.src[moved], graph.dst[moved], members])
        self._sizes, self._count = np.bincount(self._operation, minlength=count), count

    def any_of(self, ranks: Ints) -> Flags:
        """The operations in which one of the ranks takes part."""
        return self._in(ranks) > 0

    def all_of(self, ranks: Ints) -> Flags:
        """Those in which no other does."""
        alone: Flags = (self._in(ranks) == self._sizes) & (self._sizes > 0)
        return alone

    def _in(self, ranks: Ints) -> Ints:
        return np.bincount(self._operation[np.isin(self._rank, ranks)], minlength=self._count)


def _common_starts(graph: Graph) -> Floats:
    """No delays, except that operations that wait for nothing start with their step."""
    free = np.ones(len(graph), np.bool_)
    free[graph.waits.of] = False
    rows = np.flatnonzero(free & (graph.step >= 0))
    begin = np.full(len(graph.recorded.steps), np.iinfo(np.int64).max)
    np.minimum.at(begin, graph.step[graph.step >= 0], graph.start[graph.step >= 0])
    delays = np.zeros(len(graph))
    delays[rows] = begin[graph.step[rows]] - graph.start[rows]
    return delays


def _ideal(typical: Typical) -> Floats:
    """The mean length of each type of block, the median of each type of communication. A backward whose weight gradient
    is a block of its own is a type apart."""
    graph, lengths = typical.graph, typical.length.copy()
    for kind in np.unique(graph.kind):
        of = (graph.kind == kind) & graph.counted
        if of.any():
            block = graph.sort[np.flatnonzero(of)[0]] in (WORK, OPTIMIZER)
            lengths[of] = typical.length[of].mean() if block else np.median(typical.length[of])
    return lengths


def _parts(typical: Typical, members: _Members) -> Iterator[tuple[dict[str, object], Flags]]:
    """The rows of `PARTS`, and the operations that are as long as they were in each."""
    graph, ranks = typical.graph, typical.graph.recorded.ranks
    for number in np.unique(graph.kind[graph.sort != POINT]).tolist():
        yield {"part": "type", "name": graph.kinds[number]}, graph.kind == number
    for part in ("replica", "stage", "rank"):
        for (number,), rows in ranks.sort(part).group_by(part, maintain_order=True):
            row = rows.row(0, named=True) if part == "rank" else {part: number}
            place = {name: row.get(name) for name in ("rank", "stage", "replica")}
            yield {"part": part, "name": str(number), **place}, members.any_of(rows["rank"].to_numpy())
