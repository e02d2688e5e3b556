"""The way over the graph of a schedule, against the rule taken literally."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trace_export.schedules.step_graph import CircleError, StepGraph

Pairs = list[tuple[int, int]]


def graph_of(count: int, pairs: Pairs) -> StepGraph:
    waiting, needed = np.array(pairs, np.int64).reshape(-1, 2).T
    return StepGraph.of_pairs(count, (waiting, needed))


@st.composite
def graphs(draw: st.DrawFn) -> tuple[int, Pairs]:
    """Some operations that wait for some with lower numbers."""
    count = draw(st.integers(1, 14))
    waits = [(i, j) for i in range(1, count) for j in draw(st.sets(st.integers(0, i - 1), max_size=3))]
    return count, waits


@settings(max_examples=60, deadline=None)
@given(graphs(), st.integers(0, 1000))
def test_all_times_level_by_level(drawn: tuple[int, Pairs], seed: int) -> None:
    count, pairs = drawn
    length = np.random.default_rng(seed).integers(0, 50, (count, 3)).astype(float)
    start, end = np.zeros(length.shape), np.zeros(length.shape)
    for i in range(count):
        start[i] = np.max([end[j] for of, j in pairs if of == i], axis=0, initial=0)
        end[i] = start[i] + length[i]
    found = graph_of(count, pairs).start_and_end(length)
    assert np.array_equal(found[0], start)
    assert np.array_equal(found[1], end)
    assert np.array_equal(graph_of(count, pairs).start_and_end(length[:, 0])[1], end[:, 0])


def test_a_circle_names_the_first_operation_that_never_starts() -> None:
    with pytest.raises(CircleError) as error:
        graph_of(4, [(2, 1), (3, 2), (1, 3)]).start_and_end(np.ones(4))
    assert error.value.operation == 1


def test_an_empty_graph_runs() -> None:
    assert len(graph_of(0, []).start_and_end(np.zeros(0))[1]) == 0
