"""One clock for all hosts: accuracy against known truth, and what must hold exactly."""

from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.sparse import csgraph, csr_matrix

from samples.generators import data_parallel
from samples.generators.paddle import Job
from samples.generators.pipeline import MS
from tests.support.clock_runs import START_NS, Clocks, Run, make
from tests.support.profiles import concluded
from tests.support.rows import crossed, examples
from trace_export import load
from trace_export.clocks import graph
from trace_export.clocks.align import align
from trace_export.clocks.fit import fit_clocks
from trace_export.clocks.observations import block_messages, violations
from trace_export.errors import AlignmentError, UsageError
from trace_export.model import (
    COLLECTIVES,
    HOSTS,
    MESSAGES,
    RANKS,
    SPANS,
    TABLES,
    Profile,
    conform,
    empty,
)
from trace_export.pipeline.collectives import number


def with_messages(run: Run) -> Profile:
    return replace(run.numbered, messages=run.paired)


SCENARIOS = {
    "plain": (Clocks(seed=1), 4.0),
    "replicas": (Clocks(seed=2, replicas=2), 5.0),
    "eager": (Clocks(seed=3, eager=0.3, microbatches=8), 5.0),
    "all eager": (Clocks(seed=4, eager=1.0, microbatches=8), 15.0),
    "two ranks a host": (Clocks(seed=5, stages=6, ranks_per_host=2), 5.0),
    "lags differ, seen by collectives": (Clocks(seed=6, lags_us=(60, 10), over_stages=True, steps=4), 12.0),
}


@pytest.mark.parametrize("name", SCENARIOS)
def test_hosts_are_placed_where_they_belong(name: str) -> None:
    clocks, allowed_us = SCENARIOS[name]
    run = make(clocks)
    result = align(with_messages(run))
    left = run.misplaced_us(result.clocks)
    assert max(map(abs, left.values())) < allowed_us
    assert violations(run.paired) > 0
    assert violations(result.messages) == 0
    for host, sd, bound in result.clocks.select("host", "sd_ns", "bound_ns").iter_rows():
        assert abs(left[host]) < 4 * sd / 1e3
        assert abs(left[host]) < bound / 1e3


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9), st.integers(-3, 30)), max_size=30))
def test_paths_and_components_are_those_of_scipy(edges: list[tuple[int, int, int]]) -> None:
    once = {(a, b): float(length) for a, b, length in edges if a != b}
    source, target = (np.array([pair[end] for pair in once], np.int64) for end in (0, 1))
    matrix = csr_matrix((list(once.values()), (source, target)), shape=(10, 10))
    label = csgraph.connected_components(matrix, directed=False)[1]
    ours = graph.components(source, target, 10)
    assert ((label[:, None] == label) == (ours[:, None] == ours)).all()
    assert (ours <= np.arange(10)).all()
    result = [
        outcome(lambda: graph.shortest(source, target, np.array(list(once.values())), 10, np.arange(10))),
        outcome(lambda: csgraph.johnson(matrix)),
    ]
    assert result[0] == result[1]


def outcome(run: Callable[[], Any]) -> list[list[float]] | None:
    try:
        return [list(map(float, row)) for row in run()]
    except (graph.NegativeCycleError, csgraph.NegativeCycleError):
        return None


def test_lags_that_differ_unseen_stay_inside_the_hard_bound() -> None:
    run = make(Clocks(seed=7, lags_us=(60, 10)))
    result = align(with_messages(run))
    left = run.misplaced_us(result.clocks)
    assert max(map(abs, left.values())) > 10, "the limit that cannot be passed without a collective over the stages"
    for host, bound in result.clocks.select("host", "bound_ns").iter_rows():
        assert abs(left[host]) < bound / 1e3


def moved(profile: Profile, host: str, by_ns: int) -> Profile:
    ranks = profile.ranks.filter(pl.col("host") == host)["rank"].to_list()

    def shift(frame: pl.DataFrame, rank: str, *times: str) -> pl.DataFrame:
        here = pl.col(rank).is_in(ranks)
        return frame.with_columns(pl.when(here).then(pl.col(t) + by_ns).otherwise(t).alias(t) for t in times)

    sent = shift(profile.messages, "src_rank", "send_start_ns", "send_end_ns")
    return replace(
        profile,
        spans=shift(profile.spans, "rank", "start_ns", "end_ns"),
        p2p=shift(profile.p2p, "rank", "start_ns", "end_ns"),
        collectives=shift(profile.collectives, "rank", "start_ns", "end_ns"),
        messages=shift(sent, "dst_rank", "recv_start_ns", "recv_end_ns"),
    )


def test_one_host_is_left_bit_for_bit() -> None:
    profile = with_messages(make(Clocks(seed=10, ranks_per_host=4)))
    one, none = align(profile, "auto"), align(profile, "none")
    for table in TABLES.keys() - {"clocks"}:
        assert getattr(one, table).equals(getattr(profile, table))
        assert getattr(none, table).equals(getattr(profile, table))
    assert one.clocks["status"].to_list() == ["single-host"]


def test_order_within_a_rank_stays() -> None:
    profile = with_messages(make(Clocks(seed=11, drift_ppm=400)))
    done = align(profile)
    for rank in profile.ranks["rank"]:
        before, after = (p.spans.filter(pl.col("rank") == rank) for p in (profile, done))
        assert before["start_ns"].is_sorted()
        assert after["start_ns"].is_sorted()
        assert (after["end_ns"] >= after["start_ns"]).all()


def test_a_host_without_observations_keeps_its_wall_clock_and_says_so() -> None:
    run = make(Clocks(seed=12))
    messages = run.paired.filter((pl.col("src_rank") != 3) & (pl.col("dst_rank") != 3))
    profile = replace(run.profile, messages=messages)
    done = align(profile)
    last = done.clocks.filter(pl.col("host") == "host03").row(0, named=True)
    assert (last["status"], last["offset_ns"], last["drift"]) == ("wall", 0, 0.0)
    assert ["host03" in n.text for n in done.notes if n.code == "clock-not-aligned"] == [True]
    with pytest.raises(AlignmentError, match="host03"):
        align(profile, "strict")


def test_strict_refuses_what_is_known_less_well_than_asked() -> None:
    profile = with_messages(make(Clocks(seed=13)))
    align(profile, "strict", max_error_ns=100_000)
    with pytest.raises(AlignmentError, match="less well"):
        align(profile, "strict", max_error_ns=10)
    kept = align(profile, "auto", max_error_ns=10)
    assert set(kept.clocks["status"]) == {"wall"}
    assert kept.clocks["sd_ns"].null_count() == len(kept.clocks), "the fit that is not used says nothing"
    assert kept.spans.equals(profile.spans)


def test_user_offsets_are_applied_first() -> None:
    profile = with_messages(make(Clocks(seed=14)))
    shifted = align(profile, "none", offsets={"host01": 3_200_000})
    gap = shifted.spans["start_ns"] - profile.spans["start_ns"]
    assert gap.filter(profile.spans["rank"] == 1).unique().to_list() == [3_200_000]
    assert gap.filter(profile.spans["rank"] != 1).unique().to_list() == [0]
    one, other = align(profile), align(profile, offsets={"host01": 3_200_000})
    assert len((one.spans["start_ns"] - other.spans["start_ns"]).unique()) == 1
    with pytest.raises(UsageError, match="host77"):
        align(profile, offsets={"host77": 1})
    with pytest.raises(UsageError, match=r"host01.* more than 146 years"):
        align(profile, offsets={"host01": 2**62 + 1})


def test_collectives_of_unknown_groups_count_only_where_there_is_one_stage() -> None:
    """Each stage reduces its own gradients, at its own time and under the same name."""
    profile = make(Clocks(seed=6, steps=4, over_stages=True)).profile
    unnamed = profile.collectives.with_columns(group=pl.lit(None, pl.String), sequence=None)
    one_stage = profile.ranks.with_columns(stage=pl.lit(0, pl.Int32))
    counts = [
        fit_clocks(empty(MESSAGES), number(replace(profile, collectives=joint)).collectives, ranks)
        .clocks["collectives"]
        .sum()
        for joint, ranks in ((profile.collectives, profile.ranks), (unnamed, profile.ranks), (unnamed, one_stage))
    ]
    assert [count > 0 for count in counts] == [True, False, True]


@pytest.mark.parametrize(
    ("each", "parts"), [(2, ["box (ranks 0-1)", "box (ranks 2-3)"]), (1, ["box (rank 0)", "box (rank 1)"])]
)
@pytest.mark.parametrize("offset_us", [4000.0, 400.0])
def test_machines_that_share_a_name_are_taken_apart(each: int, parts: list[str], offset_us: float) -> None:
    """With 0.4 ms most messages arrive before their sender has finished, and none before it began."""
    run = make(Clocks(seed=18, stages=3 * each, ranks_per_host=each, offset_us=offset_us))
    in_box = pl.col("rank") < 2 * each
    ranks = run.profile.ranks.with_columns(host=pl.when(in_box).then(pl.lit("box")).otherwise("host"))
    hosts = pl.DataFrame({"host": ["box", "host02"], "machine": [0, 1], "label": ["box", "host02"]})
    profile = replace(run.profile, ranks=ranks, hosts=conform(hosts, HOSTS), messages=run.paired)
    done = align(profile, offsets={"box": 500}).validate()
    assert done.hosts["host"].to_list() == [*parts, "host02"]
    assert dict(done.ranks.select("rank", "host").iter_rows())[2 * each - 1] == parts[1]
    assert ["box" in n.text for n in done.notes if n.code == "clock-host-split"] == [True]
    assert violations(done.messages) == 0
    true = {parts[0]: "host00", parts[1]: "host01"}
    left = run.misplaced_us(done.clocks.with_columns(pl.col("host").replace(true)))
    assert max(map(abs, left.values())) < 5


def test_ranks_of_one_host_that_agree_stay_together() -> None:
    run = make(Clocks(seed=19, stages=6, ranks_per_host=3, eager=0.5))
    assert align(with_messages(run)).ranks.equals(run.profile.ranks)


def test_messages_that_arrive_too_early_both_ways_were_paired_wrongly_and_split_no_host() -> None:
    run = make(Clocks(seed=19, stages=6, ranks_per_host=3))
    inside = pl.col("src_rank") // 3 == pl.col("dst_rank") // 3
    early = pl.col("recv_start_ns", "recv_end_ns") - pl.when(inside).then(1_000_000).otherwise(0)
    done = align(replace(run.profile, messages=run.paired.with_columns(early)))
    assert done.ranks.equals(run.profile.ranks)


def test_good_clocks_are_left_as_they_are() -> None:
    run = make(Clocks(seed=21, offset_us=0.2, drift_ppm=0))
    done = align(with_messages(run))
    assert set(done.clocks["status"]) == {"confirmed"}
    assert done.clocks["evidence"].str.starts_with("p2p").all()
    assert done.spans.equals(run.profile.spans)
    assert not [n for n in done.notes if n.level == "warning"]


@pytest.mark.parametrize(("seed", "error_us"), crossed(range(3), [3_200, -1_900]))
def test_blocks_alone_align_the_machines_of_a_log(error_us: int, seed: int) -> None:
    """Worker logs have no messages: the dependencies between blocks bound the offset from both sides."""
    job = Job(machines=2, clock_errors_us=(0, error_us), seed=seed)
    truth = sorted(job.blocks(), key=lambda b: (b.rank, b.start_ns))
    rows = [
        {**asdict(b), "run": 0, "start_ns": b.start_ns + moved, "end_ns": b.end_ns + moved}
        for b in truth
        for moved in (job.clock_error_us(b.rank) * 1000,)
    ]
    ranks = pl.DataFrame([{"rank": r, "stage": r, "host": str(r // job.workers)} for r in range(job.ranks)])
    spans = conform(pl.DataFrame(rows, infer_schema_length=None), SPANS)
    profile = concluded(Profile(ranks=conform(ranks, RANKS), spans=spans))
    done = align(profile)
    assert set(done.clocks["evidence"]) == {"blocks"}
    left = (done.spans["start_ns"] - pl.Series([b.start_ns for b in truth])).to_numpy()
    apart = left.max() - left.min()
    assert apart / 2 < 4 * done.clocks["sd_ns"][0] < 20_000
    assert apart < done.clocks["bound_ns"][0] < 1000 * abs(error_us)
    before, after = (block_messages(p) for p in (profile, done))
    assert violations(before) > 0
    assert violations(after) == 0


@pytest.mark.parametrize("stage", [0, 3])
def test_a_host_that_starts_all_blocks_late_keeps_its_clock(stage: int, tmp_path: Path) -> None:
    """In a table of blocks of four hosts with one clock. The blocks that need nothing from another stage show it."""
    job = data_parallel.Job(stages=4, replicas=2, hosts=4, held={(a, stage): 3 * MS for a in range(2)})
    data_parallel.WRITERS["work"](tmp_path, job)
    assert load(tmp_path).align().profile.clocks["offset_ns"].abs().max() < 0.1 * MS  # type: ignore[operator]


def test_one_message_gives_a_large_uncertainty_and_warnings() -> None:
    run = make(Clocks(seed=22, stages=2))
    profile = replace(run.profile, messages=run.paired.head(1))
    done = align(profile)
    assert done.clocks["sd_ns"].min() > 100_000  # type: ignore[operator]
    assert done.clocks["bound_ns"].null_count() == 2
    assert {"clock-one-way", "clock-few-messages"} <= {n.code for n in done.notes}
    with pytest.raises(AlignmentError, match="one direction"):
        align(profile, "strict")


def test_times_without_sense_do_not_break_the_fit() -> None:
    far = [10**k for k in range(3, 18, 2)]
    rows = {"src_rank": [0] * 8, "dst_rank": [1] * 8, "send_start_ns": far, "send_end_ns": far, "recv_start_ns": far,
            "recv_end_ns": far[::-1]}  # fmt: skip
    profile = make(Clocks(seed=23, stages=2)).profile
    fit = fit_clocks(conform(pl.DataFrame(rows), MESSAGES), profile.collectives, profile.ranks)
    assert fit.clocks["drift"].is_finite().all()


@examples(12)
@given(
    lag_us=st.integers(1, 1000),
    ppm=st.lists(st.integers(-15, 15), min_size=4, max_size=4),
    offset_us=st.lists(st.integers(-60_000, 60_000), min_size=4, max_size=4),
)
def test_messages_that_never_scatter_do_not_bend_all_clocks_together(
    lag_us: int, ppm: list[int], offset_us: list[int]
) -> None:
    def shown(host: int, true_ns: int) -> int:
        return START_NS + true_ns + offset_us[host] * 1000 + round(true_ns * ppm[host] * 1e-6)

    rows = []
    for at in range(0, 300_000_000, 3_000_000):
        for a, b in [(a + way, a + 1 - way) for a in range(3) for way in (0, 1)]:
            sent, received = shown(a, at), shown(b, at + lag_us * 1000)
            rows.append((a, b, sent, sent, received, received))
    columns = ["src_rank", "dst_rank", "send_start_ns", "send_end_ns", "recv_start_ns", "recv_end_ns"]
    messages = conform(pl.DataFrame(rows, columns, orient="row"), MESSAGES)
    ranks = conform(pl.DataFrame({"rank": range(4), "host": ["a", "b", "c", "d"]}), RANKS)
    result = np.array(fit_clocks(messages, empty(COLLECTIVES), ranks).clocks["drift"]) * 1e6
    true = np.array(ppm)
    assert np.abs((result - result.mean()) - (true - true.mean())).max() < 0.5
    assert abs(result.mean()) < 1  # what all have in common cannot be seen, so nothing may be made of it


def test_the_bound_of_clocks_that_are_left_as_they_are_holds_the_truth() -> None:
    """One message each way does not justify a correction of some 30 µs, which is more than the fit leaves open."""
    kept = 0
    for seed in range(12):
        run = make(Clocks(seed=seed, stages=5, microbatches=1, steps=1, offset_us=60.0, drift_ppm=0.0))
        clocks = align(with_messages(run)).clocks
        if set(clocks["status"]) != {"confirmed"}:
            continue
        left = run.misplaced_us(clocks)
        kept += 1
        for host, bound in clocks.select("host", "bound_ns").drop_nulls().iter_rows():
            assert abs(left[host]) <= bound / 1e3
    assert kept
