"""Clocks that were set while they were recorded, against the truth of the generator."""

import random
from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest

from tests.support.clock_runs import START_NS, Clocks, Run, make
from tests.support.rows import crossed
from trace_export.clocks import alignment_file
from trace_export.clocks.align import align
from trace_export.clocks.apply import clock_of, correct_tasks, recorded_window
from trace_export.clocks.overlaps import overlapping
from trace_export.errors import AlignmentError
from trace_export.model import KERNELS, SPANS, Declared, Profile, conform
from trace_export.pipeline.interpret import interpret

BEFORE = Clocks(steps=4, seed=3)


def aligned(run: Run) -> Profile:
    return align(interpret(run.profile, Declared()))


def errors_us(profile: Profile, clocks: Clocks) -> pl.DataFrame:
    """host, error: how far each end of a block lies from its true time, less what all have in common."""
    true = make(replace(clocks, offset_us=0.0, drift_ppm=0.0, set_us={})).profile
    host = profile.ranks.select("rank", "host")
    key = ["rank", "step", "kind", "microbatch"]
    both = profile.spans.join(true.spans, on=key, suffix="_true").join(host, on="rank")
    ends = pl.concat([
        both.select("host", error=pl.col(f"{end}_ns") - pl.col(f"{end}_ns_true"))
        for end in ("start", "end")
    ])  # fmt: skip
    means = ends.group_by("host").agg(pl.col("error").median())["error"]
    return ends.with_columns(error=(pl.col("error") - round(float(means.mean()))) / 1e3)  # type: ignore[arg-type]


def beyond_bound(recorded: Profile, true: pl.DataFrame, set_at_ns: int) -> tuple[Profile, int]:
    """The profile aligned, and how many times of blocks lie farther off than their host's stated bound.

    `true`: rank, start_ns and end_ns as in `recorded`, true_start_ns, true_end_ns. All times after the true time
    `set_at_ns` may be off together where the notes say that either of two clocks was set.
    """
    shown = interpret(recorded, Declared())
    result = align(shown)
    ends = pl.concat(
        shown.spans.select("rank", "start_ns", "end_ns")
        .with_columns(found=result.spans[f"{end}_ns"])
        .join(true, on=["rank", "start_ns", "end_ns"])
        .select("rank", "found", true=f"true_{end}_ns")
        for end in ("start", "end")
    )
    assert len(ends) == 2 * len(recorded.spans)
    either = any("or that of" in note.text for note in result.notes if note.code == "clock-set")
    error, side = pl.col("found") - pl.col("true"), (pl.col("true") > set_at_ns) & either
    hosts = result.ranks.select("rank", "host").join(result.clocks.select("host", "bound_ns"), on="host")
    ends = ends.join(hosts, on="rank").with_columns(error=error, side=side)
    common = (
        ends.group_by("side", "host").agg(pl.col("error").median()).group_by("side").agg(common=pl.col("error").mean())
    )
    far = (pl.col("error") - pl.col("common")).abs() > pl.col("bound_ns")
    return result, len(ends.join(common, on="side").filter(far))


def says_what_is_unsure(result: Profile, host: str, size_us: float) -> bool:
    """Whether the notes name the host, or no bound is stated, or not for a clock that was set by so little."""
    told = [
        note.text.partition(" on ")[0].partition(" between ")[0] for note in result.notes if note.code == "clock-set"
    ]
    clocks = result.clocks.filter(host=host).select("bound_ns", "unseen_step_ns").row(0)
    return any(host in text for text in told) or None in clocks or clocks[1] >= abs(size_us) * 1e3


@pytest.mark.parametrize(
    ("seed", "size_us", "only_blocks", "numbered"),
    crossed(range(6), [300.0, -5e3, 20e3, -20e3, -100e3], [False, True], [False, True]),
)
def test_the_bound_of_a_clock_that_was_set_holds_or_is_not_stated(
    seed: int, size_us: float, only_blocks: bool, numbered: bool
) -> None:
    draw = random.Random(seed)
    stages = draw.randint(2, 6)
    host, share = f"host{draw.randrange(stages):02d}", draw.uniform(0.3, 0.7)
    clocks = Clocks(
        seed=seed, stages=stages, microbatches=draw.randint(4, 8), steps=draw.randint(2, 5),
        over_stages=draw.random() < 0.3, eager=draw.choice([0.0, 0.0, 0.3]), cut_ms=draw.choice([0.0, 0.0, 20.0]),
        set_us={host: (share, size_us)},
    )  # fmt: skip
    run, true = make(clocks), make(replace(clocks, offset_us=0.0, drift_ppm=0.0, set_us={})).profile
    recorded, length_ns = run.profile, 2 * (run.middle_ns - START_NS)
    if only_blocks:
        recorded = replace(recorded, p2p=recorded.p2p.clear(), collectives=recorded.collectives.clear())
    times = recorded.spans.select("rank", "start_ns", "end_ns").with_columns(
        true_start_ns=true.spans["start_ns"], true_end_ns=true.spans["end_ns"]
    )
    if not numbered:
        recorded = replace(recorded, spans=recorded.spans.with_columns(step=pl.lit(None, SPANS["step"])))
    try:
        result, wrong = beyond_bound(recorded, times, START_NS + round(share * length_ns))
    except AlignmentError as refused:
        assert f"the clock of {host} was set back" in str(refused)
        assert size_us <= -20e3
    else:
        assert wrong == 0 or not any(note.code == "clock-set" for note in result.notes)
        assert wrong == 0 or says_what_is_unsure(result, host, size_us)


@pytest.mark.parametrize(("host", "size_us"), crossed(["host00", "host01", "host03"], [300.0, -300.0, 5000.0, -5000.0]))
def test_a_clock_that_is_set_between_two_steps(host: str, size_us: float) -> None:
    clocks = replace(BEFORE, set_us={host: (0.5, size_us)})
    run = make(clocks)
    result = aligned(run)
    (note,) = [note for note in result.notes if note.code == "clock-set"]
    assert note.text.startswith(f"the clock of {host} was set by {'+' if size_us > 0 else '-'}")
    bounds = dict(result.clocks.select("host", "bound_ns").iter_rows())
    for name, error in errors_us(result, clocks).iter_rows():
        assert abs(error) <= bounds[name] / 1e3
    (steps,) = result.clocks.filter(host=host)["steps"].to_list()
    assert len(steps) == 1
    most = errors_us(result, clocks).group_by("host").agg(pl.col("error").abs().quantile(0.9))
    assert most["error"].to_numpy().max() < 10
    assert result.clocks.filter(pl.col("host") != host)["bound_ns"].to_numpy().max() < 40_000


@pytest.mark.parametrize(("host", "size_us"), crossed(["host00", "host01", "host03"], [-1e6, -5e6, -3.6e9]))
def test_a_clock_that_is_set_back_far_is_refused(host: str, size_us: float) -> None:
    """Its sends would be paired in the order of its clock, with those of other steps."""
    run = make(replace(BEFORE, set_us={host: (0.5, size_us)}))
    with pytest.raises(AlignmentError, match=f"the clock of {host} was set back .* there step 2 begins"):
        aligned(run)
    align(interpret(run.profile, Declared()), "none")


def test_one_block_with_a_wrong_time_does_not_set_a_clock_back() -> None:
    run = make(BEFORE)
    odd = pl.when(pl.int_range(pl.len()) == 40).then(pl.col("start_ns", "end_ns") - 10**10)
    spans = run.profile.spans.sort("rank", "start_ns").with_columns(odd.otherwise(pl.col("start_ns", "end_ns")))
    aligned(replace(run, profile=replace(run.profile, spans=spans)))


@pytest.mark.parametrize("numbered", [False, True])
def test_a_clock_that_shows_some_times_twice_is_refused(numbered: bool) -> None:
    run = make(replace(BEFORE, set_us={"host03": (0.5, -100e3)}))
    steps = run.profile.spans["step"] if numbered else pl.lit(None, SPANS["step"])
    recorded = replace(run.profile, spans=run.profile.spans.with_columns(steps.alias("step")))
    with pytest.raises(AlignmentError, match=r"the clock of host03 was set back .* blocks of its ranks overlap"):
        align(interpret(recorded, Declared()))


def shifted(spans: pl.DataFrame, rows: pl.Expr, by_ms: int) -> pl.DataFrame:
    """`spans` with the times of some rows changed."""
    return spans.with_columns(pl.when(rows).then(pl.col(name) + by_ms * 10**6).otherwise(name).alias(name)
                              for name in ("start_ns", "end_ns"))  # fmt: skip


def test_the_times_that_a_clock_shows_twice_are_those_of_all_its_ranks() -> None:
    """From the first block of either rank that overlaps to the end of the last one."""
    profile = make(BEFORE).profile
    late = pl.col("start_ns") > START_NS + 500 * 10**6

    def shown(*numbers: int) -> tuple[int, int]:
        of_host = pl.col("rank").is_in(numbers)
        ranks = profile.ranks.with_columns(host=pl.when(of_host).then(pl.lit("host03")).otherwise(pl.lit("host00")))
        made = replace(profile, ranks=ranks, spans=shifted(profile.spans, of_host & late, -100))
        (times,) = overlapping(made).select("from_ns", "until_ns").rows()
        return times

    one, other = shown(2), shown(3)
    assert shown(2, 3) == (min(one[0], other[0]), max(one[1], other[1]))
    assert one[1] != other[1]


def test_where_blocks_overlap_is_told_from_what_else_makes_them_overlap() -> None:
    profile = make(BEFORE).profile
    late = pl.col("start_ns") > START_NS + 500 * 10**6
    first, fourth = pl.col("rank") == 0, pl.col("rank") == 3

    def hosts(spans: pl.DataFrame) -> list[str]:
        return overlapping(replace(profile, spans=spans))["host"].to_list()

    assert hosts(profile.spans) == []
    set_back = shifted(profile.spans, fourth & late, -100)
    assert hosts(set_back) == ["host03"]
    assert hosts(shifted(set_back, first & late, -100)) == []  # two hosts: so it is how they run
    every_second = pl.int_range(pl.len()).over("rank") % 2 == 1
    assert hosts(shifted(profile.spans, fourth & every_second, -6)) == []  # all the time
    of_rank_3 = pl.int_range(pl.len()).over("rank") == 20
    assert hosts(shifted(profile.spans, fourth & of_rank_3, -20)) == []  # one wrong block
    hosts_of_two = profile.ranks.with_columns(pl.lit("host00").alias("host"))
    one_of_a_host = overlapping(replace(profile, spans=set_back, ranks=hosts_of_two))
    assert one_of_a_host.is_empty()  # the other ranks of the host say nothing


def test_no_error_is_stated_where_blocks_overlap_and_messages_show_nothing() -> None:
    recorded = make(BEFORE).profile
    late = (pl.col("rank") == 3) & (pl.col("start_ns") > START_NS + 500 * 10**6)
    recorded = replace(recorded, spans=shifted(recorded.spans, late, -100))
    result = align(interpret(recorded, Declared()))
    (note,) = [note for note in result.notes if note.code == "clock-set"]
    assert note.text.startswith("the clock of host03 seems to have been set back")
    assert result.clocks.select("sd_ns", "bound_ns").null_count().row(0) == (4, 4)
    with pytest.raises(AlignmentError, match="known less well"):
        align(interpret(recorded, Declared()), "strict", max_error_ns=1e6)


def test_a_clock_that_is_set_often_gets_one_sentence_and_is_right_after_each_time() -> None:
    clocks = Clocks(steps=6, seed=3)
    run = make(clocks)
    begins = run.profile.spans.group_by("step").agg(pl.col("start_ns").min())["start_ns"].sort()[1:]
    late = pl.sum_horizontal(pl.col("start_ns") >= begin - 10**6 for begin in begins)
    moved = pl.when(pl.col("rank") == 2).then(late * 500_000).otherwise(0)
    tables = {
        name: getattr(run.profile, name).with_columns(pl.col("start_ns", "end_ns") + moved)
        for name in ("spans", "p2p", "collectives")
    }
    result = align(interpret(replace(run.profile, **tables), Declared()))
    (text,) = [note.text for note in result.notes if note.code == "clock-set"]
    assert text.startswith("the clock of host02 was set 5 times by +50"), "it explains what both neighbours see"
    far = errors_us(result, clocks).filter(pl.col("error").abs() > 50)
    assert len(far) <= 2 * 5  # those between two messages around a change


@pytest.mark.parametrize(("seed", "eager"), crossed(range(6), [0.0, 0.3]))
def test_clocks_that_drift_and_messages_that_wait_are_no_step(seed: int, eager: float) -> None:
    result = aligned(
        make(Clocks(seed=seed, steps=4, drift_ppm=30.0, jitter_us=80.0, eager=eager, cut_ms=20.0 * (seed % 2)))
    )
    assert "clock-set" not in [note.code for note in result.notes]
    assert result.clocks["steps"].null_count() == len(result.clocks)


def test_of_two_hosts_both_are_named() -> None:
    result = aligned(make(Clocks(stages=2, steps=4, set_us={"host00": (0.5, 1000.0)})))
    (note,) = [note for note in result.notes if note.code == "clock-set"]
    assert "host01 (or that of host00 by the opposite)" in note.text


@pytest.mark.parametrize(("host", "size_us"), crossed(["host00", "host01"], [2e6, 3.6e9]))
def test_of_two_hosts_that_is_named_on_whose_clock_nothing_happens_for_too_long(host: str, size_us: float) -> None:
    clocks = Clocks(stages=2, steps=4, set_us={host: (0.5, size_us)})
    result = aligned(make(clocks))
    (note,) = [note for note in result.notes if note.code == "clock-set"]
    assert note.text.startswith(f"the clock of {host} was set by +")
    assert errors_us(result, clocks)["error"].abs().quantile(0.9) < 10


@pytest.mark.parametrize(("seed", "size_us"), crossed(range(6), [300.0, -1000.0]))
def test_a_step_that_is_not_found_is_below_what_would_not_show(seed: int, size_us: float) -> None:
    """Few messages, senders that return early and cut windows: the bound is stated under a condition that is true."""
    draw = random.Random(seed)
    stages = draw.randint(2, 6)
    host = f"host{draw.randrange(stages):02d}"
    clocks = Clocks(
        seed=seed, stages=stages, microbatches=draw.randint(2, 6), steps=draw.randint(2, 4), over_stages=seed % 2 == 0,
        eager=draw.choice([0.0, 0.3]), cut_ms=draw.choice([0.0, 20.0]),
        set_us={host: (draw.uniform(0.4, 0.6), size_us)},
    )  # fmt: skip
    result = aligned(make(clocks))
    told = [
        note.text.partition(" on ")[0].partition(" between ")[0] for note in result.notes if note.code == "clock-set"
    ]
    unseen = dict(result.clocks.select("host", "unseen_step_ns").iter_rows())[host]
    assert any(host in text for text in told) or unseen is None or unseen >= abs(size_us) * 1e3


def test_collectives_stay_matched_where_a_clock_was_set() -> None:
    """The clock of the member that the others are compared with steps between two of five collectives."""
    clocks = Clocks(seed=5, stages=6, microbatches=10, steps=5, over_stages=True, set_us={"host00": (0.6, 1000.0)})
    result = aligned(make(clocks))
    assert result.clocks["bound_ns"].to_numpy().max() < 2_000_000
    assert errors_us(result, clocks).filter(pl.col("error").abs() > 2_000).is_empty()
    assert "clock-contradiction" not in [note.code for note in result.notes]


def test_two_clocks_that_are_set_at_different_times() -> None:
    clocks = Clocks(seed=5, steps=6, replicas=2, set_us={"host01": (0.3, 300.0), "host05": (0.7, -400.0)})
    result = aligned(make(clocks))
    assert result.clocks.drop_nulls("steps")["host"].to_list() == ["host01", "host05"]


def test_device_tasks_follow_the_clock(tmp_path: Path) -> None:
    """A task at the time of each block of the host is moved as the block is, and by an alignment file again."""
    clocks = replace(BEFORE, set_us={"host01": (0.5, 5000.0)})
    run = make(clocks)
    result = aligned(run)
    recorded = run.profile.spans.filter(rank=1).sort("start_ns")
    clock = clock_of(result, 1)
    moved = correct_tasks(conform(recorded.select("start_ns", "end_ns"), KERNELS), clock)
    assert moved["start_ns"].to_list() == result.spans.filter(rank=1).sort("start_ns")["start_ns"].to_list()
    first, last = recorded_window((moved["start_ns"][0], moved["end_ns"][-1]), clock)
    assert first <= recorded["start_ns"][0]
    assert last >= recorded["end_ns"][-1]
    path = tmp_path / "clock_alignment.json"
    alignment_file.write(result, path)
    again = align(interpret(run.profile, Declared()), path)
    assert again.spans.equals(result.spans)


def test_an_offset_of_the_user_moves_both_sides() -> None:
    run = make(replace(BEFORE, set_us={"host01": (0.5, 5000.0)}))
    plain = aligned(run)
    moved = align(interpret(run.profile, Declared()), offsets={"host01": 7_000_000})
    apart = (moved.spans["start_ns"] - plain.spans["start_ns"]).to_numpy()
    assert apart.max() - apart.min() < 10  # all hosts together may lie elsewhere
