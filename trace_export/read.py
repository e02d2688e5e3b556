"""Sources → tables: which sources to read, in how many processes or on which cluster, and what could not be read."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

import polars as pl

from trace_export import arguments
from trace_export.arguments import Inputs
from trace_export.choices import Detail, RunChoice
from trace_export.clocks.apply import clock_of, recorded_window
from trace_export.errors import NothingToExportError, SourceError, TraceExportError, UsageError, path_text
from trace_export.model import Declared, KernelFile, Note, Profile
from trace_export.options import filled
from trace_export.progress import Progress, counted, silent
from trace_export.selection import Numbers, not_in_data
from trace_export.sources import choose, formats
from trace_export.sources.find import find, of_all_machines
from trace_export.sources.folders import SearchResult
from trace_export.sources.input_files import bytes_in, files_of, releases_gil, seconds
from trace_export.sources.merge import merge
from trace_export.sources.read import read, read_group, read_tasks
from trace_export.sources.source import Group, ReadOptions, Source, TaskRequest
from trace_export.sources.spans import span_table
from trace_export.sources.spans.columns import Columns
from trace_export.workers import work
from trace_export.workers.sizing import Workers, choose_workers

if TYPE_CHECKING:
    from trace_export.workers.cluster import Cluster


BEGINNING_S = 0.025
"""What one core takes for the beginning of a source. Most of that is Python, for which threads would wait."""
TOGETHER_S = 0.006
"""The same where it is one of many that are read together."""
TOGETHER = 32
"""Sources that are read together at most: each is an open file or two, and two threads have work with 64."""


@dataclass(frozen=True)
class LoadOptions:
    """What to read and what is known about it. `files`: these in the log_dir only, where there are any. `family` None:
    whatever lies there. `detail`: which device tasks will be asked for. `columns`: what the columns of a table mean.
    `offsets_ns`: what is added to the times of hosts before runs are told apart.
    `places`: those of the ranks, where only some replicas of a run are read (as for `pipeline.stages.place_ranks`).
    `jobs` None: chosen from the data size. `cluster`: who reads in their place."""

    log_dir: Path
    files: tuple[Path, ...] = ()
    family: str | None = None
    devices: Numbers | None = None
    multi_machine: bool = False
    follow_links: bool = False
    run: RunChoice = "latest"
    offsets_ns: Mapping[str, int] = field(default_factory=dict)
    read: ReadOptions = field(default_factory=ReadOptions)
    columns: Columns | None = None
    places: pl.DataFrame | None = field(default=None, compare=False)
    declared: Declared = field(default_factory=Declared)
    detail: Detail = "spans"
    jobs: int | None = None
    cluster: Cluster | None = None

    @property
    def words(self) -> str:
        """What is read, as words of a command."""
        return " ".join(quote(str(path)) for path in self.files or (self.log_dir,))

    @property
    def all_ranks(self) -> bool:
        """Whether all ranks that lie there are read, so that one which is absent is missing."""
        return not self.chosen and not self.files

    @property
    def chosen(self) -> bool:
        """Whether ranks, devices or replicas were chosen, so that others of the run are not read."""
        return self.devices is not None or self.read.ranks is not None or self.places is not None


def load_options(log_dir: Inputs, values: Mapping[str, Any]) -> LoadOptions:
    """What the checked values of options ask to read. Raises UsageError."""
    cluster = _cluster(values.get("scheduler"), values.get("at", ()))
    if cluster is not None and cluster.folders:
        if log_dir is not None:
            raise UsageError("both folders of machines and a log_dir are given", "give one of them", parameter="at")
        log_dir = Path()
    columns = values.get("columns")
    folder, files = arguments.folder_and_files(log_dir, "log_dir", table=columns is not None)
    sizes = Declared(**{size: values.get(size) for size in ("pp", "tp", "dp", "cp")})
    return filled(
        LoadOptions,
        values,
        log_dir=folder,
        files=files,
        read=filled(ReadOptions, values),
        columns=None if columns is None else Columns.parse(columns),
        declared=sizes.or_else(values.get("declared") or Declared()),
        cluster=cluster,
    )


def _cluster(scheduler: str | None, at: tuple[str, ...]) -> Cluster | None:
    if scheduler is None:
        if at:
            what = "machines are those of a Dask cluster, and no scheduler is given"
            raise UsageError(what, "give `scheduler` tcp://HOST:PORT too", parameter="at")
        return None
    from trace_export.workers.cluster import Cluster

    return Cluster.parse(scheduler, at)


@dataclass(frozen=True)
class Located:
    """What there is to read: the sources asked for, the notes of the search, an error for each place or device that has
    no source, and all `inputs`, which are the files of all sources found and of the options."""

    sources: Sequence[Source]
    notes: tuple[Note, ...]
    failures: tuple[TraceExportError, ...]
    inputs: tuple[Path, ...]


def locate(options: LoadOptions) -> Located:
    """The sources that the options ask for, at least one; a span table has none.

    Raises UsageError for impossible options, NothingToExportError where there is no such source, TraceExportError where
    the log_dir cannot be looked into.
    """
    if is_table(options):
        return Located((), (), (), (options.log_dir, *option_files(options)))
    searched, lost = _found(options)
    sources, missing, notes = choose.choose(
        searched,
        options.log_dir,
        family=options.family,
        devices=options.devices,
        ranks=options.read.ranks,
        multi_machine=options.multi_machine,
    )
    failures = (*missing, *lost)
    if not sources:
        family, ranks = options.family, options.read.ranks
        nothing = choose.nothing_found(searched, options.log_dir, options.files, family=family, ranks=ranks)
        raise failures[0] if failures else nothing
    return Located(sources, (*searched.notes, *notes), failures, (*files_of(searched.sources), *option_files(options)))


def is_table(options: LoadOptions) -> bool:
    """Whether the log_dir is a span table. Raises UsageError where it is none and columns are given."""
    if span_table.is_table(options.log_dir, options.columns):
        return True
    if options.columns is not None:
        what = f"columns describe one table, and {options.log_dir} is not a file"
        raise UsageError(what, "give the file as the log_dir", parameter="columns")
    return False


def narrowed(located: Located, sources: Sequence[Source]) -> Located:
    """`located` with some of its sources only; the files of the others stay inputs, which nothing replaces."""
    return replace(located, sources=sources, inputs=tuple(dict.fromkeys((*located.inputs, *files_of(sources)))))


def option_files(options: LoadOptions) -> list[Path]:
    """The files that options name."""
    rules = [Path(marker) for marker in options.read.markers if "=>" not in marker]
    return [*rules, *(options.cluster.plans if options.cluster else ())]


def _found(options: LoadOptions) -> tuple[SearchResult, list[TraceExportError]]:
    """What lies in the log_dir, or in the folders of its own that each machine of a cluster has; there, an error for
    each that cannot be looked into."""
    look = partial(find, follow_links=options.follow_links, only=options.files)
    if options.cluster is None:
        return look(options.log_dir), []
    if options.detail != "spans":
        what = f"{options.detail} needs the profiles on this machine, but a cluster returns only tables"
        raise UsageError(what, "leave out `scheduler` or `detail`", parameter="detail")
    if not options.cluster.folders:
        return look(options.log_dir), []
    from trace_export.workers import dask

    looks = dask.in_each_folder(options.cluster, look)
    results = [(folder.machine_name, seen) for folder, seen in looks if isinstance(seen, SearchResult)]
    return of_all_machines(results), [seen for _, seen in looks if isinstance(seen, TraceExportError)]


def read_profile(located: Located, options: LoadOptions, progress: Progress) -> tuple[Profile, list[TraceExportError]]:
    """All sources read and merged, and the errors of those that could not be.

    Raises the error that explains it best where there is no block at all.
    """
    profile, lost = read_all(located.sources, options, progress)
    lacking: list[TraceExportError] = []
    if options.devices is not None and profile.spans.height:
        profile, lacking = choose.on_devices(profile, options.log_dir, options.devices, located.sources)
        if profile.spans.is_empty():
            raise choose.no_device(options.log_dir, options.devices)
    if profile.spans.is_empty():
        raise _no_block(options, lost, [*located.failures, *lacking], profile, len(located.sources))
    profile = replace(profile, notes=located.notes + profile.notes)
    return profile, [*located.failures, *lacking, *lost]


def _no_block(
    options: LoadOptions,
    lost: Sequence[TraceExportError],
    missing: Sequence[TraceExportError],
    profile: Profile,
    sources: int,
) -> TraceExportError:
    """Why there is no block: what is wrong with the first source, as its error or else as a warning of its reader says;
    or else what is `missing`."""
    if not (lost or missing) and profile.ranks.is_empty() and options.read.ranks is not None:
        return choose.no_rank(options.log_dir, options.read.ranks)
    warnings = [note for note in profile.notes if note.level == "warning"]
    reasons = [note for note in warnings if note.code == "blocks-not-found"] or warnings[:1]
    if reasons and not lost:
        also = f" (the same for {len(reasons) - 1} more of {sources} sources)" if len(reasons) > 1 else ""
        rules = dict.fromkeys(note.text for note in warnings if note.code == "marker-unmatched")
        also += "".join(f"; {rule}" for rule in rules if rule != reasons[0].text)
        remedy = choose.MARK if reasons[0].code == "blocks-not-found" else choose.SEE
        return NothingToExportError(f"{options.log_dir}: {reasons[0].text}{also}", remedy)
    failures = lost or missing
    if not failures:
        return NothingToExportError(f"{options.log_dir}: no pipeline block in any source", choose.SEE)
    if len(failures) == 1:
        return failures[0]
    what = f"{options.log_dir}: none of the {max(sources, len(failures))} sources gave a block"
    return NothingToExportError(f"{what}; the first: {failures[0]}")


def read_all(
    sources: Sequence[Source], options: LoadOptions, progress: Progress
) -> tuple[Profile, list[TraceExportError]]:
    """The tables of all sources together, and the errors of those that could not be read."""
    return merged(read_each(sources, options, progress), options)


def read_each(sources: Sequence[Source], options: LoadOptions, progress: Progress) -> list[Profile | TraceExportError]:
    """The tables of each source, or its error."""
    read_options = replace(options.read, optimizer=options.detail == "kernels")
    tick = counted(progress, "reading", len(sources))
    if options.cluster is not None:
        results = work.run(partial(read, options=read_options), sources, options.cluster, tick)
        return [_checked(source, result) for source, result in zip(sources, results, strict=True)]
    groups = in_groups(sources, options)
    made, lost = _read_groups(groups, read_options, _workers(options, groups), tick)
    if lost:  # several whose worker failed: one of them may be why
        alone = [Group((source,)) for source in lost]
        made |= _read_groups(alone, read_options, _workers(options, alone), tick)[0]
    return [_checked(source, made[source]) for source in sources]


def in_groups(sources: Sequence[Source], options: LoadOptions) -> list[Group]:
    """The sources as they are read: short ones of one format in groups of `TOGETHER` at most, as many for each worker;
    any other by itself."""
    of_kind: dict[str, list[Source]] = {}
    alone = []
    for source in sources:
        row = formats.of_kind(source.kind)
        small = not options.read.beginning and bytes_in(source.path) <= row.batch_bytes
        if small or (options.read.beginning == 1 and row.batch_bytes):
            of_kind.setdefault(source.kind, []).append(source)
        else:
            alone.append(Group((source,)))
    groups = []
    for alike in of_kind.values():
        each = [Group((source,)) for source in alike]
        workers = Workers(1) if options.read.beginning else _workers(options, each, many_groups=len(alike) > 1)
        most = min(TOGETHER, -(-len(alike) // workers.count))
        groups += [Group(tuple(alike[first : first + most])) for first in range(0, len(alike), most)]
    return groups + alone


def _read_groups(
    groups: Sequence[Group], read_options: ReadOptions, workers: Workers, tick: Callable[[int], None]
) -> tuple[dict[Source, Profile | TraceExportError], list[Source]]:
    """The result of each source of the groups; apart from them the sources of those groups of several that came to
    none."""
    made: dict[Source, Profile | TraceExportError] = {}
    lost: list[Source] = []

    def done(index: int) -> None:
        for number in range(len(groups[index].sources)):
            tick(number)

    for group, result in zip(
        groups, work.run(partial(read_group, options=read_options), groups, workers, done), strict=True
    ):
        if not isinstance(result, TraceExportError):
            made |= zip(group.sources, result, strict=True)
        elif len(group.sources) == 1:
            made[group.sources[0]] = result
        else:
            lost += group.sources
    return made, lost


def merged(
    results: Sequence[Profile | TraceExportError], options: LoadOptions
) -> tuple[Profile, list[TraceExportError]]:
    """The tables of several sources together, and the errors: of sources, and of those that do not fit together."""
    profiles = (r for r in results if isinstance(r, Profile))
    profile, refused = merge(profiles, options.run, all_ranks=options.all_ranks, offsets=options.offsets_ns)
    if options.read.markers:
        from trace_export.sources.ranges.notes import of_no_source  # and numpy

        profile = of_no_source(profile)
    if lacking := not_in_data("rank", options.read.ranks, profile.ranks["rank"]):
        profile = profile.with_notes([Note("selection-absent", "warning", lacking)])
    return profile, [r for r in results if isinstance(r, TraceExportError)] + list(refused)


def _checked(source: Source, result: Profile | TraceExportError) -> Profile | TraceExportError:
    """The result of a reader, which may have run on another machine; an error where it is not a valid profile."""
    if isinstance(result, TraceExportError):
        return result
    try:
        return result.validate()
    except (AttributeError, TypeError, ValueError) as error:
        what = f"its reader returned {type(result).__name__}, which is not a valid profile ({error})"
        return SourceError(source.path, what, "please report it")


def sizes(sources: Sequence[Source]) -> dict[Path, int]:
    """The bytes of each source by its path, by which a later look notices that it has become smaller."""
    return {source.path: bytes_in(source.path) for source in sources}


def read_device_tasks(
    profile: Profile,
    ranks: Sequence[int],
    options: LoadOptions,
    size_of: Mapping[Path, int],
    folder: Path,
    progress: Progress = silent,
) -> tuple[tuple[KernelFile, ...], list[TraceExportError]]:
    """The device tasks of `ranks` that `options.detail` asks for, in files below `folder`, and the errors of sources
    that cannot be read any more. Only those within `profile.window_ns` are read. `size_of` as `sizes` gave it."""
    with_device_tasks = [row.kind for row in formats.FORMATS if row.has_device_tasks]
    wished = pl.col("rank").is_in(ranks) & pl.col("kind").is_in(with_device_tasks)
    devices_of = profile.ranks.select("rank", "device")
    rows = profile.recordings.filter(wished).join(devices_of, on="rank", maintain_order="left")
    rows = rows.unique(["rank", "source", "process"], keep="first", maintain_order=True)
    paths = {path_text(path): path for path in size_of}
    owners = profile.recordings.drop_nulls("process").group_by("source", "process").agg(pl.col("rank").n_unique())
    shared = owners.filter(pl.col("rank") > 1)
    wanted = []
    for (name, kind, host), group in rows.group_by("source", "kind", "host", maintain_order=True):
        window = profile.window_ns and recorded_window(profile.window_ns, clock_of(profile, group["rank"][0]))
        source = Source(kind, paths.get(name, Path(name)), host)
        numbers = dict(group.select("process", "rank").iter_rows())
        several = group.join(shared, on=["source", "process"], how="semi").group_by("process", maintain_order=True)
        devices = {process: dict(part.select("rank", "device").iter_rows()) for (process,), part in several}
        size, kept = size_of.get(source.path, 0), options.read.keep_tasks
        wanted.append(TaskRequest(source, options.detail, numbers, window, folder, size, kept, devices))
    workers = _workers(options, [Group((w.source,)) for w in wanted if w.kept_file is None], tasks=True)
    results = work.run(read_tasks, wanted, workers, counted(progress, "reading device tasks", len(wanted)))
    files = tuple(file for r in results if isinstance(r, tuple) for file in r)
    return files, [r for r in results if isinstance(r, TraceExportError)]


def _workers(
    options: LoadOptions, groups: Sequence[Group], *, tasks: bool = False, many_groups: bool = False
) -> Workers:
    """Who reads the groups, or their device `tasks`: as many processes as the user says, or what is done first.
    `many_groups`: groups of one will be parts of larger ones."""
    if options.jobs:
        return Workers(options.jobs)
    sources = [source for group in groups for source in group.sources]
    if options.read.beginning and not tasks:
        times = [_beginning_s(len(group.sources), options.read.beginning) for group in groups]
        in_threads = all(len(g.sources) > 1 and formats.of_kind(g.sources[0].kind).speed.releases_gil for g in groups)
        return choose_workers(times, 0, releases_gil=in_threads)
    several = [many_groups or len(group.sources) > 1 for group in groups]
    times = [
        sum(seconds(source, device_tasks=tasks, one_of_many=many) for source in group.sources)
        for group, many in zip(groups, several, strict=True)
    ]
    largest = max((bytes_in(source.path) for source in sources), default=0)
    return choose_workers(times, largest, releases_gil=not tasks and all(map(releases_gil, sources)))


def _beginning_s(sources: int, pieces: int) -> float:
    """What the beginnings of this many sources of a group take."""
    return TOGETHER_S * sources if sources > 1 else BEGINNING_S * pieces
