"""Whether two profiles are the same."""

from trace_export.model import TABLES, Profile


def assert_same(one: Profile, other: Profile) -> None:
    for name in TABLES:
        table, again = getattr(one, name), getattr(other, name)
        assert table.schema == again.schema
        assert table.equals(again), name
    assert (one.notes, one.declared) == (other.notes, other.declared)
    assert one.recorded_until == other.recorded_until
