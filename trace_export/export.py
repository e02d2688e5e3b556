"""The spine: find → read → interpret → align → lay out → write. A newcomer reads this file first.

`load` brings a folder to one aligned `Profile`, `write` draws it; `export` is both. The command line and the public API
call these and nothing deeper.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, get_args

import polars as pl

from trace_export.chart.size import drawn_ranks
from trace_export.choices import Align, Detail
from trace_export.clocks import align as clock_alignment
from trace_export.clocks.apply import clock_of, recorded_window
from trace_export.errors import NothingToExportError, SourceError, TraceExportError, UsageError, path_text
from trace_export.model import Declared, Profile
from trace_export.pipeline.interpret import interpret, interpret_table
from trace_export.render import Progress, WriteOptions, announce, planned, silent, write
from trace_export.scratch import scratch_folder
from trace_export.selection import Numbers, Selection, Window, extent, select
from trace_export.sources import choose, cost, formats, span_table
from trace_export.sources.find import find, together
from trace_export.sources.folders import Found
from trace_export.sources.input_files import files_of
from trace_export.sources.merge import merge
from trace_export.sources.ranges.dialects import Dialects
from trace_export.sources.read import read, read_tasks
from trace_export.sources.source import ReadOptions, Source, TaskRequest
from trace_export.workers import local
from trace_export.workers.sizing import Workers, choose_workers
from trace_export.writers import step_task_info
from trace_export.writers.outputs import Outputs
from trace_export.writers.paths import output_folder

if TYPE_CHECKING:
    from trace_export.workers.cluster import Cluster


@dataclass(frozen=True)
class LoadOptions:
    """What to read and how to understand it. `family` None: whatever lies there. `steps`, `stages` and `window` are cut
    out once all is understood and on one clock; only of device tasks (`detail`) no others are read."""

    log_dir: Path
    family: str | None = None
    devices: Numbers | None = None
    multi_machine: bool = False
    steps: Numbers | None = None
    stages: Numbers | None = None
    window: Window | None = None
    detail: Detail = "spans"
    read: ReadOptions = field(default_factory=ReadOptions)
    told: Declared = field(default_factory=Declared)
    align: str | None = "auto"
    offsets: dict[str, int] = field(default_factory=dict)
    max_clock_error_ns: int | None = None
    jobs: int | None = None
    cluster: Cluster | None = None
    follow_links: bool = False


@dataclass(frozen=True)
class Loaded:
    """A profile ready to be drawn or asked, and the sources that could not be read. `sizes`: where device tasks are
    still to be read, the bytes that each source had, by path. `inputs`: all files that may have been read."""

    profile: Profile
    failures: tuple[TraceExportError, ...]
    sizes: dict[Path, int] = field(default_factory=dict)
    inputs: tuple[Path, ...] = ()


@dataclass(frozen=True)
class Located:
    """What there is to read: the sources; an error for each machine that cannot be looked into; all `inputs`, which are
    the files of the sources and of the options."""

    found: Found
    failures: tuple[TraceExportError, ...] = ()
    inputs: tuple[Path, ...] = ()


def load(options: LoadOptions, progress: Progress = silent, located: Located | None = None) -> Loaded:
    """Everything that lies in the folder, understood and on one clock; or what a span table holds. `with_tasks` adds
    the device tasks. `located` is what `locate` made of the options, where that was asked already.

    Raises UsageError for impossible options, NothingToExportError when no source gave a block, AlignmentError when
    `align` is `strict` and the clocks are not known well enough.
    """
    located = located or locate(options)
    if span_table.is_table(options.log_dir):
        read_back = interpret_table(span_table.read(options.log_dir), options.told)
        return Loaded(_asked(read_back, options), (), inputs=located.inputs)
    Dialects.of(options.read.markers)  # a wrong rule is told before anything is read
    found = located.found
    chosen, missing = _chosen(found, options)
    missing += located.failures
    if not chosen:
        raise (
            missing[0]
            if missing
            else choose.nothing_found(found, options.log_dir, family=options.family, ranks=options.read.ranks)
        )
    sizes = {} if options.detail == "spans" else {s.path: cost.size(s.path) for s in chosen}
    profile, failures = read_all(chosen, options, progress)
    if options.devices is not None and profile.spans.height:
        profile, lacking = choose.on_devices(profile, options.log_dir, options.devices, chosen)
        missing += lacking
        if profile.spans.is_empty():
            raise choose.no_device(options.log_dir, options.devices)
    failures = missing + failures
    profile = replace(profile, notes=found.notes + profile.notes)
    if profile.spans.is_empty():
        raise _nothing_drawn(options, failures, profile)
    progress("aligning clocks", 0, 1)
    profile = align(interpret(profile, options.told), options)
    return Loaded(_asked(profile, options), tuple(failures), sizes, located.inputs)


def _asked(profile: Profile, options: LoadOptions) -> Profile:
    """The part of the profile that the options ask for. Raises NothingToExportError when that is no block."""
    asked = select(profile, Selection(options.steps, options.stages, options.window))
    if asked.spans.is_empty():
        raise NothingToExportError(f"{options.log_dir}: no block is left by the options", f"it has {extent(profile)}")
    return asked


def locate(options: LoadOptions) -> Located:
    """What lies in the log_dir, or in the folders of its own that each machine of a cluster has; a span table has no
    sources. Raises UsageError, TraceExportError when the log_dir cannot be looked into."""
    if span_table.is_table(options.log_dir):
        return Located(Found(()), inputs=(options.log_dir, *option_files(options)))
    found, failures = _find(options)
    files = [file for source in found.sources for file in files_of(source)]
    return Located(found, tuple(failures), (*files, *option_files(options)))


def option_files(options: LoadOptions) -> list[Path]:
    """The files that options name."""
    align = [] if options.align in (None, *get_args(Align)) else [Path(str(options.align))]
    rules = [Path(marker) for marker in options.read.markers if "=>" not in marker]
    return [*align, *rules, *(options.cluster.plans if options.cluster else ())]


def _find(options: LoadOptions) -> tuple[Found, list[TraceExportError]]:
    look = partial(find, follow_links=options.follow_links)
    if options.cluster is None:
        return look(options.log_dir), []
    if options.detail != "spans":
        raise UsageError(
            f"--detail {options.detail} needs the profiles on this machine, and from a cluster come only tables",
            "leave out --scheduler, or --detail",
        )
    if not options.cluster.folders:
        return look(options.log_dir), []
    from trace_export.workers import dask

    looks = dask.in_each_folder(options.cluster, look)
    found = [(place.machine_name, seen) for place, seen in looks if isinstance(seen, Found)]
    return together(found), [seen for _, seen in looks if isinstance(seen, TraceExportError)]


def _chosen(found: Found, options: LoadOptions) -> tuple[list[Source], list[TraceExportError]]:
    return choose.choose(
        found,
        options.log_dir,
        family=options.family,
        devices=options.devices,
        ranks=options.read.ranks,
        multi_machine=options.multi_machine,
    )


def _nothing_drawn(options: LoadOptions, failures: list[TraceExportError], profile: Profile) -> TraceExportError:
    if not failures and profile.ranks.is_empty() and options.read.ranks is not None:
        return choose.no_rank(options.log_dir, options.read.ranks)
    if len(failures) == 1:
        return failures[0]
    if failures:
        return NothingToExportError(
            f"{options.log_dir}: none of the {len(failures)} sources gave a block; the first: {failures[0]}"
        )
    why = next((n.text for n in profile.notes if n.level == "warning"), "no pipeline block in any source")
    return NothingToExportError(f"{options.log_dir}: {why}", choose.SEE)


def read_all(chosen: list[Source], options: LoadOptions, progress: Progress) -> tuple[Profile, list[TraceExportError]]:
    """All sources read and merged, and the errors of those that could not be."""
    reading = partial(read, options=replace(options.read, optimizer=options.detail == "kernels"))
    tick = _counted(progress, "reading", len(chosen))
    if options.cluster is not None:
        from trace_export.workers import dask

        results = dask.run(options.cluster, reading, chosen, tick)
    else:
        results = local.run(reading, chosen, _workers(options, chosen), tick)
    checked = [_checked(source, result) for source, result in zip(chosen, results, strict=True)]
    profile, refused = merge(r for r in checked if isinstance(r, Profile))
    return profile, [r for r in checked if isinstance(r, TraceExportError)] + list(refused)


def _checked(source: Source, result: Profile | TraceExportError) -> Profile | TraceExportError:
    """The result of a reader, which may have run on another machine; an error where it is no valid profile."""
    if isinstance(result, TraceExportError):
        return result
    try:
        return result.validate()
    except (AttributeError, TypeError, ValueError) as error:
        what = f"its reader returned {type(result).__name__}, which is no valid profile ({error})"
        return SourceError(source.path, what, "please report it")


def align(profile: Profile, options: LoadOptions) -> Profile:
    """All hosts on one clock, as the options say; as it is when they say nothing."""
    how = options.align
    if how is None:
        return profile
    method = next((m for m in get_args(Align) if m == how), Path(how))
    return clock_alignment.align(
        profile,
        method,
        offsets=options.offsets,
        block_edges=profile.edge_rows(),
        max_error_ns=options.max_clock_error_ns,
    )


def with_tasks(
    loaded: Loaded, options: LoadOptions, ranks: list[int], folder: Path, progress: Progress = silent
) -> Loaded:
    """The same with the device tasks of `ranks` that `options.detail` asks for, in files below `folder`: of the time
    that the profile was cut to, and no others are read. A source that cannot be read any more leaves an error."""
    profile = loaded.profile
    with_device_tasks = [row.kind for row in formats.FORMATS if row.has_device_tasks]
    rows = profile.ranks.filter(pl.col("rank").is_in(ranks) & pl.col("kind").is_in(with_device_tasks))
    paths = {path_text(path): path for path in loaded.sizes}
    wanted = []
    for (name, kind, host), group in rows.group_by("source", "kind", "host", maintain_order=True):
        window = profile.window_ns and recorded_window(profile.window_ns, clock_of(profile, group["rank"][0]))
        source = Source(kind, paths.get(name, Path(name)), host)
        numbers = dict(group.select("process", "rank").iter_rows())
        size = loaded.sizes.get(source.path, 0)
        wanted.append(TaskRequest(source, options.detail, numbers, window, folder, size))
    workers = _workers(options, [w.source for w in wanted], tasks=True)
    results = local.run(read_tasks, wanted, workers, _counted(progress, "reading device tasks", len(wanted)))
    files = tuple(file for r in results if isinstance(r, tuple) for file in r)
    failures = tuple(r for r in results if isinstance(r, TraceExportError))
    return replace(loaded, profile=replace(profile, kernels=files), failures=loaded.failures + failures)


def _workers(options: LoadOptions, chosen: list[Source], *, tasks: bool = False) -> Workers:
    """Who reads: as many processes as the user says, or what is done first."""
    if options.jobs:
        return Workers(options.jobs)
    times = [cost.seconds(s, device_tasks=tasks) for s in chosen]
    largest = max((cost.size(s.path) for s in chosen), default=0)
    return choose_workers(times, largest, releases_gil=not tasks and all(cost.releases_gil(s) for s in chosen))


def _counted(progress: Progress, what: str, total: int) -> Callable[[int], None]:
    """A function that counts its calls, each for one source that is done."""
    done = count(1)
    progress(what, 0, total)
    return lambda index: progress(what, next(done), total)


def export(
    load_options: LoadOptions, write_options: WriteOptions, progress: Progress = silent
) -> tuple[Loaded, list[Path]]:
    """The whole way: what was read, and the files written."""
    detail, log_dir = load_options.detail, load_options.log_dir
    wanted = replace(write_options, steps=load_options.steps)
    paths = planned(wanted, log_dir)
    located = locate(load_options)
    with ExitStack() as stack, Outputs(located.inputs, force=wanted.force) as outputs:
        databases = _databases(located, load_options) if wanted.step_task_info else []
        if not wanted.in_place:
            paths += [_copy(path, load_options, wanted) for path in databases]
        outputs.check(paths)
        loaded = load(load_options, progress, located)
        if detail != "spans":
            folder = stack.enter_context(scratch_folder())
            ranks = drawn_ranks(loaded.profile, wanted.tracks)
            loaded = with_tasks(loaded, load_options, ranks, folder, progress)
        loaded = replace(loaded, profile=loaded.profile.with_notes(announce(loaded.profile, wanted, detail)))
        write(loaded.profile, wanted, log_dir, outputs, detail, progress)
        if wanted.step_task_info:
            write_step_tasks(load_options, wanted, located, outputs, progress)
    return loaded, outputs.written


def write_step_tasks(
    options: LoadOptions, wanted: WriteOptions, located: Located, outputs: Outputs, progress: Progress = silent
) -> None:
    """Writes the table StepTaskInfo for MindStudio Insight, into copies of the databases or into themselves.

    Sources that cannot be read, which `load` reports, have none. Times are those of the databases, so nothing is
    aligned. Raises NothingToExportError when no source is a database, OutputError, UsageError.
    """
    paths = {path_text(path): path for path in _databases(located, options)}
    chosen, _ = _chosen(located.found, options)
    profile, _ = read_all(chosen, replace(options, detail="spans"), progress)
    labelled = select(interpret(profile, options.told), Selection(steps=options.steps))
    ranks = profile.ranks.select("rank", "source").iter_rows()
    databases = {rank: paths[name] for rank, name in ranks if name in paths}
    if wanted.in_place:
        step_task_info.write_in_place(labelled, databases, outputs)
    else:
        copies = {rank: (path, _copy(path, options, wanted)) for rank, path in databases.items()}
        step_task_info.write_copies(labelled, copies, outputs)


def _databases(located: Located, options: LoadOptions) -> list[Path]:
    """The databases in which MindStudio Insight reads the table StepTaskInfo. Raises NothingToExportError if none."""
    kinds = [row.kind for row in formats.FORMATS if row.step_task_info]
    databases = [s.path for s in located.found.sources if s.kind in kinds and s.path.suffix == ".db"]
    if not databases:
        raise NothingToExportError(
            f"{options.log_dir}: no database here to put the table StepTaskInfo into",
            f"collect {' or '.join(kinds)} profiles with the export type db",
        )
    return databases


def _copy(database: Path, options: LoadOptions, wanted: WriteOptions) -> Path:
    """Where the copy of a database goes: the place that it has in the log_dir, in a folder of the outputs."""
    folder = output_folder(wanted.out, options.log_dir) / step_task_info.FOLDER
    return folder / database.relative_to(options.log_dir)
