"""Micro-batch, chunk, phase and step of the blocks whose source does not say them.

Most training scripts mark a forward or a backward without a number. But a schedule runs them in a fixed order, so the
place of a block in its step tells its number. A capture may begin or end inside a step: then the place is known from
numbers that some blocks do carry, or from the end that is whole; where it is not known, nothing is filled in.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import polars as pl

from trace_export.model import INT, SPANS, Declared, Note, Profile, Schema, conform
from trace_export.pipeline import labels_by_number, labels_by_time, transfers
from trace_export.pipeline.steps import BACKWARDS, FORWARDS, REPLICA, WORK, number
from trace_export.schedules.words import LETTER, MINDSPEED, MINDSPEED_PLAIN, VEE_MARKER, Plan, blocks, recognise, words

STEP = ["rank", "run", "step"]
NUMBERS = ["microbatch", "chunk", "microbatch_b", "chunk_b"]
_FOUND: Schema = {"row": pl.UInt32(), **{c: SPANS[c] for c in [*NUMBERS, "phase"]}}


def label(profile: Profile) -> Profile:
    """`profile` with what spans lack: step, microbatch, chunk, phase; `labels` is `inferred` where order told it. Also
    with what transfers lack, see `transfers`.

    Spans of ranks whose forwards and backwards all carry their numbers are left as they are, but for a missing step.
    Notes say how many blocks stay without a number, and where the order fits no schedule.
    """
    spans, untold, notes = number(profile)
    work = _work(replace(profile, spans=spans))
    if work.is_empty():
        return transfers.label(replace(profile, spans=spans)).with_notes(notes)
    evidence = _evidence(profile, work).with_columns(pl.col("starts", "ends") & ~pl.col("rank").is_in(untold.implode()))
    found = []
    for pipeline in work.partition_by("pipeline"):
        labelled, said = _pipeline(pipeline, evidence, profile.declared)
        found.append(conform(labelled, _FOUND))
        notes += said
    filled = _filled(spans, pl.concat(found))
    open_blocks = filled.join(work.select("rank").unique(), on="rank", how="semi").filter(
        (FORWARDS & pl.col("microbatch").is_null()) | ((pl.col("kind") == "B") & pl.col("microbatch").is_null())
    )
    if len(open_blocks):
        text = "blocks stay without a micro-batch: part of their step is missing, and their place in it is not certain"
        notes.append(Note("microbatch-unknown", "warning", text, count=len(open_blocks)))
    return transfers.label(replace(profile, spans=conform(filled, SPANS))).with_notes(_once(notes))


def _work(profile: Profile) -> pl.DataFrame:
    """The blocks of all ranks that lack numbers, by time, with their stage, their pipeline and place in their step."""
    spans = profile.spans.with_row_index("row").filter(pl.col("kind").is_in(WORK))
    lacking = (
        (pl.col("kind").is_in(["F", "B"]) & pl.col("microbatch").is_null())
        | ((pl.col("kind") == "FB") & pl.col("microbatch_b").is_null())
        | (pl.col("chunk").is_null() & VEE_MARKER)
    )
    ranks = spans.filter(lacking).select("rank").unique()
    placed = profile.ranks.select("rank", "stage", "host", *REPLICA)
    return (
        spans.join(ranks, on="rank", how="semi")
        .join(placed, on="rank", how="left")
        .sort("rank", "run", "step", "start_ns", "end_ns")
        .with_columns(
            position=pl.int_range(pl.len(), dtype=INT).over(STEP),
            letter=LETTER,
            pipeline=pl.struct(REPLICA).rank("dense"),
        )
    )


def _filled(spans: pl.DataFrame, found: pl.DataFrame) -> pl.DataFrame:
    """`spans` with the numbers in `found` (by row); those replace what markers said, for they count otherwise."""
    joined = spans.with_row_index("row").join(found, on="row", how="left", suffix="_found", maintain_order="left")
    told = pl.col("microbatch_found").is_not_null()
    by_order = told & (pl.col("microbatch").is_null() | (pl.col("kind") == "FB"))
    return joined.with_columns(
        *(pl.coalesce(f"{c}_found", c).alias(c) for c in [*NUMBERS, "phase"]),
        labels=pl.when(by_order).then(pl.lit("inferred")).otherwise("labels"),
    )


def _evidence(profile: Profile, work: pl.DataFrame) -> pl.DataFrame:
    """For each step of each rank (`STEP`): `starts` and `ends`, whether the capture surely holds its start and end.

    It does when the rank has something of the run before and after: another step, an optimizer block, or a collective
    of several stages. A rank that lacks the collective which others have after the step was cut off at the end; that
    its start is missing too is not assumed.
    """
    placed = profile.collectives.join(profile.ranks.select("rank", "stage"), on="rank")
    across = placed.filter(pl.col("stage").n_unique().over("group") > 1).select("rank", "start_ns")
    optimizer = profile.spans.filter(pl.col("kind") == "OPT").select("rank", "start_ns")
    outside = (
        pl.concat([across, optimizer])
        .group_by("rank")
        .agg(first=pl.col("start_ns").min(), last=pl.col("start_ns").max())
    )
    steps = work.group_by(STEP).agg(pl.col("start_ns").min(), pl.col("end_ns").max(), pl.col("pipeline").first())
    begin, end = pl.col("start_ns"), pl.col("end_ns")
    known = steps.join(outside, on="rank", how="left").with_columns(
        starts=(begin > begin.min().over("rank", "run")) | (pl.col("first") < begin).fill_null(False),
        ends=(end < end.max().over("rank", "run")) | (pl.col("last") >= end).fill_null(False),
    )
    others = pl.col("ends").any().over("pipeline", "run", "step")
    return known.select(*STEP, "ends", starts=pl.col("starts") | (~pl.col("ends") & others))


def _pipeline(work: pl.DataFrame, evidence: pl.DataFrame, declared: Declared) -> tuple[pl.DataFrame, list[Note]]:
    """(row and numbers, notes) for the blocks of one pipeline."""
    stages = declared.pp or int(work["stage"].max() or 0) + 1  # type: ignore[arg-type]
    if _is_vee(work, declared):
        return _vee(work, evidence, stages, declared)
    return _loop(work, evidence, stages, declared)


def _is_vee(work: pl.DataFrame, declared: Declared) -> bool:
    """MindSpeed's DualPipeV: so declared, or it has the fused blocks or the markers that only DualPipeV has."""
    fused = (pl.col("kind") == "FB") | VEE_MARKER
    return (declared.schedule or "").startswith("dualpipe") or bool(work.select(fused.any()).item())


def _vee(
    work: pl.DataFrame, evidence: pl.DataFrame, stages: int, declared: Declared
) -> tuple[pl.DataFrame, list[Note]]:
    """Forwards of chunk c carry the number m + c * M: they tell their own label, and the place of what lies between."""
    numbers = work.filter(FORWARDS)["microbatch"].drop_nulls()
    seen = int(numbers.max()) + 1 if len(numbers) else 0  # type: ignore[arg-type]
    microbatches = declared.microbatches
    if microbatches is None or seen > 2 * microbatches:
        microbatches = -(-seen // 2)
    if not microbatches:
        return work.clear(), []
    fused = bool((work["kind"] == "FB").any()) or bool(
        work.select(pl.col("marker").str.contains("with_model_graph", literal=True).any()).item()
    )
    plan = Plan(MINDSPEED if fused else MINDSPEED_PLAIN, stages, microbatches)
    own = work.filter(FORWARDS & pl.col("microbatch").is_not_null()).select(
        "row", chunk=pl.col("microbatch") // microbatches, microbatch=pl.col("microbatch") % microbatches
    )
    if microbatches < 2 * stages:
        text = f"DualPipeV on {stages} stages needs {2 * stages} micro-batches, the data have {microbatches}"
        return own, [Note("microbatches-too-few", "warning", f"{text}; backward blocks stay without a number")]
    placed = labels_by_number.places(work, blocks(plan), microbatches)
    rest = _cuts(work.join(placed.select(STEP), on=STEP, how="anti", nulls_equal=True), evidence, plan)
    numbered = _numbered(work, pl.concat([placed.select("row", "position"), rest]), plan)
    return pl.concat([numbered, conform(own.join(numbered, on="row", how="anti"), _FOUND)]), []


def _loop(
    work: pl.DataFrame, evidence: pl.DataFrame, stages: int, declared: Declared
) -> tuple[pl.DataFrame, list[Note]]:
    """One direction through the stages: step by step, the words of the complete ranks tell the schedule."""
    counted, present = _counted(work), work["stage"].n_unique()
    plans: dict[tuple[object, object], Plan | None] = {}
    for key, part in counted.filter("whole").partition_by("run", "step", as_dict=True).items():
        seen = dict(part.select("stage", "word").drop_nulls().iter_rows())
        more = declared.pp is None and len(seen) == present
        plans[key[0], key[1]] = recognise(seen, stages, more=more) if seen else None
    usual = next((p for p in plans.values() if p is not None), None)
    alike: dict[Plan | None, list[pl.DataFrame]] = {}
    for key, part in work.partition_by("run", "step", as_dict=True).items():
        alike.setdefault(plans.get((key[0], key[1]), usual), []).append(part)
    found = [_by_plan(pl.concat(parts), evidence, counted, plan) for plan, parts in alike.items()]
    text = "the order of the blocks fits no schedule known here; micro-batches are numbered in order of appearance"
    return pl.concat(found), [Note("schedule-unknown", "warning", text)] if None in alike else []


def _by_plan(work: pl.DataFrame, evidence: pl.DataFrame, counted: pl.DataFrame, plan: Plan | None) -> pl.DataFrame:
    """`_FOUND` for the steps that follow one plan."""
    if plan is None or not plan.exact:
        return _ordinal(work, counted, plan)
    placed = _cuts(work, evidence, plan)
    if placed.height < work.height:
        steps = work.partition_by("run", "step")
        placed = pl.concat(labels_by_time.settle(s, placed.join(s, on="row", how="semi"), plan) for s in steps)
    return _numbered(work, placed, plan)


def _counted(work: pl.DataFrame) -> pl.DataFrame:
    """For each step of each rank its word, and `whole`: it has as many forwards and backwards as any rank in it."""
    rows = work.group_by(STEP, maintain_order=True).agg(
        pl.col("letter").str.join("").alias("word"), pl.col("stage").first(),
        forwards=FORWARDS.sum(), backwards=BACKWARDS.sum(),
    )  # fmt: skip
    most = pl.max_horizontal("forwards", "backwards").max().over("run", "step")
    return rows.with_columns(whole=(pl.col("forwards") == most) & (pl.col("backwards") == most))


def _ordinal(work: pl.DataFrame, counted: pl.DataFrame, plan: Plan | None) -> pl.DataFrame:
    """Numbers by order of appearance within each kind, for the steps that are whole."""
    whole = counted.filter("whole").select(STEP)
    nth = pl.int_range(pl.len(), dtype=INT).over([*STEP, "kind"])
    rows = work.join(whole, on=STEP, how="semi", nulls_equal=True).with_columns(nth=nth)
    if plan is None:
        return conform(rows.select("row", microbatch="nth"), _FOUND)
    table = blocks(plan).with_columns(nth=pl.int_range(pl.len(), dtype=INT).over("stage", "kind"))
    return conform(rows.select("row", "stage", "kind", "nth").join(table, on=["stage", "kind", "nth"]), _FOUND)


def _numbered(work: pl.DataFrame, places: pl.DataFrame, plan: Plan) -> pl.DataFrame:
    """`_FOUND` for the rows in `places` (row, position in the plan's word)."""
    rows = work.select("row", "stage").join(places, on="row")
    return conform(rows.join(blocks(plan), on=["stage", "position"]), _FOUND)


def _cuts(work: pl.DataFrame, evidence: pl.DataFrame, plan: Plan) -> pl.DataFrame:
    """row, position: where the blocks of `work` stand in the words of `plan`, as far as that is certain."""
    steps = (
        work.group_by(STEP, maintain_order=True)
        .agg(pl.col("letter").str.join("").alias("word"), pl.col("stage").first())
        .join(evidence, on=STEP, how="left", nulls_equal=True, maintain_order="left")
    )
    expected = words(plan)
    if all(word == expected.get(stage) for stage, word in steps.select("stage", "word").iter_rows()):
        return work.select("row", "position")
    pieces = [
        (rank, run, step, piece.begin, piece.end, piece.offset)
        for rank, run, step, word, stage, ends, starts in steps.select(
            *STEP, "word", "stage", "ends", "starts"
        ).iter_rows()
        for piece in _pieces(word, expected.get(stage, ""), starts=bool(starts), ends=bool(ends))
    ]
    schema = {"rank": INT, "run": INT, "step": INT, "begin": INT, "end": INT, "offset": INT}
    table = pl.DataFrame(pieces, schema=schema, orient="row")
    at = pl.col("position")
    return (
        work.select("row", *STEP, "position")
        .join(table, on=STEP, nulls_equal=True)
        .filter((at >= pl.col("begin")) & (at < pl.col("end")))
        .select("row", (at + pl.col("offset")).alias("position"))
    )


@dataclass(frozen=True)
class _Piece:
    """Letters begin … end-1 of a word, which stand `offset` places further right in the expected word."""

    begin: int
    end: int
    offset: int


def _pieces(word: str, expected: str, *, starts: bool, ends: bool) -> Iterable[_Piece]:
    """The parts of `word` whose place in `expected` is certain.

    A window of the expected word fits where it is found only once, or at the end that the capture surely holds. A word
    that is no window (a block is missing inside) is certain from a whole end up to the first difference.
    """
    size, missing = len(word), len(expected) - len(word)
    fits = list(_windows(word, expected))
    if word == expected:
        return [_Piece(0, size, 0)]
    if fits:
        if ends and not starts and missing in fits:
            return [_Piece(0, size, missing)]
        if starts and not ends and 0 in fits:
            return [_Piece(0, size, 0)]
        return [_Piece(0, size, fits[0])] if len(fits) == 1 else []
    head = _common(word, expected) if starts else 0
    tail = min(_common(word[::-1], expected[::-1]), size - head) if ends else 0
    return [_Piece(0, head, 0), _Piece(size - tail, size, missing)]


def _windows(word: str, expected: str) -> Iterator[int]:
    at = expected.find(word)
    while at >= 0:
        yield at
        at = expected.find(word, at + 1)


def _common(a: str, b: str) -> int:
    """How many letters two words have in common from their start on."""
    return next((n for n, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def _once(notes: list[Note]) -> list[Note]:
    """Equal notes as one, with their number."""
    counts: dict[Note, int] = {}
    for note in notes:
        counts[note] = counts.get(note, 0) + note.count
    return [replace(note, count=count) for note, count in counts.items()]
