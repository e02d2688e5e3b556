"""The ways over the graph of a step, against the rule taken literally."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trace_export.schedules.longest_path import Scenarios, last_ends, start_and_end
from trace_export.schedules.step_graph import CircleError, StepGraph, Waits

LANES = (2, 3)


@st.composite
def graphs(draw: st.DrawFn, *, grouped: bool) -> StepGraph:
    """Some operations that wait for some with lower numbers; neighbours may form a group."""
    count = draw(st.integers(1, 14))
    waits = Waits()
    free = list(range(count))
    groups: list[list[int]] = []
    if grouped:
        for at in draw(st.sets(st.integers(0, count - 2), max_size=4)) if count > 1 else ():
            if at in free and at + 1 in free:
                groups.append([at, at + 1])
                free = [i for i in free if i not in (at, at + 1)]
    first = {i: min(group) for group in groups for i in group}
    for i in range(count):
        before = first.get(i, i)
        if before:
            waits.add(i, *draw(st.sets(st.integers(0, before - 1), max_size=3)))
    return waits.graph(count, groups, [draw(st.booleans()) for _ in groups])


def literally(graph: StepGraph, length: np.ndarray, launch: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Start and end, operation × replica × step: set again and again until nothing changes."""
    start, end = np.zeros(length.shape), np.zeros(length.shape)
    for _ in range(2 * len(graph) + 1):
        for i, waits in enumerate(graph.waits):
            start[i] = launch[i] + (np.max([end[w] for w in waits], axis=0) if waits else 0)
        for i, group in enumerate(graph.group_of.tolist()):
            begin = start[i]
            if group >= 0:
                begin = start[list(graph.groups[group])].max(axis=0)
                if graph.synced[group]:
                    begin = np.broadcast_to(begin.max(axis=0), begin.shape)
            end[i] = begin + length[i]
    return start, end


@settings(max_examples=60, deadline=None)
@given(graphs(grouped=False), st.integers(0, 1000))
def test_all_times_level_by_level(graph: StepGraph, seed: int) -> None:
    length = np.random.default_rng(seed).integers(0, 50, (len(graph), 3)).astype(float)
    for found, expected in zip(
        start_and_end(graph, length), literally(graph, length, np.zeros_like(length)), strict=True
    ):
        assert np.array_equal(found, expected)
    assert np.array_equal(start_and_end(graph, length[:, 0])[1], start_and_end(graph, length)[1][:, 0])


@settings(max_examples=30, deadline=None)
@given(graphs(grouped=True), st.integers(0, 1000))
def test_last_ends_of_scenarios(graph: StepGraph, seed: int) -> None:
    """In the second of two scenarios each operation is as long as measured, in the first as usual; delays too."""
    rng = np.random.default_rng(seed)
    length, launch = (rng.integers(0, 50, (len(graph), *LANES)).astype(float) for _ in range(2))
    usual = rng.integers(0, 50, len(graph)).astype(float)
    watch = rng.integers(0, 2, len(graph)).astype(bool).tolist()
    scenarios = Scenarios(2, usual.tolist(), [[(1, values)] for values in length])
    found = last_ends(graph, scenarios, LANES, [True] * len(graph), watch)
    none = np.zeros_like(launch)
    for row, lengths in enumerate((np.broadcast_to(usual[:, None, None], length.shape), length)):
        _, end = literally(graph, lengths, none)
        assert np.array_equal(found.whole[row], end.max(axis=0))
        assert np.array_equal(found.watched[row], end[watch].max(axis=0, initial=0))
    later = Scenarios(1, [*length, *launch], [[]] * (2 * len(graph)))
    delayed = last_ends(graph.with_delays, later, LANES, [True] * (2 * len(graph)), [False] * (2 * len(graph)))
    assert np.array_equal(delayed.whole[0], literally(graph, length, launch)[1].max(axis=0))


def test_a_circle_names_the_first_operation_that_never_starts() -> None:
    waits = Waits()
    waits.chain([1, 2, 3, 1])
    graph = waits.graph(4)
    assert not graph.is_acyclic
    for run in (lambda: graph.plan, lambda: start_and_end(graph, np.ones(4))):
        with pytest.raises(CircleError) as error:
            run()
        assert error.value.operation == 1


def test_an_empty_graph_runs() -> None:
    graph = Waits().graph(0)
    assert graph.is_acyclic
    assert graph.plan == []
    assert len(start_and_end(graph, np.zeros(0))[1]) == 0
