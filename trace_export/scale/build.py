"""The steps from a folder to an overview, in order: find → place → split → summarise each part → merge → compare."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

import polars as pl

from trace_export.clocks import two_levels
from trace_export.errors import NothingToExportError, TraceExportError, UsageError
from trace_export.model import Note
from trace_export.scale import bands
from trace_export.scale.exceptions import cohorts, exceptions, representative
from trace_export.scale.measure import Task, failed, failures_of, summarise
from trace_export.scale.parts import Part, split
from trace_export.scale.places import Places, find_places, ranks_of
from trace_export.scale.summary import Summary, by_code, merge
from trace_export.selection import Selection
from trace_export.sources import cost
from trace_export.sources.source import Source
from trace_export.workers import local
from trace_export.workers.sizing import choose_workers
from trace_export.workflow.options import AlignOptions
from trace_export.workflow.progress import Progress, counted, silent
from trace_export.workflow.reading import LoadOptions, Located

Result = TypeVar("Result")
S_PER_RANK = 0.005
"""What one core takes to interpret, align and measure a rank of some 130 blocks."""


@dataclass(frozen=True)
class Overview:
    """What is known of a run of any number of ranks: tables of a row for each rank and less.

    `cells`, `bands` and `steps` as in `overview.bands`, `exceptions` and `replicas` as in `overview.exceptions` (with
    the schedule of each), `ranks`, `links`, `hosts` and `failures` as in `overview.summary`. `representative` is the
    replica that is most like the others. `sources` counts those found, `unread` those that could not be read.
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
    representative: int | None
    sources: int
    notes: tuple[Note, ...]

    @property
    def unread(self) -> int:
        return int(self.failures["count"].sum())


@dataclass(frozen=True)
class Divided:
    """The parts of what lies in a folder. `failures` are sources whose ranks could not be found out."""

    located: Located
    places: Places
    parts: list[Part]
    failures: list[TraceExportError]


def all_ranks(options: LoadOptions) -> LoadOptions:
    """The options for the whole run, by which the place of a rank in it is found."""
    return replace(options, read=replace(options.read, ranks=None))


def divide(options: LoadOptions, located: Located, progress: Progress = silent) -> Divided:
    """Which replicas there are, and what has to be read for each; of `options.read.ranks` only the replicas with one
    of them. `located`: the sources of `all_ranks(options)`. Raises UsageError, and as `places.find_places` does."""
    if options.devices is not None:
        raise UsageError("an overview has whole replicas", "choose with ranks", parameter="devices")
    wanted, options = options.read.ranks, all_ranks(options)
    if not located.sources:
        raise UsageError(f"{options.log_dir} is one table", "use trace-export report for it", parameter="log_dir")
    looked = _map(partial(ranks_of, options=options.read), located.sources, options, progress, "looking for ranks", 0.0)
    places = find_places(located.sources, looked, options.read, options.declared)
    table = places.table
    if wanted is not None:
        chosen = table.filter(wanted.holds("rank"))["dp"].unique()
        table = table.filter(pl.col("dp").is_in(chosen.implode()))
    failures = [result for result in looked if isinstance(result, TraceExportError)]
    return Divided(located, places, split(located.sources, table), [*located.failures, *failures])


def overview(
    options: LoadOptions,
    clocks: AlignOptions,
    selection: Selection,
    divided: Divided,
    progress: Progress = silent,
) -> Overview:
    """An overview of the replicas in `divided`. Raises NothingToExportError where no source has a block."""
    task = Task(all_ranks(options).read, clocks.method, selection)
    results = _map(partial(summarise, task=task), divided.parts, options, progress, "reading replicas", S_PER_RANK)
    summary = merge(
        failed(result, part) if isinstance(result, TraceExportError) else result
        for part, result in zip(divided.parts, results, strict=True)
    )
    summary = merge([Summary(failures=failures_of(divided.failures)), summary])
    if summary.rank_steps.is_empty():
        first = next(iter(summary.failures["first"]), f"{options.log_dir}: the options leave nothing to show")
        raise NothingToExportError(f"no replica could be read; the first: {first}")
    notes = by_code([*divided.located.notes, *divided.places.notes, *summary.notes])
    return _compared(_on_one_axis(summary), len(divided.located.sources), notes)


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


def _compared(summary: Summary, sources: int, notes: tuple[Note, ...]) -> Overview:
    cells, alike = bands.cells(summary), cohorts(summary)
    return Overview(
        cells=cells,
        bands=bands.bands(cells),
        steps=bands.steps(cells),
        exceptions=exceptions(summary, alike),
        replicas=alike.join(summary.replicas, on="replica", how="left", maintain_order="left"),
        ranks=summary.ranks.sort("rank"),
        links=summary.links,
        hosts=summary.hosts.sort("host"),
        failures=summary.failures,
        representative=representative(alike),
        sources=sources,
        notes=notes,
    )


def _map(
    function: Callable[..., Result],
    items: Sequence[Source] | Sequence[Part],
    options: LoadOptions,
    progress: Progress,
    what: str,
    s_per_rank: float,
) -> list[Result | TraceExportError]:
    """`function` of every item, here, in as many processes as pay off, or on the cluster."""
    tick = counted(progress, what, len(items))
    if options.cluster is not None:
        from trace_export.workers import dask

        return dask.run(options.cluster, function, items, tick)
    times = [_seconds(item, s_per_rank) for item in items]
    workers = choose_workers(times, 0, releases_gil=False)
    if options.jobs:
        workers = replace(workers, count=options.jobs, threads=False)
    return local.run(function, items, workers, tick)


def _seconds(item: Source | Part, s_per_rank: float) -> float:
    if isinstance(item, Source):
        return 0.0 if item.rank is not None else 0.003
    return sum(cost.seconds(source) for source in item.sources) + s_per_rank * len(item.places)
