"""The slowdown by stragglers: planted ones with answers worked out by hand, and the laws that every run obeys.

Expected fractions follow from the definitions: T* is the step with the mean lengths, and so on (see the module's
docstring). Times in the tables are 32-bit seconds, so that numbers agree to about 1e-6.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest

from samples.generators.operation_table import RS, Cell, Job, usual
from tests.support.profiles import concluded
from trace_export import api
from trace_export.analysis.what_if import Slowdown, what_if
from trace_export.model import Profile
from trace_export.pipeline.step_operations import step_operations
from trace_export.schedules.schedule import schedule
from trace_export.schedules.simulate import Costs, as_profile, durations, start_and_end

COMPUTE = ("forward-compute", "backward-compute")
CLOSE = 2e-6
MS = 1_000_000


def slowdown(job: Job) -> Slowdown:
    with TemporaryDirectory() as folder:
        job.write(Path(folder))
        return what_if(step_operations(api.load(folder).align().profile).usual)


@cache
def planted(name: str) -> Slowdown:
    slow_worker = lambda c: 2 if c.optype in COMPUTE and (c.dp, c.stage) == (1, 2) else 1  # noqa: E731
    lengths = {
        "nothing": usual,
        "worker": lambda c: usual(c) * slow_worker(c),
        "last stage": lambda c: usual(c) * (1.5 if c.optype in COMPUTE and c.stage == 3 else 1),
        "replica": lambda c: usual(c) * (1.5 if c.optype in COMPUTE and c.dp == 1 else 1),
        "step": lambda c: usual(c) * (1.5 if c.optype in COMPUTE and c.step == 2 else 1),
        "link": lambda c: 9 if c.optype in ("forward-send", "forward-recv") and _link(c) == (0, 1) else usual(c),
        "reduce-scatter": lambda c: 46 if c.optype == RS and c.stage == 0 else usual(c),
    }
    launches = {
        "late reduce-scatter": lambda c: 40 if c.optype == RS and (c.dp, c.stage) == (1, 0) else 0,
        "late forwards": lambda c: 3 if c.optype == "forward-compute" and c.stage == 0 else 0,
    }
    if name in launches:
        return slowdown(Job(launch=launches[name]))
    return slowdown(Job(length=lengths[name]))


def _link(cell: Cell) -> tuple[int, int]:
    """Replica and sending stage of a transfer of activations."""
    return cell.dp, cell.stage - (cell.optype == "forward-recv")


def parts(found: Slowdown, group: str) -> list[float]:
    return [found.part(times) for times in getattr(found, f"by_{group}").values()]


@pytest.mark.parametrize(
    ("name", "observed", "simulated", "ideal"),
    [
        ("nothing", 364, 364, 364),
        ("worker", 575, 575, 405.25),
        ("last stage", 474, 474, 405.25),
        ("replica", 529, 529, 446.5),
        ("link", 394, 394, 364),
        ("reduce-scatter", 404, 404, 364),
        ("late reduce-scatter", 404, 364, 364),
        ("late forwards", 375, 364, 364),
    ],
)
def test_step_times(name: str, observed: float, simulated: float, ideal: float) -> None:
    found = planted(name)
    for times, expected in ((found.observed_ns, observed), (found.simulated_ns, simulated), (found.ideal_ns, ideal)):
        assert times / MS == pytest.approx([expected] * 3, rel=CLOSE)
    assert found.total == pytest.approx(simulated / ideal, rel=CLOSE)
    assert found.fidelity == pytest.approx(observed / simulated, rel=CLOSE)


def test_a_slow_worker() -> None:
    found = planted("worker")
    assert parts(found, "dp") == pytest.approx([1, 2300 / 1621], rel=CLOSE)
    assert parts(found, "stage") == pytest.approx([n / 1621 for n in (1598, 1590, 2345, 1591)], rel=CLOSE)
    assert found.part(found.by_type["forward-compute"]) == pytest.approx(1814 / 1621, rel=CLOSE)
    assert found.part(found.by_type["backward-compute"]) == pytest.approx(2070 / 1621, rel=CLOSE)
    assert found.by_slowest_workers == pytest.approx(771 / 679, rel=CLOSE)
    assert found.by_last_stage == pytest.approx(-15 / 679, rel=1e-4)
    assert found.slowest == [(1, 2)]
    assert np.unravel_index(found.by_worker.mean(axis=2).argmax(), (2, 4)) == (1, 2)


def test_a_long_last_stage() -> None:
    found = planted("last stage")
    assert parts(found, "stage") == pytest.approx([n / 1621 for n in (1598, 1590, 1583, 1941)], rel=CLOSE)
    assert found.by_last_stage == pytest.approx(72 / 55, rel=1e-5)
    assert found.by_slowest_workers == pytest.approx(0, abs=1e-5)


def test_a_slow_replica() -> None:
    found = planted("replica")
    assert parts(found, "dp") == pytest.approx([1, 1058 / 893], rel=CLOSE)
    assert parts(found, "stage") == pytest.approx([n / 893 for n in (960, 971, 982, 993)], rel=CLOSE)
    assert found.by_slowest_workers == pytest.approx(2 / 11, rel=1e-5)


def test_a_slow_step_is_seen_step_by_step_only() -> None:
    found = planted("step")
    assert found.total == pytest.approx(1, rel=CLOSE)
    assert found.by_step == pytest.approx([364 / 419, 364 / 419, 529 / 419], rel=CLOSE)


def test_a_slow_link_is_charged_to_its_receiver() -> None:
    found = planted("link")
    assert found.part(found.by_type["forward-pp-comm"]) == pytest.approx(197 / 182, rel=CLOSE)
    assert parts(found, "dp") == pytest.approx([197 / 182, 1], rel=CLOSE)
    assert parts(found, "stage") == pytest.approx([1, 1, 197 / 182, 1], rel=CLOSE)
    assert found.by_slowest_workers == pytest.approx(1, rel=1e-4)


def test_a_slow_collective_is_charged_to_all_its_replicas() -> None:
    found = planted("reduce-scatter")
    assert parts(found, "dp") == pytest.approx([101 / 91] * 2, rel=CLOSE)
    assert found.part(found.by_type["grads-reduce-scatter"]) == pytest.approx(101 / 91, rel=CLOSE)
    assert found.by_slowest_workers == pytest.approx(0, abs=1e-5)


def test_where_nothing_is_planted_no_time_is_lost() -> None:
    found = planted("nothing")
    everything = [found.total, *parts(found, "type"), *parts(found, "dp"), *parts(found, "stage")]
    assert everything == pytest.approx([1] * len(everything), rel=CLOSE)


def test_delays_by_type_replica_and_stage() -> None:
    """3 ms before each forward of stage 0 make 375 of 364 ms, of which the first forward, which begins the step, makes
    3. Either replica by itself makes both late."""
    found = planted("late forwards").launch
    assert found is not None
    assert found["by_type"].pop("first-op") == pytest.approx(367 / 364, rel=CLOSE)
    assert found["by_type"].pop("forward-compute") > 1
    assert list(found["by_type"].values()) == pytest.approx([1] * len(found["by_type"]), rel=CLOSE)
    assert list(found["by_stage"].values()) == pytest.approx([375 / 364, 1, 1, 1], rel=CLOSE)
    assert list(found["by_dp"].values()) == pytest.approx([375 / 364] * 2, rel=CLOSE)
    late = planted("late reduce-scatter").launch
    assert late is not None
    assert late["by_type"]["grads-reduce-scatter"] == pytest.approx(404 / 364, rel=CLOSE)
    assert list(late["by_dp"].values()) == pytest.approx([1, 404 / 364], rel=CLOSE)
    assert planted("nothing").launch is None


def made(name: str, factor: float, stage: int, transfer: float = 0, weight: float = 0) -> Profile:
    """One step of a schedule on 4 stages, 8 micro-batches, F = 10 ms and B = 20 ms, with a slow stage."""
    s = schedule(name, 4, 8)
    costs = Costs(10 * MS, (10 if s.splits else 20) * MS, weight or 10 * MS)
    slow = np.where(s.ops["stage"].to_numpy() == stage, factor, 1.0)
    return concluded(as_profile(s, *start_and_end(s, durations(s, costs) * slow, transfer)))


@pytest.mark.parametrize("stage", range(4))
@pytest.mark.parametrize("factor", [1.25, 1.5, 3.0])
def test_a_slow_stage_of_1f1b_is_the_closed_form(factor: float, stage: int) -> None:
    """T(k, s) = s(F+B) + m k (F+B) + (P-1-s)(max(0, F+B-kF) + max(0, F+B-kB)) for 1F1B, m ≥ P, no transfers."""

    def t(k: float) -> float:
        rest = max(0, 30 - 10 * k) + max(0, 30 - 20 * k)
        return stage * 30 + 8 * k * 30 + (3 - stage) * rest

    usual_factor = 1 + (factor - 1) / 4
    ideal = usual_factor * 11 * 30
    found = what_if(step_operations(made("1f1b", factor, stage)).usual)
    assert found.total == pytest.approx(t(factor) / ideal, rel=1e-6)
    of_stage = usual_factor * t(factor / usual_factor) / ideal
    assert found.part(found.by_stage[stage]) == pytest.approx(of_stage, rel=1e-6)
    assert found.part(found.by_dp[0]) == pytest.approx(found.total)


@pytest.mark.parametrize(
    ("name", "simulated", "ideal"),
    [("gpipe", 456, 377.25), ("1f1b", 443, 387.25), ("interleaved", 786, 655.25), ("zb-h1", 389, 315.75)],
)
def test_schedules_with_a_slow_stage_and_transfers(name: str, simulated: float, ideal: float) -> None:
    """Stage 2 × 1.5, transfers of 1 ms: computed with an independent simulator of these schedules."""
    found = what_if(step_operations(made(name, 1.5, 2, transfer=MS)).usual)
    assert found.simulated_ns / MS == pytest.approx([simulated], rel=1e-6)
    assert found.ideal_ns / MS == pytest.approx([ideal], rel=1e-6)
    assert found.level == "blocks"


def test_a_stage_that_was_not_read_leaves_no_slowdown() -> None:
    profile = made("1f1b", 1.5, 2)
    profile = replace(profile, spans=profile.spans.filter(profile.spans["rank"] != 1))
    found = step_operations(profile)
    assert found.usual is None
    assert found.reason == "stage 1 was not read"
