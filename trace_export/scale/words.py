"""An overview in words and tables: what the page, the terminal and the JSON document say."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import polars as pl

from trace_export.analysis.stragglers import SLOW
from trace_export.analysis.what_if import TRUSTED
from trace_export.scale.build import Overview
from trace_export.schedules.catalogue import TITLES
from trace_export.selection import Numbers
from trace_export.units import duration

NEGLIGIBLE = 1.005
"""Of a smaller slowdown the parts are noise."""
KINDS = {
    "settings": ("replica with other settings", "replicas with other settings"),
    "slow-host": ("slow host", "slow hosts"),
    "slow-replica": ("slow replica", "slow replicas"),
    "slow-rank": ("slow rank", "slow ranks"),
    "slow-link": ("slow link", "slow links"),
    "drifting-clock": ("host with a drifting clock", "hosts with a drifting clock"),
}
"""What an exception of a kind is called, one and several."""


def heading(found: Overview) -> str:
    ranks, hosts = found.ranks["rank"].n_unique(), found.ranks["host"].n_unique()
    stages = found.ranks["stage"].n_unique()
    return (
        f"{_count(ranks, 'rank')} on {_count(hosts, 'host')}: {_count(found.replicas.height, 'replica')} of "
        f"{_count(stages, 'stage')}, {_count(found.steps.height, 'step')}"
    )


def missing(found: Overview) -> str:
    """What share could not be read; empty where nothing is missing."""
    if not found.unread:
        return ""
    share = found.unread / found.sources
    first = found.failures.sort("count", descending=True).row(0, named=True)
    return (
        f"{found.unread:,} of {_count(found.sources, 'source')} ({share:.2%}) could not be read and are missing here; "
        f"{first['count']:,} of them: {first['what']}"
    )


def sentences(found: Overview) -> list[str]:
    """The answer: what stands out, how long a step is, how alike the replicas are, how sure the clocks are."""
    alike = [_cohorts(found)] if found.replicas.height > 1 else []
    return [
        *_slow_stages(found),
        _exceptions(found),
        _step(found),
        *_slowdown(found),
        *alike,
        *_clocks(found),
        *_missing_ranks(found),
    ]


def _slow_stages(found: Overview) -> Iterator[str]:
    """The stages that are busy for longer than the median stage in all replicas, the slowest first."""
    usual = found.bands["p50_ns"].median()
    if found.bands.height < 2 or not usual:
        return
    slow = found.bands.filter(pl.col("p5_ns") > SLOW * _real(usual)).sort("p50_ns", "stage", descending=[True, False])
    for stage, busy in slow.select("stage", "p50_ns").head(1).rows():
        others = f", and so are {_count(slow.height - 1, 'other stage')}" if slow.height > 1 else ""
        everywhere = " in every replica" if found.replicas.height > 1 else ""
        ratio = busy / _real(usual)
        yield f"Stage {stage} is slow{everywhere}{others}: it is busy for {ratio:.2f} × as long as the median stage."


def _exceptions(found: Overview) -> str:
    counts = dict(found.exceptions.group_by("kind").len().iter_rows())
    named = [f"{counts[kind]:,} {words[counts[kind] > 1]}" for kind, words in KINDS.items() if kind in counts]
    if named:
        return f"{_listed(named)}."
    if found.replicas.height == 1:
        return "There is one replica, so nothing can be compared; trace-export report says more about it."
    return "No replica, rank, link or clock differs from its peers."


def _step(found: Overview) -> str:
    whole = found.steps.filter("whole") if found.steps["whole"].any() else found.steps
    length, pipeline, longest, bubble = (whole[c].median() for c in ("step_ns", "pipeline_ns", "longest_ns", "bubble"))
    start = f"A step takes {duration(_real(length))}; its pipeline time" if length is not None else "The pipeline time"
    whose = ", in times of the host" * any(note.code == "host-times" for note in found.notes)
    return (
        f"{start} is {duration(_real(pipeline))} in the median replica and {duration(_real(longest))} in the longest; "
        f"ranks are idle for {_real(bubble):.1%} of it{whose}."
    )


def _slowdown(found: Overview) -> Iterator[str]:
    slower = found.slowdown
    if slower is None:
        return
    if slower.fidelity > TRUSTED:
        share = 1 - 1 / slower.fidelity
        yield f"The cost of stragglers is not known: {share:.0%} of the pipeline time lies outside the operations."
    elif slower.total < NEGLIGIBLE:
        yield "Stragglers cost next to nothing."
    else:
        yield f"The pipelines take {slower.total:.3g} × as long as they would without stragglers."


def _cohorts(found: Overview) -> str:
    sizes = found.replicas.group_by("cohort").len().sort("cohort")["len"].to_list()
    if len(sizes) == 1:
        return f"All {found.replicas.height:,} replicas behave alike."
    groups = _count(len(sizes) - 1, "group")
    return f"{sizes[0]:,} of {found.replicas.height:,} replicas behave alike; the others form {groups}."


def _clocks(found: Overview) -> Iterator[str]:
    if found.hosts.height < 2:
        return
    known = found.hosts["sd_ns"].drop_nulls()
    if known.is_empty():
        yield "How well the clocks of the hosts agree is not known."
        return
    usual, worst = (f"±{duration(_real(error))}" for error in (known.median(), known.max()))
    unknown = found.hosts.height - len(known)
    rest = f"; of {_count(unknown, 'host')} it is not known" if unknown else ""
    yield f"The clocks of the hosts agree to {usual} (median), {worst} at worst{rest}."


def _missing_ranks(found: Overview) -> Iterator[str]:
    if found.missing_ranks:
        ranks = found.missing_ranks + found.ranks["rank"].n_unique()
        share = found.missing_ranks / ranks
        verb = "is" if found.missing_ranks == 1 else "are"
        yield f"{found.missing_ranks:,} of {_count(ranks, 'rank')} ({share:.2%}) {verb} missing here."


def exception_rows(found: Overview) -> pl.DataFrame:
    """The exceptions as a table to read."""
    ms = pl.when(pl.col("kind").is_in(["slow-rank", "slow-link", "slow-replica", "slow-host"]))
    return found.exceptions.select(
        pl.col("kind").replace({kind: words[0] for kind, words in KINDS.items()}).alias("what"),
        "replica", "stage", "rank", pl.col("to_rank").alias("to rank"), "host", pl.col("what").alias("why"),
        ms.then(pl.col("value") / 1e6).alias("ms"), ms.then(pl.col("usual") / 1e6).alias("usual ms"),
        pl.col("ratio").alias("× usual"),
    )  # fmt: skip


def exception_lines(found: Overview, most: int) -> list[str]:
    """The first exceptions in a line each."""
    lines = [_line(row) for row in found.exceptions.head(most).iter_rows(named=True)]
    more = found.exceptions.height - most
    return [*lines, f"… and {more} more; the page and --json list them all"] if more > 0 else lines


def _line(row: dict[str, Any]) -> str:
    to = "" if row["to_rank"] is None else f" → {row['to_rank']}"
    rank = "" if row["rank"] is None else f"rank {row['rank']}{to}"
    places = [f"{name} {row[name]}" for name in ("stage", "replica") if row[name] is not None]
    where = ", ".join([part for part in (rank, *places, row["host"]) if part])
    ratio = "" if row["ratio"] is None else f" ({row['ratio']:.2f} × as long)"
    return f"{KINDS[row['kind']][0]}: {where}: {row['what']}{ratio}"


def stage_rows(found: Overview) -> pl.DataFrame:
    names = {"p5_ns": "P5 ms", "p50_ns": "P50 ms", "p95_ns": "P95 ms", "max_ns": "max ms"}
    times = [(pl.col(column) / 1e6).alias(name) for column, name in names.items()]
    return found.bands.select(
        "stage", "ranks", *times, pl.col("max_rank").alias("rank of max"), (100 * pl.col("idle")).alias("idle %")
    )


def step_rows(found: Overview) -> pl.DataFrame:
    names = {"step_ns": "step ms", "pipeline_ns": "pipeline ms", "longest_ns": "longest ms"}
    times = [(pl.col(column) / 1e6).alias(name) for column, name in names.items()]
    return found.steps.select("step", "ranks", "whole", *times, (100 * pl.col("bubble")).alias("idle %"))


def cohort_rows(found: Overview) -> pl.DataFrame:
    """A row for each group of replicas that behave alike."""
    grouped = found.replicas.group_by("cohort").agg(
        pl.len().alias("replicas"), pl.col("ranks").sum(),
        pl.col("microbatches").first().round(2).alias("micro-batches"),
        pl.col("schedule").mode().first().replace(TITLES), pl.col("speed").min().alias("least × usual work"),
        pl.col("speed").max().alias("most × usual work"), pl.col("replica"),
    ).sort("cohort")  # fmt: skip
    members = [str(Numbers.of(group)) for group in grouped["replica"]]
    return grouped.drop("replica").with_columns(pl.Series("which", members, pl.String))


def worker_rows(found: Overview, most: int) -> pl.DataFrame:
    """The workers that make the run the slowest."""
    slowest = found.workers.sort("slowdown", "replica", "stage", descending=[True, False, False], nulls_last=True)
    return slowest.filter(pl.col("slowdown") >= NEGLIGIBLE).head(most)


def failure_rows(found: Overview) -> pl.DataFrame:
    return found.failures.sort("count", descending=True).select("count", pl.col("what").alias("why"), "first")


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _listed(parts: list[str]) -> str:
    return f"{', '.join(parts[:-1])} and {parts[-1]}" if len(parts) > 1 else parts[0]


def _real(value: object) -> float:
    """A statistic of a column of numbers, which Polars types as anything."""
    assert isinstance(value, int | float)
    return float(value)
