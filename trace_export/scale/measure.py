"""One part of a run, from its sources to its summary: read, interpret, align, analyse."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import polars as pl

from trace_export.analysis.bubbles import Bubbles
from trace_export.analysis.stragglers import rank_work, slow_links, step_work
from trace_export.choices import Align, RunChoice
from trace_export.clocks import align, two_levels
from trace_export.errors import NothingToExportError, SourceError, TraceExportError
from trace_export.model import (
    INT,
    RANK_STEP_KEY,
    REAL,
    STEP_KEY,
    STEPS,
    TEXT,
    WORK_KINDS,
    Declared,
    Profile,
    conform,
)
from trace_export.pipeline import completeness, stages
from trace_export.pipeline.interpret import interpret
from trace_export.scale import slowdown
from trace_export.scale.parts import Part
from trace_export.scale.summary import FAILURES, HOSTS, LINKS, RANK_STEPS, RANKS, REPLICAS, Summary, by_code
from trace_export.schedules.passes import FORWARDS
from trace_export.segments import with_window
from trace_export.selection import Selection, select
from trace_export.sources.merge import merge
from trace_export.sources.read import read
from trace_export.sources.source import ReadOptions
from trace_export.workers.attempt import attempt


@dataclass(frozen=True)
class Task:
    """What to do with each part of a run of so many `replicas`."""

    options: ReadOptions
    align: Align | Path
    selection: Selection
    replicas: int = 1
    run: RunChoice = "latest"


def read_part(part: Part, task: Task) -> tuple[Profile, list[TraceExportError]]:
    """The part interpreted and aligned, and the errors of sources that cannot be read.

    Raises the error of a source where none has a block, AlignmentError.
    """
    results = [attempt(lambda source: read(source, task.options), source) for source in part.sources]
    found = (result for result in results if isinstance(result, Profile))
    profile, refused = merge(found, task.run, all_ranks=False)
    profile, strange = _expected(profile, part)
    failures = [*(r for r in results if isinstance(r, TraceExportError)), *refused, *strange]
    if profile.spans.is_empty():
        raise failures[0] if failures else NothingToExportError(f"{part.path}: no pipeline block here")
    profile = interpret(stages.place(profile, part.places), Declared())
    return align.align(profile, task.align), failures


def _expected(profile: Profile, part: Part) -> tuple[Profile, list[SourceError]]:
    """The profile without ranks that have no place in the part, and an error for each source that holds one: its name
    tells other ranks than its content."""
    strange = profile.ranks.join(part.places, on="rank", how="anti").sort("source", "rank")
    if strange.is_empty():
        return profile, []
    tables = ("ranks", "spans", "p2p", "collectives", "counters")
    kept = {name: getattr(profile, name).join(strange, on="rank", how="anti", maintain_order="left") for name in tables}
    first = strange.unique("source", keep="first", maintain_order=True).select("source", "rank")
    remedy = "give its files the numbers of their ranks, or read it with export"
    return replace(profile, **kept), [
        SourceError(Path(source), f"holds rank {rank}, which is not the rank that its name tells", remedy)
        for source, rank in first.iter_rows()
    ]


def summarise(part: Part, task: Task) -> Summary:
    """The summary of a part. Raises as `read_part` does."""
    profile, failures = read_part(part, task)
    axis = two_levels.axes(profile.clocks, str(part.number))
    measured = measure(profile, axis, task.selection, task.replicas)
    ends = two_levels.shared_ends(profile, axis)
    return replace(measured, ends=ends, failures=failures_of(failures))


def measure(profile: Profile, axis: pl.DataFrame, selection: Selection, replicas: int) -> Summary:
    """The figures of an interpreted profile, with some of so many `replicas`, whose hosts are each on an `axis` (host,
    axis), without what it shares with others and what could not be read."""
    checked, runs = _by_replica(profile)
    chosen = select(checked, selection)
    bubbles = Bubbles(checked).of(chosen)
    graphs, lengths = slowdown.measured(profile, selection, replicas)
    return Summary(
        rank_steps=_rank_steps(bubbles, runs),
        ranks=_ranks(chosen, axis),
        links=conform(slow_links(chosen, bubbles.waits), LINKS),
        hosts=conform(profile.clocks.join(axis, on="host", maintain_order="left"), HOSTS),
        replicas=_replicas(profile),
        graphs=graphs,
        lengths=lengths,
        notes=by_code(checked.notes),
    )


def failed(error: TraceExportError, part: Part) -> Summary:
    """The summary of a part that could not be read at all."""
    return Summary(failures=failures_of([error] * len(part.sources)))


def _by_replica(profile: Profile) -> tuple[Profile, pl.DataFrame]:
    """The profile, checked for completeness, with a run of its own for each replica, because a step is that of a
    replica here; and dp, run, own_run of these.

    Replicas are checked together, and only where not all is whole one by one: their settings may differ.
    """
    profile = replace(profile, spans=profile.spans.with_columns(pl.col("run").fill_null(0)))
    replica = profile.ranks.select("rank", "dp")
    spans = profile.spans.join(replica, on="rank", how="left", maintain_order="left")
    runs = spans.select("dp", "run").unique().sort("dp", "run").with_columns(own_run=pl.int_range(pl.len(), dtype=INT))
    checked = completeness.check(profile, one_clock=True, all_ranks=False)
    steps, notes = checked.steps.join(runs, on="run"), checked.notes
    if runs["dp"].n_unique() > 1 and not checked.steps["whole"].all():
        found = [_of_replica(profile, dp) for dp in runs["dp"].unique().sort()]
        steps = pl.concat([one.steps.join(runs.filter(pl.col("dp") == dp), on="run") for dp, one in found])
        notes = profile.notes + tuple(note for _, one in found for note in one.notes[len(profile.notes) :])
    spans = spans.join(runs, on=["dp", "run"], how="left", maintain_order="left").with_columns(run="own_run")
    whole = conform(steps.with_columns(run="own_run"), STEPS)
    return replace(profile, spans=spans.select(profile.spans.columns), steps=whole, notes=notes), runs


def _of_replica(profile: Profile, dp: int) -> tuple[int, Profile]:
    ranks = profile.ranks.filter(pl.col("dp") == dp)
    spans = profile.spans.join(ranks, on="rank", how="semi", maintain_order="left")
    return dp, completeness.check(replace(profile, ranks=ranks, spans=spans), one_clock=True, all_ranks=False)


def _rank_steps(bubbles: Bubbles, runs: pl.DataFrame) -> pl.DataFrame:
    original = runs.select("run", own_run="own_run")
    to_next = bubbles.steps.select(*STEP_KEY, "step_ns")
    steps = with_window(bubbles.ranks, bubbles.profile.spans)
    steps = steps.join(to_next, on=STEP_KEY, how="left", nulls_equal=True, maintain_order="left")
    found = steps.rename({"run": "own_run"}).join(original, on="own_run", how="left", maintain_order="left")
    return conform(found, RANK_STEPS)


def _ranks(profile: Profile, axis: pl.DataFrame) -> pl.DataFrame:
    work = profile.spans.filter(pl.col("kind").is_in(WORK_KINDS)).sort(
        "rank", "run", "step", "start_ns", maintain_order=True
    )
    kind, length = pl.col("kind"), (pl.col("end_ns") - pl.col("start_ns")).cast(REAL)
    chunks = pl.col("chunk").fill_null(0)
    blocks = work.group_by("rank").agg(
        pl.len().alias("blocks"),
        forward_ns=length.filter(kind == "F").median(),
        backward_ns=length.filter(kind == "B").median(),
        weight_ns=length.filter(kind == "W").median(),
    )
    steps = work.group_by(RANK_STEP_KEY, maintain_order=True).agg(
        count=pl.len(),
        microbatches=FORWARDS.sum() / chunks.n_unique(),
        order=pl.struct("kind", chunks).implode().hash(),
    )
    fullest = steps.sort("rank", "count", descending=[False, True], maintain_order=True).unique("rank", keep="first")
    found = (
        profile.ranks.join(axis, on="host", how="left", maintain_order="left")
        .join(blocks, on="rank", maintain_order="left")
        .join(fullest.select("rank", "microbatches", "order"), on="rank", maintain_order="left")
        .join(
            rank_work(step_work(profile)).select("rank", work_ns="microbatch_ns"),
            on="rank",
            how="left",
            maintain_order="left",
        )
    )
    return conform(found.drop("replica").rename({"dp": "replica"}), RANKS)


def _replicas(profile: Profile) -> pl.DataFrame:
    """The schedule that the part's replicas follow, where they follow one."""
    found = profile.interpreted.recognition
    name = found.named.name if found.named else None
    numbers = profile.ranks["dp"].unique().sort().to_frame("replica")
    return conform(numbers.with_columns(schedule=pl.lit(name, TEXT), certainty=pl.lit(found.certainty)), REPLICAS)


def failures_of(errors: Sequence[TraceExportError]) -> pl.DataFrame:
    """What is wrong, without the path, so that a thousand sources with the same flaw are one row."""
    rows = [(str(error.args[1]) if isinstance(error, SourceError) else error.what, str(error)) for error in errors]
    frame = pl.DataFrame(rows, {"what": TEXT, "first": TEXT}, orient="row")
    return conform(frame.group_by("what", maintain_order=True).agg(pl.col("first").first(), count=pl.len()), FAILURES)
