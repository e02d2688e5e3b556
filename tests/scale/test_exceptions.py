"""Exceptions and cohorts by examples of a few ranks."""

import polars as pl
import pytest

from trace_export.model import conform
from trace_export.scale.exceptions import DRIFT, cohorts, exceptions, representative
from trace_export.scale.summary import HOSTS, LINKS, RANKS, WORK, Summary

MS = 10**6


def summary(
    *work_ms: float, replica: list[int] | None = None, stage: list[int] | None = None, host: list[str] | None = None,
    microbatches: list[float] | None = None, order: list[int] | None = None, links: pl.DataFrame | None = None,
    hosts: pl.DataFrame | None = None,
) -> Summary:  # fmt: skip
    """Ranks of stage 0, one in each replica, whose forwards take so long, but for some nanoseconds, in three steps."""
    count = len(work_ms)
    names = host or [f"h{n}" for n in range(count)]
    ranks = pl.DataFrame({
        "rank": range(count), "replica": replica or list(range(count)), "stage": stage or [0] * count,
        "tp": [0] * count, "host": names, "label": names, "blocks": [24] * count,
        "microbatches": microbatches or [8.0] * count, "order": order or [1] * count,
    })  # fmt: skip
    rows = [
        (rank, 0, step, 0, 0, False, 8, round(8 * work * MS + 1000 * ((rank + step) % 3)), 8 * (work * MS) ** 2 + 1e9)
        for rank, work in enumerate(work_ms)
        for step in range(3)
    ]
    work = pl.DataFrame(rows, list(WORK), orient="row")
    return Summary(
        ranks=conform(ranks, RANKS), work=conform(work, WORK),
        links=conform(pl.DataFrame(schema=LINKS) if links is None else links, LINKS),
        hosts=conform(pl.DataFrame(schema=HOSTS) if hosts is None else hosts, HOSTS),
    )  # fmt: skip


def exceptions_of(of: Summary) -> list[tuple[object, ...]]:
    return exceptions(of, cohorts(of)).select("kind", "replica", "ranks", "host").rows()


def test_a_slow_host_with_ranks_of_several_replicas() -> None:
    """As where ranks count through replicas before stages: the second of four hosts has two ranks of stage 0."""
    of = summary(10, 10, 13, 13, 10, 10, 10, 10, host=[f"h{n // 2}" for n in range(8)])
    assert exceptions_of(of) == [("slow-host", None, [2, 3], "h1")]


def test_other_settings_are_not_compared_with_the_usual_ones() -> None:
    of = summary(10, 10, 20, 10, microbatches=[8.0, 8.0, 4.0, 8.0])
    rows = exceptions(of, cohorts(of))
    assert rows.select("kind", "replica", "value", "usual").rows() == [("settings", 2, 4.0, 8.0)]
    assert rows["what"].to_list() == ["4 micro-batches in a step instead of 8"]


def test_another_order_of_blocks_is_a_setting() -> None:
    assert [row[:2] for row in exceptions_of(summary(10, 10, 10, 10, order=[1, 1, 1, 7]))] == [("settings", 3)]


def test_an_order_that_differs_everywhere_is_none() -> None:
    """As where weight gradients fill gaps when these come."""
    assert exceptions_of(summary(10, 10, 10, 10, order=[1, 2, 3, 4])) == []


def test_a_link_that_is_slow_both_ways_is_named_once() -> None:
    times = {(2, 6, "F"): 1.2, (6, 2, "B"): 1.3}
    ways = [(n, n + 4, "F") for n in range(4)] + [(n + 4, n, "B") for n in range(4)]
    rows = [
        (*way, 9, round(9 * times.get(way, 0.3) * MS), 9 * (times.get(way, 0.3) * MS) ** 2 + 1e6, False, 0.0)
        for way in ways
    ]
    links = pl.DataFrame(rows, list(LINKS), orient="row")
    of = summary(*[10] * 8, replica=[*range(4)] * 2, stage=[0] * 4 + [1] * 4, links=links)
    rows_ = exceptions(of, cohorts(of))
    assert rows_.select("kind", "replica", "rank", "to_rank").rows() == [("slow-link", 2, 2, 6)]
    assert "both directions" in rows_["what"][0]


@pytest.mark.parametrize(("drift", "named"), [(40e-6, False), (90e-6, True), (-90e-6, True)])
def test_a_clock_drifts_where_its_rate_is_far_from_the_usual_one(drift: float, named: bool) -> None:
    rates = [1e-6, -2e-6, 3e-6, 0.0, drift]
    hosts = pl.DataFrame({"host": [f"h{n}" for n in range(5)], "status": ["fitted"] * 5, "drift": rates})
    assert [row[:2] for row in exceptions_of(summary(*[10] * 5, hosts=hosts))] == (
        [("drifting-clock", 4)] if named else []
    )


@pytest.mark.parametrize("shift", [0.0, 150e-6, -150e-6])
def test_one_clock_that_drifts_is_not_all_of_its_replica(shift: float) -> None:
    """The rates of a replica have their usual mean, but for the `shift` with which the second one runs as a whole."""
    drift = 300e-6
    rates = [0.0] * 3 + [2 / 3 * drift + shift, -drift / 3 + shift, -drift / 3 + shift] + [0.0] * 6
    hosts = pl.DataFrame({"host": [f"h{n}" for n in range(12)], "status": ["fitted"] * 12, "drift": rates})
    of = summary(*[10] * 12, replica=[n // 3 for n in range(12)], hosts=hosts)
    off = [f"h{n}" for n, rate in enumerate(rates) if abs(rate) > DRIFT] if shift else ["h3"]
    assert sorted(exceptions(of, cohorts(of))["host"].drop_nulls()) == off


def test_cohorts_are_of_one_setting_and_of_like_speed() -> None:
    """Speeds lie no further apart than 3 %, in order; the largest group is the first."""
    of = summary(10, 10.1, 12, 10.2, 12.1, 10.3, microbatches=[8.0] * 5 + [4.0])
    assert cohorts(of)["cohort"].to_list() == [0, 0, 1, 0, 1, 2]
    assert representative(cohorts(of)) == 1
    assert representative(cohorts(Summary())) is None
