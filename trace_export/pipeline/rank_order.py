"""Stages of ranks from the sizes of the parallel dimensions: how ranks count through tp, cp, dp and pp."""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from trace_export.errors import UsageError
from trace_export.model import Declared, RankOrder
from trace_export.pipeline.stages_from_work import Inference

ORDERS: tuple[RankOrder, RankOrder] = ("tp-cp-dp-pp", "tp-cp-pp-dp")
"""The order of most frameworks, and the other that Megatron-LM has (use_tp_pp_dp_mapping). A reader that knows which
one its framework has declares it (`Declared.rank_order`)."""

MOST = 0.75
FEW = 4
"""For another order of ranks than the usual one to be believed, `MOST` of them must do the work of their stage; where
times had to tell what that is, all of them, and no fewer than `FEW`."""


@dataclass(frozen=True)
class Counts:
    """How many ranks there are in each dimension: `pp` stages of `per_stage` ranks, of which `tp` (None: not known) and
    `cp` split the model."""

    pp: int
    per_stage: int
    tp: int | None
    cp: int


def places_by_sizes(
    ranks: pl.DataFrame, sizes: Declared, origin: str, inferred: Inference | None, order: RankOrder | None
) -> tuple[pl.DataFrame | None, bool]:
    """rank, stage, dp, tp, cp and origin in the rank `order` that is declared, else in the usual one, or where the work
    of most ranks fits it better, in the other; None where the number of stages is not known. And whether it is the
    other.

    Raises UsageError when sizes of the user (`origin` user-specified) do not divide the ranks.
    """
    counts = count(ranks["rank"], sizes, by_user=origin == "user-specified")
    if counts is None:
        return None, False
    usual = places(ranks["rank"], counts, order or ORDERS[0], origin)
    if usual is None or inferred is None or order is not None:
        return usual, False
    other = places(ranks["rank"], counts, ORDERS[1], "inferred" if origin == "assumed" else origin)
    if other is None:
        return usual, False
    fitting = [_fitting(each, inferred.stages, sizes.pp) for each in (usual, other)]
    enough = MOST * len(inferred.stages) if inferred.exact else max(len(inferred.stages), FEW)
    return (other, True) if fitting[1] > fitting[0] and fitting[1] >= enough else (usual, False)


def count(ranks: pl.Series, sizes: Declared, *, by_user: bool) -> Counts | None:
    """How many ranks each dimension has, where `sizes` and the number of `ranks` say it.

    What the other sizes leave of a stage's ranks is the size of tp, or where that is known, of cp. Raises UsageError
    when the sizes, given `by_user`, do not divide the ranks.
    """
    world = int(ranks.to_numpy().max()) + 1 if len(ranks) else 0
    given = (sizes.tp or 1) * (sizes.cp or 1) * (sizes.dp or 1)
    if sizes.pp is None and (sizes.tp is None or sizes.dp is None):
        return None
    pp = sizes.pp or max(world // given, 1)
    if world % (pp * given) and len(ranks) == world > pp * given:  # of fewer, some may be lost
        if by_user:
            raise UsageError(
                f"{world} ranks cannot be divided into {pp} stages of {given} ranks", "check --pp, --tp, --dp and --cp"
            )
        return None
    per_stage = max(-(-world // pp), given)
    left = per_stage // given if sizes.dp else None
    tp = sizes.tp or left or (1 if per_stage == 1 else None)
    cp = sizes.cp or (left if sizes.tp else None) or 1
    return Counts(pp, per_stage, tp, cp)


def places(ranks: pl.Series, counts: Counts, order: RankOrder, origin: str) -> pl.DataFrame | None:
    """rank, stage, dp, tp, cp (null where tp is not known) and origin of `ranks` in an order of ranks; None where the
    stage depends on tp and that is not known: the shape of the work knows better."""
    stages_last = order == "tp-cp-dp-pp"
    if counts.tp is None and not stages_last:
        return None
    rank, tp = pl.col("rank"), counts.tp or 1
    inner = tp * counts.cp
    replica, within = rank // (inner * counts.pp), rank % inner
    place = rank % counts.per_stage if stages_last else within + replica * inner
    known = counts.tp is not None
    return ranks.to_frame("rank").select(
        "rank",
        stage=rank // counts.per_stage if stages_last else rank // inner % counts.pp,
        dp=place // inner if known else pl.lit(None, pl.Int32),
        tp=place % tp if known else pl.lit(None, pl.Int32),
        cp=place // tp % counts.cp if known else pl.lit(None, pl.Int32),
        origin=pl.lit(origin),
    )


def _fitting(places: pl.DataFrame, seen: pl.DataFrame, depth: int | None) -> int:
    """How many ranks do the work of their stage: as counted from the first stage that was `seen`, or from the last."""
    both = places.join(seen, on="rank", suffix="_seen")
    counted = both["stage_seen"], (depth or 0) - 1 - both["after"]
    return max(int((both["stage"] == stage).sum()) for stage in counted)
