"""Which replicas are read together, by examples of a few ranks."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

from trace_export.scale import parts
from trace_export.scale.parts import in_parts
from trace_export.scale.places import RANK_PLACES
from trace_export.sources.source import Source


def sources(*hosts: str) -> list[Source]:
    return [Source("paddle", Path(f"{number}.log"), host, rank=number) for number, host in enumerate(hosts)]


def placed(*replicas: int, of_sources: list[int] | None = None) -> pl.DataFrame:
    """Ranks 0, 1, … of these replicas, each of a source of its own."""
    rows = [
        (number if of_sources is None else of_sources[number], number, 0, replica, 0, 0, "recorded")
        for number, replica in enumerate(replicas)
    ]
    return pl.DataFrame(rows, RANK_PLACES, orient="row")


def replicas_of(found: list[parts.Part]) -> list[list[int]]:
    return [part.places["dp"].unique().sort().to_list() for part in found]


def test_small_replicas_are_read_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "RANKS_A_PART", 4)
    found = in_parts(sources(*"abcdefgh"), placed(0, 1, 2, 3, 0, 1, 2, 3))
    assert replicas_of(found) == [[0, 1], [2, 3]]
    assert [[source.host for source in part.sources] for part in found] == [list("abef"), list("cdgh")]
    assert [part.number for part in found] == [0, 1]


def test_a_replica_is_never_split(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "RANKS_A_PART", 2)
    assert replicas_of(in_parts(sources(*"abcdef"), placed(0, 1, 0, 1, 0, 1))) == [[0], [1]]


def test_replicas_that_share_a_host_share_its_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "RANKS_A_PART", 1)
    assert replicas_of(in_parts(sources(*"aabbcc"), placed(0, 1, 0, 1, 2, 2))) == [[0, 1], [2]]


def test_replicas_in_one_source_are_read_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "RANKS_A_PART", 1)
    found = in_parts(sources(*"abc"), placed(0, 1, 1, 2, of_sources=[0, 0, 1, 2]))
    assert replicas_of(found) == [[0, 1], [2]]
    assert [len(part.sources) for part in found] == [2, 1]


def test_where_hosts_connect_too_many_they_are_read_several_times(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each host has a rank of two neighbouring replicas, so that all would be one part."""
    monkeypatch.setattr(parts, "RANKS_A_PART", 1)
    chain = sources("a", "a", "b", "b", "c", "c"), placed(0, 1, 1, 2, 2, 3)
    assert replicas_of(in_parts(*chain)) == [[0, 1, 2, 3]]
    monkeypatch.setattr(parts, "MOST_RANKS", 5)
    assert replicas_of(in_parts(*chain)) == [[0], [1], [2], [3]]


def test_no_rank_makes_no_part() -> None:
    assert in_parts([], pl.DataFrame(schema=RANK_PLACES)) == []
