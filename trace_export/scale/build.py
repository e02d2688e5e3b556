"""The steps from a folder to an overview, in order: find → place → split → summarise each part → merge → compare."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import polars as pl

from trace_export.analysis.what_if import Slowdown
from trace_export.clocks import two_levels
from trace_export.errors import NothingToExportError
from trace_export.model import Note, Profile
from trace_export.pipeline.rank_order import MOST
from trace_export.scale import bands, slowdown
from trace_export.scale.exceptions import cohorts, exceptions, representative
from trace_export.scale.measure import Task, failed, failures_of, measure, summarise
from trace_export.scale.parts import Part, split
from trace_export.scale.places import REMEDY, Places, absent
from trace_export.scale.replicas import Placed, all_ranks, reduce_everywhere
from trace_export.scale.summary import Summary, by_code, merge
from trace_export.selection import Numbers, Selection
from trace_export.sources import cost
from trace_export.workflow.options import AlignOptions
from trace_export.workflow.progress import Progress, counted, silent
from trace_export.workflow.reading import LoadOptions

S_PER_RANK = 0.005
"""What one core takes to interpret, align and measure a rank of some 130 blocks."""


@dataclass(frozen=True)
class Overview:
    """What is known of a run of any number of ranks: tables of a row for each rank and less.

    `cells`, `bands` and `steps` as in `scale.bands`, `exceptions` and `replicas` as in `scale.exceptions` (with
    the schedule of each), `ranks` (with the steps and the time of each, as `catalogue.HELD`), `links`, `hosts` and
    `failures` as in `scale.summary`, `workers` as in `scale.slowdown`. `slowdown` is None where the steps cannot be
    simulated. `representative` is the
    replica that is most like the others. `sources` counts those found, `unread` those that could not be read,
    `missing_ranks` those of the run that are not here, as its sizes and the other replicas show.
    """

    cells: pl.DataFrame
    bands: pl.DataFrame
    steps: pl.DataFrame
    exceptions: pl.DataFrame
    replicas: pl.DataFrame
    ranks: pl.DataFrame
    links: pl.DataFrame
    hosts: pl.DataFrame
    failures: pl.DataFrame
    workers: pl.DataFrame
    slowdown: Slowdown | None
    representative: int | None
    sources: int
    notes: tuple[Note, ...]
    missing_ranks: int = 0

    @property
    def unread(self) -> int:
        return int(self.failures["count"].sum())


def overview(
    options: LoadOptions,
    clocks: AlignOptions,
    selection: Selection,
    placed: Placed,
    progress: Progress = silent,
) -> Overview:
    """An overview of the replicas that `placed` finds, or of those with one of `options.read.ranks`. Raises
    NothingToExportError where no source has a block."""
    table, read = placed.with_steps(selection.steps), all_ranks(options).read
    if options.read.ranks is not None:
        table = table.filter(pl.col("dp").is_in(table.filter(options.read.ranks.holds("rank"))["dp"].implode()))
        read = replace(read, ranks=Numbers.of(table["rank"]))  # a source may hold ranks of other replicas too
    parts = split(placed.located.sources, table)
    task = Task(read, clocks.method, selection, table["dp"].n_unique(), options.run)
    tick = counted(progress, "reading replicas", len(parts))
    times = [_seconds(part) for part in parts]
    summary = reduce_everywhere(partial(summarise, task=task), parts, times, options, merge, failed, tick)
    summary = merge([Summary(failures=failures_of(placed.failures)), summary])
    if summary.rank_steps.is_empty():
        first = next(iter(summary.failures["first"]), f"{options.log_dir}: the options leave nothing to show")
        raise NothingToExportError(f"no replica could be read; the first: {first}")
    mixed = _of_several_runs(summary) if options.run != "all" else []
    notes = by_code([*placed.located.notes, *placed.places.notes, *summary.notes, *mixed])
    _check_places(placed.places, summary.notes)
    found = _compared(_on_one_axis(summary), placed.places.declared.pp, len(placed.located.sources), notes)
    lacking = absent(placed.places) if options.read.ranks is None else 0
    unread = table["rank"].n_unique() - found.ranks["rank"].n_unique()
    return replace(found, missing_ranks=lacking + max(unread, 0))


def _check_places(places: Places, notes: Sequence[Note]) -> None:
    """Raises NothingToExportError where the parts contradict places that are no user's word: those of more ranks than a
    few, whose recording was cut."""
    contradicted = [note for note in notes if note.code == "stages-contradict"]
    if not contradicted or (places.table["origin"] == "user-specified").any():
        return
    if sum(note.count for note in contradicted) > (1 - MOST) * len(places.table):
        raise NothingToExportError(f"the places of the ranks are wrong: {contradicted[0].text}", REMEDY)


def _of_several_runs(summary: Summary) -> list[Note]:
    """A warning where the newest complete run of some replicas is another one than that of the others."""
    runs = summary.rank_steps["run"].drop_nulls().unique().sort().to_list()
    if len(runs) < 2:
        return []
    text = f"the newest complete run is not the same in all replicas (runs {', '.join(map(str, runs))}); give --run"
    return [Note("replicas-of-runs", "warning", text)]


def of_profile(profile: Profile, sources: int) -> Overview:
    """The overview of a profile that was read whole, of so many sources, with all hosts on one axis."""
    axis = profile.hosts.select("host", axis=pl.lit(""))
    summary = measure(profile, axis, Selection(), max(profile.ranks["dp"].n_unique(), 1))
    return _compared(summary, profile.declared.pp, sources, profile.notes)


def _on_one_axis(summary: Summary) -> Summary:
    """The summary with all replicas on one axis, as far as collectives connect them."""
    if summary.ends["axis"].n_unique() < 2:
        return summary
    placed = two_levels.fit_axes(summary.ends)
    axes = summary.ranks.select("rank", "axis")
    times = ["first_ns", "last_ns", "step_start_ns", "step_end_ns"]
    rows = summary.rank_steps.join(axes, on="rank", how="left", maintain_order="left")
    moved = two_levels.on_shared_axis(rows, times, placed).drop("axis")
    return replace(summary, rank_steps=moved, hosts=two_levels.combined(summary.hosts, placed))


def _compared(summary: Summary, stages: int | None, sources: int, notes: tuple[Note, ...]) -> Overview:
    cells, alike = bands.cells(summary), cohorts(summary)
    slower = slowdown.of_workers(summary.graphs, summary.lengths, stages)
    return Overview(
        cells=cells,
        bands=bands.bands(cells),
        steps=bands.steps(cells),
        exceptions=exceptions(summary, alike),
        replicas=alike.join(summary.replicas, on="replica", how="left", maintain_order="left"),
        ranks=summary.ranks.join(_held(summary), on="rank", how="left", maintain_order="left").sort("rank"),
        links=summary.links,
        hosts=summary.hosts.sort("host"),
        failures=summary.failures,
        workers=slowdown.worker_table(slower, summary.ranks),
        slowdown=slower,
        representative=representative(alike),
        sources=sources,
        notes=notes,
    )


def _held(summary: Summary) -> pl.DataFrame:
    """The steps and the time of each rank (`catalogue.HELD`)."""
    return summary.rank_steps.group_by("rank").agg(
        first_step=pl.col("step").min(),
        last_step=pl.col("step").max(),
        start_ns=pl.col("first_ns").min(),
        end_ns=pl.col("last_ns").max(),
    )


def _seconds(part: Part) -> float:
    return sum(cost.seconds(source) for source in part.sources) + S_PER_RANK * len(part.places)
