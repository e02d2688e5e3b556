"""The measured graph and the critical path: a run worked out by hand, and the laws that every run obeys."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.profiles import ORIGIN, concluded, span, table, with_messages
from tests.support.rows import examples
from trace_export.analysis.transfer_split import links, split_messages
from trace_export.model import HOSTS, MESSAGES, RANKS, SPANS, Profile, conform
from trace_export.schedules.catalogue import CATALOGUE
from trace_export.schedules.schedule import Schedule, schedule
from trace_export.schedules.simulate import Costs, as_profile, durations, start_and_end
from trace_export.steps.build import build
from trace_export.steps.graph import OPTIMIZER, Floats, Graph
from trace_export.steps.path import CriticalPath
from trace_export.steps.recorded import recorded
from trace_export.steps.replay import PIECE, Replay

MS = 1_000_000
SCHEDULES = sorted(name for name, row in CATALOGUE.items() if not row.variant)


def profile(spans: list[dict[str, object]], stages: dict[int, int], messages: list[dict[str, object]]) -> Profile:
    ranks = pl.DataFrame({"rank": list(stages), "stage": list(stages.values())}).with_columns(host=pl.lit("a"))
    hosts = pl.DataFrame({"host": ["a"], "machine": [0], "label": ["a"]})
    made = Profile(hosts=conform(hosts, HOSTS), ranks=conform(ranks, RANKS), spans=table(spans, SPANS))
    return with_messages(concluded(made), table(messages, MESSAGES))


def worked_example(sent: dict[tuple[str, int], int] | None = None) -> Profile:
    """Two stages, two micro-batches, 1F1B: forwards of 10 and 14 ms, backwards of 20 and 28, wires of 2 ms, and a delay
    of 1 ms before F1 of stage 0 and before F0 of stage 1 (its wire ends at 12). `sent`: other starts of sends."""
    blocks = [
        (0, "F", 0, 0, 10), (0, "F", 1, 11, 21), (0, "B", 0, 57, 77), (0, "B", 1, 99, 119),
        (1, "F", 0, 13, 27), (1, "B", 0, 27, 55), (1, "F", 1, 55, 69), (1, "B", 1, 69, 97),
    ]  # fmt: skip
    transfers = [  # direction, micro-batch, the send's start, the receive's start, the end of both
        ("F", 0, 10, 0, 12), ("F", 1, 21, 27, 29), ("B", 0, 55, 21, 57), ("B", 1, 97, 77, 99),
    ]  # fmt: skip
    at = lambda ms: ORIGIN + ms * MS  # noqa: E731
    messages = [
        {"src_rank": int(way == "B"), "dst_rank": int(way == "F"), "direction": way, "microbatch": m, "chunk": 0,
         "send_start_ns": at((sent or {}).get((way, m), send)), "send_end_ns": at(end),
         "recv_start_ns": at(receive), "recv_end_ns": at(end)}
        for way, m, send, receive, end in transfers
    ]  # fmt: skip
    return profile([span(r, k, m, a * MS, b * MS, chunk=0) for r, k, m, a, b in blocks], {0: 0, 1: 1}, messages)


def graph_of(made: Profile) -> tuple[Graph, Replay, CriticalPath]:
    graph = build(recorded(made))
    replay = Replay(graph)
    return graph, replay, CriticalPath(graph, replay.windows)


def test_worked_example() -> None:
    """Back from the end: B1@0 20, wire 2, B1@1 28, F1@1 14, B0@1 28, F0@1 14, late by 1, wire 2, F0@0 10: 119 ms."""
    _, _, result = graph_of(worked_example())
    parts = [
        (part, kind, stage, ns // MS) for part, kind, stage, ns in result.parts["part", "kind", "stage", "ns"].rows()
    ]
    assert parts == [
        ("work", "F", 0, 10), ("wire", "F", 1, 2), ("delay", "F", 1, 1), ("work", "F", 1, 14), ("work", "B", 1, 28),
        ("work", "F", 1, 14), ("work", "B", 1, 28), ("wire", "B", 0, 2), ("work", "B", 0, 20),
    ]  # fmt: skip
    assert result.steps["length_ns"].to_list() == [119 * MS]
    assert result.parts.filter(pl.col("part") == "wire")["from_stage"].to_list() == [0, 1]
    slack = worked_example().spans.select("id", "rank", "kind", "microbatch").join(result.slack.drop("rank"), on="id")
    free = slack.filter(pl.col("slack_ns") != 0).select("rank", "kind", "microbatch", pl.col("slack_ns") // MS)
    # The receive of F1 starts with B0@1, at 27, so that F1@0 may end at 53; B0@0 at 97, when B1 is sent.
    assert sorted(free.rows()) == [(0, "B", 0, 20), (0, "F", 1, 32)]


def test_who_waited_for_whom_in_the_worked_example() -> None:
    """A late receive hides nothing: the transfer of B0 was ready when its data were, at 55, and took 2 ms."""
    graph, _, _ = graph_of(worked_example())
    moved = {
        (graph.kinds[graph.kind[i]], int(graph.start[i]) // MS): (int(graph.ready[i]) // MS, int(graph.delay[i]) // MS)
        for i in np.flatnonzero(graph.src >= 0)
    }
    assert moved == {("T:F", 10): (10, 0), ("T:F", 27): (27, 0), ("T:B", 55): (55, 0), ("T:B", 97): (97, 0)}


@pytest.mark.parametrize(("sent", "ms"), [({("B", 0): 52}, 3), ({("F", 1): 18}, 0)])
def test_a_transfer_that_begins_within_the_block_that_makes_its_data_overlaps_with_it(
    sent: dict[tuple[str, int], int], ms: int
) -> None:
    """B0 is made at 55. F1 is made at 21, and its transfer begins with its receive, at 27, however early it was sent.
    All work takes 144 ms."""
    graph, _, _ = graph_of(worked_example(sent))
    assert graph.overlap == pytest.approx(ms / 144)


def test_transfers_of_the_worked_example() -> None:
    result = split_messages(worked_example().messages).sort("direction", "microbatch")
    ms = [tuple(v // MS for v in row) for row in result["sender_late_ns", "receiver_late_ns", "wire_ns"].rows()]
    assert ms == [(34, 0, 2), (20, 0, 2), (10, 0, 2), (0, 6, 2)]
    assert result["late"].to_list() == ["sender", "sender", "sender", "receiver"]
    assert set(links(worked_example(), result)["median_wire_ns"]) == {2 * MS}


@st.composite
def runs(draw: st.DrawFn) -> tuple[Schedule, Profile]:
    """A schedule's run with lengths at random, transfers, and perhaps one clock that is wrong; one step or two."""
    name = draw(st.sampled_from(SCHEDULES))
    stages = draw(st.sampled_from([2, 4]))
    s = schedule(name, stages, 2 * stages * draw(st.integers(1, 2)))
    chance = np.random.default_rng(draw(st.integers(0, 1 << 32)))
    transfers = [draw(st.sampled_from([0, 1, 3])) for _ in range(draw(st.integers(1, 2)))]
    return s, run_of(s, chance, transfers, draw(st.sampled_from([0, 0, 5])))


def run_of(s: Schedule, chance: np.random.Generator, transfers: list[int], shift: int = 0) -> Profile:
    """A step for each length of `transfers` (ms), with blocks whose lengths vary; the clock of rank 1 is wrong by
    `shift` (ms)."""
    parts, at = [], ORIGIN
    for n, transfer in enumerate(transfers):
        costs = durations(s, Costs(10, 10 if s.splits else 20, 10))
        lengths = np.round(costs * chance.uniform(0.5, 2, s.ops.height) * MS)
        start, end = start_and_end(s, lengths, transfer * MS)
        made = as_profile(s, start, end)
        moved = pl.col("start_ns", "end_ns") + pl.when(pl.col("rank") == 1).then(shift * MS).otherwise(0) + at
        parts.append(made.spans.with_columns(moved, step=pl.lit(n, pl.Int32)))
        at += int(end.max()) + 7 * MS
    return concluded(replace(made, spans=pl.concat(parts)))


def slow_replay(graph: Graph, length: Floats, delay: Floats) -> Floats:
    """The end of each operation, one after the other, by the definition: an oracle without levels."""
    end = np.full(len(graph), np.nan)
    waits: dict[int, list[int]] = {}
    for n, of in enumerate(graph.waits.of.tolist()):
        waits.setdefault(of, []).append(n)

    def ended(i: int) -> float:
        if np.isnan(end[i]):
            rows = waits.get(i, [])
            before = [int(graph.waits.on[n]) for n in rows]
            early = [0 if graph.waits.whole[n] else length[j] for n, j in zip(rows, before, strict=True)]
            met = [ended(j) - e + graph.waits.lag[n] for n, j, e in zip(rows, before, early, strict=True)]
            end[i] = (max(met) if rows else graph.ready[i]) + delay[i] + length[i]
        return float(end[i])

    for i in graph.levels.order.tolist():
        ended(i)
    return end


@examples(8)
@given(runs(), st.integers(0, 1 << 32))
def test_a_replay_is_what_the_definition_says(run: tuple[Schedule, Profile], seed: int) -> None:
    """With the measured times it gives them back; with any others it is as slow as one operation after the other."""
    assert_replayed(run[1], seed)


def test_a_long_run_is_replayed_in_pieces() -> None:
    graph = assert_replayed(run_of(schedule("1f1b", 4, 16), np.random.default_rng(1), [1] * 160), 2)
    assert len(graph) > 2 * PIECE


def assert_replayed(made: Profile, seed: int) -> Graph:
    graph, replay, _ = graph_of(made)
    length, delay = graph.length.astype(np.float64), graph.delay.astype(np.float64)
    np.testing.assert_array_equal(slow_replay(graph, length, delay), graph.end)
    chance = np.random.default_rng(seed)
    cases = [(length, delay)] + [(length * chance.uniform(0.2, 3, len(graph)), delay * n) for n in range(2)]
    result = replay.step_lengths(cases)
    windows = replay.windows
    for case, (lengths, delays) in enumerate(cases):
        end = slow_replay(graph, lengths, delays)
        for n, (since, until, ends) in enumerate(zip(windows.since, windows.until, windows.ends, strict=True)):
            begin = (end - lengths)[since].min()
            expected = ((end - lengths)[until].min() if len(until) else end[ends].max()) - begin
            assert result[n, case] == pytest.approx(expected, abs=1e-3)
    return graph


@examples(6)
@given(runs())
def test_the_parts_add_up_to_the_step(run: tuple[Schedule, Profile]) -> None:
    """To the nanosecond, and each begins where the one before ended; also where the clocks disagree."""
    spans = run[1].spans
    _, _, result = graph_of(run[1])
    begins = spans.group_by("step").agg(pl.col("start_ns").min()).sort("step")["start_ns"].to_list()
    until = begins[1] if len(begins) > 1 else spans["end_ns"].max()
    assert result.steps["length_ns"].to_list() == [until - begins[0]]
    assert result.parts["ns"].sum() == until - begins[0]
    parts = result.parts.select("start_ns", "end_ns").rows()
    assert parts[0][0] == begins[0]
    assert all(before[1] == after[0] for before, after in pairwise(parts))


@examples(6)
@given(runs(), st.data())
def test_slack_is_how_much_longer_a_block_may_take(run: tuple[Schedule, Profile], data: st.DataObject) -> None:
    """A block that takes δ longer makes the step longer by max(0, δ - slack), and a block on the path has none."""
    graph, replay, result = graph_of(run[1])
    on_path = result.slack.join(result.parts.filter(pl.col("part") == "work"), on="id", how="semi")
    assert set(on_path["slack_ns"]) == {0}
    rows = np.flatnonzero((graph.sort <= OPTIMIZER) & (graph.step == replay.windows.step[0]))
    i = int(data.draw(st.sampled_from(rows.tolist())))
    more = float(data.draw(st.integers(0, 40 * MS)))
    length, delay = graph.length.astype(np.float64), graph.delay.astype(np.float64)
    longer = length.copy()
    longer[i] += more
    before, after = replay.step_lengths([(length, delay), (longer, delay)])[0]
    span_of = graph.recorded.blocks["span"][i]
    slack = result.slack.filter(pl.col("id") == span_of)["slack_ns"].item()
    if len(np.unique(graph.step)) == 2:  # of two steps only the first has a length
        expected = 0.0 if slack is None else max(0.0, more - slack)
        assert after - before == pytest.approx(expected, abs=1)


def test_waits_in_a_circle_are_cut_and_counted() -> None:
    """F0@1 waits for F0@0, which runs after B0@0, which waits for B0@1, which runs after F0@1."""
    blocks = [(0, "B", 0, 0, 10), (0, "F", 0, 11, 20), (1, "F", 0, 0, 10), (1, "B", 0, 12, 22)]
    made = profile([span(r, k, m, a * MS, b * MS, chunk=0) for r, k, m, a, b in blocks], {0: 0, 1: 1}, [])
    graph, _, result = graph_of(made)
    assert graph.cut > 0
    assert result.parts["ns"].sum() == result.steps["length_ns"].sum() == 22 * MS


@pytest.mark.parametrize("cut", [False, True])
def test_a_barrier_that_nobody_recorded_is_inferred(cut: bool) -> None:
    """The optimizers of three replicas of one stage start together in each of three steps, after the last backward. A
    recording that was `cut` begins with optimizers: what they waited for is not there."""
    chance = np.random.default_rng(3)
    spans, at = [], 0
    if cut:
        spans, at = [{**span(rank, "OPT", None, 0, 5 * MS), "step": 0} for rank in range(3)], 7 * MS
    for n in range(1, 4):
        ends = []
        for rank in range(3):
            end = at + int(chance.integers(10, 30)) * MS
            spans.append({**span(rank, "F", 0, at, end, chunk=0), "step": n})
            ends.append(end)
        begin = max(ends) + MS
        spans += [{**span(rank, "OPT", None, begin, begin + 5 * MS), "step": n} for rank in range(3)]
        at = begin + 7 * MS
    ranks = pl.DataFrame({"rank": range(3), "stage": 0, "dp": range(3), "host": "a"})
    made = concluded(Profile(ranks=conform(ranks, RANKS), spans=table(spans, SPANS)))
    graph = build(recorded(made))
    optimizers = np.flatnonzero((graph.kind == graph.kinds.index("OPT")) & (graph.start > 7 * MS))
    assert set((graph.delay[optimizers] // MS).tolist()) == {1}  # each from the end of the slowest, not from its own


@pytest.mark.parametrize("of_all", [True, False])
def test_a_step_waits_for_ranks_that_end_after_those_that_begin_it(of_all: bool) -> None:
    """Two stages whose weight gradients vary, so that stage 1 ends before or after stage 0. Each step begins 3 ms after
    both have ended, or after stage 0 has: what varies less shows it."""
    chance, spans, at = np.random.default_rng(5), [], 0
    for n in range(5):
        blocks = [
            (0, "F", at, at + 10 * MS),
            (1, "F", at + 10 * MS, at + 20 * MS),
            (1, "B", at + 20 * MS, at + 30 * MS),
        ]
        blocks.append((0, "B", at + 30 * MS, at + 40 * MS))
        ends = [at + int(chance.integers(42, 60)) * MS for _ in range(2)]
        blocks += [(0, "W", at + 40 * MS, ends[0]), (1, "W", at + 30 * MS, ends[1])]
        spans += [{**span(rank, kind, 0, start, end, chunk=0), "step": n} for rank, kind, start, end in blocks]
        at = max(ends) + 3 * MS if of_all else ends[0] + 21 * MS
    graph, replay, _ = graph_of(profile(spans, {0: 0, 1: 1}, []))
    begins = np.flatnonzero(graph.first & (graph.rank == 0) & (graph.step > 0))
    assert set((graph.delay[begins] // MS).tolist()) == {3 if of_all else 21}
    length = graph.length.astype(np.float64)
    shorter = np.where((graph.rank == 1) & (graph.kind == graph.kinds.index("W")), length - 5 * MS, length)
    both = replay.means([(each, graph.delay.astype(np.float64)) for each in (length, shorter)])
    assert (both[1] < both[0]) == of_all
