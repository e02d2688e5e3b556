"""Hosts whose times count from an epoch of their own: placed exactly as hosts whose wall clocks are a little off."""

from dataclasses import replace

import numpy as np
import polars as pl
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from polars.testing import assert_frame_equal

from samples.generators.pipeline import MS
from tests.clocks.test_align import moved, with_messages
from tests.support.clock_runs import START_NS, Clocks, make
from trace_export.chart.descriptions import attributes, root_text
from trace_export.clocks.align import align
from trace_export.errors import AlignmentError
from trace_export.model import MESSAGES, Profile, empty
from trace_export.pipeline.messages import pair

DAY_NS = 86_400 * 10**9
BOOT = st.integers(60 * 10**9, 30 * DAY_NS)
RUN = Clocks(seed=11, stages=8, microbatches=8, steps=3, cut_ms=20)


def without_wall_clocks(profile: Profile, boots: dict[str, int]) -> Profile:
    """`profile` with the hosts in `boots` (host → ns from its boot to the start of the run) on clocks of their own."""
    for host, since_boot in boots.items():
        profile = moved(profile, host, since_boot - START_NS)
    epoch = pl.when(pl.col("host").is_in(list(boots))).then(pl.lit("boot"))
    return replace(profile, hosts=profile.hosts.with_columns(epoch=epoch))


def as_recorded(clocks: pl.DataFrame, boots: dict[str, int]) -> pl.DataFrame:
    """The corrections of `clocks` as if the hosts in `boots` had shown unix time, less what is common to all."""
    by = pl.col("host").replace_strict({h: START_NS - b for h, b in boots.items()}, default=0, return_dtype=pl.Int64)
    moved = pl.col("offset_ns") + by
    return clocks.with_columns(moved - moved.first(), pl.col("reference_ns") + by)


@settings(max_examples=3, phases=[Phase.explicit, Phase.generate])
@given(seed=st.integers(0, 99), boots=st.lists(BOOT, min_size=8, max_size=8), named=st.booleans())
def test_the_fit_is_that_of_wall_clocks(seed: int, boots: list[int], named: bool) -> None:
    """Recordings that begin at different messages, paired by their order; up to 30 days between the hosts."""
    run = make(replace(RUN, seed=seed))
    unnamed = run.profile.p2p if named else run.profile.p2p.with_columns(microbatch=pl.lit(None, pl.Int32))
    wall = pair(replace(run.profile, p2p=unnamed))
    boot_of = dict(zip(run.profile.hosts["host"], boots, strict=True))
    bare = pair(without_wall_clocks(replace(run.profile, p2p=unnamed), boot_of))
    assert bare.messages.height == wall.messages.height > 0
    expected, result = as_recorded(align(wall).clocks, {}), as_recorded(align(bare).clocks, boot_of)
    stated = ["host", "status", "sd_ns", "bound_ns"]
    assert_frame_equal(result.select(stated), expected.select(stated), rel_tol=1e-9)  # floats of other magnitudes
    for host, left in run.misplaced_us(result).items():
        assert left == pytest.approx(run.misplaced_us(expected)[host], abs=2e-3)


def test_the_error_is_that_of_hosts_with_wall_clocks() -> None:
    errors: list[float] = []
    for seed in range(4):
        run = make(replace(RUN, seed=seed))
        since_boot = {
            host: 60 * 10**9 + (i * 7 * DAY_NS) % (30 * DAY_NS) for i, host in enumerate(run.profile.hosts["host"])
        }
        clocks = as_recorded(align(without_wall_clocks(with_messages(run), since_boot)).clocks, since_boot)
        errors += run.misplaced_us(clocks).values()
    assert np.sqrt(np.mean(np.square(errors))) < 1.5


def test_all_times_are_on_the_wall_clock_where_there_is_one() -> None:
    run = make(RUN)
    since_boot = dict.fromkeys(["host00", "host01", "host04", "host05", "host06"], 3 * DAY_NS)
    aligned = align(without_wall_clocks(with_messages(run), since_boot))
    assert aligned.spans["start_ns"].min() > START_NS - 100 * MS  # type: ignore[operator]
    assert "origin_utc" in attributes(aligned, START_NS, {})
    (note,) = [n for n in aligned.notes if n.code == "clock-without-wall-time"]
    assert note.count == 5
    assert not [n for n in aligned.notes if n.code == "clock-start-gap"]
    (violations,) = [n for n in aligned.notes if n.code == "clock-violations"]
    assert violations.level == "detail"


def test_the_clock_that_started_first_is_kept_where_every_clock_starts_at_zero() -> None:
    run = make(replace(RUN, cut_ms=0))
    profile = with_messages(run)
    firsts = profile.spans.group_by("rank").agg(pl.col("start_ns").min()).join(profile.ranks, on="rank")
    zero_of = {host: START_NS - first for host, first in firsts.select("host", "start_ns").iter_rows()}
    aligned = align(without_wall_clocks(replace(profile, collectives=profile.collectives.clear()), zero_of))
    assert abs(aligned.spans["start_ns"].min()) < 0.1 * MS  # type: ignore[arg-type]
    assert "no host has a wall clock" in root_text(aligned, 0, {})
    assert set(attributes(aligned, 5, {})) == {"origin_ns"}


def test_what_nothing_connects_is_refused() -> None:
    run = make(Clocks(seed=1, stages=2))
    bare = without_wall_clocks(with_messages(run), {"host00": DAY_NS, "host01": 9 * DAY_NS})
    lonely = replace(bare, messages=empty(MESSAGES))
    for profile, how in ((lonely, "auto"), (bare, "wall")):
        with pytest.raises(AlignmentError, match="host00, host01: no wall-clock times"):
            align(profile, how)  # type: ignore[arg-type]
    with pytest.raises(AlignmentError, match="no wall-clock times"):
        align(bare, max_error_ns=1)
    assert align(lonely, "none").spans.equals(bare.spans)
    placed = align(lonely, offsets={"host00": 8 * DAY_NS, "host01": 0})
    assert placed.spans["start_ns"].max() - placed.spans["start_ns"].min() < DAY_NS  # type: ignore[operator]
