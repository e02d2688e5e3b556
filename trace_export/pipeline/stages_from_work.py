"""Infer the stage of a rank that nothing declares from the order of its blocks: how many stages come after it.

All times are of one rank's clock, so it does not matter how wrong the clocks of the hosts are:

- a rank starts its first backward after as many forwards as stages follow it (1F1B and its relatives; twice as many in
  Eager 1F1B and interleaved orders);
- where all forwards come first (GPipe), it waits for its first backward one forward and backward longer per stage that
  follows it; where the traces say whom a rank exchanges data with, the ranks form a chain that begins with it;
- where the chunks lie in a V, the data come back to it later the more stages follow it: in DualPipeV and ZBV after one
  forward and two more for each.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import polars as pl

from trace_export.model import Declared, Profile
from trace_export.pipeline.rank_order import arrangements
from trace_export.pipeline.work_shape import measure, with_chunks

RUNS_SAMPLED = 32
"""This many runs are looked at, those with blocks of the most ranks: a log may hold thousands of restarts."""

GOES_ON = 0.9
"""The last stage goes on to its first backward at once. A rank that waits for this share of a forward is not the last:
each later stage takes a backward at least."""

BY_WARM_UP = "how many forwards each rank runs before its first backward"
BY_WAIT = "how long each rank waits for its first backward"

Neighbours = dict[int, set[int]]
"""The ranks that each rank exchanges data with."""


@dataclass(frozen=True)
class Inference:
    """`stages`: rank, stage, and how many stages come `after`. `how` says what it was seen from; `exact` whether counts
    alone say so, without times. `behind`: how many stages follow the last of these, where that can be seen too.
    `deeper`: the last one waits for its first backward, as if others followed."""

    stages: pl.DataFrame
    how: str
    exact: bool
    behind: int | None
    deeper: bool


def of_profile(profile: Profile) -> Inference | None:
    """The stage of every rank of a profile that has blocks, or None where nothing shows it."""
    continued = bool(profile.declared.numbers_continue)
    return infer(profile.spans, profile.p2p.select("rank", "peer").unique(), continued=continued)


def infer(spans: pl.DataFrame, peers: pl.DataFrame | None = None, *, continued: bool = False) -> Inference | None:
    """The stage of every rank that has blocks, or None where their order says nothing. Needs no labels but `kind`.

    Each of the `RUNS_SAMPLED` fullest runs is looked at on its own; counts take precedence over whom ranks exchange
    data with (`peers`: rank, peer), and these over times. `continued`: the forwards count on over two chunks that lie
    in a V (`Declared.numbers_continue`).
    """
    neighbours = _neighbours(peers)
    of_runs = _fullest_runs(spans)
    inferences = [_infer(measure(with_chunks(run) if continued else run), neighbours, vee=continued) for run in of_runs]
    usable = [inference for inference in inferences if inference is not None]
    return min(usable, key=lambda i: (-len(i.stages), not i.exact), default=None)


def _fullest_runs(spans: pl.DataFrame) -> list[pl.DataFrame]:
    """The blocks of each of the `RUNS_SAMPLED` fullest runs; a block without run counts as of the first."""
    spans = spans.with_columns(pl.col("run").fill_null(0))
    if spans["run"].n_unique() == 1:
        return [spans]
    sizes = spans.group_by("run").agg(ranks=pl.col("rank").n_unique(), blocks=pl.len())
    fullest = sizes.sort("ranks", "blocks", "run", descending=[True, True, False]).head(RUNS_SAMPLED)
    kept = spans.join(fullest, on="run", how="semi", maintain_order="left").sort("run", maintain_order=True)
    return kept.partition_by("run", maintain_order=True)


def _infer(shape: pl.DataFrame, neighbours: Neighbours, *, vee: bool) -> Inference | None:
    shape = shape.drop_nulls("unit_ns")
    folded = shape["before_second"].null_count() == 0 and (vee or shape["before_second"].n_unique() > 1)
    shape = shape if folded else shape.drop_nulls("warm_up")
    if shape.is_empty():
        return None
    threshold = shape.select(pl.col("unit_ns").median()).item() / 2  # np.median loads NumPy's masked arrays, 10 ms
    rank = shape["rank"].to_numpy()
    if folded:
        before_second = shape["before_second"].to_numpy().astype(np.int64)
        # A rank that runs all of them before the first of chunk 1 would run more if there were more.
        exact = bool((before_second % 2).all() and before_second.max() < shape["first"].to_numpy().max())
        how = "how many forwards of its first chunk each rank runs before one of its second"
        away = shape["away_ns"].to_numpy()
        if exact:
            after = _in_lanes(rank, before_second // 2, before_second, 0)
            exact = bool((after == before_second // 2).all())
        else:
            after = _in_lanes(rank, _clusters(away, threshold), away, threshold)
    else:
        after, how, exact = _by_warm_up(shape, threshold, neighbours)
    stage = _from_first(rank, after, exact)
    columns = {"rank": rank, "stage": stage, "after": after}
    waits = bool((shape["wait_ns"].to_numpy()[after == after.min()] > 2 * GOES_ON * threshold).all())
    is_sure = exact and (folded or (waits and after.min() > 0))
    return Inference(
        pl.DataFrame(columns, schema=dict.fromkeys(columns, pl.Int32)), how, exact,
        int(after.min()) if is_sure else None, deeper=waits and not folded and bool((shape["warm_up"] > 1).all()),
    )  # fmt: skip


def _by_warm_up(
    shape: pl.DataFrame, threshold: float, neighbours: Neighbours
) -> tuple[npt.NDArray[np.int64], str, bool]:
    """How many stages follow each rank, by its leading forwards; where it runs all forwards first, by whom it exchanges
    data with, or else by its wait.

    Example: with four micro-batches on four stages of two ranks under 1F1B, 4 4 3 3 2 2 1 1 leading forwards. Those
    with all four are as many as there are on each other stage, so they are one stage.
    """
    rank, wait = shape["rank"].to_numpy(), shape["wait_ns"].to_numpy()
    warm_up = shape["warm_up"].round().cast(pl.Int64).to_numpy()
    alike = warm_up.min() == warm_up.max() and warm_up.max() > 1
    full = (warm_up >= shape["forwards"].to_numpy()) | alike
    after = np.zeros(len(warm_up), np.int64)
    if full.all():
        if (along := _along_chains(rank, wait, neighbours)) is not None:
            return along, "whom each rank exchanges data with", False
        return _by_wait(rank, wait, threshold), BY_WAIT, False
    chunks = int(shape["chunks"].to_numpy().max())
    after[~full] = _stages_behind(warm_up[~full], chunks, shape["rank"].cast(pl.Int64).to_numpy()[~full])
    if not full.any():
        return after, BY_WARM_UP, True
    last = after[~full].max()
    if (steps := _hops_from(rank[full], rank[~full][after[~full] == last], neighbours)) is not None:
        after[full] = last + steps
        return after, f"{BY_WARM_UP}, and whom it exchanges data with", True
    by_count = bool((after[~full] == warm_up[~full] - 1).all())
    base = max(last + 1, warm_up[full].min() - 1) if by_count else last + 1  # this many follow; not all may be read
    sizes = np.unique(np.unique(after[~full], return_counts=True)[1])
    if by_count and len(sizes) == 1 and full.sum() == sizes[0]:
        after[full] = base
        return after, BY_WARM_UP, True
    after[full] = base + _clusters(wait[full], threshold)
    if len(rank) == rank.max() + 1 and (arranged := _arranged(rank, after, full, wait)) is not None:
        return arranged, f"{BY_WARM_UP}, and the order of ranks", True
    return after, BY_WAIT, False


def _arranged(
    rank: npt.NDArray[np.int32],
    after: npt.NDArray[np.int64],
    full: npt.NDArray[np.bool_],
    wait: npt.NDArray[np.float64],
) -> npt.NDArray[np.int64] | None:
    """How many stages follow each rank in the only arrangement of all ranks that has those whose `after` was counted
    (not `full`) on their stages, and the others, which have too few micro-batches for a count, before them. None where
    there is none, or where those others wait less the more stages follow.

    Example: 16 stages of 8 micro-batches under 1F1B: the first nine run all eight forwards first.
    """
    if (after[~full] < 0).any():
        return None  # a rank without a forward before its first backward: the capture begins inside a step
    numbers, by_rank = pl.Series(np.arange(len(rank), dtype=np.int32)), np.argsort(rank)
    counted, last = ~full[by_rank], int(after[~full].max())
    sizes = np.bincount(after[~full])
    fitting = []
    for arrangement in arrangements(numbers, Declared(tp=1), anywhere=True):
        stage = arrangement.places(numbers, "")["stage"].to_numpy().astype(np.int64)
        place = arrangement.pp - 1 - stage
        alike = (place[counted] == after[by_rank][counted]).all() and (place[~counted] > last).all()
        if alike and (sizes == arrangement.per_stage).all():
            fitting.append(place)
    if len(fitting) != 1:
        return None
    place, waits = fitting[0], wait[by_rank]
    middle = [float(np.median(waits[~counted & (place == n)])) for n in range(last + 1, int(place.max()) + 1)]
    rising = all(a <= b for a, b in pairwise(middle))
    return fitting[0][rank] if rising else None


def _by_wait(rank: npt.NDArray[np.int32], wait: npt.NDArray[np.float64], threshold: float) -> npt.NDArray[np.int64]:
    """How many stages follow each rank, by its wait alone."""
    return _in_lanes(rank, _clusters(wait, threshold), wait, threshold)


def _in_lanes(
    rank: npt.NDArray[np.int32],
    seen: npt.NDArray[np.int64],
    values: npt.NDArray[np.int64] | npt.NDArray[np.float64],
    threshold: float,
) -> npt.NDArray[np.int64]:
    """How many stages follow each rank, as `seen` from its value. Replicas are alike in that, unless one of them is
    slow: where the stages had unequally many ranks although none is missing, they are those of the deepest arrangement
    of ranks in which the value falls by more than the threshold from each stage of a replica to the next.

    Example: ranks 0 to 2 wait 12, 18 and 12 ms and ranks 3 to 5 hardly at all. Rank 1 is not a stage by itself.
    """
    if len(np.unique(np.unique(seen, return_counts=True)[1])) == 1 or len(rank) != rank.max() + 1:
        return seen
    numbers = pl.Series(np.arange(len(rank), dtype=np.int32))
    by_rank = values[np.argsort(rank)]
    for arrangement in arrangements(numbers, Declared(tp=1), anywhere=True):
        places = arrangement.places(numbers, "")
        after = arrangement.pp - 1 - places["stage"].to_numpy().astype(np.int64)
        lanes = by_rank[np.lexsort((after, places["dp"].to_numpy()))].reshape(-1, arrangement.pp)
        if arrangement.pp > 1 and (np.diff(lanes, axis=1) > threshold).all():
            return after[rank]
    return seen


def _neighbours(peers: pl.DataFrame | None) -> Neighbours:
    """The ranks that each rank exchanges data with."""
    neighbours: Neighbours = {}
    for rank, peer in () if peers is None else peers.drop_nulls().iter_rows():
        if rank != peer:
            neighbours.setdefault(rank, set()).add(peer)
            neighbours.setdefault(peer, set()).add(rank)
    return neighbours


def _hops_from(
    ranks: npt.NDArray[np.int32], start: npt.NDArray[np.int32], neighbours: Neighbours
) -> npt.NDArray[np.int64] | None:
    """How many steps each of the `ranks` is away from those at the `start`, from one that exchanges data with it to the
    next; None where one of them cannot be reached."""
    away = dict.fromkeys(start.tolist(), 0)
    left, edge, step = set(ranks.tolist()), list(away), 0
    while edge and left:
        step += 1
        edge = [rank for rank in left if not neighbours.get(rank, set()).isdisjoint(edge)]
        away |= dict.fromkeys(edge, step)
        left -= set(edge)
    return None if left else np.array([away[rank] for rank in ranks.tolist()], np.int64)


def _along_chains(
    rank: npt.NDArray[np.int32], wait: npt.NDArray[np.float64], neighbours: Neighbours
) -> npt.NDArray[np.int64] | None:
    """How many ranks follow each in its chain of ranks that exchange data, in which the first one waits the longest for
    its first backward; None where they do not form chains of one length."""
    waits, there = dict(zip(rank.tolist(), wait.tolist(), strict=True)), set(rank.tolist())
    near = {one: neighbours.get(one, set()) & there for one in waits}
    ends = {one for one, others in near.items() if len(others) == 1}
    after: dict[int, int] = {}
    lengths = set()
    while ends:
        chain = [ends.pop()]
        while following := near[chain[-1]] - set(chain[-2:]):
            if len(following) > 1 or len(chain) > len(near):
                return None
            chain.extend(following)
        ends.discard(chain[-1])
        lengths.add(len(chain))
        if waits[chain[0]] < waits[chain[-1]]:
            chain.reverse()
        after |= {one: len(chain) - 1 - place for place, one in enumerate(chain)}
    return np.array([after[one] for one in waits], np.int64) if len(lengths) == 1 and len(after) == len(near) else None


def _stages_behind(warm_up: npt.NDArray[np.int64], chunks: int, rank: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Leading forwards as a number of stages: they grow by one or by two from stage to stage.

    Example: 8, 6 and 4 on ranks 0, 1 and 2 are interleaved chunks on three stages; on ranks 0, 2 and 4 they may be
    1F1B, where ranks 1 and 3 were not read.
    """
    # With one chunk the last stage has one leading forward; with several it depends on the size of the groups.
    above, growth = warm_up - (1 if chunks == 1 else warm_up.min()), warm_up - warm_up.min()
    consecutive = rank.max() - rank.min() + 1 == len(np.unique(rank))
    if growth.any() and not (growth % 2).any() and consecutive and len(np.unique(rank + above)) > 1:
        return np.asarray(growth // 2, np.int64)  # of chunks that are unknown, whose number shifts all alike
    if (above % 2).any() or not above.any():
        return above
    # Differences of two mean Eager or interleaved order, or 1F1B with every second rank missing.
    alone = len(np.unique(rank + above)) == 1
    return above if alone and len(rank) > 1 else above // 2


def _clusters(values: npt.NDArray[np.float64], threshold: float) -> npt.NDArray[np.int64]:
    """The index of the group of like values that each value is in, smallest first."""
    order = np.argsort(values, kind="stable")
    index = np.concatenate([[0], np.cumsum(np.diff(values[order]) > threshold)])
    result = np.empty(len(values), np.int64)
    result[order] = index
    return result


def _from_first(rank: npt.NDArray[np.int64], after: npt.NDArray[np.int64], exact: bool) -> npt.NDArray[np.int64]:
    """Stages counted from the first, where `after` counts them from the last.

    One rank per stage, in rank order: then the stage is the rank's number, also when other ranks were not read.
    """
    in_order = bool((np.diff(after) < 0).all())
    if in_order and (not exact or len(np.unique(rank + after)) == 1):
        return rank.astype(np.int64)
    return np.asarray(after.max() - after, np.int64)
