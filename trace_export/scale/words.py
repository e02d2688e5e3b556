"""An overview in words and tables, for the page, the terminal and the JSON document."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import polars as pl

from trace_export.analysis import cause_words
from trace_export.analysis.clock_words import conditions, of_blocks_ns, unconnected
from trace_export.analysis.verdict import LEVELS, causes, step_sentence, warm_up
from trace_export.answer import Sentence
from trace_export.scale import bands
from trace_export.scale.build import Overview
from trace_export.schedules.catalogue import TITLES
from trace_export.selection import Numbers
from trace_export.units import duration, times

KINDS = {
    "settings": ("replica with other settings", "replicas with other settings"),
    "slow-replica": ("slow replica", "slow replicas"),
    "slow-stage": ("slow stage", "slow stages"),
    "slow-host": ("slow host", "slow hosts"),
    "slow-rank": ("slow rank", "slow ranks"),
    "slow-link": ("slow link", "slow links"),
    "drifting-clock": ("host with a drifting clock", "hosts with a drifting clock"),
}
"""The name of an exception of each kind, singular and plural."""
NAMED = 3
"""A sentence names at most this many exceptions of a kind."""


def heading(overview: Overview) -> str:
    ranks, hosts = overview.ranks["rank"].n_unique(), overview.ranks["host"].n_unique()
    stages = overview.ranks["stage"].n_unique()
    some = f"{stages:,} of " if stages < overview.stages else ""
    return (
        f"{_count(ranks, 'rank')} on {_count(hosts, 'host')}: {_count(overview.replicas.height, 'replica')} of "
        f"{some}{_count(max(stages, overview.stages), 'stage')}, {_count(overview.steps.height, 'step')}"
    )


def missing(overview: Overview) -> str:
    """The share that could not be read; empty if nothing is missing."""
    if not overview.unread:
        return ""
    share = overview.unread / overview.sources
    first = overview.failures.sort("count", descending=True).row(0, named=True)
    return (
        f"{overview.unread:,} of {_count(overview.sources, 'source')} ({share:.2%}) could not be read and are missing"
        f" here; {first['count']:,} of them: {first['what']}"
    )


def sentences(overview: Overview) -> list[Sentence]:
    """The answer: what costs most, what stands out, how long a step is, how alike the replicas are, how sure the clocks
    are."""
    alike = [_cohorts(overview)] if overview.replicas.height > 1 else []
    made = [
        *warm_up(overview.steps),
        *_explained(overview),
        *causes(overview.causes),
        _exceptions(overview),
        *alike,
        _step(overview),
    ]
    further = [*_clocks(overview), *_missing_ranks(overview)]
    return [sentence.on(overview.inputs) for sentence in (*made, *further)]


def _explained(overview: Overview) -> Iterator[Sentence]:
    """The replicas from which the causes were worked out, if not all."""
    some, all_of = len(overview.explained), overview.replicas.height
    if some < all_of:
        text = f"What costs most was worked out from {some} of {all_of:,} replicas: those that differ most, and others."
        yield Sentence("explained", {"replicas": some, "of": all_of}, text)


def _exceptions(overview: Overview) -> Sentence:
    """The exceptions, whatever they cost."""
    facts, then = dict(overview.exceptions.group_by("kind").len().iter_rows()), ""
    named = [
        f"{_count(facts[kind], words[0], words[1])} ({_which(overview.exceptions.filter(pl.col('kind') == kind))})"
        for kind, words in KINDS.items()
        if kind in facts
    ]
    if named:
        text = f"Unlike their peers: {cause_words.listed(named)}."
    elif overview.replicas.height == 1:
        text, then = "There is one replica, so no rank has a peer to be compared with.", "trace-export report DIR"
    else:
        text = "No replica, rank, link or clock differs from its peers."
    return Sentence("exceptions", facts, text, then)


def _which(exceptions: pl.DataFrame) -> str:
    """The places of exceptions of one kind; of many only the first."""
    named = [_whereabouts(row) for row in exceptions.head(NAMED).iter_rows(named=True)]
    return ", ".join(named) + (", …" if exceptions.height > NAMED else "")


def _whereabouts(row: dict[str, Any]) -> str:
    """Where an exception is, as short as it can be named."""
    if row["to_rank"] is not None:
        return f"rank {row['rank']} → {row['to_rank']}"
    named_by = {"slow-host": "host", "drifting-clock": "host", "slow-stage": "stage", "slow-rank": "ranks"}
    of = named_by.get(row["kind"], "replica")
    if of == "ranks":
        return cause_words.ranks_text(row["ranks"] or [row["rank"]])
    return str(row[of]) if of == "host" else f"{of} {row[of]}"


def _step(overview: Overview) -> Sentence:
    times = {name: bands.mean_of(overview.steps, name) for name in ("step_ns", "pipeline_ns")}
    host = any(note.code == "host-times" for note in overview.notes)
    return step_sentence(overview.steps, times["step_ns"], times["pipeline_ns"], overview.bubble, host=host)


def _cohorts(overview: Overview) -> Sentence:
    sizes = overview.replicas.group_by("cohort").len().sort("cohort")["len"].to_list()
    if len(sizes) == 1:
        which = "both" if overview.replicas.height == 2 else f"all {overview.replicas.height:,}"
        apart = which.capitalize() if overview.exceptions.is_empty() else f"Apart from that, {which}"
        text = f"{apart} replicas behave alike."
        return Sentence("replicas", {"groups": sizes}, text)
    groups = _count(len(sizes) - 1, "group")
    text = f"{sizes[0]:,} of {overview.replicas.height:,} replicas behave alike; the others form {groups}."
    return Sentence("replicas", {"groups": sizes}, text)


def _clocks(overview: Overview) -> Iterator[Sentence]:
    if overview.hosts.height < 2:
        return
    errors_ns = overview.hosts["sd_ns"].drop_nulls()
    if errors_ns.is_empty():
        text = "How well the clocks of the hosts agree is not known."
        yield Sentence("clocks", {"clock_sd_ns": None}, text)
        return
    errors = np.array([np.median(errors_ns.to_numpy()), errors_ns.to_numpy().max()])
    usual, worst = (f"±{duration(float(error))}" for error in errors)
    unknown = overview.hosts.height - len(errors_ns)
    rest = f"; of {_count(unknown, 'host')} it is not known" if unknown else ""
    groups, which = unconnected(overview.hosts), "The clocks of the hosts"
    if groups > 1:
        which = f"Nothing connects {groups} groups of hosts, each on its own time axis; the clocks within a group"
    how = worst if usual == worst else f"{usual} (median), {worst} at worst"
    text = f"{which} agree to {how}{conditions(overview.hosts)}{rest}."
    facts = {
        "clock_sd_ns": float(errors[1]), "clock_median_ns": float(errors[0]),
        "clock_bound_ns": of_blocks_ns(overview.hosts), "clock_unseen_ns": overview.hosts["unseen_step_ns"].max(),
    }  # fmt: skip
    yield Sentence("clocks", {**facts, "clock_groups": groups}, text)


def _missing_ranks(overview: Overview) -> Iterator[Sentence]:
    if overview.missing_ranks:
        ranks = overview.missing_ranks + overview.ranks["rank"].n_unique()
        share = overview.missing_ranks / ranks
        verb = "is" if overview.missing_ranks == 1 else "are"
        text = f"{overview.missing_ranks:,} of {_count(ranks, 'rank')} ({share:.2%}) {verb} missing here."
        yield Sentence("missing-ranks", {"missing": overview.missing_ranks, "of": ranks, "share": share}, text)


def exception_rows(overview: Overview) -> pl.DataFrame:
    """The exceptions as a table to read."""
    ranks = [cause_words.numbers(ranks) if ranks is not None else None for ranks in overview.exceptions["ranks"]]
    return overview.exceptions.select(
        pl.col("kind").replace({kind: words[0] for kind, words in KINDS.items()}).alias("what"),
        "replica", "stage", pl.Series("ranks", ranks, pl.String), "host", pl.col("ratio").alias("× usual"),
        pl.col("what").alias("why"),
    )  # fmt: skip


def cause_rows(overview: Overview) -> pl.DataFrame:
    """The causes as a table to read."""
    rows = [
        (cause_words.title(row), cause_words.numbers(row["ranks"]), row["ratio"], row["gain_ns"], row["gain"])
        for row in overview.causes.iter_rows(named=True)
    ]
    table = pl.DataFrame(rows, _CAUSES, orient="row")
    return table.with_columns(pl.col("gain ms") / 1e6, pl.col("gain %") * 100)


_CAUSES = {"cause": pl.String, "ranks": pl.String, "× usual": pl.Float64, "gain ms": pl.Float64, "gain %": pl.Float64}


def level_rows(overview: Overview) -> pl.DataFrame:
    """The levels as a table to read."""
    names = pl.col("level").replace(LEVELS).alias("what")
    return overview.levels.select(
        names, (pl.col("adds_ns") / 1e6).alias("ms"), (100 * pl.col("share")).alias("% of a step")
    )


def exception_lines(overview: Overview, most: int) -> list[str]:
    """The first exceptions in a line each."""
    lines = [_line(row) for row in overview.exceptions.head(most).iter_rows(named=True)]
    more = overview.exceptions.height - most
    return [*lines, f"… and {more} more; the page and --json list them all"] if more > 0 else lines


def _line(row: dict[str, Any]) -> str:
    ranks = cause_words.ranks_text(row["ranks"]) if row["ranks"] else ""
    if row["to_rank"] is not None:
        ranks = f"rank {row['rank']} → {row['to_rank']}"
    parts = [f"{name} {row[name]}" for name in ("stage", "replica") if row[name] is not None]
    where = ", ".join([part for part in (ranks, *parts, row["host"]) if part])
    ratio = "" if row["ratio"] is None else f", {times(row['ratio'])} as long"
    return f"{KINDS[row['kind']][0]}: {where}: {row['what']}{ratio}"


def stage_rows(overview: Overview) -> pl.DataFrame:
    names = {"p5_ns": "P5 ms", "p50_ns": "P50 ms", "p95_ns": "P95 ms", "max_ns": "max ms"}
    times = [(pl.col(column) / 1e6).alias(name) for column, name in names.items()]
    return overview.bands.select(
        "stage", "ranks", *times, pl.col("max_rank").alias("rank of max"), (100 * pl.col("idle")).alias("idle %")
    )


def step_rows(overview: Overview) -> pl.DataFrame:
    names = {"step_ns": "step ms", "pipeline_ns": "pipeline ms", "longest_ns": "longest ms"}
    times = [(pl.col(column) / 1e6).alias(name) for column, name in names.items()]
    counts = [] if overview.steps["counts"].equals(overview.steps["whole"]) else ["counts"]
    return overview.steps.select("step", "ranks", "whole", *counts, *times, (100 * pl.col("bubble")).alias("idle %"))


def cohort_rows(overview: Overview) -> pl.DataFrame:
    """A row for each group of replicas that behave alike."""
    grouped = overview.replicas.group_by("cohort").agg(
        pl.len().alias("replicas"), pl.col("ranks").sum(),
        pl.col("microbatches").first().alias("micro-batches"),
        pl.col("schedule").mode().first().replace(TITLES), pl.col("speed").min().alias("least × usual work"),
        pl.col("speed").max().alias("most × usual work"), pl.col("replica"),
    ).sort("cohort")  # fmt: skip
    if grouped["micro-batches"].equals(grouped["micro-batches"].round()):  # a mean where steps have different numbers
        grouped = grouped.with_columns(pl.col("micro-batches").cast(pl.Int64))
    members = [str(Numbers.of(group)) for group in grouped["replica"]]
    return grouped.drop("replica").with_columns(pl.Series("which", members, pl.String))


def failure_rows(overview: Overview) -> pl.DataFrame:
    return overview.failures.sort("count", descending=True).select("count", pl.col("what").alias("why"), "first")


def _count(number: int, noun: str, several: str = "") -> str:
    return f"{number:,} {noun if number == 1 else several or noun + 's'}"
