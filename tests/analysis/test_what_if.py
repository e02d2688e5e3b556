"""The slowdown by stragglers: planted ones with answers worked out by hand.

Expected fractions follow from the definitions: T* is the step with the mean lengths, and so on (see the module's
docstring). Times in the tables are 32-bit seconds.
"""

from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest

from samples.generators.operation_table import RS, Cell, Job, usual
from tests.support.profiles import concluded
from tests.support.rows import crossed
from trace_export import api
from trace_export.analysis.slowdown import Slowdown
from trace_export.analysis.slowdown import slowdown as slowdown_of
from trace_export.model import Profile
from trace_export.schedules.schedule import schedule
from trace_export.schedules.simulate import Costs, as_profile, durations, start_and_end
from trace_export.steps.build import build
from trace_export.steps.recorded import recorded

COMPUTE = ("forward-compute", "backward-compute")
CLOSE = 4e-3
"""The graph infers what the study's own program is told, so that its figures are near and not the same."""
MS = 1_000_000


def slowdown(job: Job) -> Slowdown:
    with TemporaryDirectory() as folder:
        job.write(Path(folder))
        return api.load(folder).align().what_if()


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


def parts(result: Slowdown, part: str) -> list[float]:
    return result.parts.filter(part=part)["slowdown"].to_list()


def of_type(result: Slowdown, name: str) -> float:
    (slower,) = result.parts.filter(part="type", name=name)["slowdown"]
    return float(slower)


@pytest.mark.parametrize(
    ("name", "simulated", "ideal"),
    [
        ("nothing", 364, 364),
        ("worker", 575, 405.25),
        ("last stage", 474, 405.25),
        ("replica", 529, 446.5),
        ("link", 394, 364),
        ("reduce-scatter", 404, 364),
        ("late reduce-scatter", 364, 364),
        ("late forwards", 364, 364),
    ],
)
def test_the_slowdown(name: str, simulated: float, ideal: float) -> None:
    """Delays count for nothing."""
    assert planted(name).total == pytest.approx(simulated / ideal, rel=CLOSE)


def test_a_slow_worker() -> None:
    result = planted("worker")
    assert parts(result, "replica") == pytest.approx([1, 2300 / 1621], rel=CLOSE)
    assert parts(result, "stage") == pytest.approx([n / 1621 for n in (1598, 1590, 2345, 1591)], rel=CLOSE)
    assert of_type(result, "F") == pytest.approx(1814 / 1621, rel=CLOSE)
    assert of_type(result, "B") == pytest.approx(2070 / 1621, rel=CLOSE)
    assert result.slowest_ranks == pytest.approx(771 / 679, rel=CLOSE)
    assert result.last_stage == pytest.approx(-15 / 679, abs=CLOSE)


def test_a_long_last_stage() -> None:
    result = planted("last stage")
    assert parts(result, "stage") == pytest.approx([n / 1621 for n in (1598, 1590, 1583, 1941)], rel=CLOSE)
    assert result.last_stage == pytest.approx(72 / 55, rel=CLOSE)


def test_a_slow_replica() -> None:
    result = planted("replica")
    assert parts(result, "replica") == pytest.approx([1, 1058 / 893], rel=CLOSE)
    assert result.parts.filter(part="replica")["replica"].to_list() == [0, 1]
    assert parts(result, "stage") == pytest.approx([n / 893 for n in (960, 971, 982, 993)], rel=CLOSE)
    assert result.slowest_ranks == pytest.approx(2 / 11, abs=CLOSE)


def test_a_slow_step_is_seen_step_by_step_only() -> None:
    result = planted("step")
    assert result.total == pytest.approx(1, rel=CLOSE)
    assert result.steps["slowdown"].to_list() == pytest.approx([364 / 419, 364 / 419, 529 / 419], rel=CLOSE)


def test_a_slow_link() -> None:
    result = planted("link")
    assert of_type(result, "T:F") == pytest.approx(197 / 182, rel=CLOSE)
    assert parts(result, "replica") == pytest.approx([197 / 182, 1], rel=CLOSE)


def test_a_slow_collective_is_charged_to_all_its_replicas() -> None:
    result = planted("reduce-scatter")
    assert parts(result, "replica") == pytest.approx([101 / 91] * 2, rel=CLOSE)
    assert of_type(result, "C:grads-reduce-scatter") == pytest.approx(101 / 91, rel=CLOSE)


def test_where_nothing_is_planted_no_time_is_lost() -> None:
    result = planted("nothing")
    everything = [result.total, *result.parts["slowdown"]]
    assert everything == pytest.approx([1] * len(everything), rel=CLOSE)


def made(name: str, factor: float, stage: int, transfer: float = 0, weight: float = 0) -> Profile:
    """One step of a schedule on 4 stages, 8 micro-batches, F = 10 ms and B = 20 ms, with a slow stage."""
    s = schedule(name, 4, 8)
    costs = Costs(10 * MS, (10 if s.splits else 20) * MS, weight or 10 * MS)
    slow = np.where(s.ops["stage"].to_numpy() == stage, factor, 1.0)
    return concluded(as_profile(s, *start_and_end(s, durations(s, costs) * slow, transfer)))


def of(profile: Profile) -> Slowdown:
    result = slowdown_of(build(recorded(profile)))
    assert result is not None
    return result


@pytest.mark.parametrize(("stage", "factor"), crossed(range(4), [1.25, 1.5, 3.0]))
def test_a_slow_stage_of_1f1b_is_the_closed_form(factor: float, stage: int) -> None:
    """T(k, s) = s(F+B) + m k (F+B) + (P-1-s)(max(0, F+B-kF) + max(0, F+B-kB)) for 1F1B, m ≥ P, no transfers."""

    def t(k: float) -> float:
        rest = max(0, 30 - 10 * k) + max(0, 30 - 20 * k)
        return stage * 30 + 8 * k * 30 + (3 - stage) * rest

    usual_factor = 1 + (factor - 1) / 4
    ideal = usual_factor * 11 * 30
    result = of(made("1f1b", factor, stage))
    assert result.total == pytest.approx(t(factor) / ideal, rel=1e-6)
    of_stage = usual_factor * t(factor / usual_factor) / ideal
    assert parts(result, "stage")[stage] == pytest.approx(of_stage, rel=1e-6)
    assert parts(result, "replica") == pytest.approx([result.total])


@pytest.mark.parametrize(
    ("name", "simulated", "ideal"),
    [("gpipe", 456, 377.25), ("1f1b", 443, 387.25), ("interleaved", 786, 655.25), ("zb-h1", 389, 315.75)],
)
def test_schedules_with_a_slow_stage_and_transfers(name: str, simulated: float, ideal: float) -> None:
    """Stage 2 × 1.5, transfers of 1 ms: computed with an independent simulator of these schedules."""
    result = of(made(name, 1.5, 2, transfer=MS))
    assert result.total == pytest.approx(simulated / ideal, rel=CLOSE)
