"""The stage of a rank in the pipeline, and its number among the replicas of that stage.

Precedence: what the user specified, what the data record, the sizes that the data record, the shape of the work.
"""

from __future__ import annotations

from dataclasses import replace

import polars as pl

from trace_export.model import INT, RANKS, Declared, Note, Placement, Profile, conform
from trace_export.pipeline import stages_from_work, work_shape
from trace_export.pipeline.rank_order import BELIEVED_SHARE, SIZES, Arrangement, Seen, arrangements, best, of_user
from trace_export.pipeline.replicas import PLACE_COLUMNS, guess_replicas, number_replicas
from trace_export.schedules.catalogue import CATALOGUE, key_of

DEEPEST = 128
"""A pipeline may have this many times the stages that have a rank here: the deepest published one has 64 stages (arXiv
2104.04473), and perhaps only the ranks of one stage were read."""


def resolve(profile: Profile, user: Declared) -> Profile:
    """`profile` with ranks.stage, dp, tp, cp, replica and stage_origin filled, and the sizes of the user in `declared`.

    Notes say what was inferred or assumed, and where the sources contradict each other. Raises UsageError when the
    user's sizes do not divide the number of ranks.
    """
    ranks, declared = profile.ranks, profile.declared
    inferred = stages_from_work.of_profile(profile)
    recorded = ranks.select("rank", *PLACE_COLUMNS).with_columns(
        origin=pl.when(pl.col("stage").is_not_null()).then(ranks["stage_origin"].fill_null("recorded"))
    )
    by_work = None if inferred is None else inferred.stages.with_columns(origin=pl.lit("inferred"))
    by_user: pl.DataFrame | None = None
    notes: list[Note] = []
    if gives_sizes(user) and len(ranks):
        arrangement, by_user, notes = place_by_user(ranks, user, declared, seen(ranks, inferred))
        declared = replace(declared, **{name: getattr(arrangement.sizes, name) for name in SIZES})
    by_data = _by_data(ranks["rank"], declared, inferred) if by_user is None else None
    places = _first_of(ranks, [c for c in (by_user, recorded, by_data, by_work) if c is not None])
    if inferred is not None and inferred.exact:
        depth = declared.pp or _above(places["stage"])
        contradicted = _contradiction(places, inferred.stages, "the order of its blocks", depth)
        of_most = by_user is not None and sum(note.count for note in contradicted) > (1 - BELIEVED_SHARE) * len(
            inferred.stages
        )
        notes += contradicted if of_most or _all_numbered(profile.spans) else []
    slots = _slots(places)
    notes += _origins(
        places.join(recorded.drop_nulls("stage"), on="rank", how="anti"), inferred, ordered=slots is not None
    )
    places, guessed = guess_replicas(_rest_in_order(places), ranks, profile.spans, slots)
    merged = ranks.drop(*PLACE_COLUMNS, "stage_origin").join(places, on="rank", how="left", maintain_order="left")
    placed = number_replicas(conform(merged.rename({"origin": "stage_origin"}), RANKS))
    behind = None if inferred is None else inferred.behind
    by_depth = Declared(pp=None if behind is None else _above(placed["stage"]) + behind)
    declared = user.or_else(declared).or_else(by_depth)
    notes += [*guessed, *_absent_stages(placed, declared, user.pp)]
    if (user.pp or profile.declared.pp) is None:
        waits = inferred is not None and inferred.deeper and behind is None
        if _goes_on(placed, profile, waits=waits) or (waits and profile.p2p.is_empty()):
            declared = replace(declared, pp=None, deeper=True)
            how = "waits for its first backward as if others followed"
            if not profile.p2p.is_empty():
                how = "exchanges data with a later one"
            notes.append(_deeper_note(placed["stage"].n_unique(), how))
    return replace(profile, ranks=placed, declared=declared).with_notes(notes)


def gives_sizes(user: Declared) -> bool:
    """Whether the user says how many ranks there are in any dimension."""
    return any(getattr(user, name) is not None for name in SIZES)


def seen(ranks: pl.DataFrame, inferred: stages_from_work.Inference | None) -> Seen | None:
    """The stages of ranks as their profiles record them, else as their work shows them; None if neither does."""
    recorded = ranks.select("rank", "stage", after=pl.lit(None, INT)).drop_nulls("stage")
    if len(recorded):
        return Seen(recorded, exact=True)
    return None if inferred is None else Seen(inferred.stages, inferred.exact)


def place_by_user(
    ranks: pl.DataFrame, user: Declared, declared: Declared, evidence: Seen | None
) -> tuple[Arrangement, pl.DataFrame, list[Note]]:
    """The arrangement of `ranks` (rank, stage, dp, tp, cp, as recorded) by the sizes that the user gives, completed by
    those that are declared and by the evidence; the places in it (rank, stage, dp, tp, cp, origin), and notes on what
    contradicts the user. Raises UsageError when the sizes do not divide the ranks."""
    arrangement, unusual = of_user(ranks["rank"], user, declared, evidence)
    origin = "user-specified"
    if user.pp is None and (user.tp is None or user.dp is None):
        if evidence is None:
            origin = "assumed"
        elif evidence.fitting(arrangement) == len(evidence.stages):
            origin = "recorded" if ranks["stage"].count() else "inferred"
    placed = arrangement.places(ranks["rank"], origin)
    notes = [_order_note(arrangement)] if unusual else []
    recorded = ranks.select("rank", "stage").drop_nulls()
    notes += _contradiction(placed, recorded, "the profile")
    for name, column in zip(SIZES, ("stage", "tp", "dp", "cp"), strict=True):
        given, reached = getattr(user, name), _above(ranks[column])
        other = getattr(declared, name) or (reached if reached > (given or 0) else given)
        if given not in (None, other) and (name != "pp" or recorded.is_empty()):
            text = f"contradicting sizes: --{name} is {given}, and {other} by the profile"
            notes.append(Note("sizes-contradict", "warning", text))
    if arrangement.cp > 1 and user.cp is None and declared.cp is None:
        count, sizes = arrangement.pp * arrangement.per_stage, arrangement.sizes
        text = (
            f"contradicting sizes: {count} ranks are more than those of pp {sizes.pp}, tp {sizes.tp} and dp {sizes.dp}"
        )
        notes.append(Note("sizes-contradict", "warning", f"{text}, so cp is taken for {sizes.cp}"))
    return arrangement, placed, notes


def _by_data(ranks: pl.Series, declared: Declared, inferred: stages_from_work.Inference | None) -> pl.DataFrame | None:
    """The places by the sizes that the profile declares; None where the number of stages does not follow from them."""
    possible = arrangements(ranks, declared, anywhere=False)
    if not possible:
        return None
    chosen = best(possible, seen(pl.DataFrame(schema={"rank": INT, "stage": INT}), inferred))
    return chosen.places(ranks, "assumed" if chosen == possible[0] else "inferred")


def place_ranks(profile: Profile, places: pl.DataFrame) -> Profile:
    """`profile`, which is only a part of a run, with the places that its ranks have in the whole run. `places`: rank,
    stage, dp, tp, cp and origin (as `RANKS` has stage_origin). Sizes that the profile declares are those of the whole
    run too, and are left out."""
    of_rank = places.select("rank", *PLACE_COLUMNS, stage_origin="origin").unique("rank", keep="first")
    ranks = profile.ranks.drop(*PLACE_COLUMNS, "stage_origin").join(
        of_rank, on="rank", how="left", maintain_order="left"
    )
    declared = replace(profile.declared, pp=None, tp=None, dp=None, cp=None)
    return replace(profile, ranks=conform(ranks, RANKS), declared=declared)


def depth(ranks: pl.DataFrame, declared: Declared) -> int:
    """The number of stages of the pipeline: as declared, or up to the last stage of a rank if that is more; at least
    1."""
    return max(declared.pp or 1, _above(ranks["stage"]))


def chunk_placement(profile: Profile) -> Placement:
    """How the model chunks lie on the ranks: as declared, else as the order of the forwards shows, else a loop."""
    declared = profile.declared
    if (name := key_of(declared.schedule)) is not None:
        return CATALOGUE[name].placement
    continued = bool(declared.numbers_continue)
    return declared.placement or work_shape.placement(profile.spans, continued=continued) or "loop"


def _above(numbers: pl.Series) -> int:
    """One more than the greatest."""
    there = numbers.drop_nulls()
    return int(there.to_numpy().max()) + 1 if len(there) else 0


def _first_of(ranks: pl.DataFrame, candidates: list[pl.DataFrame]) -> pl.DataFrame:
    """rank, stage, dp, tp, cp, origin: for each rank the first candidate that has a stage; dp, tp, cp from anywhere."""
    joined = ranks.select("rank")
    for number, candidate in enumerate(candidates):
        named = candidate.rename({c: f"{c}{number}" for c in candidate.columns if c != "rank"})
        joined = joined.join(named, on="rank", how="left", maintain_order="left")
    columns = set(joined.columns)
    return joined.select(
        "rank",
        *(
            pl.coalesce([f"{c}{n}" for n in range(len(candidates)) if f"{c}{n}" in columns]).alias(c)
            for c in (*PLACE_COLUMNS, "origin")
        ),
    )


def _slots(places: pl.DataFrame) -> pl.DataFrame | None:
    """rank, slot: the number of each rank among those of its stage; missing ranks keep theirs. None unless exactly one
    order of ranks gives all their stages (rank, stage).

    Example: ranks 0, 2 and 3 of stage 0 and 4 to 7 of stage 1 have the slots 0, 2, 3 and 0 to 3.
    """
    if places.is_empty() or places["stage"].has_nulls():
        return None
    possible = arrangements(places["rank"], Declared(pp=_above(places["stage"])), anywhere=False)
    placed = [replace(arrangement, tp=1).places(places["rank"], "") for arrangement in possible]
    slots = [place["dp"] for place in placed if place["stage"].equals(places["stage"])]
    if not slots or any(not other.equals(slots[0]) for other in slots):
        return None
    return places.select("rank", slot=slots[0])


def _rest_in_order(places: pl.DataFrame) -> pl.DataFrame:
    """Ranks without any evidence become separate stages; if others run in rank order, the stage is the rank."""
    unknown = pl.col("stage").is_null()
    placed = places.filter(~unknown)
    in_order = not placed.is_empty() and bool((placed["stage"] == placed["rank"]).all())
    places = places.sort("rank")
    fresh = _above(placed["stage"]) + unknown.cast(pl.Int32).cum_sum() - 1
    number = pl.col("rank") if in_order else fresh
    return places.with_columns(
        stage=pl.when(unknown).then(number).otherwise("stage").cast(pl.Int32),
        origin=pl.col("origin").fill_null("assumed"),
    )


def _all_numbered(spans: pl.DataFrame) -> bool:
    """Whether the source numbers its forwards and backwards. If not, neither chunks nor a start that was cut off are
    known yet, and counts of blocks may fit another stage although nothing is wrong."""
    lacking = pl.col("kind").is_in(["F", "B"]) & pl.col("microbatch").is_null()
    return not spans.select(lacking.any()).item()


def _order_note(arrangement: Arrangement) -> Note:
    text = f"the given sizes match the observed work only in the rank order {arrangement.order}"
    return Note("rank-order-from-work", "note", text)


def _contradiction(believed: pl.DataFrame, other: pl.DataFrame, who: str, depth: int | None = None) -> list[Note]:
    """A warning if ranks are on other stages than `who` says (`other`). Stages are counted from the first one seen, or,
    in a pipeline of `depth` stages, from the last, because the first may be missing."""
    both = believed.join(other, on="rank", suffix="_other")
    wrong = [both.filter(pl.col("stage") != pl.col("stage_other"))]
    if depth is not None and depth >= _above(both["after"]):
        from_last = both.with_columns(stage_other=depth - 1 - pl.col("after"))
        wrong.append(from_last.filter(pl.col("stage") != pl.col("stage_other")))
    fewest = min(wrong, key=len)
    if fewest.is_empty():
        return []
    rank, stage, seen, origin = fewest.sort("rank").select("rank", "stage", "stage_other", "origin").row(0)
    by = {"user-specified": "the options", "recorded": "the profile"}.get(origin, "the sizes")
    text = f"contradicting stages: rank {rank} is on stage {stage} by {by}, on stage {seen} by {who}"
    return [Note("stages-contradict", "warning", text, count=len(fewest))]


def _origins(places: pl.DataFrame, inferred: stages_from_work.Inference | None, *, ordered: bool) -> list[Note]:
    """Notes on the origin of stages, unless they are recorded or user-specified; `ordered`: one order of ranks gives
    them."""
    notes = []
    remedy = "if wrong, give --pp, --tp and --dp"
    origins = places["origin"]
    if inferred is not None and (count := (origins == "inferred").sum()):
        alone = len(places) > 1 and (places["stage"] == 0).all()
        one = "all of them are one stage, so nothing is pipelined; " if alone else ""
        in_order = bool((places["stage"] == places["rank"]).all())
        absent = _above(places["rank"]) - len(places)
        strange = not absent and not ordered and not in_order
        fit = "they fit no order of ranks; " if strange else ""
        text = f"stages of {_ranks(int(count))} inferred from {inferred.how}; {one}{fit}{remedy}"
        notes.append(Note("stages-inferred", "warning" if strange else "note", text))
        if absent and not (in_order and inferred.exact):  # whose missing stages are named
            how = "are numbered by rank" if in_order or ordered else "are numbered as if none were missing"
            text = f"no profile of {_ranks(absent)} below the highest rank number; the stages {how}"
            notes.append(Note("ranks-absent", "warning", f"{text}; {remedy}"))
    if count := (origins == "assumed").sum():
        text = f"stages of {_ranks(int(count))} assumed from the default order of ranks; {remedy}"
        notes.append(Note("stages-default-order", "note", text))
    if count := origins.null_count():
        text = f"stages of {_ranks(int(count))} are unknown; each counts as a stage of its own, in rank order"
        notes.append(Note("stages-unknown", "warning", f"{text}; give --pp, --tp and --dp"))
    return notes


def _ranks(count: int) -> str:
    return "1 rank" if count == 1 else f"{count} ranks"


def _goes_on(ranks: pl.DataFrame, profile: Profile, *, waits: bool) -> bool:
    """Whether more stages follow: the last stage sends activations, receives gradients, or `waits` for its first
    backward, although the first one receives no activations, as it does if a model goes round the ranks in several
    chunks; or a single stage exchanges any data."""
    sides = profile.p2p.drop_nulls("direction").join(ranks.select("rank", "stage"), on="rank")
    sides = sides.filter(~pl.col("peer").is_in(ranks["rank"].implode()).fill_null(False))
    onward = ((pl.col("role") == "send") & (pl.col("direction") == "F")) | (
        (pl.col("role") == "recv") & (pl.col("direction") == "B")
    )
    last, single = _above(ranks["stage"]) - 1, ranks["stage"].n_unique() == 1
    before = sides.filter(pl.col("stage") == 0, ~onward, pl.col("role") != "both")
    return bool(sides.select((onward & (pl.col("stage") == last)).any()).item()) and (
        single or waits or before.is_empty()
    )


def _deeper_note(stages: int, how: str) -> Note:
    who = "the one stage that was read" if stages == 1 else f"the last of the {stages} stages that were read"
    text = f"{who} {how}, and the number of stages is not recorded; give --pp"
    return Note("stages-deeper", "warning", text)


def _absent_stages(ranks: pl.DataFrame, declared: Declared, by_user: int | None) -> list[Note]:
    present = ranks["stage"].n_unique()
    stages = depth(ranks, declared)
    if by_user or stages <= DEEPEST * present or ranks.is_empty():
        return []
    text = f"the profiles declare {stages} stages, but only {present} of them have a rank here"
    consequence = "the order of the blocks is compared with no schedule; if the number is wrong, give --pp"
    return [Note("stages-absent", "warning", f"{text}; {consequence}")]
