"""Read sources: `read` their blocks, messages and counters, `read_tasks` their device tasks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import numpy.typing as npt
import polars as pl

from trace_export.errors import SourceError, path_text
from trace_export.model import TIME, KernelFile, Note, Profile
from trace_export.sources.formats import of_kind
from trace_export.sources.input_files import bytes_in
from trace_export.sources.shared.batch import Result, as_source_error, caught
from trace_export.sources.shared.timestamps import without_invalid_times
from trace_export.sources.source import Group, ReadOptions, Source, TaskRequest

FEW_AT_ONCE, SOME_AT_ONCE = 3, 0.1
"""This many of a rank's passes of one kind, and this part of them, may overlap another one: their records are wrong."""


def read(source: Source, options: ReadOptions) -> Profile:
    """The tables of one source. Raises SourceError when nothing in it can be read, when it disappears meanwhile, or
    when its content is invalid, such as a number that does not fit the type of its column."""
    (result,) = read_group(Group((source,)), options)
    if isinstance(result, SourceError):
        raise result
    return result


def read_group(group: Group, options: ReadOptions) -> list[Result]:
    """The tables of each source of a group, or its error, as `read` gives them for each alone."""
    results = _read(group.sources, options)
    return [
        result if isinstance(result, SourceError) else caught(source.path, partial(_usable, result, source))
        for source, result in zip(group.sources, results, strict=True)
    ]


def _read(sources: Sequence[Source], options: ReadOptions) -> Sequence[Result]:
    """The result of the reader for each of the sources; if it fails with several at once, each half is read alone."""
    try:
        with as_source_error(sources[0].path):
            return of_kind(sources[0].kind).load_reader().read(sources, options)
    except (SourceError, pl.exceptions.PolarsError) as error:
        if len(sources) == 1 and isinstance(error, SourceError):
            return [error]
        if len(sources) == 1:
            raise
        middle = len(sources) // 2
        return [*_read(sources[:middle], options), *_read(sources[middle:], options)]


def _usable(profile: Profile, source: Source) -> Profile:
    """The profile without rows that no later part of the program can use."""
    profile = without_invalid_times(profile, source.path)
    _check_processes(profile, source)
    if source.pid is not None:
        profile = replace(profile, ranks=profile.ranks.with_columns(pid=pl.lit(source.pid, TIME)))
    notes = tuple(replace(note, where=path_text(note.where)) for note in profile.notes)
    earlier = tuple(_usable(start, source) for start in profile.earlier)
    return replace(profile, notes=(*notes, *_host_times(profile, source)), earlier=earlier)


def _check_processes(profile: Profile, source: Source) -> None:
    """Raises SourceError where a rank seems to run several passes of one kind at a time, which no schedule has: several
    ranks are in one file. Those that the host issued may overlap, and one that is there twice is a copy."""
    spans = profile.spans
    rank, start, end_ns = (spans[name].to_numpy() for name in ("rank", "start_ns", "end_ns"))
    overlaps = (start[:-1] > start[1:]) | (end_ns[:-1] > start[1:])
    if not ((rank[:-1] > rank[1:]) | (overlaps & (rank[:-1] == rank[1:]))).any():
        return  # nothing overlaps: a tenth of the time of what follows, which counts where there are many sources
    wrong = []
    for kind, name in (("F", "forwards"), ("B", "backwards")):
        passes = spans.filter(pl.col("kind") == kind, pl.col("origin") != "host").select("rank", "start_ns", "end_ns")
        if passes.is_empty():
            continue
        rank, start, end = passes.to_numpy()[_in_order(passes)].T
        copy = np.append(False, (rank[1:] == rank[:-1]) & (start[1:] == start[:-1]) & (end[1:] == end[:-1]))
        rank, start, end = rank[~copy], start[~copy], end[~copy]
        shorter = np.minimum(end[1:] - start[1:], end[:-1] - start[:-1])
        at_once = rank[1:][(2 * (end[:-1] - start[1:]) > shorter) & (rank[1:] == rank[:-1])]
        for number, count in zip(*np.unique(at_once, return_counts=True), strict=True):
            whole = np.count_nonzero(rank == number)
            if count >= max(FEW_AT_ONCE, SOME_AT_ONCE * whole):
                wrong.append((int(number), kind, f"{count} of the {whole} {name} of rank {number}"))
    if wrong:
        what = f"{min(wrong)[-1]} begin while another one runs, as where several ranks are in one"
        raise SourceError(source.path, what, "let each rank write a file of its own")


def _in_order(passes: pl.DataFrame) -> npt.NDArray[np.intp]:
    """The rows of the passes by rank, start and end. NumPy sorts a few runs that are in order in a fifth of the time of
    Polars."""
    return np.lexsort([passes[name].to_numpy() for name in ("end_ns", "start_ns", "rank")])


def _host_times(profile: Profile, source: Source) -> Iterator[Note]:
    """A warning where blocks of a profiler of the device have the times of the host. If only the beginning of a source
    is read, nothing is drawn."""
    if profile.recorded_until or not of_kind(source.kind).has_device_tasks:
        return
    if count := int((profile.spans["origin"] == "host").sum()):
        text = "blocks with the times at which the host issued their work, not those of the device"
        yield Note("host-times", "warning", f"{text}; so are all figures made of them", path_text(source.path), count)


def read_tasks(request: TaskRequest) -> tuple[KernelFile, ...]:
    """The device tasks of one source, a file for each of its ranks that has any. Raises SourceError as `read` does, and
    when the source has become smaller: a text that ends early reads like a shorter one."""
    reader = of_kind(request.source.kind).load_reader()
    with as_source_error(request.path):
        files = reader.read_tasks(request)
    if bytes_in(request.path) < request.size:
        what = "has become smaller since its blocks were read; its device tasks are left out"
        raise SourceError(request.path, what, "run again when no program is writing there")
    return files
