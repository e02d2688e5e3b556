"""The report: against formulas, hand-worked runs with a known fault, and itself under reordering."""

import json
from dataclasses import replace

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.profiles import concluded
from tests.support.reports import report_of
from tests.support.rows import examples
from trace_export.analysis.bubbles import Bubbles
from trace_export.analysis.compare import compare
from trace_export.analysis.report_tables import PARTS
from trace_export.analysis.run_figures import run_figures
from trace_export.analysis.theory import modelled_blocks
from trace_export.model import RANKS, SPANS, Declared, Profile, conform
from trace_export.pipeline.interpret import conclude, with_ids
from trace_export.pipeline.stages import resolve
from trace_export.schedules.schedule import schedule
from trace_export.schedules.simulate import Costs, as_profile, durations, simulate, start_and_end

MS = 1_000_000


def replicated(profile: Profile, replicas: int) -> Profile:
    """The run on several data-parallel replicas at once."""
    stages = len(profile.ranks)
    spans = pl.concat([profile.spans.with_columns(pl.col("rank") + n * stages) for n in range(replicas)])
    ranks = pl.DataFrame({"rank": range(stages * replicas)}).with_columns(
        stage=pl.col("rank") % stages, dp=pl.col("rank") // stages
    )
    return Profile(ranks=conform(ranks, RANKS), spans=spans)


@pytest.mark.parametrize(
    ("name", "p", "m", "costs", "idle"),
    [  # Idle time of every rank by the published formula, in ms.
        ("gpipe", 4, 8, Costs(10, 20), 3 * 30),
        ("1f1b", 8, 32, Costs(10, 20), 7 * 30),
        ("interleaved", 4, 8, Costs(10, 20), 3 * 30),
        ("zb-h1", 4, 8, Costs(10, 12, 8), 3 * (10 + 12 - 8)),
        ("zb-h2", 4, 8, Costs(10, 10, 10), 3 * 10),
    ],
)
def test_bubble_of_a_simulated_run_is_the_formula(name: str, p: int, m: int, costs: Costs, idle: int) -> None:
    """And the closed form, the levels and the measurement all agree, for nothing disturbs the model."""
    s = schedule(name, p, m)
    scaled = Costs(costs.forward * MS, costs.backward * MS, costs.weight * MS)
    profile = simulate(s, scaled)
    result = report_of(concluded(Profile(ranks=profile.ranks, spans=profile.spans)))
    step = result.steps.row(0, named=True)
    length = step["end_ns"] - step["start_ns"]
    assert round(step["bubble"] * length) == idle * MS
    assert set(result.stages["global_ns"]) == {idle * MS}
    assert result.theory.recognition.plan.name == name
    assert result.theory.closed_form.idle_ns == pytest.approx(idle * MS)
    steps = dict(result.explanation.levels.select("level", "step_ns").iter_rows())
    assert {steps[level] for level in ("schedule", "stages", "jitter", "late")} == {length}
    assert steps["work"] == pytest.approx(length - idle * MS)


def test_what_if() -> None:
    """1F1B, 4 stages, 8 micro-batches, F = 10, B = 20; stage 2 takes twice as long. Nothing enlarges the batch."""
    s = schedule("1f1b", 4, 8)
    even = durations(s, Costs(10 * MS, 20 * MS))
    slow = np.where(s.ops["stage"].to_numpy() == 2, 2.0, 1.0) * even
    result = report_of(concluded(as_profile(s, *start_and_end(s, slow))))
    changes = {row[0]: row[1:] for row in result.theory.changes.rows()}
    now = float(start_and_end(s, slow)[1].max())
    assert changes["as it is, in the model"] == (now, 0, pytest.approx(1 - float(slow.sum()) / now / 4), 4, 0)
    assert not [name for name in changes if "micro-batches" in name or "stage 2" in name]


def test_what_if_has_the_measured_transfers() -> None:
    """Interleaving doubles the transfers: with 6 ms each, a step of 330 + 6 · 6 ms gains less than the model alone."""
    profile = simulate(schedule("1f1b", 4, 8), Costs(10 * MS, 20 * MS, transfer=6 * MS))
    changes = {row[0]: row[1:] for row in report_of(concluded(profile)).theory.changes.rows()}
    length = profile.spans["end_ns"].max() - profile.spans["start_ns"].min()
    assert changes["as it is, in the model"][0] == pytest.approx(length, rel=0.01)
    assert changes["Interleaved 1F1B, 2 chunks"][0] > (8 * 30 + 3 * 30 / 2) * MS + 12 * 6 * MS


def test_levels_of_an_uneven_run() -> None:
    """Stage imbalance shows in its level, jitter in the next, transfers in theirs."""
    s = schedule("1f1b", 4, 8)
    rng = np.random.default_rng(5)
    even = durations(s, Costs(10 * MS, 20 * MS))
    slow = np.where(s.ops["stage"].to_numpy() == 1, 1.5, 1.0) * even
    jittered = np.round(slow * rng.uniform(0.8, 1.2, len(slow)))
    start, end = start_and_end(s, jittered, 2 * MS)
    levels = report_of(concluded(as_profile(s, start, end))).explanation.levels
    steps = dict(levels.select("level", "step_ns").iter_rows())
    kinds = s.ops["kind"].to_numpy()
    means = np.where(kinds == "F", jittered[kinds == "F"].mean(), jittered[kinds == "B"].mean())
    assert steps["schedule"] == pytest.approx(float(start_and_end(s, means)[1].max()))
    assert steps["schedule"] < steps["stages"] < steps["late"]
    assert steps["jitter"] == pytest.approx(float(start_and_end(s, jittered)[1].max()))
    assert steps["late"] == pytest.approx(float(end.max()))


def test_every_table_says_that_its_blocks_are_inferred() -> None:
    plain = concluded(simulate(schedule("1f1b", 4, 8), Costs(10 * MS, 20 * MS)))
    inferred = pl.when(pl.col("rank") < 2).then(pl.lit("inferred")).otherwise("origin").alias("origin")
    mixed = replace(plain, spans=plain.spans.with_columns(inferred))
    whole = replace(plain, spans=plain.spans.with_columns(origin=pl.lit("inferred")))
    ends = [{t.note.rpartition("from ")[2] for t in report_of(p).tables() if t.frame.height} for p in (mixed, whole)]
    assert ends == [{"blocks, 50% of them inferred"}, {"inferred blocks"}]
    assert not [t for t in report_of(plain).tables() if "inferred" in t.note]


@pytest.mark.parametrize("steps", [1, 2])
def test_runs_without_a_schedule_still_have_bubbles(steps: int) -> None:
    one = simulate(schedule("1f1b", 2, 4), Costs(10, 20))
    forward = one.spans.filter(pl.col("kind") == "F")
    spans = pl.concat(
        [
            forward.with_columns(
                step=pl.lit(n, pl.Int32), start_ns=pl.col("start_ns") + 1000 * n, end_ns=pl.col("end_ns") + 1000 * n
            )
            for n in range(steps)
        ]
    )
    result = report_of(concluded(Profile(ranks=one.ranks, spans=spans)))
    assert len(result.steps) == steps
    assert result.theory.changes.is_empty()
    assert json.loads(result.json())["schedule"]["name"] is None
    tables = {table.title: table for table in result.tables()}
    assert tables["What if"].frame.is_empty()
    assert "no known schedule" in tables["What if"].note


def test_order_of_ranks_changes_nothing() -> None:
    s = schedule("zb-v", 4, 8)
    lengths = np.random.default_rng(2).integers(100, 900, len(s.ops)).astype(float)
    profile = replicated(as_profile(s, *start_and_end(s, lengths, 20)), 2)
    shuffled = Profile(
        ranks=profile.ranks.sample(fraction=1, shuffle=True, seed=1),
        spans=profile.spans.sample(fraction=1, shuffle=True, seed=2),
    )
    assert report_of(concluded(shuffled)).json() == report_of(concluded(profile)).json()


@examples(2)
@given(seed=st.integers(0, 2**32 - 1))
def test_odd_runs_never_fail(seed: int) -> None:
    """Missing numbers, stages, steps and kinds, repeated and overlapping blocks: a report still comes, and adds up."""
    rng = np.random.default_rng(seed)
    count, ranks = int(rng.integers(0, 60)), int(rng.integers(1, 6))

    def some(values: np.ndarray) -> list[object]:
        missing = rng.random(count) < rng.choice([0, 0.2])
        return [None if gap else value for gap, value in zip(missing, values.tolist(), strict=True)]

    start = rng.integers(0, 2000, count)
    spans = {
        "rank": rng.integers(0, ranks, count), "run": some(rng.integers(0, 2, count)),
        "step": some(rng.integers(0, 3, count)),
        "kind": some(rng.choice(["F", "B", "W", "FB", "OPT"], count, p=rng.dirichlet(np.ones(5)))),
        "microbatch": some(rng.integers(0, 4, count)), "chunk": some(rng.integers(0, rng.integers(1, 4), count)),
        "microbatch_b": some(rng.integers(0, 4, count)), "chunk_b": some(rng.integers(0, 2, count)),
        "start_ns": start, "end_ns": start + rng.integers(0, 200, count),
    }  # fmt: skip
    stage = [None if rng.random() < 0.3 else int(rng.integers(0, ranks)) for _ in range(ranks)]
    table = pl.DataFrame(
        {"rank": range(ranks), "stage": stage, "host": ["a"] * ranks}, schema_overrides={"stage": pl.Int32}
    )
    profile = Profile(ranks=conform(table, RANKS), spans=conform(pl.DataFrame(spans, strict=False), SPANS))
    for each in (concluded(profile), conclude(resolve(with_ids(profile), Declared()))):
        result = report_of(each)
        parts = result.stages.select(pl.sum_horizontal(PARTS).alias("parts"), "global_ns")
        assert (parts["parts"] - parts["global_ns"]).abs().max() in (None, pytest.approx(0, abs=1e-6))
        assert json.loads(result.json())["steps"] == json.loads(json.dumps(result.steps.to_dicts()))
        result.tables()
        modelled_blocks(each)
        figures = run_figures(Bubbles(each), result.explanation)
        beside = compare(figures, figures)
        assert beside.tables()[0].title == "Steps"
        assert set(beside.levels["difference"]) <= {0.0}
