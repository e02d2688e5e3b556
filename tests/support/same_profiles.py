"""Whether two profiles are the same."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from trace_export.model import TABLES, Profile
from trace_export.sources.source import ReadOptions, Source

Alone = Callable[[Source, ReadOptions], Profile]
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
