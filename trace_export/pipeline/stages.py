"""Which stage of the pipeline a rank is, and its place among the replicas of that stage.

In order of belief: what the user told, what the data record, the sizes that the data record, the shape of the work.
"""

from __future__ import annotations

from dataclasses import replace

import polars as pl

from trace_export.errors import UsageError
from trace_export.model import RANKS, Declared, Note, Placement, Profile, conform
from trace_export.pipeline import stages_from_work
from trace_export.schedules.schedule import canonical, schedule_placement

PLACES = ["stage", "dp", "tp", "cp"]

MOST = 0.75
FEW = 4
"""For another order of ranks than the usual one to be believed, `MOST` of them must do the work of their stage; where
times had to tell what that is, all of them, and no fewer than `FEW`."""
ALIKE = 0.01
"""Two ranks of a stage are tensor-parallel peers when nine in ten of their blocks start within this part of a block's
length of each other: replicas start a step together too, but drift apart in it."""


def resolve(profile: Profile, told: Declared) -> Profile:
    """`profile` with ranks.stage, dp, tp, cp and stage_origin filled, and what the user told in `declared`.

    Notes say what was inferred or assumed, and where the sources contradict each other. Raises UsageError when the
    told sizes do not divide the number of ranks.
    """
    ranks, notes = profile.ranks, []
    inferred = stages_from_work.infer(profile.spans)
    told_places, swapped = _in_order(ranks, told, "told", inferred)
    if swapped:
        notes.append(
            Note(
                "rank-order-from-work",
                "note",
                "the sizes that you told fit the work in the order tp, cp, pp, dp of ranks only",
            )
        )
    declared_places, _ = _in_order(ranks, profile.declared, "assumed", inferred)
    recorded = ranks.select("rank", *PLACES).with_columns(
        origin=pl.when(pl.col("stage").is_not_null()).then(pl.lit("recorded"))
    )
    candidates = [told_places, recorded, declared_places]
    if inferred is not None:
        candidates.append(inferred.stages.with_columns(origin=pl.lit("inferred")))
    places = _first_of(ranks, [c for c in candidates if c is not None])
    if told_places is not None:
        notes += _contradiction(told_places, recorded, "the data say")
    if inferred is not None and inferred.exact and _numbered(profile.spans):
        notes += _contradiction(places.filter(pl.col("origin") != "inferred"), inferred.stages, "their work looks like")
    notes += _told_how(places, inferred)
    places = _rest_in_order(places)
    places, guessed = _replicas(places, ranks, profile.spans)
    if told.pp and (absent := told.pp - places["stage"].n_unique()) > 0:
        notes.append(Note("stages-absent", "note", f"{absent} of the {told.pp} stages that you told have no rank here"))
    merged = ranks.drop(*PLACES, "stage_origin").join(places, on="rank", how="left", maintain_order="left")
    return replace(
        profile,
        ranks=conform(merged.rename({"origin": "stage_origin"}), RANKS),
        declared=told.or_else(profile.declared).or_else(Declared(pp=None if inferred is None else inferred.depth)),
    ).with_notes(notes + guessed)


def chunk_placement(profile: Profile) -> Placement:
    """How the model chunks lie on the ranks: as declared, else as the order of the forwards shows, else a loop."""
    declared = profile.declared
    if declared.schedule is not None and (known := _known(declared.schedule)) is not None:
        return schedule_placement(known)
    return declared.placement or stages_from_work.placement(profile.spans) or "loop"


def _above(numbers: pl.Series) -> int:
    """One more than the greatest."""
    return int(numbers.to_numpy().max()) + 1 if len(numbers) else 0


def _known(name: str) -> str | None:
    try:
        return canonical(name)
    except UsageError:  # a schedule that we have no order for
        return None


def _in_order(
    ranks: pl.DataFrame, sizes: Declared, origin: str, inferred: stages_from_work.Inference | None
) -> tuple[pl.DataFrame | None, bool]:
    """The places in the frameworks' default order of ranks, or where the work of most ranks fits it better, in
    Megatron-LM's other one (use_tp_pp_dp_mapping), None where the number of stages is not known; and whether it is the
    other order."""
    usual = _by_sizes(ranks, sizes, origin)
    if usual is None or inferred is None:
        return usual, False
    other = _by_sizes(ranks, sizes, "inferred" if origin == "assumed" else origin, replicas_last=True)
    if other is None:
        return usual, False
    asked = [_fitting(places, inferred.stages, sizes.pp) for places in (usual, other)]
    enough = MOST * len(inferred.stages) if inferred.exact else max(len(inferred.stages), FEW)
    return (other, True) if asked[1] > asked[0] and asked[1] >= enough else (usual, False)


def _fitting(places: pl.DataFrame, seen: pl.DataFrame, depth: int | None) -> int:
    """How many ranks do the work of their stage: as counted from the first stage that was `seen`, or from the last."""
    both = places.join(seen, on="rank", suffix="_seen")
    counted = both["stage_seen"], (depth or 0) - 1 - both["after"]
    return max(int((both["stage"] == stage).sum()) for stage in counted)


def _by_sizes(ranks: pl.DataFrame, sizes: Declared, origin: str, *, replicas_last: bool = False) -> pl.DataFrame | None:
    """The places in an order of ranks, or None where the number of stages is not known.

    Megatron-LM counts tp, cp, dp, pp from the fastest to the slowest; Paddle, and all with `replicas_last`, tp, cp, pp,
    dp. What the other sizes leave of a stage's ranks is the size of tp, or where that is known, of cp.
    """
    world = _above(ranks["rank"])
    given = (sizes.tp or 1) * (sizes.cp or 1) * (sizes.dp or 1)
    if sizes.pp is None and (sizes.tp is None or sizes.dp is None):
        return None
    pp = sizes.pp or max(world // given, 1)
    if world % (pp * given) and len(ranks) == world > pp * given:  # of fewer, some may be lost
        if origin == "told":
            raise UsageError(
                f"{world} ranks cannot be divided into {pp} stages of {given}", "check --pp, --tp, --dp and --cp"
            )
        return None
    per_stage = max(-(-world // pp), given)
    left = per_stage // given if sizes.dp else None
    tp = sizes.tp or left
    cp = sizes.cp or (left if sizes.tp else None) or 1
    inner = (tp or 1) * cp
    rank = pl.col("rank")
    last = pl.col("kind").str.starts_with("paddle").fill_null(False) | replicas_last
    if tp is None and per_stage > 1 and ranks.select(last.any()).item():
        return None  # the stage depends on tp: the shape of the work knows better
    within = pl.when(last).then(rank % inner + rank // (inner * pp) * inner).otherwise(rank % per_stage)
    known = tp is not None or per_stage == 1
    return ranks.select(
        "rank",
        stage=pl.when(last).then(rank // inner % pp).otherwise(rank // per_stage),
        dp=within // inner if known else pl.lit(None, pl.Int32),
        tp=within % (tp or 1) if known else pl.lit(None, pl.Int32),
        cp=within // (tp or 1) % cp if known else pl.lit(None, pl.Int32),
        origin=pl.lit(origin),
    )


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
            for c in (*PLACES, "origin")
        ),
    )


def _numbered(spans: pl.DataFrame) -> bool:
    """Whether the source numbers its forwards and backwards. Where it does not, neither chunks nor a start that was cut
    off are known yet, and counts of blocks may speak of another stage without anything being wrong."""
    blocks = spans.filter(pl.col("kind").is_in(["F", "B"]))
    return blocks["microbatch"].null_count() == 0


def _contradiction(believed: pl.DataFrame, other: pl.DataFrame, who: str) -> list[Note]:
    both = believed.join(other.select("rank", "stage"), on="rank", suffix="_other").filter(
        pl.col("stage") != pl.col("stage_other")
    )
    if both.is_empty():
        return []
    rank, stage, seen = both.sort("rank").select("rank", "stage", "stage_other").row(0)
    source = {"told": "you told", "recorded": "the data say", "assumed": "the sizes say"}[both["origin"][0]]
    text = f"stages contradict each other: {source} stage {stage} for rank {rank}, {who} stage {seen}"
    return [Note("stages-contradict", "warning", text, count=len(both))]


def _told_how(places: pl.DataFrame, inferred: stages_from_work.Inference | None) -> list[Note]:
    """What the stages were taken from, where it is not what the data or the user say."""
    notes = []
    remedy = "give --pp, --tp and --dp if it is wrong"
    origins = places["origin"]
    if inferred is not None and (count := (origins == "inferred").sum()):
        notes.append(
            Note("stages-inferred", "note", f"the stages of {count} ranks were inferred from {inferred.how}; {remedy}")
        )
        absent = _above(places["rank"]) - len(places)
        if absent:
            in_order = (places["stage"] == places["rank"]).all()
            how = "count on in their order" if in_order else "are numbered as if none were missing"
            text = f"ranks before the last were not read ({absent} of them); the stages {how}"
            notes.append(Note("ranks-absent", "warning", f"{text}; {remedy}"))
    if count := (origins == "assumed").sum():
        notes.append(
            Note(
                "stages-default-order",
                "note",
                f"the stages of {count} ranks follow the default order of ranks; {remedy}",
            )
        )
    if count := origins.null_count():
        text = f"nothing tells the stages of {count} ranks; each counts as a stage of its own, in rank order"
        notes.append(Note("stages-unknown", "warning", f"{text}; give --pp, --tp and --dp"))
    return notes


def _rest_in_order(places: pl.DataFrame) -> pl.DataFrame:
    """Ranks of which nothing is known become stages of their own; beside others that run in rank order, their rank."""
    unknown = pl.col("stage").is_null()
    known = places.filter(~unknown)
    in_order = not known.is_empty() and bool((known["stage"] == known["rank"]).all())
    places = places.sort("rank")
    fresh = _above(known["stage"]) + unknown.cast(pl.Int32).cum_sum() - 1
    own = pl.col("rank") if in_order else fresh
    return places.with_columns(
        stage=pl.when(unknown).then(own).otherwise("stage").cast(pl.Int32), origin=pl.col("origin").fill_null("assumed")
    )


def _replicas(places: pl.DataFrame, ranks: pl.DataFrame, spans: pl.DataFrame) -> tuple[pl.DataFrame, list[Note]]:
    """dp and tp where they are not known: ranks of one stage and host with the same times are tensor-parallel peers."""
    places = places.sort("stage", "rank").with_columns(pl.col(PLACES).cast(pl.Int32))
    if not places.select((pl.col("dp").is_null() & pl.col("tp").is_null()).any()).item():
        return places, []
    if places["stage"].is_unique().all():
        return places.with_columns(pl.col("dp", "tp").fill_null(0)), []
    peers = places.join(ranks.select("rank", "host"), on="rank", how="left", maintain_order="left").with_columns(
        before=pl.col("rank").shift(1).over("stage", "host")
    )
    alike = _alike(peers.drop_nulls("before").select("rank", "before"), spans)
    grouped = peers.join(alike, on="rank", how="left", maintain_order="left").with_columns(
        group=(~pl.col("alike").fill_null(False)).cum_sum().over("stage") - 1
    )
    sizes = grouped.group_by("stage", "group").len()["len"]
    place = pl.int_range(pl.len(), dtype=pl.Int32)
    regular = sizes.n_unique() == 1
    dp = pl.col("group").cast(pl.Int32) if regular else place.over("stage")
    tp = place.over("stage", "group") if regular else pl.lit(0, pl.Int32)
    filled = grouped.with_columns(dp=pl.coalesce("dp", dp), tp=pl.coalesce("tp", tp))
    text = "which replicas of a stage are tensor-parallel peers was guessed from the likeness of their times"
    return filled.select("rank", *PLACES, "origin"), [
        Note("tensor-parallel-guessed", "note", f"{text}; give --tp and --dp if it is wrong")
    ]


def _alike(pairs: pl.DataFrame, spans: pl.DataFrame) -> pl.DataFrame:
    """rank, alike: whether the rank's blocks start when those of the rank `before` do (same host, same clock)."""
    blocks = (
        stages_from_work.sample(spans, steps=2)
        .sort("rank", "start_ns")
        .select("rank", "start_ns", "end_ns", position=pl.int_range(pl.len()).over("rank"))
    )
    return (
        pairs.join(blocks, on="rank")
        .join(blocks, left_on=["before", "position"], right_on=["rank", "position"], suffix="_before")
        .group_by("rank")
        .agg(
            apart=(pl.col("start_ns") - pl.col("start_ns_before")).abs().quantile(0.9),
            length=(pl.col("end_ns") - pl.col("start_ns")).median(),
        )
        .select("rank", alike=pl.col("apart") < ALIKE * pl.col("length"))
    )
