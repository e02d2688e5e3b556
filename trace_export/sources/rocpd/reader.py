"""rocpd: the databases of rocprofv3 → the time that each pipeline block spent on the GPU.

A block is a ROCTx range on a CPU thread; its time is that of the kernels launched while it was open, as for Nsight
Systems. Times count from the boot of the host.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import polars as pl

from trace_export.errors import SourceError
from trace_export.model import TIME, KernelFile, Note, Profile, concat
from trace_export.sources.launches import content as launches
from trace_export.sources.ranges import notes as range_notes
from trace_export.sources.ranges.devices import Attributed, attributed
from trace_export.sources.ranges.dialects import Dialects
from trace_export.sources.ranges.profile import Content, marked, of_beginning, profile
from trace_export.sources.ranges.ranges import Ranges
from trace_export.sources.ranges.ranks import assigned, from_names, from_stages
from trace_export.sources.ranges.transfers import collectives, transfers
from trace_export.sources.rocpd import hip, roctx
from trace_export.sources.rocpd.device_tasks import write_tasks
from trace_export.sources.rocpd.process import Process, read_process
from trace_export.sources.rocpd.tables import MOST_PROCESSES, Tables, sets_of
from trace_export.sources.shared.batch import Result, each
from trace_export.sources.shared.names import rank_of
from trace_export.sources.shared.sqlite import PIECE_ROWS, Database
from trace_export.sources.source import ReadOptions, Source, TaskRequest

if TYPE_CHECKING:
    from trace_export.sources.launches.process import Inferred

EPOCH = "boot"
"""rocprofv3 takes its times from CLOCK_BOOTTIME (lib/common/utility.hpp)."""
_RECORD = "record with rocprofv3 --hip-trace --kernel-trace --marker-trace"


def read(sources: Sequence[Source], options: ReadOptions) -> list[Result]:
    """What `read_one` gives for each of the sources."""
    return each(read_one, sources, options)


def read_one(source: Source, options: ReadOptions) -> Profile:
    """All processes of one database, or of one JSON file: one, unless several were merged.

    Raises SourceError when the file is none of rocpd, has no pipeline range, or no GPU work for any (unless
    `options.host_ranges` asks for the ranges themselves).
    """
    with Database(source.path, options.beginning * PIECE_ROWS) as db:
        processes = _processes(db)
        facts = {tables.process: read_process(tables) for tables in processes}
        hosts: dict[str | None, list[Tables]] = {}
        for tables in processes:
            hosts.setdefault(facts[tables.process].host, []).append(tables)
        found: list[Profile] = []
        errors: list[SourceError] = []
        for own in hosts.values():
            try:
                found.append(_of_host(source, options, own, facts))
            except SourceError as error:
                errors.append(error)
        if not found:
            raise errors[0]
        return concat(found)


def read_tasks(request: TaskRequest) -> tuple[KernelFile, ...]:
    """The device tasks of a database's ranks. Raises SourceError when the file cannot be read."""
    with Database(request.path) as db:
        return write_tasks(_processes(db), request)


def _processes(db: Database) -> list[Tables]:
    processes = list(sets_of(db))
    if not processes:
        raise SourceError(db.path, "is an SQLite database, but not one of rocprofv3", _RECORD)
    if len(processes) > MOST_PROCESSES:
        raise SourceError(db.path, f"tables of {len(processes)} processes", "merge fewer databases")
    return processes


def _of_host(source: Source, options: ReadOptions, processes: list[Tables], facts: dict[int, Process]) -> Profile:
    """The profile of the processes of one host. Where none has named passes they have the blocks that are found from
    their launches, unless `options.infer` says no."""
    named = roctx.read_ranges(processes, Dialects.of(options.markers))
    ranges = Ranges.none() if options.infer == "only" else named.pipeline()
    found = _inferred(processes, named, ranges, options)
    _check(source, processes, ranges, found, options)
    short = is_short(processes)
    contents, gpus, work = _contents(source, processes, ranges, found, options.host_ranges or short)
    trained = {process for process, one in found.items() if one.device is not None}
    ranks, notes = ranks_of(source, ranges, sorted(trained | ranges.marked), facts, gpus)
    ranks = work.devices.ranks(ranks, work.ranges)
    drawn = pl.concat([content.blocks["process"] for content in contents])
    ranks = ranks.filter(pl.col("process").is_in(drawn.implode()))
    fact = facts[processes[0].process]
    made = profile(
        source,
        contents,
        ranks=ranks if options.ranks is None else ranks.filter(options.ranks.holds("rank")),
        host=fact.host or source.host,
        label=fact.label or source.host,
        offset_ns=0,
        notes=[*notes, *range_notes.unmatched(source.path, ranges.unmatched)],
        epoch=EPOCH,
    )
    made = work.devices.restored(made, source.path)
    made = replace(made, declared=replace(made.declared, world=fact.world))
    return of_beginning(made, source, end_of(processes[0])) if short else made


def is_short(processes: list[Tables]) -> bool:
    """Whether only the beginning of these processes' ranges or kernels is shown."""
    events = {tables.name(table).lower() for tables in processes for table in ("region", "kernel_dispatch")}
    return not processes[0].db.shortened.isdisjoint(events)


def end_of(tables: Tables) -> int | None:
    """When the last range of a process began, of all of them."""
    return tables.db.last(tables.name("region"), "start")


def ranks_of(
    source: Source, ranges: Ranges, processes: list[int], facts: Mapping[int, Process], devices: Mapping[int, int]
) -> tuple[pl.DataFrame, list[Note]]:
    """The ranks of `processes`, as `ranges.ranks.assigned` gives them; `facts`: of all processes of the file."""
    ranks, notes = assigned(
        ranges,
        processes,
        source,
        (
            ("recorded", lambda: from_names(ranges)),
            ("recorded", lambda: {p: fact.rank for p, fact in facts.items() if fact.rank is not None}),
            ("assumed", lambda: from_stages(ranges.stages)),
            ("assumed", lambda: {p: n for p in facts if (n := rank_of(source.path, source.host)) is not None}),
            ("assumed", lambda: {p: p for p in facts}),
        ),
        devices,
    )
    known = [facts.get(process) for process in ranks["process"]]
    identity = pl.DataFrame(
        {name: [fact and getattr(fact, name) for fact in known] for name in ("pid", "begun_ns")},
        {"pid": TIME, "begun_ns": TIME},
    )
    return ranks.hstack(identity), notes


def _inferred(processes: list[Tables], named: roctx.Named, ranges: Ranges, options: ReadOptions) -> dict[int, Inferred]:
    """What is found in the processes with kernels without named passes, and in those whose names say only some of
    them."""
    named_in_full = ranges.marked if is_short(processes) else ranges.marked - ranges.partial
    if options.infer == "off" or options.host_ranges or named_in_full.issuperset(one.process for one in processes):
        return {}
    from trace_export.sources.launches.process import find_blocks  # with what it needs 30 ms
    from trace_export.sources.rocpd.unmarked import read_process as read_launches

    beside = named.beside(only=options.infer == "only")
    return {
        tables.process: find_blocks(read_launches(tables, beside, operators=named.operators))
        for tables in processes
        if tables.process not in named_in_full and has_kernels(tables)
    }


def _contents(
    source: Source, processes: list[Tables], ranges: Ranges, found: dict[int, Inferred], host_ranges: bool
) -> tuple[list[Content], Mapping[int, int], Attributed]:
    """What is in the processes without named passes and in those with them, the GPU of each, and the work in the
    ranges."""
    contents = []
    unnamed, in_part = launches.by_names(found, ranges)
    if any(not one.impossible for one in unnamed.values()):
        contents.append(launches.content(source.path, unnamed))
    inferred = {process: one.device for process, one in found.items() if one.device is not None}
    work = Attributed.none(ranges)
    if not ranges.marked:
        return contents, inferred, work
    if not host_ranges:
        work = attributed(source.path, ranges, lambda frame, parts: hip.attribute(processes, frame, parts))
    content = marked(source, work, p2p=transfers(work.ranges, work.worked), collectives=collectives(work.worked))
    return [*contents, launches.completed(source.path, content, in_part)], inferred | dict(work.gpus), work


def has_kernels(tables: Tables) -> bool:
    """Whether there is GPU work of a process."""
    return bool(tables.db.texts(f"SELECT 1 FROM {tables.name('kernel_dispatch')} LIMIT 1"))


def _check(
    source: Source, processes: list[Tables], ranges: Ranges, found: dict[int, Inferred], options: ReadOptions
) -> None:
    """Raises SourceError when there is no block, or no GPU work for any."""
    if any(not one.impossible for one in found.values()):
        return
    if not ranges.marked:
        why = launches.most_frequent_reason(found.values()) if found else ""
        raise range_notes.no_times(source.path) if ranges.untimed else _no_names(source, processes, why, ranges)
    if not options.host_ranges and not any(map(has_kernels, processes)):
        without, launched = "recorded without --kernel-trace", any(map(hip.launches_kernels, processes))
        raise range_notes.no_kernels(source.path, without, _RECORD, launched=launched)


def _no_names(source: Source, processes: list[Tables], launched: str, ranges: Ranges) -> SourceError:
    """Why none of the ranges is a block; `launched`: why the launches show none either."""
    counts = roctx.counted_names(processes)
    if not counts.total and not launched:
        what = "no ROCTx ranges in the database: it was recorded without --marker-trace, or the program has no ranges"
        return SourceError(source.path, what, f"{_RECORD} and the passes marked by trace-export run")
    return range_notes.no_names(
        source.path,
        "ROCTx range",
        counts,
        "record again with the passes marked by trace-export run",
        launches=launched,
        rules=ranges.unmatched,
    )
