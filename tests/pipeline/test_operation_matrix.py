"""The same operation of all replicas and steps, put beside each other."""

from __future__ import annotations

from unittest.mock import patch

import numpy as np
import numpy.typing as npt
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from trace_export.pipeline import operation_matrix
from trace_export.pipeline.operation_matrix import distinct, matrices, sequence_numbers

Ints = npt.NDArray[np.int64]


@given(values=arrays(np.int64, st.integers(0, 30), elements=st.one_of(st.integers(-3, 200), st.integers(0, 1 << 40))))
def test_distinct_values_are_those_of_sorting(values: Ints) -> None:
    keys, place = distinct(values)
    expected, index = np.unique(values, return_inverse=True)
    assert keys.tolist() == expected.tolist()
    assert place.tolist() == index.tolist()


@given(lane=arrays(np.int64, 20, elements=st.integers(0, 4)), start=arrays(np.int64, 20, elements=st.integers(0, 9)))
def test_places_in_a_lane(lane: Ints, start: Ints) -> None:
    for given_start, key in ((start, list(zip(start.tolist(), range(20), strict=True))), (None, list(range(20)))):
        found = sequence_numbers(lane, given_start)
        for i in range(20):
            assert found[i] == sum(lane[j] == lane[i] and key[j] < key[i] for j in range(20))  # type: ignore[operator]


@given(
    steps=st.lists(st.sets(st.integers(0, 6), max_size=5), min_size=1, max_size=6),
    replicas=st.integers(1, 3), part=st.integers(1, 20), lost=st.integers(-1, 60), seed=st.integers(0, 99),
)  # fmt: skip
def test_rows_of_each_kind_of_step(steps: list[set[int]], replicas: int, part: int, lost: int, seed: int) -> None:
    """Steps of different operations, of which one row may be lost: whatever stands in a place is the row of that
    operation, replica and step, however few rows are put in place at a time."""
    rows = [(key, a, n) for n, keys in enumerate(steps) for a in range(replicas) for key in keys]
    rows = [row for at, row in enumerate(rows) if at != lost]
    if not rows:
        return
    key, replica, step = np.random.default_rng(seed).permutation(rows).T
    replicas = int(replica.max()) + 1
    with patch.object(operation_matrix, "PART", part):
        kinds, odd = matrices(key * 7, replica, step)
    for kind in kinds:
        at = np.indices(kind.row.shape)
        assert (key[kind.row] * 7 == kind.keys[at[0]]).all()
        assert (replica[kind.row] == at[1]).all()
        assert (step[kind.row] == kind.steps[at[2]]).all()
        for n in kind.steps.tolist():
            assert (step == n).sum() == kind.row[:, :, 0].size
    placed = [n for kind in kinds for n in kind.steps.tolist()]
    assert sorted([*placed, *odd.tolist()]) == sorted(set(step.tolist()))
    alike = [n for n in sorted(set(step.tolist())) if all(
        sorted(key[(step == n) & (replica == a)].tolist()) == sorted(key[(step == n) & (replica == 0)].tolist())
        for a in range(replicas)
    )]  # fmt: skip
    assert sorted(placed) == alike
