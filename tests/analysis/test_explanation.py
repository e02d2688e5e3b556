"""Why a step is slow: causes and levels against the same run without the cause."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from samples.generators import ascend, data_parallel
from samples.generators.operation_table import Cell, Job, usual
from tests.support.ascend_jobs import JOBS
from tests.support.profiles import ORIGIN, concluded
from trace_export import load
from trace_export.analysis.bubbles import Bubbles
from trace_export.analysis.explanation import Explanation, explain
from trace_export.analysis.typical import Typical
from trace_export.model import COLLECTIVES, Profile, conform
from trace_export.schedules.schedule import schedule
from trace_export.schedules.simulate import Costs, as_profile, durations, start_and_end
from trace_export.steps.build import build
from trace_export.steps.recorded import recorded
from trace_export.steps.replay import Replay

MS = 1_000_000


def repeated(made: Profile, steps: int) -> Profile:
    """The run several times, one step after the other."""
    length = int(made.spans.select(pl.col("end_ns").max() - pl.col("start_ns").min()).item()) + 7 * MS
    at = pl.col("start_ns", "end_ns") + ORIGIN
    spans = [made.spans.with_columns(pl.lit(n).cast(pl.Int32).alias("step"), at + n * length) for n in range(steps)]
    return concluded(replace(made, spans=pl.concat(spans)))


def planted(
    stage_factor: dict[int, float], link: tuple[int, float] | None = None, late: tuple[int, float] | None = None
) -> Profile:
    """1F1B on 4 stages with 8 micro-batches, F = 10 ms, B = 20 ms, transfers of 1 ms: stages that take longer by a
    factor, a link into a stage that takes this many ms, a stage whose blocks start this many ms late."""
    s = schedule("1f1b", 4, 8)
    stage = s.ops["stage"].to_numpy()
    lengths = durations(s, Costs(10 * MS, 20 * MS)) * np.array([stage_factor.get(n, 1.0) for n in range(4)])[stage]
    rows = list(zip(s.ops["stage"], s.ops["kind"], s.ops["microbatch"], strict=True))
    start: dict[tuple[int, str, int], float] = {}
    end: dict[tuple[int, str, int], float] = {}
    todo = {n: [row for row in rows if row[0] == n] for n in range(4)}
    length = dict(zip(rows, lengths, strict=True))
    free = dict.fromkeys(range(4), 0.0)
    while any(todo.values()):
        for n, queue in todo.items():
            while queue:
                _, kind, m = queue[0]
                source = (n - 1, "F", m) if kind == "F" else (n + 1, "B", m)
                if 0 <= source[0] < 4 and source not in end:
                    break
                wire = link[1] * MS if link and (source[0], n) == (link[0], link[0] + 1) else MS
                arrived = end[source] + wire if source in end else 0
                delay = late[1] * MS if late and late[0] == n and free[n] else 0
                key = queue.pop(0)
                start[key] = max(free[n], arrived) + delay
                end[key] = free[n] = start[key] + length[key]
    times = [np.array([t[row] for row in rows]) for t in (start, end)]
    return repeated(as_profile(s, times[0], times[1]), 4)


def explained(made: Profile) -> Explanation:
    return explain(build(recorded(made)))


def with_reductions(made: Profile, between: int, late: int = 0) -> Profile:
    """After each step all ranks reduce something twice, the second time `between` after the first, as for an optimizer
    that nobody recorded; rank 0 comes `late` to it."""
    ended = made.spans.group_by("step", "rank").agg(start=pl.col("end_ns").max())
    first = ended.with_columns(end=pl.col("start").max().over("step") + MS // 2, sequence=2 * pl.col("step"))
    second = first.with_columns(
        start=pl.col("end") + between + pl.when(pl.col("rank") == 0).then(late).otherwise(0),
        end=pl.col("end") + between + late + MS // 2, sequence=pl.col("sequence") + 1,
    )  # fmt: skip
    both = pl.concat([first, second]).rename({"start": "start_ns", "end": "end_ns"})
    return concluded(
        replace(made, collectives=conform(both.with_columns(op=pl.lit("allReduce"), group=pl.lit("all")), COLLECTIVES))
    )


def test_what_all_members_of_a_collective_do_before_it_makes_no_one_late() -> None:
    """But for the one that takes longer than the others."""
    assert explained(with_reductions(planted({}), 5 * MS)).causes.is_empty()
    (cause,) = explained(with_reductions(planted({}), 3 * MS, late=3 * MS)).causes.iter_rows(named=True)
    assert (cause["code"], cause["ranks"]) == ("late-collective", [0])
    assert cause["gain_ns"] == pytest.approx(3 * MS, rel=0.01)


def test_a_pause_before_the_collectives_that_open_a_step_makes_no_one_late() -> None:
    """In two steps as well: those of the first step waited for nothing that was recorded."""
    made = planted({})
    made = replace(made, spans=made.spans.filter(pl.col("step") < 2))
    begun = made.spans.group_by("step").agg(start_ns=pl.col("start_ns").min() - 2 * MS)
    gathers = made.spans.select("step", "rank").unique().join(begun, on="step").with_columns(
        op=pl.lit("allGather"), group=pl.format("stage {}", "rank"), sequence="step", end_ns=pl.col("start_ns") + MS
    )  # fmt: skip
    levels = explained(concluded(replace(made, collectives=conform(gathers, COLLECTIVES)))).levels
    adds = dict(levels.select("level", "adds_ns").iter_rows())
    assert adds["delays"] == pytest.approx(5 * MS)
    assert adds["late"] == 0


@pytest.mark.parametrize("named", ["dualpipev", "dualpipev, context parallel"])
def test_the_backward_of_a_head_that_has_a_block_of_its_own_is_no_short_backward_of_layers(
    named: str, tmp_path: Path
) -> None:
    """All stages have layers of one length; stage 0 also has the head, before which the others are not slow."""
    ascend.record(tmp_path, JOBS[named])
    result = load(tmp_path).explain()
    assert not set(result.causes["code"]) & {"slow-host", "slow-stage", "slow-rank"}
    assert (result.levels["adds_ns"] > -MS).all()


def test_a_run_without_a_cause_names_none_and_its_levels_are_the_closed_form() -> None:
    """(8 + 3)(10 + 20) ms of 1F1B, 8 · 30 of them work, and 7 ms between the steps."""
    result = explained(planted({}))
    assert result.causes.is_empty()
    step = dict(result.levels.select("level", "step_ns").iter_rows())
    assert step["work"] == pytest.approx(240 * MS)
    assert step["schedule"] == step["stages"] == step["jitter"] == pytest.approx(330 * MS)
    assert step["late"] == result.step_ns
    assert result.levels["adds_ns"].sum() == pytest.approx(result.step_ns)
    assert dict(result.levels.select("level", "adds_ns").iter_rows())["pause"] == pytest.approx(7 * MS)


COMPUTE = ("forward-compute", "backward-compute")


def test_the_three_gains_of_a_slow_last_stage(tmp_path: Path) -> None:
    """1F1B of p stages and m micro-batches whose last stage takes k times as long as the others' F + B: a step has
    m k + p - 1 of these, so that it gains m (k - 1) as fast as the others, and with every stage at the mean of all, r,
    (m k + p - 1) - (m + p - 1) r. The straggler study brings the last stage alone to r: m (k - r).
    Transfers take no time."""
    stages, microbatches, slow = 4, 8, 1.6

    def length(cell: Cell) -> float:
        if cell.optype in COMPUTE:
            return usual(cell) * (slow if cell.stage == stages - 1 else 1)
        return 0 if cell.optype.endswith(("-send", "-recv")) else usual(cell)

    Job(stages, microbatches, length=length).write(tmp_path)
    result = load(tmp_path).align().explain()
    block, mean = 30e6, 1 + (slow - 1) / stages
    first = result.causes.row(0, named=True)
    assert (first["code"], first["stage"]) == ("slow-stage", 3)
    assert first["gain_ns"] == pytest.approx(microbatches * (slow - 1) * block, rel=0.01)
    even = microbatches * slow + stages - 1 - (microbatches + stages - 1) * mean
    assert first["even_ns"] == pytest.approx(even * block, rel=0.01)
    typical = Typical(result._graph)
    of_all = np.where(typical.is_block & (typical.stage == 3), typical.means(), typical.length)
    before, after = Replay(result._graph).means([(each, typical.usual_delay) for each in (typical.length, of_all)])
    assert before - after == pytest.approx(microbatches * (slow - mean) * block, rel=0.01)


def test_a_slow_link_is_no_gain_of_the_links_beside_it(tmp_path: Path) -> None:
    """The others between its stages seem a little longer by chance."""
    job = data_parallel.Job(
        stages=3, microbatches=12, replicas=3, steps=4, receives="early", jitter=0.0245, seed=697616951,
        links={(5, 2): 9 * MS},
    )  # fmt: skip
    data_parallel.write_nsys(tmp_path, job)
    result = load(tmp_path).align().explain().causes
    assert result.row(0, named=True)["src_rank"] == 5
    assert (result["gain_ns"] > result["gain_ns"][0] / 2).sum() == 1


def test_the_bubble_of_a_replica_has_no_skew_of_others() -> None:
    """Two equal replicas 30 ms apart: each is idle for 3/11 of its own time."""
    one = as_profile(
        schedule("1f1b", 4, 8), *start_and_end(s := schedule("1f1b", 4, 8), durations(s, Costs(10 * MS, 20 * MS)))
    )
    later = one.spans.with_columns(pl.col("rank") + 4, pl.col("start_ns", "end_ns") + 30 * MS)
    ranks = pl.concat([one.ranks, one.ranks.with_columns(pl.col("rank") + 4)]).with_columns(
        dp=(pl.col("rank") // 4).cast(pl.Int32), stage=(pl.col("rank") % 4).cast(pl.Int32)
    )
    made = concluded(replace(one, spans=pl.concat([one.spans, later]), ranks=ranks))
    assert Bubbles(made).bubble == pytest.approx(3 / 11)


@pytest.mark.parametrize("form", ["paddle", "kineto"])
def test_a_pause_is_seen_in_the_step_that_it_follows(form: str, tmp_path: Path) -> None:
    """A checkpoint of a second, written once in five steps, before the step 3."""
    job = data_parallel.Job(replicas=1, steps=6, pause=1_000 * MS, during=frozenset({3}))
    data_parallel.WRITERS[form](tmp_path, job)
    report = load(tmp_path).align().report()
    first = report.causes.row(0, named=True)
    longest = report.steps.sort("step_ns", descending=True, nulls_last=True)["step"][0]
    assert (first["code"], first["step"]) == ("long-pause", longest)
    assert report.steps["step"][report.explained] == longest
