"""The steps from a folder to an overview.

A run of few ranks is read whole, as for a report. One of many is read replica by replica: find → place → split →
summarise each part → merge → compare; and a report on some of the replicas says what its exceptions cost.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import polars as pl

from trace_export.analysis.explanation import Explanation
from trace_export.analysis.trust import Trust
from trace_export.clocks import two_levels
from trace_export.errors import NothingToExportError, UsageError
from trace_export.model import CLOCKS, TEXT, Note
from trace_export.pipeline.missing_ranks import absent
from trace_export.pipeline.rank_order import BELIEVED_SHARE
from trace_export.progress import Progress, counted, silent
from trace_export.run import Request, Run
from trace_export.scale import bands
from trace_export.scale.exceptions import cohorts, exceptions, representative
from trace_export.scale.measure import Task, failed, failures_of, measure, replica_numbers, summarise
from trace_export.scale.parts import Part, in_parts
from trace_export.scale.places import REMEDY, Places, missing_ranks
from trace_export.scale.replicas import Placed, of_replicas, workers_for
from trace_export.scale.summary import Summary, by_code, merge
from trace_export.selection import Numbers
from trace_export.sources.input_files import seconds
from trace_export.steps.recorded import MISSING
from trace_export.workers import work

S_PER_RANK = 0.005
"""The time of one core to interpret, align and measure a rank of some 130 blocks."""
WHOLE_RANKS, EXPLAINED, SOME_REPLICAS = 1024, 256, 4
"""Up to this many ranks are read whole and all explained. A larger run is read in parts, and replicas with this many
ranks are explained, or this many replicas if they are large."""


@dataclass(frozen=True)
class Overview:
    """The overview of a run of any number of ranks, as tables with at most a row for each rank and step.

    `cells`, `bands` and `steps` as in `scale.bands`, `exceptions` and `replicas` as in `scale.exceptions` (with the
    schedule of each), `ranks` (with the steps and the time of each), `links`, `hosts` and `failures` as in
    `scale.summary`. `bubble` is that of the run. `causes`, `levels` and `trust` are those of `Explanation`, of the
    replicas `explained`. `representative` is the replica that is most like the others. `sources` counts all sources,
    `unread` those that could not be read, `missing_ranks` the ranks of the run that are not here, by its sizes and the
    other replicas; `stages` counts all of the pipeline. `inputs`: the inputs, as words of a command.
    """

    cells: pl.DataFrame
    bands: pl.DataFrame
    steps: pl.DataFrame
    bubble: float | None
    causes: pl.DataFrame
    levels: pl.DataFrame
    trust: Trust
    explained: tuple[int, ...]
    exceptions: pl.DataFrame
    replicas: pl.DataFrame
    ranks: pl.DataFrame
    links: pl.DataFrame
    hosts: pl.DataFrame
    failures: pl.DataFrame
    representative: int | None
    sources: int
    notes: tuple[Note, ...]
    stages: int
    missing_ranks: int = 0
    inputs: str = "DIR"

    @property
    def unread(self) -> int:
        return int(self.failures["count"].sum())


def overview(
    wanted: Request,
    placed: Placed | None,
    replicas: Numbers | None = None,
    progress: Progress = silent,
    whole_ranks: int = WHOLE_RANKS,
) -> Overview:
    """An overview of the ranks of `wanted` in the `replicas` (all) that `placed` finds (None: of a table). A run of at
    most `whole_ranks` ranks is read whole. Raises NothingToExportError where no source has a block, AlignmentError,
    UsageError where there is no such replica."""
    if placed is None:
        run = wanted.run(progress)
        return of_run(run, run.profile.ranks["source"].n_unique())
    table, ranks = placed.places.table, wanted.source.read.ranks
    if ranks is not None:
        table = table.filter(ranks.holds("rank"))
    if replicas is not None:
        table = table.filter(replicas.holds("dp"))
    if table["rank"].n_unique() <= whole_ranks:
        return of_run(_of_some(wanted, replicas, placed).run(progress), len(placed.located.sources))
    result = _in_parts(wanted, table, placed, progress, min(whole_ranks, EXPLAINED))
    lacking = missing_ranks(placed.places) if ranks is None and replicas is None else 0
    unread = 0 if wanted.part.stages is not None else max(table["rank"].n_unique() - result.ranks["rank"].n_unique(), 0)
    return replace(result, missing_ranks=lacking + unread)


def _of_some(wanted: Request, replicas: Numbers | None, placed: Placed) -> Request:
    """The request for all ranks that are wanted, or those of some replicas."""
    if replicas is not None:
        return of_replicas(wanted, replicas, placed)
    return replace(wanted, located=placed.located if wanted.source.read.ranks is None else None)


def of_run(run: Run, sources: int) -> Overview:
    """The overview of a run that was read whole, of this many sources, with all hosts on one axis."""
    axis = run.hosts.select("host", axis=pl.lit(""))
    summary = replace(measure(run._bubbles, axis), failures=failures_of(run.failures))
    alike, lacks = cohorts(summary), absent(run._checked)
    compared = _compared(summary, alike, exceptions(summary, alike), run, sources, run.notes)
    looked_for = any(note.code in MISSING for note in run.notes)
    return replace(compared, stages=lacks.stage_count, missing_ranks=lacks.count if looked_for else 0)


def _in_parts(wanted: Request, table: pl.DataFrame, placed: Placed, progress: Progress, explained: int) -> Overview:
    """The overview of ranks with their places (`table`), replica by replica; some with at most this many ranks are
    explained."""
    options = wanted.source
    if wanted.part.window is not None:
        what = f"a part of the time can be chosen for at most {WHOLE_RANKS:,} ranks"
        raise UsageError(what, "choose ranks or steps", parameter="window")
    parts, all_of_them = in_parts(placed.located.sources, table), len(table) == len(placed.places.table)
    ranks = None if all_of_them else Numbers.of(table["rank"])  # a source may hold ranks of other replicas too
    read = replace(options.read, ranks=ranks)
    task = Task(replace(options, read=read, jobs=1, cluster=None), wanted.clocks.align, wanted.part)
    tick = counted(progress, "reading replicas", len(parts))
    times = [_seconds(part) for part in parts]
    summary = work.reduce(partial(summarise, task=task), parts, workers_for(times, options), merge, failed, tick)
    summary = merge([Summary(failures=failures_of(placed.failures)), summary])
    if summary.rank_steps.is_empty():
        first = next(iter(summary.failures["first"]), f"{options.log_dir}: nothing matches the options")
        raise NothingToExportError(f"no replica could be read; the first: {first}")
    mixed = _of_several_runs(summary) if options.run != "all" else []
    notes = by_code([*placed.located.notes, *placed.places.notes, *summary.notes, *mixed])
    _refuse_wrong_places(placed.places, summary.notes)
    summary = _on_one_axis(summary)
    alike = cohorts(summary)
    different = exceptions(summary, alike)
    some = _worth_explaining(summary, alike, different, explained)
    run = _of_some(wanted, some, placed).run(progress)
    return _compared(summary, alike, different, run, len(placed.located.sources), notes)


def _worth_explaining(summary: Summary, alike: pl.DataFrame, different: pl.DataFrame, count: int) -> Numbers:
    """Replicas with about this many ranks in all, several even if they are large: half of them have the first
    exceptions, the others are spread over the run."""
    there, size = alike["replica"].to_list(), max(int(alike["ranks"].to_numpy().max()), 1)
    most = max(count // size, min(SOME_REPLICAS, WHOLE_RANKS // size), 2)
    places = summary.ranks.select("rank", "replica")
    unlike = different.select("replica", rank="ranks").explode("rank").join(
        places, on="rank", how="left", maintain_order="left"
    )  # fmt: skip
    replicas = unlike.select(pl.coalesce("replica_right", "replica")).to_series().drop_nulls()
    first = replicas.unique(maintain_order=True).head(most // 2).to_list()
    others = [n for n in there if n not in set(first)]
    more = min(most - len(first), len(others))
    return Numbers.of(sorted({*first, *(others[n * len(others) // more] for n in range(more))}))


def _refuse_wrong_places(places: Places, notes: Sequence[Note]) -> None:
    """Raises NothingToExportError if the parts contradict places that the user did not give, on more ranks than the few
    whose recording may be cut."""
    contradicted = [note for note in notes if note.code == "stages-contradict"]
    if not contradicted or (places.table["origin"] == "user-specified").any():
        return
    if sum(note.count for note in contradicted) > (1 - BELIEVED_SHARE) * len(places.table):
        raise NothingToExportError(f"the places of the ranks are wrong: {contradicted[0].text}", REMEDY)


def _of_several_runs(summary: Summary) -> list[Note]:
    """A warning if the newest complete run of some replicas is not that of the others."""
    runs = summary.rank_steps["run"].drop_nulls().unique().sort().to_list()
    if len(runs) < 2:
        return []
    text = f"the newest complete run is not the same in all replicas (runs {', '.join(map(str, runs))}); give --run"
    return [Note("replicas-of-runs", "warning", text)]


def _on_one_axis(summary: Summary) -> Summary:
    """The summary with all replicas on one axis, as far as collectives connect them. The hosts have the number of their
    group in the whole run as `component`, null where there is one group."""
    placed = two_levels.fit_axes(summary.ends)
    rows = summary.rank_steps.join(summary.ranks.select("rank", "axis"), on="rank", how="left", maintain_order="left")
    times = ["first_ns", "last_ns", "step_start_ns", "step_end_ns"]
    moved = two_levels.on_shared_axis(rows, times, placed).drop("axis")
    shared = placed.select(axis="host", shared=pl.format("component {}", pl.col("component").fill_null(0)).cast(TEXT))
    ranks, hosts = (
        table.join(shared, on="axis", how="left", maintain_order="left")
        .with_columns(axis=pl.coalesce("shared", "axis"))
        .drop("shared")
        for table in (summary.ranks, two_levels.combined(summary.hosts, placed))
    )
    group = pl.when(pl.col("status").is_in(two_levels.ALIGNED)).then(pl.col("axis")).rank("dense")
    hosts = hosts.with_columns(component=pl.when(group.max() > 1).then(group).cast(CLOCKS["component"]))
    return replace(summary, rank_steps=moved, ranks=ranks, hosts=hosts)


def _compared(
    summary: Summary, alike: pl.DataFrame, different: pl.DataFrame, run: Run, sources: int, notes: tuple[Note, ...]
) -> Overview:
    """The overview of a summary, with its `cohorts` and `exceptions`; `run` has those of its replicas that are
    explained."""
    cells, steps = bands.cells(summary), bands.steps(summary)
    explanation = run.explain()
    return Overview(
        cells=cells,
        bands=bands.bands(cells),
        steps=steps,
        bubble=bands.bubble_of(summary, steps),
        causes=_named_causes(explanation, run),
        levels=explanation.levels,
        trust=explanation.trust,
        explained=tuple(replica_numbers(run.ranks)["replica"].unique().sort()),
        exceptions=different,
        replicas=alike.join(summary.replicas, on="replica", how="left", maintain_order="left"),
        ranks=summary.ranks.join(_held(summary), on="rank", how="left", maintain_order="left").sort("rank"),
        links=summary.links,
        hosts=summary.hosts.sort("host"),
        failures=summary.failures,
        representative=representative(alike),
        sources=sources,
        notes=notes,
        stages=summary.ranks["stage"].n_unique(),
        inputs=run._options.words,
    )


def _named_causes(explanation: Explanation, run: Run) -> pl.DataFrame:
    """The causes, whose replicas have their numbers in the whole run."""
    numbers = replica_numbers(run.ranks)["replica"].unique().sort()
    if explanation.causes["replica"].is_null().all():
        return explanation.causes
    return explanation.causes.with_columns(replica=numbers.gather(explanation.causes["replica"]))


def _held(summary: Summary) -> pl.DataFrame:
    """The first and last step of each rank, and its first and last time, on the axis of its replica."""
    return summary.rank_steps.group_by("rank").agg(
        first_step=pl.col("step").min(),
        last_step=pl.col("step").max(),
        start_ns=pl.col("first_ns").min(),
        end_ns=pl.col("last_ns").max(),
    )


def _seconds(part: Part) -> float:
    return sum(seconds(source) for source in part.sources) + S_PER_RANK * len(part.places)
