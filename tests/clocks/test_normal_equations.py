"""The equations in the docstring of `normal_equations`, by worked examples and against dense least squares."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trace_export.clocks import normal_equations, problem
from trace_export.clocks.normal_equations import collective_part, message_part
from trace_export.clocks.observations import Floats, Observations
from trace_export.clocks.problem import ClockSettings, Geometry, Problem, Weights
from trace_export.clocks.solve import solve

Message = tuple[int, int, float, float]
"""From and to host, sent and received, in µs since their host's base."""
Member = tuple[int, int, float]
"""Collective, host, end in µs since the host's base."""


def observed(hosts: int, messages: list[Message], members: list[Member]) -> Observations:
    """Observations with these times."""
    rows = np.array(sorted(messages, key=lambda m: m[:2]), np.float64).reshape(-1, 4)
    i, j = rows[:, 0].astype(np.int64), rows[:, 1].astype(np.int64)
    _, first, pair = np.unique(i * hosts + j, return_index=True, return_inverse=True)
    met = np.array(members, np.float64).reshape(-1, 3)
    return Observations(
        hosts=[f"host{h}" for h in range(hosts)],
        base_ns=np.zeros(hosts, np.int64),
        observed=np.ones(hosts, bool),
        pair=pair,
        first=first,
        source=i[first],
        target=j[first],
        kind=np.zeros(len(first), np.int64),
        sent=rows[:, 2],
        received=rows[:, 3],
        event=met[:, 0].astype(np.int64),
        member=met[:, 1].astype(np.int64),
        entered=np.zeros(len(met)),
        left=met[:, 2],
    )


def dense(system: Problem, weights: Weights) -> Floats:
    """Offsets, drifts, two latencies per host pair and event times by numpy's least squares over all unknowns."""
    geometry, known, hosts = system.geometry, system.observations, system.geometry.hosts
    pairs, events = len(geometry.low), len(geometry.event_size)
    rows, right = [], []

    def add(weight: float, value: float, **coefficients: float) -> None:
        row = np.zeros(2 * hosts + 2 * pairs + events)
        for name, coefficient in coefficients.items():
            kind, number = name.split("_")
            row[{"a": 0, "d": hosts, "L": 2 * hosts, "T": 2 * hosts + 2 * pairs}[kind] + int(number)] += coefficient
        rows.append(np.sqrt(weight) * row)
        right.append(np.sqrt(weight) * value)

    for n, p in enumerate(known.pair):
        i, j, at = known.source[p], known.target[p], 2 * geometry.link[p] + geometry.slot[p]
        line = {f"a_{j}": 1.0, f"d_{j}": geometry.x_received[n], f"a_{i}": -1.0, f"d_{i}": -geometry.x_sent[n]}
        add(weights.message[n], geometry.delay[n], **line, **{f"L_{at}": 1.0})
    for n, h in enumerate(known.member):
        add(
            weights.member[n],
            known.left[n],
            **{f"a_{h}": 1.0, f"d_{h}": geometry.x_left[n], f"T_{known.event[n]}": 1.0},
        )
    for pair in range(pairs):
        both = f"L_{2 * pair}", f"L_{2 * pair + 1}"
        add(1 / system.settings.latency_us**2, 0.0, **{both[0]: 0.5, both[1]: 0.5})
        add(1 / system.asymmetry_us[pair] ** 2, 0.0, **{both[0]: 0.5, both[1]: -0.5})
    for h in range(hosts):
        add(1 / system.drift_us**2, 0.0, **{f"d_{h}": 1.0})
    for h in system.anchors:
        add(1e6, 0.0, **{f"a_{h}": 1.0})
    return np.linalg.lstsq(np.array(rows), np.array(right))[0]


def test_message_part_sums_the_outer_products_of_its_messages() -> None:
    """Three messages 0 → 1 and two back, T = 100 µs; the latencies are held at 0, so nothing is subtracted."""
    known = observed(2, [(0, 1, 0, 11), (0, 1, 50, 62), (0, 1, 90, 100), (1, 0, 20, 29), (1, 0, 70, 80)], [])
    system = Problem.of(known, np.array([0]), ClockSettings(latency_us=1e-7, same_latency_us=1e-7))
    w = np.array([1.0, 2.0, 1.0, 4.0, 1.0])
    matrix, right, _ = message_part(system, w)
    rows = np.array([  # a_0, a_1, d_0, d_1 of each message
        [-1, 1, -0.0, 0.11], [-1, 1, -0.5, 0.62], [-1, 1, -0.9, 1.0], [1, -1, 0.29, -0.2], [1, -1, 0.8, -0.7]
    ])  # fmt: skip
    z = np.array([11.0, 12.0, 10.0, 9.0, 10.0])
    assert matrix == pytest.approx(rows.T @ np.diag(w) @ rows, rel=1e-9)
    assert right == pytest.approx(rows.T @ (w * z), rel=1e-9)


def test_message_part_without_knowledge_of_the_latency_keeps_the_difference_of_directions() -> None:
    """One message each way, 30 µs and 10 µs: offset 10 µs and latency 20 µs explain both."""
    known = observed(2, [(0, 1, 0, 30), (1, 0, 50, 60)], [])
    system = Problem.of(known, np.array([0]), ClockSettings(drift_ppm=1e-3, latency_us=1e6))
    found = solve(system, Weights(np.ones(2), np.zeros(0)))
    assert found.offset == pytest.approx([0.0, 10.0], abs=1e-3)
    assert found.latency == pytest.approx([20.0, 20.0], abs=1e-3)
    assert found.residual == pytest.approx([0.0, 0.0], abs=1e-3)


def test_collective_part_takes_each_members_distance_from_the_weighted_mean() -> None:
    """Two members end at 100 µs and 90 µs, a third counts three times as much at 95 µs; T = 100 µs."""
    known = observed(3, [], [(0, 0, 100), (0, 1, 90), (0, 2, 95)])
    w = np.array([1.0, 1.0, 3.0])
    events = collective_part(Geometry.of(known), w)
    rows = np.zeros((3, 6))
    rows[[0, 1, 2], [0, 1, 2]], rows[[0, 1, 2], [3, 4, 5]] = 1.0, [1.0, 0.9, 0.95]
    from_mean = np.eye(3) - np.outer(np.ones(3), w) / w.sum()
    weighted = from_mean.T @ np.diag(w) @ from_mean
    assert events.matrix == pytest.approx(rows.T @ weighted @ rows, abs=1e-9)
    assert events.right == pytest.approx(rows.T @ weighted @ np.array([100.0, 90.0, 95.0]), abs=1e-9)
    assert len(events.large) == 0


systems = st.integers(2, 5).flatmap(
    lambda hosts: st.tuples(
        st.just(hosts),
        st.lists(st.tuples(*[st.integers(0, hosts - 1)] * 2, st.floats(0, 9e5), st.floats(-500, 500)), max_size=20),
        st.lists(st.tuples(st.integers(1, 10**6), st.sets(st.integers(0, hosts - 1), min_size=2)), max_size=6),
        st.randoms(use_true_random=False),
    )
)


@pytest.mark.parametrize("sparse", [False, True])
@settings(max_examples=30)
@given(systems)
def test_the_solution_is_that_of_dense_least_squares(sparse: bool, drawn: tuple) -> None:  # type: ignore[type-arg]
    hosts, sent, met, chance = drawn
    chain = [(a, b, 1e6 * k, 1e6 * k + 20) for a, b in pairwise(range(hosts)) for k in (0, 0.5, 1)]
    messages = [(a, b, s, s + lag) for a, b, s, lag in sent if a != b and s + lag >= 0] + chain
    members = [(c, h, t + 3 * h) for c, (t, hosts_met) in enumerate(met) for h in sorted(hosts_met)]
    known = observed(hosts, [*messages, *[(b, a, s, r) for a, b, s, r in chain]], members)
    system = Problem.of(known, np.array([0]), ClockSettings()).with_asymmetry(np.full(len(Geometry.of(known).low), 5.0))
    weights = Weights(*(np.array([chance.uniform(0.01, 1) for _ in rows]) for rows in (known.sent, known.member)))
    with pytest.MonkeyPatch.context() as patch:
        if sparse:
            patch.setattr(problem, "FEW_HOSTS", 0)
            patch.setattr(normal_equations, "SMALL_EVENT", 3)
        found = solve(system, weights)
    expected, geometry = dense(system, weights), system.geometry
    latencies = expected[2 * hosts :][2 * geometry.link + geometry.slot]
    assert np.concatenate([found.offset, found.drift]) == pytest.approx(expected[: 2 * hosts], abs=1e-3)
    assert found.latency == pytest.approx(latencies, abs=1e-3)
