"""The parts of a chart: the next one is made while one is used."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from trace_export.chart.chart import Chart, Part, Put, Track


def part(number: int) -> Part:
    return Part((Track(number, str(number), None),))


def chart(more: Iterator[Part]) -> Chart:
    return Chart("title", 0, part(1), {}, lambda: more)


def numbers(parts: Iterator[Part]) -> list[int]:
    return [track.id for part in parts for track in part.tracks]


def test_an_error_in_a_part_is_raised_where_the_part_would_come() -> None:
    def more() -> Iterator[Part]:
        yield part(2)
        raise OSError("no space left")

    parts = chart(more()).parts()
    assert [next(parts).tracks[0].id for _ in range(2)] == [1, 2]
    with pytest.raises(OSError, match="no space left"):
        next(parts)


def test_parts_that_are_not_wanted_any_more_are_not_made() -> None:
    made = []

    def more() -> Iterator[Part]:
        for number in range(2, 100):
            made.append(number)
            yield part(number)

    parts = chart(more()).parts()
    assert [next(parts).tracks[0].id for _ in range(2)] == [1, 2]
    parts.close()  # type: ignore[attr-defined]
    assert len(made) <= 2


def test_several_files_get_each_part_once_and_are_closed_in_their_order() -> None:
    got: dict[str, list[Part]] = {"a": [], "b": []}
    closed = []

    @contextmanager
    def file(name: str) -> Iterator[Put]:
        yield got[name].append
        closed.append(name)

    chart(part(n) for n in range(2, 5)).put(file("a"), file("b"))
    assert numbers(iter(got["a"])) == [1, 2, 3, 4]
    assert all(one is other for one, other in zip(got["a"], got["b"], strict=True))
    assert closed == ["a", "b"]
