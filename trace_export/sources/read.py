"""Read one source: `read` its blocks, messages and counters, `read_tasks` its device tasks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import polars as pl

from trace_export.errors import SourceError, in_column, path_text
from trace_export.model import TIME, KernelFile, Note, Profile
from trace_export.sources.cost import size
from trace_export.sources.formats import of_kind
from trace_export.sources.not_here import FETCH, POINTER, is_pointer
from trace_export.sources.shared.timestamps import without_invalid_times
from trace_export.sources.source import Group, ReadOptions, Source, TaskRequest


def read(source: Source, options: ReadOptions) -> Profile:
    """The tables of one source. Raises SourceError when nothing in it can be read, when it disappears meanwhile, or
    when its content is invalid, such as a number that does not fit the type of its column."""
    reader = of_kind(source.kind).load_reader()
    with _as_source_error(source.path):
        return _usable(reader.read(source, options), source)


def read_together(group: Group, options: ReadOptions) -> list[Profile | None]:
    """What `read` gives for each source of the group; None for those that it must be called for."""
    together = of_kind(group.sources[0].kind).load_together()
    assert together is not None, "the format reads its sources one by one"
    found = together(group.sources, options)
    return [profile and _usable(profile, source) for source, profile in zip(group.sources, found, strict=True)]


def _usable(profile: Profile, source: Source) -> Profile:
    profile = without_invalid_times(profile, source.path)
    if source.pid is not None:
        profile = replace(profile, ranks=profile.ranks.with_columns(pid=pl.lit(source.pid, TIME)))
    notes = tuple(replace(note, where=path_text(note.where)) for note in profile.notes)
    return replace(profile, notes=(*notes, *_host_times(profile, source)))


def _host_times(profile: Profile, source: Source) -> Iterator[Note]:
    """A warning where blocks of a profiler of the device have the times of the host. Of a source of which only the
    beginning is read, nothing is drawn."""
    if profile.recorded_until or not of_kind(source.kind).has_device_tasks:
        return
    if count := int((profile.spans["origin"] == "host").sum()):
        text = "blocks with the times at which the host issued their work, not those of the device"
        yield Note("host-times", "warning", f"{text}; so are all figures made of them", path_text(source.path), count)


def read_tasks(request: TaskRequest) -> tuple[KernelFile, ...]:
    """The device tasks of one source, a file for each of its ranks that has any. Raises SourceError as `read` does, and
    when the source has become smaller: a text that ends early reads like a shorter one."""
    reader = of_kind(request.source.kind).load_reader()
    with _as_source_error(request.path):
        files = reader.read_tasks(request)
    if size(request.path) < request.size:
        what = "has become smaller since its blocks were read; its device tasks are left out"
        raise SourceError(request.path, what, "run again when no program is writing there")
    return files


@contextmanager
def _as_source_error(path: Path) -> Iterator[None]:
    """Errors of the libraries as SourceError, and for a file that Git LFS has not fetched the error that says so."""
    try:
        yield
    except SourceError as error:
        if is_pointer(error.path):
            raise SourceError(error.path, f"is {POINTER}", FETCH) from error
        raise
    except (pl.exceptions.InvalidOperationError, pl.exceptions.ComputeError, pl.exceptions.PanicException) as error:
        raise SourceError(path, f"holds invalid data{in_column(error)}", "export or copy it again") from error
    except OSError as error:  # a file beside the one that was opened first
        what = f"cannot be read ({error.strerror or error})"
        raise SourceError(path, what, "check that it is complete and that no program is writing there") from error
