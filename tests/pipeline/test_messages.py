"""Sends and receives find each other: whole captures, windows cut differently, numbered and unnumbered operations."""

from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest

from samples.generators import ascend
from tests.support.clock_runs import Clocks, Run, make
from tests.support.rows import crossed
from trace_export import load
from trace_export.model import P2P, Declared, Profile, conform
from trace_export.pipeline.interpret import interpret
from trace_export.pipeline.messages import pair

ENDS = ["src_rank", "dst_rank", "send_start_ns", "send_end_ns", "recv_start_ns", "recv_end_ns"]


def unlabelled(profile: Profile) -> Profile:
    return replace(profile, p2p=profile.p2p.with_columns(microbatch=pl.lit(None, pl.Int32)))


def same(result: pl.DataFrame, true: pl.DataFrame) -> bool:
    return result.select(ENDS).sort(ENDS).equals(true.select(ENDS).sort(ENDS))


@pytest.mark.parametrize(("seed", "eager"), crossed(range(4), [0.0, 0.3]))
def test_windows_cut_differently(seed: int, eager: float) -> None:
    run = make(Clocks(seed=seed, cut_ms=60, eager=eager, microbatches=8))
    profile = pair(unlabelled(run.profile).validate()).validate()
    assert same(profile.messages, run.paired)
    sends, receives = (run.profile.p2p.filter(pl.col("role") == r).height for r in ("send", "recv"))
    assert sends != len(run.paired) or receives != len(run.paired), "nothing was cut: the test says nothing"
    assert "messages-unpaired" in [n.code for n in profile.notes]


@pytest.mark.parametrize(("seed", "labelled"), crossed(range(6), [True, False]))
def test_sends_and_receives_of_different_steps_are_no_message(seed: int, labelled: bool) -> None:
    """Captures that lack up to a step at either end: what is left of two ranks may be of different steps alone."""
    run = make(Clocks(seed=seed, stages=4, replicas=2, microbatches=6, steps=4, cut_ms=500))
    profile = run.profile if labelled else unlabelled(run.profile)
    result = interpret(profile, Declared()).messages
    for src, dst, sent, received in result.select("src_rank", "dst_rank", "send_end_ns", "recv_end_ns").iter_rows():
        assert run.step_of[src, sent] == run.step_of[dst, received]
    assert len(result) >= 0.9 * len(run.paired)


@pytest.mark.parametrize("knows", ["send", "recv"])
def test_directions_known_on_one_side_only_are_not_separated(knows: str) -> None:
    run = make(Clocks(seed=5))
    direction = pl.when(pl.col("role") == knows).then(pl.lit("F"))
    profile = pair(replace(run.profile, p2p=run.profile.p2p.with_columns(direction=direction)))
    assert same(profile.messages, run.paired)
    assert profile.notes == ()


def test_order_of_rows_and_clock_offsets_do_not_matter() -> None:
    run = make(Clocks(seed=6, cut_ms=60))
    mixed = replace(run.profile, p2p=run.profile.p2p.sample(fraction=1, shuffle=True, seed=1))
    assert pair(mixed).messages.equals(pair(run.profile).messages)
    late = pl.when(pl.col("rank") == 2).then(10**15).otherwise(0)
    far = replace(run.profile, p2p=run.profile.p2p.with_columns(pl.col("start_ns", "end_ns") + late))
    assert len(pair(far).messages) == len(run.paired)


def batched(run: Run) -> pl.DataFrame:
    """The transfers of `run` as operations that are numbered alike on both sides and whose peer is not recorded."""
    rows = []
    for n, m in enumerate(run.paired.filter(pl.col("src_rank") < 2, pl.col("dst_rank") < 2).iter_rows(named=True)):
        if n == 3:
            continue  # one transfer that the profiler lost on the sender's side only
        rows.append({"rank": m["src_rank"], "role": "send", "start_ns": m["send_start_ns"], "end_ns": m["send_end_ns"]})
        rows[-1]["sequence"] = n
    for n, m in enumerate(run.paired.filter(pl.col("src_rank") < 2, pl.col("dst_rank") < 2).iter_rows(named=True)):
        rows.append({"rank": m["dst_rank"], "role": "recv", "start_ns": m["recv_start_ns"], "end_ns": m["recv_end_ns"]})
        rows[-1]["sequence"] = n
    return conform(pl.DataFrame(rows).with_columns(group=pl.lit("pair")), P2P)


def test_sequence_numbers_decide_where_they_make_the_ends_agree() -> None:
    run = make(Clocks(seed=7))
    expected = run.paired.filter(pl.col("src_rank") < 2, pl.col("dst_rank") < 2)
    result = pair(replace(run.profile, p2p=batched(run))).messages
    assert len(result) == len(expected) - 1
    assert result.join(expected, on=ENDS).height == len(result)


def test_a_rank_that_posts_some_operations_in_another_order_counts_otherwise_than_its_peer() -> None:
    """Both ranks of a group of two number their operations alike, but that one of them posts some receives before the
    send next to them. All ends agree in their order, and most by number."""
    run = make(Clocks(seed=9))
    true = run.paired.filter(pl.col("src_rank") < 2, pl.col("dst_rank") < 2).sort("send_start_ns").with_row_index("n")
    n = pl.col("n").cast(pl.Int64)
    between = n % 12  # of a step: 0 0 0 0 1 1 0 1 0 1 1 1 send
    exchanged = pl.when(between.is_in([5, 7])).then(n + 1).when(between.is_in([6, 8])).then(n - 1).otherwise(n)
    sides = [
        true.select(
            rank=f"{end}_rank", peer=f"{other}_rank", role=pl.lit(role), start_ns=f"{role}_start_ns",
            end_ns=f"{role}_end_ns", sequence=pl.when(pl.col(f"{end}_rank") == 1).then(exchanged).otherwise(n),
        )
        for end, other, role in (("src", "dst", "send"), ("dst", "src", "recv"))
    ]  # fmt: skip
    numbered = pl.concat(sides).with_columns(group=pl.lit("pair"))
    profile = pair(replace(run.profile, p2p=conform(numbered, P2P)))
    assert same(profile.messages, true)
    assert "messages-unpaired" not in [note.code for note in profile.notes]


@pytest.mark.parametrize(("stages", "microbatches"), [(4, 2), *crossed([2, 3, 4], [1, 2, 3])])
def test_all_messages_of_a_short_recording_are_paired(stages: int, microbatches: int, tmp_path: Path) -> None:
    """One step: of two messages another window offset would fit one, and its answer, as if a clock were ms off."""
    truth = ascend.record(tmp_path, ascend.Job(stages, microbatches, 1, hosts=1))
    run = load(tmp_path, jobs=1)
    wanted = sorted((src, dst, start, other) for src, dst, _, _, _, start, _, other, _ in truth.messages)
    columns = ["src_rank", "dst_rank", "send_start_ns", "recv_start_ns"]
    assert sorted(run.messages.select(columns).rows()) == wanted
    assert not [note for note in run.notes if note.code in ("messages-unpaired", "messages-window-offset")]


def test_an_operation_that_does_both_is_one_of_each() -> None:
    times = [100, 250, 400, 700, 900]
    rows = [{"rank": r, "role": "both", "peer": 1 - r, "start_ns": t * 10**6, "end_ns": (t + 5) * 10**6 + 10 * r}
            for r in (0, 1) for t in times]  # fmt: skip
    result = pair(Profile(p2p=conform(pl.DataFrame(rows), P2P))).messages
    assert len(result) == 2 * len(times)
    assert (result["send_end_ns"] - result["recv_end_ns"]).abs().max() == 10


def test_an_unknown_peer_is_a_note() -> None:
    row = {"rank": 0, "role": "send", "start_ns": 1, "end_ns": 2, "group": "world"}
    more = [row, row | {"rank": 1}, row | {"rank": 2, "role": "recv"}]
    profile = pair(Profile(p2p=conform(pl.DataFrame(more), P2P)))
    assert profile.messages.is_empty()
    assert [n.code for n in profile.notes] == ["messages-without-peer"]


def test_a_group_of_which_two_ranks_were_read_is_no_group_of_two() -> None:
    """Ranks 1 and 2 of a pipeline of four: half of their transfers go to ranks that are not here."""
    run = make(Clocks(seed=8))
    middle = run.profile.p2p.filter(pl.col("rank").is_in([1, 2])).with_columns(group=pl.lit("pipeline"))
    onward = (pl.col("peer") > pl.col("rank")) == (pl.col("role") == "send")
    named = middle.with_columns(
        direction=pl.when(onward).then(pl.lit("F")).otherwise(pl.lit("B")),
        peer=pl.when(pl.col("peer").is_in([1, 2])).then("peer"),
    )
    profile = pair(replace(run.profile, p2p=named))
    expected = run.paired.filter(pl.col("src_rank").is_in([1, 2]) & pl.col("dst_rank").is_in([1, 2]))
    assert same(profile.messages, expected)
