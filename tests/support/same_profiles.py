"""Whether two profiles are the same."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType
from typing import TypeVar
from unittest import mock

from trace_export.model import TABLES, Profile
from trace_export.sources.source import ReadOptions, Source

Alone = Callable[[Source, ReadOptions], Profile]
Kind = TypeVar("Kind")
Together = Callable[[Sequence[Source], ReadOptions], Sequence[Profile | None]]


def assert_same(one: Profile, other: Profile) -> None:
    for name in TABLES:
        table, again = getattr(one, name), getattr(other, name)
        assert table.schema == again.schema
        assert table.equals(again), name
    assert (one.notes, one.declared) == (other.notes, other.declared)
    assert one.recorded_until == other.recorded_until


def assert_as_one_by_one(
    alone: Alone, together: Together, sources: Sequence[Source], options: ReadOptions
) -> list[bool]:
    """Of each source whether it was read together with the others; then its reader alone reads it likewise."""
    profiles = together(sources, options)
    assert len(profiles) == len(sources)
    for source, profile in zip(sources, profiles, strict=True):
        if profile is not None:
            assert_same(alone(source, options), profile)
    return [profile is not None for profile in profiles]


def assert_kinds_as_one_by_one(
    readers: tuple[ModuleType, ModuleType],
    kinds: Sequence[Kind],
    write: Callable[[Path, int, Kind], Source],
    options: ReadOptions,
) -> list[bool]:
    """As `assert_as_one_by_one` of sources that `write` makes of a folder, the place among all, and its kind; `readers`
    are the modules that read one alone and many together, in small pieces."""
    with TemporaryDirectory() as folder, small_pieces(*readers):
        sources = [write(Path(folder) / str(place), place, kind) for place, kind in enumerate(kinds)]
        return assert_as_one_by_one(readers[0].read_one, readers[1].read, sources, options)


@contextmanager
def small_pieces(alone: ModuleType, together: ModuleType) -> Iterator[None]:
    """In which the readers of databases take 60 rows at a time."""
    with mock.patch.object(alone, "PIECE_ROWS", 60), mock.patch.object(together, "PIECE_ROWS", 60):
        yield
