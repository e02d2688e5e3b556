"""Whether two profiles are the same."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from types import ModuleType
from unittest import mock

from trace_export.model import TABLES, Profile


def assert_same(one: Profile, other: Profile) -> None:
    for name in TABLES:
        table, again = getattr(one, name), getattr(other, name)
        assert table.schema == again.schema
        assert table.equals(again), name
    assert (one.notes, one.declared) == (other.notes, other.declared)
    assert one.recorded_until == other.recorded_until


@contextmanager
def small_pieces(*modules: ModuleType) -> Iterator[None]:
    """In which the readers of databases take 60 rows at a time."""
    with ExitStack() as stack:
        for module in modules:
            stack.enter_context(mock.patch.object(module, "PIECE_ROWS", 60))
        yield
