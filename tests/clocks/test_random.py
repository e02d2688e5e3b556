"""Random pipelines with wrong clocks: what must hold whatever the offset, drift, noise, eager sends and windows."""

from dataclasses import replace

import polars as pl
from hypothesis import given
from hypothesis import strategies as st

from tests.support.clock_runs import Clocks, make
from tests.support.rows import examples
from trace_export.clocks.align import align
from trace_export.clocks.observations import violations
from trace_export.model import Profile
from trace_export.pipeline.messages import pair

CLOCKS = st.builds(
    Clocks,
    seed=st.integers(0, 10**6),
    stages=st.integers(2, 5),
    replicas=st.integers(1, 2),
    microbatches=st.integers(4, 9),
    steps=st.integers(1, 3),
    ranks_per_host=st.integers(1, 2),
    offset_us=st.sampled_from([50.0, 4_000.0, 10_000_000.0]),
    drift_ppm=st.floats(0, 30),
    eager=st.sampled_from([0.0, 0.3, 1.0]),
    jitter_us=st.floats(5, 60),
    over_stages=st.booleans(),
)


def paired(clocks: Clocks) -> Profile:
    run = make(clocks)
    return pair(replace(run.profile, p2p=run.profile.p2p.with_columns(microbatch=pl.lit(None, pl.Int32))))


@examples(5)
@given(CLOCKS)
def test_no_message_arrives_before_it_was_sent_and_the_truth_lies_in_the_bound(clocks: Clocks) -> None:
    run = make(clocks)
    done = align(pair(run.profile))
    assert violations(done.messages) == 0
    if "wall" in done.clocks["status"].to_list() or done.clocks["component"].is_not_null().any():
        return
    left = run.misplaced_us(done.clocks)
    for host, bound in done.clocks.select("host", "bound_ns").drop_nulls().iter_rows():
        assert abs(left[host]) <= bound / 1e3


@examples(3)
@given(CLOCKS, st.integers(-(10**12), 10**12), st.integers(0, 4))
def test_shifting_a_host_shifts_nothing_else(clocks: Clocks, by_ns: int, which: int) -> None:
    profile = paired(clocks)
    names = profile.ranks["host"].unique().sort()
    ranks = profile.ranks.filter(pl.col("host") == names[which % len(names)])["rank"].to_list()
    late = pl.when(pl.col("rank").is_in(ranks)).then(by_ns).otherwise(0)
    tables = {
        name: getattr(profile, name).with_columns(pl.col("start_ns", "end_ns") + late)
        for name in ("spans", "p2p", "collectives")
    }
    one, other = align(profile), align(pair(replace(profile, **tables)))
    fitted = one.clocks.filter((pl.col("status") == "fitted") & pl.col("component").is_null())["host"].to_list()
    here = one.spans.join(one.ranks.select("rank", "host"), on="rank", maintain_order="left")["host"].is_in(fitted)
    if "confirmed" in one.clocks["status"].to_list() + other.clocks["status"].to_list():
        return  # clocks that are good enough are left alone; shifted ones are not
    gaps = (one.spans["start_ns"] - other.spans["start_ns"]).filter(here)
    assert gaps.max() is None or gaps.max() - gaps.min() <= 1  # type: ignore[operator]


@examples(3)
@given(CLOCKS, st.randoms(use_true_random=False))
def test_order_of_rows_changes_nothing(clocks: Clocks, chance: object) -> None:
    profile = paired(clocks)
    seed = chance.randrange(10**6)  # type: ignore[attr-defined]
    mixed = {
        n: getattr(profile, n).sample(fraction=1, shuffle=True, seed=seed) for n in ("p2p", "collectives", "ranks")
    }
    again = align(pair(replace(profile, **mixed)))
    assert again.clocks.equals(align(profile).clocks)
