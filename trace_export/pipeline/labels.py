"""Micro-batch, chunk and phase of blocks, if the source does not say them.

Most training scripts mark a forward or a backward without a number. But a schedule runs them in a fixed order, so the
position of a block in its step gives its number. The first rule that holds decides; where none does, nothing is filled
in. The examples are of the first stage of 1F1B on two stages with four micro-batches, whose order is F F B F B F B B.

- Numbers that some forwards carry (`labels_by_number`): in DualPipeV a forward 5 of four micro-batches is micro-batch 1
  of chunk 1, and the blocks on both sides of it have the positions beside it.
- A whole step (`labels_by_position`): F F B F B F B B is F0 F1 B0 F2 B1 F3 B2 B3.
- The only place where a part fits: F B F B B at the start of a capture is F2 B1 F3 B2 B3.
- An end that is surely whole: F fits at four places, but right after another step it is F0.
- Both ends of a step inside which a block is missing: F F B F F B B is F0 F1 B0 F2 F3 B2 B3. A block next to the
  missing one that may be the missing one itself has no number: in F F F B B F F B B without one F of the second pair,
  the other F.
- The blocks of the adjacent stages on the same host (`labels_by_time`): of the places where F B fits, those are left
  where the other stage's forward of that micro-batch has ended, and its backward has not begun.
- The order of each kind, where only that is the plan's, as where weight gradients came out merged: F F B F B F B B W is
  F0 F1 B0 F2 B1 F3 B2 B3, and the W has no number.
- The order of appearance, where the step fits no schedule, with a warning: F B F F F B B B is F0 B0 F1 F2 F3 B1 B2 B3.
  Only where the step is whole on all ranks, and its start or its end surely so.

A backward that a sequence number pairs with a forward has the numbers of that forward, whatever its position.
"""

from __future__ import annotations

from dataclasses import replace

import polars as pl

from trace_export.model import (
    INT,
    RANK_STEP_KEY,
    SPANS,
    STEP_KEY,
    WORK_KINDS,
    Declared,
    Note,
    Plan,
    Profile,
    Schema,
    conform,
)
from trace_export.pipeline import labels_by_number, labels_by_position, labels_by_time
from trace_export.pipeline.data_way import Way, way_of_messages
from trace_export.pipeline.schedule_match import Numbering, borne_out, exact_plan
from trace_export.pipeline.stages import depth
from trace_export.pipeline.steps import forward_only
from trace_export.schedules.passes import BACKWARDS, FORWARDS, PAIRS
from trace_export.schedules.recorded import OVERLAPPED, PLAIN
from trace_export.schedules.words import LETTER, profile_blocks, word

PIPELINE_STEP = ["replica", *STEP_KEY]
NUMBERS = ["microbatch", "chunk", "microbatch_b", "chunk_b"]
_FOUND: Schema = {"row": pl.UInt32(), **{c: SPANS[c] for c in [*NUMBERS, "phase"]}}


def label(profile: Profile, undetermined: pl.Series) -> Profile:
    """`profile` with microbatch, chunk and phase of spans filled; `labels` is `inferred` if they come from the order.

    Ranks whose forwards and backwards all carry their numbers are left as they are. `undetermined`: ranks whose ends of
    steps are not known (`steps.number`); their order gives no number. Needs the stage and replica of `ranks`. Notes
    count blocks without a number, and steps whose order fits no schedule.
    """
    work = _unlabelled(profile, undetermined)
    if forward_only(profile.spans):
        alike = _all_alike(profile.spans.filter(FORWARDS))
        numbered = alike and work["microbatch"].null_count() == work.height > 0
        text = _without_backwards(work["step"].n_unique() if numbered else 0, alike=alike)
        profile = profile.with_notes([Note("forward-only", "note", text)])
        if numbered:
            nth = pl.int_range(pl.len(), dtype=INT).over([*RANK_STEP_KEY, "chunk"])
            spans = _filled(profile.spans, conform(work.select("row", "chunk", microbatch=nth), _FOUND))
            return replace(profile, spans=conform(spans, SPANS))
    if work.is_empty():
        return profile
    ends = labels_by_position.whole_ends(profile, work)
    stages = depth(profile.ranks, profile.declared)
    way = way_of_messages(profile, stages)
    numbers, notes = _numbers(work, ends, stages, profile.declared, way)
    filled, differing = with_numbers_of_pairs(_filled(profile.spans, numbers))
    if differing:
        text = "backwards and weight gradients whose sequence numbers contradict their order; the numbers are used"
        notes.append(Note("pairs-differ", "note", text, count=differing))
    open_blocks = filled.join(work.select("rank").unique(), on="rank", how="semi").filter(
        (FORWARDS | (pl.col("kind") == "B")) & pl.col("microbatch").is_null()
    )
    if len(open_blocks):
        text = (
            "blocks without a micro-batch number: part of their step is missing, and the rest fits at several positions"
        )
        notes.append(Note("microbatch-unknown", "warning", text, count=len(open_blocks)))
    return replace(profile, spans=conform(filled, SPANS)).with_notes(_once(notes))


def _unlabelled(profile: Profile, undetermined: pl.Series) -> pl.DataFrame:
    """The blocks of ranks that lack numbers, without the `undetermined` ranks, by time, with stage, replica and
    position in the step."""
    lacking = (pl.col("kind").is_in(["F", "B"]) & pl.col("microbatch").is_null()) | (
        PAIRS & pl.col("microbatch_b").is_null()
    )
    if profile.declared.numbers_continue:
        lacking |= (pl.col("kind") == "F") & pl.col("chunk").is_null()
    lacking &= ~pl.col("rank").is_in(undetermined.implode())
    work = pl.col("kind").is_in(WORK_KINDS)
    ranks = profile.spans.select(pl.col("rank").filter(lacking & work).unique())["rank"]
    spans = profile.spans if len(ranks) else profile.spans.clear()
    return (
        spans.with_row_index("row")
        .filter(pl.col("rank").is_in(ranks.implode()) & work)
        .join(profile.ranks.select("rank", "stage", "host", "replica"), on="rank", how="left")
        .sort(*RANK_STEP_KEY, "start_ns", "end_ns", maintain_order=True)
        .with_columns(position=pl.int_range(pl.len(), dtype=INT).over(RANK_STEP_KEY), letter=LETTER)
    )


def _all_alike(forwards: pl.DataFrame) -> bool:
    """Whether all ranks have equally many blocks in each step."""
    sizes = forwards.group_by(RANK_STEP_KEY).len().group_by(STEP_KEY).agg(pl.col("len").n_unique())
    return bool((sizes["len"] == 1).all())


def _without_backwards(steps: int, *, alike: bool) -> str:
    """What a run without backwards may be: `alike` if all ranks run as many forwards. `steps`: those whose forwards are
    numbered in order."""
    if not alike:
        return (
            "no rank runs a backward, and some ranks run more forwards than others: "
            "a job that ended in its warm-up, or recordings that end apart"
        )
    one = ", as micro-batches of one step" if steps < 2 else " in each step"
    numbers = f"; the forwards of each rank are numbered in order{one}" if steps else ""
    return f"no rank runs a backward: evaluation, inference, or a job that ended in its warm-up{numbers}"


def _filled(spans: pl.DataFrame, numbers: pl.DataFrame) -> pl.DataFrame:
    """`spans` with the numbers in `numbers` (by row); they replace those of markers, which count otherwise."""
    joined = spans.with_row_index("row").join(numbers, on="row", how="left", suffix="_found", maintain_order="left")
    labelled = pl.col("microbatch_found").is_not_null()
    by_order = labelled & (pl.col("microbatch").is_null() | PAIRS)
    return joined.with_columns(
        *(pl.coalesce(f"{c}_found", c).alias(c) for c in [*NUMBERS, "phase"]),
        labels=pl.when(by_order).then(pl.lit("inferred")).otherwise("labels"),
    )


def with_numbers_of_pairs(spans: pl.DataFrame) -> tuple[pl.DataFrame, int]:
    """The blocks, with the micro-batch and chunk of the forward on backwards and weight gradients of its pair; and how
    many had others."""
    forward = pl.col("kind") == "F"
    forwards = spans.filter(forward & pl.col("pair").is_not_null() & pl.col("microbatch").is_not_null())
    if forwards.is_empty():
        return spans, 0
    numbers = ["microbatch", "chunk"]
    of_pair = forwards.select("rank", "run", "pair", *numbers).unique(["rank", "run", "pair"], keep="first")
    joined = spans.join(of_pair, on=["rank", "run", "pair"], how="left", suffix="_paired", maintain_order="left")
    paired = pl.col("microbatch_paired").is_not_null() & ~forward
    differs = paired & pl.any_horizontal(
        (pl.col(c) != pl.col(f"{c}_paired")).fill_null(False) for c in numbers
    )  # fmt: skip
    count = joined.select(differs.sum()).item()
    labelled = joined.with_columns(
        *(pl.when(paired).then(f"{c}_paired").otherwise(c).alias(c) for c in numbers),
        labels=pl.when(paired).then(pl.lit("inferred")).otherwise("labels"),
    )
    return labelled.select(spans.columns), count


def _numbers(
    work: pl.DataFrame, ends: pl.DataFrame, stages: int, declared: Declared, way: Way | None
) -> tuple[pl.DataFrame, list[Note]]:
    """(`_FOUND`, notes) for the blocks. DualPipeV's are those of a run that declares it, or has the fused blocks or the
    numbers that only DualPipeV has."""
    folded = (declared.schedule or "").startswith("dualpipe") or bool(declared.numbers_continue)
    if not folded and not work.select(PAIRS.any()).item():
        return _of_loop(work, ends, stages, declared, way)
    replicas = [_of_vee(of_replica, ends, stages, declared) for of_replica in work.partition_by("replica")]
    numbers = pl.concat([conform(labelled, _FOUND) for labelled, _ in replicas])
    return numbers, [note for _, notes in replicas for note in notes]


def _of_vee(work: pl.DataFrame, ends: pl.DataFrame, stages: int, declared: Declared) -> tuple[pl.DataFrame, list[Note]]:
    """Forwards of chunk c carry the number m + c * M: they give their own label, and the position of what lies
    between."""
    numbers = work.filter(FORWARDS)["microbatch"].drop_nulls()
    seen = int(numbers.max()) + 1 if len(numbers) else 0  # type: ignore[arg-type]
    counts = [count for count in (declared.microbatches, -(-seen // 2)) if count and 2 * count >= seen]
    if not counts:
        return work.clear(), []
    recorded = int(work.group_by("run", "step").len()["len"].to_numpy().max())
    plans = [Plan("dualpipev", stages, count, 2) for count in counts]
    plan = next((p for p in plans if borne_out(p, work["stage"].n_unique(), recorded)), None)
    if plan is None:
        text = f"numbers of {counts[-1]} micro-batches contradict the {recorded} blocks of a step"
        return work.clear(), [Note("microbatches-implausible", "warning", f"{text}; these blocks have no number")]
    microbatches = plan.microbatches
    numbered_forwards = work.filter(FORWARDS & pl.col("microbatch").is_not_null()).select(
        "row", chunk=pl.col("microbatch") // microbatches, microbatch=pl.col("microbatch") % microbatches
    )
    if microbatches < 2 * stages:
        text = f"DualPipeV on {stages} stages needs {2 * stages} micro-batches, the data have {microbatches}"
        return numbered_forwards, [Note("microbatches-too-few", "warning", f"{text}; backward blocks have no number")]
    overlapped = bool(declared.overlapped) or bool(work.select(PAIRS.any()).item())
    plan = replace(plan, name=OVERLAPPED if overlapped else PLAIN)
    placed = labels_by_number.positions(work, ends, profile_blocks(plan, _stages(work)), microbatches)
    left = work.join(placed.select(RANK_STEP_KEY), on=RANK_STEP_KEY, how="anti", nulls_equal=True)
    rest = labels_by_position.positions(left, ends, plan)
    numbered = _labels_at(work, pl.concat([placed.select("row", "position"), rest]), plan)
    return pl.concat([numbered, conform(numbered_forwards.join(numbered, on="row", how="anti"), _FOUND)]), []


def _of_loop(
    work: pl.DataFrame, ends: pl.DataFrame, stages: int, declared: Declared, way: Way | None
) -> tuple[pl.DataFrame, list[Note]]:
    """One direction through the stages: step by step, the words of a replica's complete ranks give the schedule."""
    orders, vee = _orders_of_steps(work), declared.placement == "vee"
    all_stages = work["stage"].n_unique() if declared.pp is None else None
    plans = _plans(orders, stages, all_stages, deeper=bool(declared.deeper), vee=vee, way=way)
    usual = next((p for p in plans.values() if p is not None), None)
    alike: dict[Numbering | None, int] = {}
    steps = work.select(PIPELINE_STEP).unique(maintain_order=True)
    numbers = [alike.setdefault(plans.get(step, usual), len(alike)) for step in steps.iter_rows()]
    table = steps.with_columns(plan=pl.Series(numbers, dtype=INT))
    planned = work.join(table, on=PIPELINE_STEP, how="left", nulls_equal=True, maintain_order="left")
    parts = []
    for numbering, number in alike.items():
        part = planned.filter(pl.col("plan") == number).drop("plan")
        labelled = work.clear() if vee and numbering is None else _by_plan(part, ends, orders, numbering)
        parts.append(labelled)
    how = (
        "the chunks lie in a V, and blocks have no number"
        if vee
        else "micro-batches of steps that are surely whole are numbered in order of appearance"
    )
    text = f"the blocks follow no known schedule; {how}"
    return pl.concat([conform(f, _FOUND) for f in parts]), (
        [Note("schedule-unknown", "warning", text)] if None in alike else []
    )


def _plans(
    orders: pl.DataFrame, stages: int, all_stages: int | None, *, deeper: bool, vee: bool, way: Way | None
) -> dict[tuple[object, ...], Numbering | None]:
    """Replica, run, step → the schedule that the words of its complete ranks give. `all_stages`: a step with this many
    may belong to a pipeline with more than `stages`. Steps with the same words have the same schedule; a step with
    fewer complete ranks than another has the schedule of that one, if all its words fit it.

    Example: a whole step of two chunks on three stages begins on the first with F F F F F F. A step in which only that
    rank is complete is of the same schedule, although GPipe has its word, too.
    """
    plans: dict[tuple[object, ...], Numbering | None] = {}
    by_words: dict[frozenset[tuple[int, str]], Numbering | None] = {frozenset(): None}
    whole = orders.filter("whole").group_by(PIPELINE_STEP, maintain_order=True).agg("stage", "word")
    fullest = whole.sort(pl.col("stage").list.len(), descending=True, maintain_order=True)
    for *pipeline_step, stage_numbers, words in fullest.iter_rows():
        seen = {stage: word for stage, word in zip(stage_numbers, words, strict=True) if stage is not None}
        key = frozenset(seen.items())
        if key not in by_words:
            of_others = (other for other in by_words.values() if other is not None and other.has(seen))
            by_words[key] = next(of_others, None) or exact_plan(
                seen, stages, more=len(seen) == all_stages, deeper=deeper, vee=vee, way=way
            )
        plans[tuple(pipeline_step)] = by_words[key]
    return plans


def _by_plan(work: pl.DataFrame, ends: pl.DataFrame, orders: pl.DataFrame, numbering: Numbering | None) -> pl.DataFrame:
    """`_FOUND` for the steps that follow one plan."""
    if numbering is None:
        return _by_occurrence(work, _surely_whole(orders, ends), None)
    plan = numbering.plan
    if not numbering.exact:
        numbered = _by_occurrence(work, orders, plan)
        return numbered if numbering.weights else _without_uncertain_weights(work, numbered, plan)
    placed = labels_by_position.positions(work, ends, plan)
    return _labels_at(work, _settled(work, placed, ends, plan), plan)


def _settled(work: pl.DataFrame, placed: pl.DataFrame, ends: pl.DataFrame, plan: Plan) -> pl.DataFrame:
    """`placed`, with the positions that the adjacent stages settle in steps in which a rank lacks blocks."""
    sizes = {stage: len(word(plan, stage)) for stage in _stages(work)}
    size = pl.col("stage").replace_strict(list(sizes), list(sizes.values()), default=None, return_dtype=pl.UInt32)
    lacking = work.filter(pl.len().over(RANK_STEP_KEY) != size).select(PIPELINE_STEP).unique()
    if lacking.is_empty():
        return placed
    open_steps = work.join(lacking, on=PIPELINE_STEP, how="semi", nulls_equal=True, maintain_order="left")
    positions = open_steps.select("row", *PIPELINE_STEP).join(placed, on="row", maintain_order="left")
    of_step = positions.partition_by(PIPELINE_STEP, as_dict=True, include_key=False)
    settled = [
        labels_by_time.settle(step, of_step.get(key, placed.clear()), ends, plan)
        for key, step in open_steps.partition_by(PIPELINE_STEP, as_dict=True).items()
    ]
    return pl.concat([placed.join(open_steps, on="row", how="anti"), *settled], rechunk=True)


def _orders_of_steps(work: pl.DataFrame) -> pl.DataFrame:
    """For each step of each rank its word, and `whole`: no rank of its replica has more forwards or backwards in the
    step. A step with fewer blocks than others of its run may be cut on all ranks: then all its ranks are whole or
    none."""
    rows = work.group_by(RANK_STEP_KEY, maintain_order=True).agg(
        pl.col("letter").str.join("").alias("word"), pl.col("stage", "replica").first(),
        forwards=FORWARDS.sum(), backwards=BACKWARDS.sum(),
    )  # fmt: skip
    most = pl.max_horizontal("forwards", "backwards").max()
    of_step = most.over(PIPELINE_STEP)
    whole = (of_step > 0) & (pl.col("forwards") == of_step) & (pl.col("backwards") == of_step)
    return rows.with_columns(whole=whole & ((of_step == most.over("replica", "run")) | whole.all().over(PIPELINE_STEP)))


def _surely_whole(orders: pl.DataFrame, ends: pl.DataFrame) -> pl.DataFrame:
    """`orders`, in which a step is whole only if it is whole on all ranks and has one end that surely is on each: no
    plan shows missing blocks, and a step without its first forward and its last backward has as many of both."""
    with_ends = orders.join(ends, on=RANK_STEP_KEY, how="left", nulls_equal=True, maintain_order="left")
    whole = pl.col("whole") & (pl.col("starts") | pl.col("ends")).fill_null(False)
    return with_ends.with_columns(whole=whole.all().over(PIPELINE_STEP)).select(orders.columns)


def _by_occurrence(work: pl.DataFrame, orders: pl.DataFrame, plan: Plan | None) -> pl.DataFrame:
    """Numbers by order of appearance within each kind, for the steps that are whole."""
    whole = orders.filter("whole").select(RANK_STEP_KEY)
    nth = pl.int_range(pl.len(), dtype=INT).over([*RANK_STEP_KEY, "kind"])
    rows = work.join(whole, on=RANK_STEP_KEY, how="semi", nulls_equal=True).with_columns(nth=nth)
    if plan is None:
        return conform(rows.select("row", microbatch="nth"), _FOUND)
    nth = pl.int_range(pl.len(), dtype=INT).over("stage", "kind")
    table = profile_blocks(plan, _stages(rows)).with_columns(nth=nth)
    return conform(rows.select("row", "stage", "kind", "nth").join(table, on=["stage", "kind", "nth"]), _FOUND)


def _without_uncertain_weights(work: pl.DataFrame, numbered: pl.DataFrame, plan: Plan) -> pl.DataFrame:
    """`numbered` without the weight gradients of steps in which a rank has another number of them than the plan."""
    weight = pl.col("kind") == "W"
    planned = profile_blocks(plan, _stages(work)).filter(weight).group_by("stage").agg(planned=pl.len())
    weights = work.filter(weight).join(planned, on="stage", how="left")
    wrong = weights.filter(pl.len().over(RANK_STEP_KEY) != pl.col("planned").fill_null(0))
    return numbered.filter(~pl.col("row").is_in(wrong["row"].implode()))


def _labels_at(work: pl.DataFrame, positions: pl.DataFrame, plan: Plan) -> pl.DataFrame:
    """`_FOUND` for the rows in `positions` (row, position in the plan's word)."""
    rows = work.select("row", "stage").join(positions, on="row")
    return conform(rows.join(profile_blocks(plan, _stages(rows)), on=["stage", "position"]), _FOUND)


def _stages(rows: pl.DataFrame) -> tuple[int, ...]:
    return tuple(rows["stage"].drop_nulls().unique().sort())


def _once(notes: list[Note]) -> list[Note]:
    """Equal notes as one, with their count."""
    counts: dict[Note, int] = {}
    for note in notes:
        counts[note] = counts.get(note, 0) + note.count
    return [replace(note, count=count) for note, count in counts.items()]
