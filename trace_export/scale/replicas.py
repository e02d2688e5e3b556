"""The replicas in a folder, and how to read only some of them: `--replica 17` opens the sources of that replica."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

from trace_export.errors import TraceExportError, UsageError
from trace_export.model import Profile
from trace_export.pipeline.rank_order import SIZES
from trace_export.progress import Progress, counted, silent
from trace_export.read import LoadOptions, Located, locate, narrowed
from trace_export.run import Request
from trace_export.scale.places import Places, find_places, ranks_of
from trace_export.selection import Numbers
from trace_export.sources.read import read as read_source
from trace_export.sources.source import Source
from trace_export.workers import work
from trace_export.workers.cluster import Cluster
from trace_export.workers.sizing import Workers, choose_workers

Result = TypeVar("Result")
S_TO_OPEN = 0.003
"""The time of one core to find the ranks of a source whose name does not tell them."""


@dataclass(frozen=True)
class Placed:
    """The sources in a folder, and the places of their ranks in the run. `failures`: folders without a source, and
    sources whose ranks are unknown."""

    located: Located
    places: Places
    failures: list[TraceExportError]


def all_ranks(options: LoadOptions) -> LoadOptions:
    """The options for the whole run, by which the place of a rank in it is found."""
    return replace(options, read=replace(options.read, ranks=None))


def find_ranks(options: LoadOptions, located: Located, progress: Progress = silent) -> Placed:
    """The places of all ranks of a run. `located`: the sources of `all_ranks(options)`. Raises UsageError, and as
    `places.find_places` does."""
    if options.devices is not None:
        raise UsageError("a replica has ranks on many hosts", "choose with ranks", parameter="devices")
    if not located.sources:
        raise UsageError(f"{options.log_dir} is one table", "use trace-export report for it", parameter="log_dir")
    sources, read = located.sources, all_ranks(options).read
    tick = counted(progress, "looking for ranks", len(sources))
    times = [S_TO_OPEN if source.rank is None else 0.0 for source in sources]
    looked = work.run(partial(ranks_of, options=read), sources, workers_for(times, options), tick)

    def read_some(some: Sequence[Source]) -> list[Profile | TraceExportError]:
        return work.run(partial(read_source, options=read), some, workers_for([0.0] * len(some), options))

    places = find_places(sources, looked, read_some, options.declared)
    lost = [result for result in looked if isinstance(result, TraceExportError)]
    return Placed(located, places, [*located.failures, *lost])


def of_replicas(wanted: Request, replicas: Numbers, placed: Placed) -> Request:
    """The request for some replicas of its run: only their sources are opened. Raises UsageError if there are none of
    them."""
    options, table = wanted.source, placed.places.table
    chosen = table.filter(replicas.holds("dp"))
    if chosen.is_empty():
        there = Numbers.of(table["dp"].unique().drop_nulls())
        raise UsageError(f"there is no replica {replicas}", f"choose from replicas {there}", parameter="replica")
    if options.read.ranks is not None:
        chosen = chosen.filter(options.read.ranks.holds("rank"))
    ranks = Numbers.of(chosen["rank"])
    alone = replace(
        options,
        places=chosen,
        declared=replace(options.declared, **dict.fromkeys(SIZES)),
        read=replace(options.read, ranks=ranks),
    )
    sources = [placed.located.sources[index] for index in chosen["source"].unique().sort()]
    notes = placed.located.notes + placed.places.notes
    located = replace(placed.located, notes=notes, failures=tuple(placed.failures))
    return replace(wanted, source=alone, located=narrowed(located, sources))


def look(options: LoadOptions, progress: Progress = silent) -> Placed:
    """The sources in the folder of the options, and the places of their ranks. Raises as `read.locate` and `find_ranks`
    do."""
    return find_ranks(options, locate(all_ranks(options)), progress)


def workers_for(times: Sequence[float], options: LoadOptions) -> Workers | Cluster:
    """The cluster, or as many processes here as pay off if each item takes `times` seconds."""
    if options.cluster is not None:
        return options.cluster
    workers = choose_workers(times, 0, releases_gil=False)
    return replace(workers, count=options.jobs) if options.jobs and sum(times) > 0 else workers
