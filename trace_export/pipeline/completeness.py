"""Which steps are whole: the ranks of a pipeline must agree on the steps and on the number of blocks in each.

In a step every stage runs each micro-batch forward and backward, through each of its chunks, so that all ranks have the
same number of forwards and of backwards. Two things are excepted: where weight gradients are recorded apart, the first
stage may have no input gradient to compute, and the number of weight gradients depends on the schedule and the stage,
and on how many of them one block at the end of a step computes (W_clear); and a capture may begin and end inside a
step.
"""

from __future__ import annotations

from dataclasses import replace

import polars as pl

from trace_export.model import (
    INT,
    PASS_KINDS,
    RANK_STEP_KEY,
    SEGMENT,
    STEP_KEY,
    STEPS,
    WORK_KINDS,
    Note,
    Profile,
    Recognition,
    conform,
)
from trace_export.ordering import only, run_number
from trace_export.pipeline import missing_ranks, warm_ups
from trace_export.pipeline.doubles import copied_ranks
from trace_export.schedules.passes import FORWARDS
from trace_export.schedules.schedule import blocks
from trace_export.segments import with_window
from trace_export.selection import Numbers
from trace_export.units import duration

RANK_SEGMENT = ["rank", *SEGMENT]
WORK = [*RANK_STEP_KEY, "window", "kind", "microbatch", "chunk", "start_ns", "end_ns"]
"""These columns of the blocks are looked at."""
MOST_PARTS = 100_000
"""Up to this many ranks times steps are looked at one by one, 0.4 kB each, if most of them have no block at all."""


def mark_whole_steps(profile: Profile, *, one_clock: bool, all_ranks: bool) -> Profile:
    """`profile` with the table `steps` filled, and notes on blocks, steps and ranks that are missing or in excess.

    Needs an interpreted profile. `one_clock`: the times of different hosts can be compared. `all_ranks`: the user did
    not ask for some ranks only, so that ranks which are absent are missing. O(n log n) in the number of blocks.
    """
    work = only(profile.spans.select(WORK), pl.col("kind").is_in(WORK_KINDS))
    if work.is_empty():
        return profile
    clock = pl.lit("") if one_clock else pl.col("host")
    passes = profile.passes()
    parts = with_window(_parts(passes, profile.ranks.with_columns(clock=clock)), work)
    parts = _against_counterparts(_against_wanted(parts, _scheduled_weights(profile)), passes)
    parts = _at_the_edges(parts, work, may_be_truncated=profile.declared.steps is None)
    parts = _apart(parts)
    flawed = pl.any_horizontal(pl.col("missing", "excess", "apart_ns") > 0)
    steps = parts.group_by(STEP_KEY).agg(whole=~flawed.any()).sort(STEP_KEY)
    steps, warm_up = warm_ups.counting(steps, work)
    notes = _on_blocks(parts) + _on_announced(profile.declared.steps, steps) + _on_figures(steps) + warm_up
    missing = missing_ranks.notes(profile) if all_ranks else []
    return replace(profile, steps=conform(steps, STEPS)).with_notes(
        [*copied_ranks(profile, work), *_on_order(work), *missing, *notes]
    )


def _parts(passes: pl.DataFrame, ranks: pl.DataFrame) -> pl.DataFrame:
    """A row for each rank and step, also where the rank has no pass of it: rank, stage, replica, clock, run, step, F,
    B, W (numbers of passes), several (whether one of its W may be that of several micro-batches, as it has no number),
    first_ns, last_ns."""
    kind = pl.col("kind")
    flags = {name: kind == name for name in PASS_KINDS}
    several = (kind == "W") & pl.col("microbatch").is_null()
    counts = (
        passes.select(*RANK_STEP_KEY, "start_ns", "end_ns", several=several, **flags)
        .group_by(run_number(*RANK_STEP_KEY))
        .agg(
            pl.col(RANK_STEP_KEY).first(),
            pl.col(*flags).sum().cast(pl.Int64),
            pl.col("several").any(),
            first_ns=pl.col("start_ns").min(),
            last_ns=pl.col("end_ns").max(),
        )
        .group_by(RANK_STEP_KEY)
        .agg(pl.col(*flags).sum(), pl.col("several").any(), pl.col("first_ns").min(), pl.col("last_ns").max())
    )
    places = ranks.select("rank", "stage", "replica", "clock").unique("rank")
    places = places.join(counts, on="rank", how="semi").sort("rank")
    steps = counts.select(STEP_KEY).unique().sort(STEP_KEY)
    if places.height * steps.height <= max(MOST_PARTS, 2 * counts.height):
        grid = places.join(steps, how="cross")
    else:  # one rank in all steps and all ranks in one step show that blocks are missing, too
        worked = places.join(counts.select(RANK_STEP_KEY), on="rank")
        ends = [places.head(1).join(steps, how="cross"), places.join(steps.head(1), how="cross")]
        grid = pl.concat([worked, *ends], how="diagonal").unique(RANK_STEP_KEY)
    parts = grid.join(counts, on=RANK_STEP_KEY, how="left", nulls_equal=True)
    return parts.with_columns(pl.col("F", "B", "W").fill_null(0), pl.col("several").fill_null(False)).sort(
        RANK_STEP_KEY
    )


def _scheduled_weights(profile: Profile) -> pl.DataFrame:
    """stage, forwards, weights: the number of weight gradients for this many forwards in the recognised schedule."""
    recognition = profile.interpretation.recognition if profile.interpretation else Recognition()
    if recognition.named is None or not recognition.weights:
        return pl.DataFrame(schema={"stage": INT, "forwards": pl.Int64, "weights": pl.Int64})
    kind = pl.col("kind")
    return (
        blocks(recognition.named, range(recognition.named.stages))
        .group_by(pl.col("stage").cast(INT))
        .agg(
            forwards=FORWARDS.sum().cast(pl.Int64), weights=(kind == "W").sum().cast(pl.Int64)
        )
    )  # fmt: skip


def _against_wanted(parts: pl.DataFrame, scheduled: pl.DataFrame) -> pl.DataFrame:
    """`parts` with have, want, missing and excess: numbers of blocks. `scheduled` as from `_scheduled_weights`.

    A step without any backward, unless it is the last one of its window, runs forward only.
    """
    parts = parts.join(_wanted(parts), on=STEP_KEY, how="left", nulls_equal=True, maintain_order="left")
    parts = parts.join(scheduled, on="stage", how="left", maintain_order="left")
    last = pl.col("step") == pl.col("step").max().over(SEGMENT)
    backward = ((pl.col("B") > 0).any().over(STEP_KEY) | last) & (pl.col("B") > 0).any()
    no_input_gradient = (pl.col("W") > 0).any() & (pl.col("stage") == pl.col("stage").min())
    want = {
        "F": pl.col("n"),
        "B": pl.when(no_input_gradient).then(_usual("B")).when(backward).then("n").otherwise(0),
        "W": pl.when((pl.col("n") == pl.col("forwards")) & ~pl.col("several")).then("weights").otherwise(_usual("W")),
    }
    parts = parts.with_columns(wanted.alias(f"want_{kind}") for kind, wanted in want.items())
    each = [pl.col(f"want_{kind}") - pl.col(kind) for kind in want]
    return parts.with_columns(
        have=pl.sum_horizontal(*want),
        want=pl.sum_horizontal(f"want_{kind}" for kind in want),
        missing=pl.sum_horizontal(d.clip(lower_bound=0) for d in each),
        excess=pl.sum_horizontal((-d).clip(lower_bound=0) for d in each),
    )


def _usual(kind: str) -> pl.Expr:
    """The number of blocks of a kind that a stage should have in a step, if only its other steps and replicas tell."""
    of_stage = pl.max_horizontal(kind, pl.col(kind).mode().max().over("stage"))
    return pl.when("usual").then(of_stage).otherwise(kind)


def _wanted(parts: pl.DataFrame) -> pl.DataFrame:
    """run, step, n, usual: how many forwards, and as many backwards, a rank should have in a step, and whether that is
    what most ranks have in most steps.

    It is the number that more than half of the ranks have, in forwards and backwards. Where there is none, it is the
    usual number, or if some have more, the most frequent one, and of two the larger.

    Example: three ranks have 4 forwards and 4, 4 and 3 backwards: a rank should have 4 of each. In a step in which two
    ranks have 2 of each and the third 4, it should have 2.
    """
    votes = pl.concat([parts.select(*STEP_KEY, n=pl.col(kind)) for kind in ("F", "B")]).filter(pl.col("n") > 0)
    usual = pl.lit(votes["n"].mode().max(), pl.Int64)
    share = pl.col("len") / pl.col("len").sum()
    by_step = votes.group_by(*STEP_KEY, "n").len().sort("len", "n").group_by(STEP_KEY, maintain_order=True)
    most = by_step.agg(pl.col("n").last(), most=pl.col("n").max(), clear=share.last() > 0.5)
    number = pl.when(~pl.col("clear") & (pl.col("most") <= usual)).then(usual).otherwise("n")
    return most.select(*STEP_KEY, n=number, usual=number == usual)


def _against_counterparts(parts: pl.DataFrame, passes: pl.DataFrame) -> pl.DataFrame:
    """`parts` (rank, run, step, F, B, want, missing, excess). If the numbers alone are right, a pass counts as missing
    if only its counterpart is there. `passes` has the schema `PASSES`."""
    right = (pl.col("missing") == 0) & (pl.col("excess") == 0) & (pl.col("F") == pl.col("B"))
    parts = parts.join(unpaired(passes), on=RANK_STEP_KEY, how="left", nulls_equal=True, maintain_order="left")
    lacking = pl.when(right).then("unpaired").otherwise(0).fill_null(0)
    return parts.with_columns(pl.col("missing", "want") + lacking)


def unpaired(passes: pl.DataFrame) -> pl.DataFrame:
    """rank, run, step, unpaired: the number of micro-batches and chunks with a forward and no backward, or the reverse.
    Only where there are some, and all forwards and backwards of the rank's step have a micro-batch. O(n log n) in the
    passes.
    """
    columns = [*RANK_STEP_KEY, "microbatch", "chunk"]
    forward, backward = (
        passes.filter(pl.col("kind") == kind).select(*columns, side=pl.lit(side))
        for kind, side in (("F", 1), ("B", -1))
    )
    content = pl.struct(columns).hash().sum()  # equal where both have the same rows, in any order
    if forward.height == backward.height and forward.select(content).equals(backward.select(content)):
        return passes.select(*RANK_STEP_KEY, unpaired=pl.lit(0, pl.Int64)).clear()
    both = pl.concat([forward, backward])
    if both["microbatch"].null_count():
        both = both.filter(pl.col("microbatch").is_not_null().all().over(RANK_STEP_KEY))
    side = pl.col("side")
    sides = both.group_by(columns).agg(alone=side.min() == side.max())
    return sides.filter("alone").group_by(RANK_STEP_KEY).agg(unpaired=pl.len().cast(pl.Int64))


def _at_the_edges(parts: pl.DataFrame, work: pl.DataFrame, *, may_be_truncated: bool) -> pl.DataFrame:
    """`parts` with `truncated`: blocks are missing because the capture began or ended inside the step.

    Only of the first and the last step of a window; only where the rank's data begin or end with those of all ranks on
    its clock, within the longest time between two of its blocks; and not where it has the block with which its steps
    begin or end.

    Example: the last step of rank 1 ends with F3 at 96 ms, those of the others with B3 at 100 ms, and rank 1 has had
    breaks of 5 ms: its capture ended inside the step. If rank 1 had ended at 60 ms, blocks would be missing.
    """
    if not (parts["missing"] > 0).any():
        return parts.with_columns(truncated=pl.lit(False))
    ordered = work.sort(*RANK_SEGMENT, "start_ns", maintain_order=True)
    gap = pl.max_horizontal(pl.col("start_ns", "end_ns").diff().over(RANK_SEGMENT))
    reach = ordered.with_columns(gap=gap).group_by(RANK_SEGMENT).agg(
        begin=pl.col("start_ns").min(), end=pl.col("end_ns").max(), gap=pl.col("gap").max().fill_null(0)
    ).join(parts.select("rank", "clock").unique(), on="rank")  # fmt: skip
    late = pl.col("begin") - pl.col("begin").min().over(*SEGMENT, "clock")
    early = pl.col("end").max().over(*SEGMENT, "clock") - pl.col("end")
    reach = reach.select(*RANK_SEGMENT, from_begin=late <= pl.col("gap"), to_end=early <= pl.col("gap"))
    step = pl.col("step")
    begins = (step == step.min().over(SEGMENT)) & pl.col("from_begin") & ~pl.col("has_first")
    ends = (step == step.max().over(SEGMENT)) & pl.col("to_end") & ~pl.col("has_last")
    lacks = (pl.col("missing") > 0) & (pl.col("excess") == 0)
    begun = (pl.col("have") > 0) | (pl.col("missing") > 0).all().over(STEP_KEY)
    return (
        parts.join(reach, on=RANK_SEGMENT, how="left", nulls_equal=True, maintain_order="left")
        .join(_outermost(parts, ordered), on=RANK_STEP_KEY, how="left", nulls_equal=True, maintain_order="left")
        .with_columns(truncated=((begins | ends).fill_null(False) & lacks & begun) & may_be_truncated)
    )


def _outermost(parts: pl.DataFrame, ordered: pl.DataFrame) -> pl.DataFrame:
    """rank, run, step, has_first, has_last: whether a rank's part of a step has the block that its whole steps (if
    there is none, several of its steps) begin and end with. `ordered`: the blocks of each rank by time."""
    label = pl.struct("kind", "microbatch", "chunk")
    ends = ordered.group_by(RANK_STEP_KEY).agg(first=label.first(), last=label.last())
    ends = ends.join(parts.select(*RANK_STEP_KEY, "missing"), on=RANK_STEP_KEY, nulls_equal=True)
    ends_of = parts.select(RANK_STEP_KEY)
    for end in ("first", "last"):
        votes = ends.group_by("rank", end).agg(pl.len(), whole=(pl.col("missing") == 0).sum())
        votes = votes.filter((pl.col("whole") > 0) | (pl.col("len") > 1)).sort("rank", "whole", "len")
        usual = votes.group_by("rank").agg(pl.col(end).last())
        there = ordered.with_columns(label.alias(end)).join(usual, on=["rank", end]).select(RANK_STEP_KEY).unique()
        there = there.with_columns(pl.lit(True).alias(f"has_{end}"))
        ends_of = ends_of.join(there, on=RANK_STEP_KEY, how="left", nulls_equal=True)
    return ends_of.with_columns(pl.col("has_first", "has_last").fill_null(False))


def _apart(parts: pl.DataFrame) -> pl.DataFrame:
    """`parts` with `apart_ns`: how far a rank's part of a step lies from the others' if they have no time in common.

    In a step that runs forward and back, the window of a stage contains that of the next one. If they are apart, the
    rank lacks a step and numbers its steps otherwise, or its clock is wrong. 0 elsewhere, and for the other ranks.
    """
    pipeline = ["replica", "clock", *STEP_KEY]
    sound = (pl.col("missing") == 0) & (pl.col("excess") == 0) & (pl.col("B") > 0)
    middle = (pl.col("first_ns") + pl.col("last_ns")) // 2
    first, last = (pl.when(sound).then(c) for c in ("first_ns", "last_ns"))
    disjoint = first.max().over(pipeline) > last.min().over(pipeline)
    off = (middle - pl.when(sound).then(middle).median().over(pipeline)).abs()
    parts = parts.with_columns(off=off)
    worst = sound & disjoint & (pl.col("off") == pl.col("off").max().over(pipeline))
    return parts.with_columns(apart_ns=pl.when(worst).then("off").otherwise(0).fill_null(0)).drop("off")


def _on_blocks(parts: pl.DataFrame) -> list[Note]:
    """A note for each kind of flaw, with the worst case and where the others are."""
    notes = []
    missing = parts.filter((pl.col("missing") > 0) & ~pl.col("truncated"))
    if len(missing):
        text = f"blocks are missing: {_worst_part(missing, 'missing')}{_others(missing)}{_other_jobs(parts)}"
        notes.append(Note("blocks-missing", "warning", text, count=len(missing)))
    excess = parts.filter(pl.col("excess") > 0)
    if len(excess):
        text = f"more blocks than on the other ranks: {_worst_part(excess, 'excess')}{_others(excess)}"
        text += "" if len(missing) else _other_jobs(parts)
        notes.append(Note("blocks-in-excess", "warning", text, count=len(excess)))
    apart = parts.filter(pl.col("apart_ns") > 0)
    if len(apart):
        distance = duration(apart["apart_ns"].max())  # type: ignore[arg-type]
        text = f"{_where_worst(apart, 'apart_ns')} lies {distance} from this step on the other ranks{_others(apart)}"
        why = "the rank lacks a step before it, or its clock is not aligned"
        notes.append(Note("steps-apart", "warning", f"{text}: {why}", count=len(apart)))
    truncated = parts.filter("truncated")
    if len(truncated):
        text = f"the capture begins or ends inside a step: {_worst_part(truncated, 'missing')}{_others(truncated)}"
        notes.append(Note("steps-truncated", "note", text, count=len(truncated)))
    return notes


def _other_jobs(parts: pl.DataFrame) -> str:
    """What replicas seem to be of which each has a number of forwards of its own in all of several steps."""
    there = parts.filter(pl.col("F") > 0)
    each = there.group_by("replica").agg(n=pl.col("F").max(), least=pl.col("F").min(), steps=pl.col("step").n_unique())
    steady = (pl.col("n") == pl.col("least")) & (pl.col("steps") > 1)
    if each["n"].n_unique() < 2 or not each.select(steady.all()).item():
        return ""
    said = [
        f"{Numbers.of(there.filter(pl.col('F') == n)['rank']).named('rank')} have {n}"
        for n in each["n"].unique().sort()
    ]
    ranks = f"in every step {said[0]} forwards and {said[-1]}"
    return f"; {ranks}: they seem to be of different jobs; give the folder or the ranks of one"


def _worst_part(parts: pl.DataFrame, by: str) -> str:
    """The part that is worst, as in: stage 2 (rank 2): step 4 has 5 of 24 blocks."""
    have, want = parts.sort(by, *RANK_STEP_KEY, descending=[True, False, False, False]).select("have", "want").row(0)
    return f"{_where_worst(parts, by)} has {have} of {want} blocks"


def _where_worst(parts: pl.DataFrame, by: str) -> str:
    worst = parts.sort(by, *RANK_STEP_KEY, descending=[True, False, False, False]).row(0, named=True)
    stage = f"rank {worst['rank']}" if worst["stage"] is None else f"stage {worst['stage']} (rank {worst['rank']})"
    return f"{stage}: step {worst['step']}"


def _others(parts: pl.DataFrame) -> str:
    """The other cases, if there are several."""
    if len(parts) < 2:
        return ""
    ranks, steps = (Numbers.of(parts[c].drop_nulls()) for c in ("rank", "step"))
    return f" ({len(parts)} cases in all, on {ranks.named('rank')}, in {steps.named('step')})"


def _on_announced(announced: tuple[int, int] | None, steps: pl.DataFrame) -> list[Note]:
    """A warning where steps that the profiler announced (first, end) are on no rank; of a single run only."""
    if announced is None or steps["run"].n_unique() > 1:
        return []
    there = Numbers.of(steps["step"].drop_nulls())
    lacking = Numbers(((announced[0], announced[1] - 1),)).without(there)
    if not lacking.ranges:
        return []
    text = f"the profiler announced steps {announced[0]}-{announced[1] - 1}, and no rank has {lacking.named('step')}"
    return [Note("steps-missing", "warning", text)]


def _on_figures(steps: pl.DataFrame) -> list[Note]:
    """Says over which steps the means are, if not every step is whole."""
    part = steps.filter(~pl.col("whole"))
    if part.is_empty():
        return []
    if len(part) == len(steps):
        text = "no step is whole on all ranks: bubble, step time, stragglers and theory are of incomplete steps"
        return [Note("no-whole-step", "warning", text)]
    numbers = Numbers.of(part["step"].drop_nulls())
    text = f"not whole on all ranks, and left out of bubble, step time, stragglers and theory: {numbers.named('step')}"
    return [Note("steps-not-whole", "note", f"{text}; {len(steps) - len(part)} of {len(steps)} steps are whole")]


def _on_order(work: pl.DataFrame) -> list[Note]:
    """A warning if a rank begins a step before an earlier one: there are no step times across it."""
    begins = work.drop_nulls("step").group_by([*RANK_STEP_KEY, "window"]).agg(pl.col("start_ns").min())
    back = pl.col("start_ns") < pl.col("start_ns").shift(1).over(RANK_SEGMENT)
    earlier = begins.sort(*RANK_SEGMENT, "step").filter(back)
    if earlier.is_empty():
        return []
    steps, ranks = Numbers.of(earlier["step"]).named("step"), Numbers.of(earlier["rank"]).named("rank")
    text = f"steps that begin before the previous one, so their step time is unknown: {steps} on {ranks}"
    return [Note("steps-out-of-order", "warning", f"{text}; was a clock set back?", count=len(earlier))]
