"""How the lengths of a rank's blocks differ from one another, beside those of its peers."""

from __future__ import annotations

import numpy as np

from trace_export.ordering import packed
from trace_export.steps.graph import Flags, Floats, Ints


class Spread:
    """The lengths of blocks, `rows` of a graph: each with its `rank` (a row of the ranks), its `unit`, and how many
    times as long as in others all blocks of its step are (`common`); `stage` is that of each rank."""

    def __init__(self, rows: Ints, lengths: Floats, common: Floats, rank: Ints, unit: Ints, stage: Ints) -> None:
        order = np.lexsort((lengths / common, unit, rank))
        first = np.flatnonzero(np.diff(packed(rank[order], unit[order]), prepend=-1))
        self._rank, self._unit, self._stage = rank[order[first]], unit[order[first]], stage
        self._rows, self._lengths, self._common = (np.split(x[order], first[1:]) for x in (rows, lengths, common))

    def as_peers(self, ranks: Ints, others: Flags) -> tuple[Ints, Floats]:
        """The blocks of `ranks`, and by how much each would be longer if they differed from one another as on the
        middle one of their peers, with the same mean: the longest as much as the longest there, and so on. A block that
        is long because its process has stopped is then as long as others. Peers are the `others` of the stage, or if it
        has none all of them."""
        cells, middles = np.flatnonzero(np.isin(self._rank, ranks)).tolist(), dict[tuple[int, int, int], Floats]()
        ratios: list[Floats] = []
        for cell in cells:
            lengths, common = self._lengths[cell], self._common[cell]
            key = int(self._stage[self._rank[cell]]), int(self._unit[cell]), len(lengths)
            if key not in middles:
                middles[key] = self._middle(*key, others)
            as_there = middles[key] * common if len(middles[key]) else lengths
            as_there = as_there * (lengths.sum() / max(float(as_there.sum()), 1.0))
            ratios.append(as_there / np.maximum(lengths, 1.0))
        rows = [self._rows[cell] for cell in cells]
        return np.concatenate([np.empty(0, np.int64), *rows]), np.concatenate([np.empty(0), *ratios])

    def _middle(self, stage: int, unit: int, count: int, others: Flags) -> Floats:
        """`count` lengths of the middle peer, from short to long; none where there is no peer."""
        alike = (self._unit == unit) & others[self._rank]
        near = alike & (self._stage[self._rank] == stage)
        peers = np.flatnonzero(near if near.any() else alike).tolist()
        if not peers:
            return np.empty(0)
        each = [self._lengths[peer] / self._common[peer] for peer in peers]
        of_count = np.array([np.interp(_places(count), _places(len(x)), x) for x in each])
        middle: Floats = np.quantile(of_count, 0.5, axis=0, method="lower").astype(np.float64)
        return middle


def _places(count: int) -> Floats:
    """Where values that are sorted lie between the least and the most, as shares."""
    places: Floats = (np.arange(count) + 0.5) / count
    return places
