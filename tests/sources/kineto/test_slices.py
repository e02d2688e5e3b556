"""Ends are joined with their begins as a queue does it, whatever pieces the file comes in."""

from __future__ import annotations

from collections import deque
from itertools import pairwise
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trace_export.errors import SourceError
from trace_export.sources.kineto.slices import SliceEnds

BEGIN, END, INSTANT = 1, 2, 3
Event = tuple[int, int, int, bool]
"""What it is, its time, its track, whether it is wanted."""

Groups = st.lists(
    st.lists(st.tuples(st.integers(0, 1), st.booleans(), st.integers(0, 9)), min_size=1, max_size=4), max_size=6
)
"""Slices that begin together: the track, whether each is wanted, and how many other events follow its begin, if few."""


def events_of(groups: list[list[tuple[int, bool, int]]]) -> list[Event]:
    """The slices of each group begin, then they end."""
    rows: list[Event] = []
    for group in groups:
        for track, wanted, others in group:
            rows.append((BEGIN, len(rows), track, wanted))
            rows += [(INSTANT, len(rows), track, True)] * (others == 1)
        rows += [(END, len(rows), track, False) for track, *_ in group]
    return rows


def joined(events: list[Event], borders: list[int]) -> list[tuple[int, int, int]]:
    """Start, end and track of each slice, of events that come in pieces."""
    ends = SliceEnds(Path("a.pftrace"))
    found: list[tuple[int, int, int]] = []
    edges = [0, *sorted(min(at, len(events)) for at in borders), len(events)]
    for low, high in pairwise(edges):
        kind, at, track, wanted = (np.array([event[n] for event in events[low:high]], np.int64) for n in range(4))
        ends.add(kind, pl.DataFrame({"track": track, "start": at}), wanted.astype(bool))
        for frame in ends.finished():
            found += frame.select("start", "end", "track").rows()
    for frame in ends.finished(last=True):
        found += frame.select("start", "end", "track").rows()
    return found


def brute_force(events: list[Event]) -> list[tuple[int, int, int]]:
    waiting: deque[Event] = deque()
    found = []
    for kind, at, _, wanted in (event for event in events if event[0] != INSTANT):
        if kind == BEGIN:
            waiting.append((kind, at, _, wanted))
        else:
            _, start, track, kept = waiting.popleft()
            found += [(start, at, track)] * kept
    return found


@settings(max_examples=50)
@given(groups=Groups, borders=st.lists(st.integers(0, 60), max_size=5), missing=st.integers(0, 5))
def test_slices_are_those_of_a_queue(
    groups: list[list[tuple[int, bool, int]]], borders: list[int], missing: int
) -> None:
    """The trace may break off."""
    events = events_of(groups)
    events = events[: max(0, len(events) - missing)]
    assert joined(events, borders) == brute_force(events)


@pytest.mark.parametrize(
    ("kinds", "tracks"),
    [
        ([END], [1]),
        ([BEGIN, END, END], [1, 1, 1]),
        ([BEGIN, BEGIN, END, BEGIN, END, END], [1] * 6),
        ([BEGIN, BEGIN, END, END], [1, 2, 2, 1]),
    ],
    ids=["an end alone", "two ends", "a begin among the ends", "ends of other tracks"],
)
@pytest.mark.parametrize("border", [0, 1, 2, 3])
def test_another_order_is_refused(kinds: list[int], tracks: list[int], border: int) -> None:
    events = [(kind, at, track, True) for at, (kind, track) in enumerate(zip(kinds, tracks, strict=True))]
    with pytest.raises(SourceError, match="do not end in the order they begin"):
        joined(events, [border])
