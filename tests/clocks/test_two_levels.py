"""Clocks in two levels, against the fit of all hosts at once and against the truth."""

from dataclasses import replace

import numpy as np
import polars as pl
import pytest

from tests.support.clock_runs import Clocks, Run, make
from trace_export.clocks import align, two_levels
from trace_export.clocks.fit import fit_clocks
from trace_export.model import TIME, Profile

RUNS = {
    "64 hosts": Clocks(stages=8, replicas=8, seed=3),
    "32 hosts, two ranks each": Clocks(stages=8, replicas=8, ranks_per_host=2, seed=4),
}


def of_replica(run: Run, replica: int) -> Profile:
    """What its own task sees of a replica."""
    profile = run.profile
    ranks = profile.ranks.filter(pl.col("dp") == replica)
    here = pl.col("rank").is_in(ranks["rank"].implode())
    messages = run.paired.filter(pl.col("src_rank").is_in(ranks["rank"].implode()))
    hosts = profile.hosts.join(ranks, on="host", how="semi")
    return replace(
        profile, hosts=hosts, ranks=ranks, messages=messages,
        **{name: getattr(profile, name).filter(here) for name in ("spans", "p2p", "collectives")},
    )  # fmt: skip


def in_two_levels(run: Run, replicas: int) -> pl.DataFrame:
    ends, hosts = [], []
    for replica in range(replicas):
        aligned = align.align(of_replica(run, replica), "auto")
        axis = two_levels.axes(aligned.clocks, str(replica))
        ends.append(two_levels.shared_ends(aligned, axis))
        hosts.append(aligned.clocks.join(axis, on="host"))
    return two_levels.combined(pl.concat(hosts), two_levels.fit_axes(pl.concat(ends)))


@pytest.mark.parametrize("name", RUNS)
def test_both_fits_agree_within_their_uncertainty(name: str) -> None:
    run = make(RUNS[name])
    two = in_two_levels(run, RUNS[name].replicas)
    one = fit_clocks(run.paired, run.numbered.collectives, run.profile.ranks).clocks
    assert two.height == one.height == int(name.split()[0])
    there, here = run.misplaced_us(two), run.misplaced_us(one)
    apart = np.array([there[host] - here[host] for host in one["host"]])
    both = one.select("host", "sd_ns").join(two.select("host", sd_2="sd_ns"), on="host")
    sd = np.hypot(both["sd_ns"].to_numpy(), both["sd_2"].to_numpy()) / 1e3
    assert np.all(np.abs(apart) < 2 * sd)
    assert np.sqrt(np.mean(np.square(list(there.values())))) < 3
    assert np.all(np.abs(list(there.values())) < 2 * np.array([two.filter(host=h)["sd_ns"][0] / 1e3 for h in there]))


def test_what_is_shared_are_collectives_with_one_rank_of_each_replica() -> None:
    run = make(replace(RUNS["64 hosts"], stages=4, replicas=4, over_stages=True))
    aligned = align.align(of_replica(run, 2), "auto")
    ends = two_levels.shared_ends(aligned, two_levels.axes(aligned.clocks, "2"))
    assert set(ends["group"]) == {f"dp{stage}" for stage in range(4)}  # and not pp2, which all ranks of it are in


def test_a_host_that_nothing_constrains_has_an_axis_of_its_own() -> None:
    clocks = pl.DataFrame({"host": ["a", "b", "c"], "status": ["fitted", "wall", "fitted"], "component": [1, None, 2]})
    assert two_levels.axes(clocks, "7")["axis"].to_list() == ["7.1", "7 b", "7.2"]


def test_hosts_that_the_user_placed_are_on_one_axis() -> None:
    clocks = pl.DataFrame({"host": ["a", "b"], "status": ["wall", "wall"], "component": [None, None]})
    assert two_levels.axes(clocks, "7")["axis"].to_list() == ["", ""]


def test_times_of_an_axis_that_nothing_places_stay_as_they_are() -> None:
    clock = {"host": ["a"], "offset_ns": [100], "drift": [0.5], "reference_ns": [2000]}
    placed = pl.DataFrame(clock, schema_overrides={"offset_ns": TIME, "reference_ns": TIME})
    times = pl.DataFrame({"axis": ["a", "b"], "start_ns": [4000, 4000], "end_ns": [2000, 2000]})
    moved = two_levels.on_shared_axis(times, ["start_ns", "end_ns"], placed)
    assert moved.rows() == [("a", 4000 - 100 - 1000, 1900), ("b", 4000, 2000)]
