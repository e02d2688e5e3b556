"""What a rank did before a recording began: its share in the first steps."""

from __future__ import annotations

import numpy as np

from trace_export.ordering import distinct, rows_of
from trace_export.steps.graph import OPTIMIZER, Floats, Graph, Ints

OPENS = 0.03
"""From this share of a step on a rank begins its segment late."""


def from_before(graph: Graph, late: Floats) -> tuple[Floats, Ints]:
    """How much of what operations are `late` by is for what their rank did before the recording, and the steps that
    begin so.

    A rank may begin the first step of a segment late, because something was still at work in a step that was not
    recorded, as a long optimizer. In the other steps it is not late, for they show that work: it begins them as long
    after the first rank as the first step. What it is later by than in these, nobody knows the cause of. A rank that is
    at least half as late in most steps is so for itself, and so is one that begins the other steps sooner. If each step
    has a zero of its own, a rank begins a step as much later than its peers as it ended the step before.
    """
    steps, ranks = len(graph.recorded.steps), graph.recorded.ranks["rank"].to_numpy()
    before, blocks = np.zeros(len(graph)), np.flatnonzero(graph.first)
    share = np.zeros((len(ranks), steps))
    row, step, start = np.searchsorted(ranks, graph.rank[blocks]), graph.step[blocks], graph.start[blocks]
    begin = np.full((len(ranks), steps), np.iinfo(np.int64).min)
    begin[row, step] = start
    began, latest = np.full(steps, np.iinfo(np.int64).max), np.full(steps + 1, np.iinfo(np.int64).min)
    np.minimum.at(began, step, start)
    np.maximum.at(latest, step, start)
    rows = np.flatnonzero((late > 0) & (graph.rank >= 0) & (graph.start <= latest[graph.step]))
    row = np.searchsorted(ranks, graph.rank[rows])
    opening = graph.start[rows] <= begin[row, graph.step[rows]]
    rows, row = rows[opening], row[opening]
    by = np.bincount(row * steps + graph.step[rows], late[rows], begin.size).reshape(begin.shape)
    segment, unsure = graph.recorded.steps["segment"].to_numpy(), []
    after = begin - began
    bounds = np.flatnonzero(np.diff(segment, prepend=-1, append=-1))
    apart = len(bounds) == steps + 1  # each step has a zero of its own
    behind = _behind_before(graph) if apart else np.zeros(begin.shape, np.int64)
    for first, end in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
        if not by[:, first].any():
            continue
        if end - first == 1:
            excess = np.minimum(by[:, first], behind[:, first])
        else:
            others = np.median(by[:, first + 1 : end], axis=1)
            excess = by[:, first] - others
            excess[(excess < OPENS * (began[first + 1] - began[first])) | (excess < others)] = 0
            sooner = after[:, first] - np.median(after[:, first + 1 : end], axis=1)
            excess[sooner > excess / 2] = 0
            if excess.any():
                unsure.append(first)
        share[:, first] = excess / np.maximum(by[:, first], 1)
    before[rows] = late[rows] * share[row, graph.step[rows]]
    return before, np.array(unsure, np.int64)


def _behind_before(graph: Graph) -> Ints:
    """Rank × step: how long after the first rank of its stage each rank ended the step before; 0 where that was not
    recorded."""
    blocks, never = np.flatnonzero((graph.sort <= OPTIMIZER) & (graph.step >= 0)), np.iinfo(np.int64).max
    ranks, stages = graph.recorded.ranks["rank"].to_numpy(), graph.recorded.ranks["stage"].to_numpy()
    numbers, stage = distinct(stages)
    ended = np.full((len(ranks), len(graph.recorded.steps)), -1)
    at = rows_of(ranks, graph.rank[blocks]) * ended.shape[1] + graph.step[blocks]
    np.maximum.at(ended.reshape(-1), at, graph.end[blocks])
    earliest = np.full((len(numbers), ended.shape[1]), never)
    for row, of_rank in zip(stage.tolist(), ended, strict=True):
        np.minimum(earliest[row], np.where(of_rank < 0, never, of_rank), out=earliest[row])
    behind = np.where(ended < 0, 0, ended - earliest[stage])
    follows = np.diff(graph.recorded.steps["step"].fill_null(-1).to_numpy()) == 1
    before: Ints = np.zeros_like(behind)
    before[:, 1:] = np.where(follows, behind[:, :-1], 0)
    return before
