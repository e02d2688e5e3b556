"""The critical path: a run worked out by hand, and the laws that every run obeys."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from samples.generators.operation_table import Job, usual
from tests.support.profiles import ORIGIN, concluded, span, table, with_messages
from trace_export import load
from trace_export.analysis.causes import causes
from trace_export.analysis.critical_path import CriticalPath, Timed, critical_path
from trace_export.analysis.step_simulation import replay, split
from trace_export.analysis.transfer_split import links, split_messages
from trace_export.analysis.what_if import what_if
from trace_export.model import HOSTS, MESSAGES, RANKS, SPANS, Profile, conform
from trace_export.pipeline.step_operations import step_operations
from trace_export.schedules.catalogue import CATALOGUE
from trace_export.schedules.schedule import Schedule, schedule
from trace_export.schedules.simulate import Costs, as_profile, durations, start_and_end

MS = 1_000_000
SCHEDULES = sorted(name for name, row in CATALOGUE.items() if not row.variant)


def profile(spans: list[dict[str, object]], stages: dict[int, int], messages: list[dict[str, object]]) -> Profile:
    ranks = pl.DataFrame({"rank": list(stages), "stage": list(stages.values())}).with_columns(host=pl.lit("a"))
    hosts = pl.DataFrame({"host": ["a"], "machine": [0], "label": ["a"]})
    made = Profile(hosts=conform(hosts, HOSTS), ranks=conform(ranks, RANKS), spans=table(spans, SPANS))
    return with_messages(concluded(made), table(messages, MESSAGES))


def worked_example() -> Profile:
    """Two stages, two micro-batches, 1F1B: forwards of 10 and 14 ms, backwards of 20 and 28, wires of 2 ms, and a delay
    of 1 ms before F1 and B0 of stage 0 and before F0 of stage 1 (its wire ends at 12)."""
    blocks = [
        (0, "F", 0, 0, 10), (0, "F", 1, 11, 21), (0, "B", 0, 58, 78), (0, "B", 1, 99, 119),
        (1, "F", 0, 13, 27), (1, "B", 0, 27, 55), (1, "F", 1, 55, 69), (1, "B", 1, 69, 97),
    ]  # fmt: skip
    transfers = [  # direction, micro-batch, the send's start, the receive's start, the end of both
        ("F", 0, 10, 0, 12), ("F", 1, 21, 27, 29), ("B", 0, 55, 10, 57), ("B", 1, 97, 78, 99),
    ]  # fmt: skip
    at = lambda ms: ORIGIN + ms * MS  # noqa: E731
    messages = [
        {"src_rank": int(way == "B"), "dst_rank": int(way == "F"), "direction": way, "microbatch": m, "chunk": 0,
         "send_start_ns": at(send), "send_end_ns": at(end), "recv_start_ns": at(receive), "recv_end_ns": at(end)}
        for way, m, send, receive, end in transfers
    ]  # fmt: skip
    return profile([span(r, k, m, a * MS, b * MS, chunk=0) for r, k, m, a, b in blocks], {0: 0, 1: 1}, messages)


def path_of(made: Profile) -> CriticalPath:
    return critical_path(made, step_operations(made))


def test_worked_example() -> None:
    """Back from the end: B1@0 20, wire 2, B1@1 28, F1@1 14, B0@1 28, F0@1 14, late by 1, wire 2, F0@0 10: 119 ms."""
    found = path_of(worked_example())
    parts = [
        (part, kind, stage, ns // MS) for part, kind, stage, ns in found.parts["part", "kind", "stage", "ns"].rows()
    ]
    assert parts == [
        ("work", "F", 0, 10), ("wire", "F", 1, 2), ("launch", "F", 1, 1), ("work", "F", 1, 14), ("work", "B", 1, 28),
        ("work", "F", 1, 14), ("work", "B", 1, 28), ("wire", "B", 0, 2), ("work", "B", 0, 20),
    ]  # fmt: skip
    assert found.steps["length_ns"].to_list() == [119 * MS]
    assert found.parts.filter(pl.col("part") == "wire")["from_stage"].to_list() == [0, 1]
    slack = worked_example().spans.select("id", "rank", "kind", "microbatch").join(found.slack.drop("rank"), on="id")
    free = slack.filter(pl.col("slack_ns") != 0).select("rank", "kind", "microbatch", pl.col("slack_ns") // MS)
    # F1@0 may end at 53, so that its data are there when F1@1 starts; B0@0 at 97, when B1 is sent.
    assert sorted(free.rows()) == [(0, "B", 0, 19), (0, "F", 1, 32)]


def test_transfers_of_the_worked_example() -> None:
    found = split_messages(worked_example().messages).sort("direction", "microbatch")
    ms = [tuple(v // MS for v in row) for row in found["sender_late_ns", "receiver_late_ns", "wire_ns"].rows()]
    assert ms == [(45, 0, 2), (19, 0, 2), (10, 0, 2), (0, 6, 2)]
    assert found["late"].to_list() == ["sender", "sender", "sender", "receiver"]
    ranked = links(worked_example(), found)
    assert set(ranked["median_wire_ns"]) == {2 * MS}
    assert not ranked["slow"].any()


def test_what_if_of_the_worked_example() -> None:
    """Without delays 118; ideal F 12, B 24, wire 2: 112; with the last stage ideal 106, so M_S = 12 / 6."""
    found = what_if(step_operations(worked_example()).usual)
    assert found.level == "messages"
    assert found.simulated_ns / MS == pytest.approx([118])
    assert found.ideal_ns / MS == pytest.approx([112])
    assert found.total == pytest.approx(59 / 56)
    assert found.part(found.by_type["forward-compute"]) == pytest.approx(57 / 56)
    assert found.part(found.by_type["backward-compute"]) == pytest.approx(29 / 28)
    assert [found.part(t) for t in found.by_stage.values()] == pytest.approx([53 / 56, 31 / 28])
    assert found.by_last_stage == pytest.approx(2)
    assert found.fidelity == pytest.approx(119 / 118)


@st.composite
def runs(draw: st.DrawFn) -> tuple[Schedule, Profile]:
    """A schedule's run with lengths at random, transfers, and delays on one rank."""
    name = draw(st.sampled_from(SCHEDULES))
    stages = draw(st.sampled_from([2, 4]))
    s = schedule(name, stages, 2 * stages * draw(st.integers(1, 2)))
    chance = np.random.default_rng(draw(st.integers(0, 1 << 32)))
    lengths = np.round(durations(s, Costs(10, 10 if s.splits else 20, 10)) * chance.uniform(0.5, 2, s.ops.height) * MS)
    start, end = start_and_end(s, lengths, draw(st.sampled_from([0, 1, 3])) * MS)
    made = as_profile(s, start, end)
    shift = draw(st.sampled_from([0, 0, 5 * MS]))  # as of a clock that is wrong
    moved = pl.col("start_ns", "end_ns") + pl.when(pl.col("rank") == 1).then(shift).otherwise(0) + ORIGIN
    return s, concluded(replace(made, spans=made.spans.with_columns(moved)))


@settings(max_examples=10)
@given(runs())
def test_the_parts_add_up_to_the_step(run: tuple[Schedule, Profile]) -> None:
    """To the nanosecond, and each begins where the one before ended; also where the clocks disagree."""
    made = run[1]
    found = path_of(made)
    length = made.spans.select(pl.col("end_ns").max() - pl.col("start_ns").min()).item()
    assert found.steps["length_ns"].to_list() == [length]
    assert found.parts["ns"].sum() == length
    parts = found.parts.select("start_ns", "end_ns").rows()
    assert parts[0][0] == made.spans["start_ns"].min()
    assert all(before[1] == after[0] for before, after in pairwise(parts))
    assert sum(row["ns"] for row in found.document()[0]["parts"]) == length


@settings(max_examples=8)
@given(runs(), st.data())
def test_slack_is_how_much_longer_a_block_may_take(run: tuple[Schedule, Profile], data: st.DataObject) -> None:
    """A block that takes δ longer makes the step longer by max(0, δ - slack), and a block on the path has none."""
    made = run[1]
    found = path_of(made)
    assert found.slack["slack_ns"].min() == 0
    on_path = found.slack.join(found.parts.filter(pl.col("part") == "work"), on="id", how="semi")
    assert set(on_path["slack_ns"]) == {0}
    (operations,) = step_operations(made).alike
    timed = Timed.of(operations)
    start, end = timed.start.astype(np.float64), timed.end.astype(np.float64)
    length, launch = split(timed.graph, start, end, end - start)
    i = data.draw(st.integers(0, int((operations.span[:, 0, 0] >= 0).sum()) - 1))
    more = float(data.draw(st.integers(0, 40 * MS)))
    longer = length[i] + more
    before, after = replay(timed.graph, length, launch, [{}, {i: (longer, launch[i])}], timed.final)[:, 0]
    slack = float(timed.slack()[i, 0, 0])
    assert before == timed.end[timed.final].max()
    assert after - before == pytest.approx(max(0.0, more - slack), abs=1)


@settings(max_examples=10)
@given(runs())
def test_shortening_what_has_slack_changes_nothing(run: tuple[Schedule, Profile]) -> None:
    made = run[1]
    (operations,) = step_operations(made).alike
    timed = Timed.of(operations)
    start, end = timed.start.astype(np.float64), timed.end.astype(np.float64)
    length, launch = split(timed.graph, start, end, end - start)
    slack = timed.slack()[:, 0, 0]
    path = {link.operation for link in timed.path(0)}
    free = [i for i in timed.final.tolist() if slack[i] > 0 and i not in path]
    cases = [{}, *({i: (length[i] / 2, launch[i])} for i in free)]
    times = replay(timed.graph, length, launch, cases, timed.final)[:, 0]
    assert (times == times[0]).all()


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
    factor, a link into a stage that takes so many ms, a stage whose blocks start so many ms late."""
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
    return repeated(as_profile(s, times[0], times[1]), 3)


CAUSES = {
    "stage": {"stage_factor": {3: 1.3}},
    "worker": {"stage_factor": {1: 1.3}},
    "link": {"stage_factor": {}, "link": (1, 12.0)},
    "host": {"stage_factor": {}, "late": (2, 3.0)},
}


@pytest.mark.parametrize("name", CAUSES)
def test_a_planted_cause_is_named_first_with_its_gain(name: str) -> None:
    """The predicted gain is that of the run without the cause, within 2 %."""
    made, sound = planted(**CAUSES[name]), planted({})
    found = causes(step_operations(made).usual, made)
    first = found.row(0, named=True)
    kind, stage = {"stage": ("stage", 3), "worker": ("stage", 1), "link": ("link", 1), "host": ("host", 2)}[name]
    assert (first["kind"], first["stage"]) == (kind, stage)
    before, after = (path_of(p).steps["length_ns"].mean() for p in (made, sound))
    assert first["gain_ns"] == pytest.approx(before - after, rel=0.02)
    assert first["gain"] == pytest.approx((before - after) / before, rel=0.02)


def test_two_planted_causes_are_both_named() -> None:
    made = planted({3: 1.3}, link=(0, 12.0))
    found = causes(step_operations(made).usual, made)
    assert {("stage", 3), ("link", 0)} <= set(found.select("kind", "stage").rows())


def test_a_run_without_a_cause_names_none() -> None:
    made = planted({})
    assert causes(step_operations(made).usual, made).is_empty()


def replicas(**planted: object) -> tuple[pl.DataFrame, float]:
    """The causes of a run of two replicas with every operation recorded, and its mean step in ns."""
    with TemporaryDirectory() as folder:
        Job(**planted).write(Path(folder))  # type: ignore[arg-type]
        time = load(folder).align().report().time
    return time.causes, float(time.path.steps["length_ns"].mean())  # type: ignore[arg-type]


COMPUTE = ("forward-compute", "backward-compute")
ONE_REPLICA = {
    "worker": (
        {"length": lambda c: usual(c) * (1.3 if c.optype in COMPUTE and (c.dp, c.stage) == (1, 2) else 1)}, 1, 2,
    ),
    "link": (
        {"length": lambda c: 9 if c.optype in TRANSFERS and (c.dp, c.stage - (c.optype == TRANSFERS[1])) == (0, 1)
         else usual(c)}, 0, 1,
    ),
    "host": ({"launch": lambda c: 3 if c.optype in COMPUTE and (c.dp, c.stage) == (1, 1) else 0}, 1, 1),
    "stage": ({"length": lambda c: usual(c) * (1.3 if c.optype in COMPUTE and c.stage == 3 else 1)}, None, 3),
}  # fmt: skip
TRANSFERS = ("forward-send", "forward-recv")


@pytest.mark.parametrize("kind", ONE_REPLICA)
def test_a_cause_in_one_of_two_replicas(kind: str) -> None:
    planted, dp, stage = ONE_REPLICA[kind]
    (found, before), (_, after) = replicas(**planted), replicas()
    first = found.row(0, named=True)
    assert (first["kind"], first["dp"], first["stage"]) == (kind, dp, stage)
    assert first["gain_ns"] == pytest.approx(before - after, rel=0.02)


def test_a_circle_leaves_no_slowdown() -> None:
    """F0@1 waits for F0@0, which runs after B0@0, which waits for B0@1, which runs after F0@1."""
    blocks = [(0, "B", 0, 0, 10), (0, "F", 0, 11, 20), (1, "F", 0, 0, 10), (1, "B", 0, 12, 22)]
    made = profile([span(r, k, m, a * MS, b * MS, chunk=0) for r, k, m, a, b in blocks], {0: 0, 1: 1}, [])
    operations = step_operations(made)
    assert operations.usual is None
    assert "wait for each other in a circle" in operations.reason
    found = path_of(made)
    assert found.parts["ns"].sum() == found.steps["length_ns"].sum() == 22 * MS
