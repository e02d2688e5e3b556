"""Exceptions and cohorts by examples of a few ranks."""

from __future__ import annotations

from typing import Any

import polars as pl
import pytest

from trace_export.model import conform
from trace_export.scale.exceptions import DRIFT, cohorts, exceptions, representative
from trace_export.scale.summary import HOSTS, LINKS, RANKS, Summary

MS = 1e6


def ranks(*work_ms: float, **columns: list[Any]) -> pl.DataFrame:
    """A rank of stage 0 in each of so many replicas, whose forwards take so long."""
    count = len(work_ms)
    given = {"microbatches": [8.0] * count, "order": [1] * count, **columns}
    return conform(
        pl.DataFrame({
            "rank": range(count), "replica": range(count), "stage": [0] * count, "tp": [0] * count,
            "host": [f"h{n}" for n in range(count)], "blocks": [16] * count,
            "forward_ns": [work * MS for work in work_ms], "work_ns": [3 * work * MS for work in work_ms], **given,
        }),
        RANKS,
    )  # fmt: skip


def found(summary: Summary) -> list[tuple[object, ...]]:
    return exceptions(summary, cohorts(summary)).select("kind", "replica", "rank", "value", "usual").rows()


def test_a_rank_that_stands_out_is_named_with_what_is_usual() -> None:
    """Ranks of two, so that one slow rank makes no slow replica."""
    both = pl.concat([ranks(10, 10, 10, 13, 10), ranks(10, 10, 10, 10, 10).with_columns(pl.col("rank") + 5, tp=1)])
    assert found(Summary(ranks=conform(both, RANKS))) == [("slow-rank", 3, 3, 13 * MS, 10 * MS)]


def test_scatter_is_no_exception() -> None:
    assert found(Summary(ranks=ranks(8, 9, 10, 11, 12, 13))) == []


@pytest.mark.parametrize(
    ("hosts", "kind"),
    [
        ("abcd abcd", "slow-host"),
        ("abcd efgh", "slow-replica"),
        ("abbc deef", "slow-replica"),
        ("aabb ccdd", "slow-replica"),
    ],
)
def test_a_slow_replica_or_its_host_is_named_once(hosts: str, kind: str) -> None:
    """Replica 2 of four, of two ranks: on one host, on two, and beside ranks of others."""
    one, other = (list(names) for names in hosts.split())
    both = pl.concat([
        ranks(10, 10, 13, 10, host=one), ranks(10, 10, 13, 10, host=other).with_columns(pl.col("rank") + 4, tp=1),
    ])  # fmt: skip
    summary = Summary(ranks=conform(both, RANKS))
    assert found(summary) == [(kind, 2, None, 13 * MS, 10 * MS)]
    host = "c" if kind == "slow-host" else None
    assert exceptions(summary, cohorts(summary))["host"].to_list() == [host]


def test_a_slow_host_with_ranks_of_several_replicas() -> None:
    """As where ranks count through replicas before stages: the second of four hosts has two ranks of stage 0."""
    host = [f"h{n // 2}" for n in range(8)]
    summary = Summary(ranks=ranks(10, 10, 13, 13, 10, 10, 10, 10, host=host))
    assert found(summary) == [("slow-host", None, None, 13 * MS, 10 * MS)]
    assert exceptions(summary, cohorts(summary)).select("host", "stage").row(0) == ("h1", 0)


def test_other_settings_are_not_compared_with_the_usual_ones() -> None:
    summary = Summary(ranks=ranks(10, 10, 20, 10, microbatches=[8.0, 8.0, 4.0, 8.0]))
    assert found(summary) == [("settings", 2, None, 4.0, 8.0)]
    assert exceptions(summary, cohorts(summary))["what"].to_list() == ["4 micro-batches in a step instead of 8"]


def test_another_order_of_blocks_is_a_setting() -> None:
    assert found(Summary(ranks=ranks(10, 10, 10, 10, order=[1, 1, 1, 7]))) == [("settings", 3, None, 1.0, 0.0)]


def test_an_order_that_differs_everywhere_is_none() -> None:
    """As where weight gradients fill gaps when these come."""
    assert found(Summary(ranks=ranks(10, 10, 10, 10, order=[1, 2, 3, 4]))) == []


def test_a_link_that_is_slow_both_ways_is_named_once() -> None:
    stages = pl.concat([ranks(10, 10, 10, 10), ranks(10, 10, 10, 10).with_columns(pl.col("rank") + 4, stage=1)])
    rows = [(n, n + 4, "F", 9, 0.3 * MS) for n in range(4)] + [(n + 4, n, "B", 9, 0.3 * MS) for n in range(4)]
    rows[2], rows[6] = (2, 6, "F", 9, 1.2 * MS), (6, 2, "B", 9, 1.3 * MS)
    links = pl.DataFrame(rows, LINKS, orient="row")
    summary = Summary(ranks=conform(stages, RANKS), links=links)
    assert found(summary) == [("slow-link", 2, 6, 1.3 * MS, 0.3 * MS)]
    assert "both directions" in exceptions(summary, cohorts(summary))["what"][0]


@pytest.mark.parametrize(("drift", "named"), [(40e-6, False), (90e-6, True), (-90e-6, True)])
def test_a_clock_drifts_where_its_rate_is_far_from_the_usual_one(drift: float, named: bool) -> None:
    rates = [1e-6, -2e-6, 3e-6, 0.0, drift]
    hosts = pl.DataFrame({"host": [f"h{n}" for n in range(5)], "status": ["fitted"] * 5, "drift": rates})
    summary = Summary(ranks=ranks(10, 10, 10, 10, 10), hosts=conform(hosts, HOSTS))
    assert [row[:2] for row in found(summary)] == ([("drifting-clock", 4)] if named else [])


@pytest.mark.parametrize("shift", [0.0, 150e-6, -150e-6])
def test_one_clock_that_drifts_is_not_all_of_its_replica(shift: float) -> None:
    """The rates of a replica have their usual mean, but for the `shift` with which the second one runs as a whole."""
    drift = 300e-6
    rates = [0.0] * 3 + [2 / 3 * drift + shift, -drift / 3 + shift, -drift / 3 + shift] + [0.0] * 6
    hosts = pl.DataFrame({"host": [f"h{n}" for n in range(12)], "status": ["fitted"] * 12, "drift": rates})
    ranks_of = ranks(*[10.0] * 12).with_columns(replica=pl.col("rank") // 3)
    summary = Summary(ranks=conform(ranks_of, RANKS), hosts=conform(hosts, HOSTS))
    off = [f"h{n}" for n, rate in enumerate(rates) if abs(rate) > DRIFT] if shift else ["h3"]
    assert sorted(exceptions(summary, cohorts(summary))["host"].drop_nulls()) == off


def test_cohorts_are_of_one_setting_and_of_like_speed() -> None:
    """Speeds lie no further apart than 3 %, in order; the largest group is the first."""
    summary = Summary(ranks=ranks(10, 10.1, 12, 10.2, 12.1, 10.3, microbatches=[8.0] * 5 + [4.0]))
    assert cohorts(summary)["cohort"].to_list() == [0, 0, 1, 0, 1, 2]
    assert representative(cohorts(summary)) == 1
    assert representative(cohorts(Summary())) is None
