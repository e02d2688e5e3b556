"""Exceptions, by name: ranks, links, hosts' clocks and replicas that differ from their peers; and the replicas that
behave alike.

Ranks and links are compared as for the causes of `analysis.explanation`, by the sums of all that were read, whether or
not a step would be shorter without them.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import polars as pl

from trace_export.analysis.compared import Compared, Sums, mean_lengths
from trace_export.analysis.peers import Items, Slow, slow_groups
from trace_export.model import INT, REAL, STEP_KEY, TEXT, Schema, conform
from trace_export.scale.summary import Summary
from trace_export.steps.graph import Ints

MOST_NAMED = 24
"""At most this many exceptions of ranks, and of links, are named."""
SLOW, SLOW_LINK = 1.1, 1.5
"""Blocks and transfers are exceptions from this many times the length of their peers on: smaller excesses are named if
they cost something. (The first is the threshold of MegaScan, arXiv 2507.19845; transfers vary more than
computation.)"""
DRIFT = 60e-6
"""A host whose rate differs more than this from the usual one has a drifting clock: twice the largest difference that
Huygens measured between sound hosts (30 µs/s, NSDI '18)."""
STANDS_OUT = 6.0
"""An exception must also stand out by this many robust standard deviations (1.4826 × the median absolute deviation): of
a million normal values none does."""
MOST_ARE_SOUND = 3
"""If one of this many hosts of a replica drifts, the median is still the rate of a sound one."""
SAME_SPEED = 0.03
"""Replicas of the same settings behave alike if their speeds, in order, lie no further apart than this."""

EXCEPTIONS: Schema = {
    "kind": TEXT, "replica": INT, "rank": INT, "to_rank": INT, "stage": INT, "host": TEXT, "ranks": pl.List(INT),
    "what": TEXT, "value": REAL, "usual": REAL, "ratio": REAL,
}  # fmt: skip
"""`kind`: `settings`, `slow-replica`, `slow-stage`, `slow-host`, `slow-rank`, `slow-link`, `drifting-clock`. `replica`,
`rank`, `stage` and `host` where it is one; a link goes from `rank` to `to_rank`. `ranks`: all of them. `ratio`: the
length of the blocks or transfers by that of the peers. `value` beside what is `usual`: micro-batches in a step, or 1
beside 0 where the order of blocks is another one, for settings; ns/ns for clocks."""
COHORTS: Schema = {
    "replica": INT, "cohort": INT, "microbatches": REAL, "order": pl.UInt64(), "speed": REAL, "ranks": INT,
}  # fmt: skip
"""`cohort` is numbered from 0 by size; `speed` is the median over the replica's ranks of their work, by the median of
their stage."""


def cohorts(summary: Summary) -> pl.DataFrame:
    """The replicas (`COHORTS`), sorted by number.

    Example: of four replicas with one order of eight micro-batches the speeds are 1.00, 1.01, 1.02 and 1.30. The first
    three are cohort 0, the last is cohort 1.
    """
    compared = _compared(summary)
    items, there = _work(summary, compared)
    work = compared.ranks[there.tolist()].select("rank", work=pl.Series(items.mean, dtype=REAL))
    ranks = summary.ranks.drop_nulls("replica").join(work, on="rank", maintain_order="left")
    relative = pl.col("work") / pl.col("work").median().over("stage")
    of_replica = ranks.with_columns(relative=relative).group_by("replica").agg(
        pl.col("microbatches").median(),
        order=pl.struct("stage", "order").sort_by("stage", "tp").implode().hash(),
        speed=pl.col("relative").median(),
        ranks=pl.len(),
    )  # fmt: skip
    whole = pl.col("ranks") == pl.col("ranks").max()  # the order of a stage that is not here says nothing
    usual = pl.col("order").filter(whole).mode().min()
    of_replica = of_replica.with_columns(order=pl.when(whole).then("order").otherwise(usual))
    if of_replica["order"].n_unique() > max(1, len(of_replica) // 2):  # then the order is not a setting, but chance
        of_replica = of_replica.with_columns(order=pl.lit(0, pl.UInt64))
    settings = ["microbatches", "order"]
    apart = pl.col("speed") / pl.col("speed").shift(1) > 1 + SAME_SPEED
    ordered = of_replica.sort(*settings, "speed", "replica")
    numbered = ordered.with_columns(place=apart.fill_null(False).cum_sum().over(settings))
    sizes = numbered.group_by(*settings, "place").agg(size=pl.len(), first=pl.col("replica").min())
    sizes = sizes.sort("size", "first", descending=[True, False]).with_row_index("cohort")
    replicas = numbered.join(sizes, on=[*settings, "place"], nulls_equal=True)
    return conform(replicas.sort("replica"), COHORTS)


def representative(cohorts: pl.DataFrame) -> int | None:
    """The replica of the largest cohort whose speed is that cohort's median."""
    largest = cohorts.filter(pl.col("cohort") == 0)
    if largest.is_empty():
        return None
    distance = (pl.col("speed") - pl.col("speed").median()).abs()
    return int(largest.sort(distance, "replica")["replica"][0])


def exceptions(summary: Summary, alike: pl.DataFrame) -> pl.DataFrame:
    """All exceptions (`EXCEPTIONS`): settings, then what is slow, that which explains most first, then clocks; `alike`
    as `cohorts` gives it."""
    settings = _other_settings(alike)
    other = settings["replica"].implode()
    compared = _compared(summary, summary.ranks.filter(~pl.col("replica").is_in(other)))
    rows = [*_slow_ranks(summary, compared), *_slow_links(summary, compared)]
    slow = pl.DataFrame(rows, schema_overrides={"ranks": pl.List(INT)}) if rows else pl.DataFrame({"kind": []})
    parts = [
        settings.with_columns(kind=pl.lit("settings")),
        slow,
        _drifting(summary).with_columns(kind=pl.lit("drifting-clock")),
    ]
    return pl.concat([conform(frame, EXCEPTIONS) for frame in parts])


def _compared(summary: Summary, ranks: pl.DataFrame | None = None) -> Compared:
    """The comparisons of some ranks (all)."""
    chosen = summary.ranks if ranks is None else ranks
    stage = pl.col("stage", "replica").fill_null(0)
    places = chosen.select("rank", stage, "device", host=pl.col("label").fill_null(""))
    return Compared(places.unique("rank").sort("rank"))


def _work(summary: Summary, compared: Compared) -> tuple[Items, Ints]:
    """The work of the ranks that are compared, and their rows."""
    work = summary.work.join(compared.ranks, on="rank", how="semi", maintain_order="left")
    step = work.select(pl.struct(*STEP_KEY).rank("dense")).to_series().cast(pl.Int64).to_numpy() - 1
    unit = work.select(pl.struct("kind", "chunk", "first_part").rank("dense")).to_series().cast(pl.Int64).to_numpy() - 1
    return compared.work(compared.rows(work["rank"].to_numpy()), step, unit, _sums(work))


def _sums(frame: pl.DataFrame) -> Sums:
    return Sums(*(frame[name].to_numpy().astype(np.float64) for name in ("count", "sum_ns", "squares")))


def _slow_ranks(summary: Summary, compared: Compared) -> list[dict[str, object]]:
    """The ranks, replicas, stages and hosts whose blocks take longer than those of their peers."""
    items, there = _work(summary, compared)
    rows = []
    for slow in slow_groups(replace(items, least=SLOW - 1), compared.groups(there), MOST_NAMED):
        kind = "rank" if slow.groups[0].kind == "lane" else slow.groups[0].kind
        rows.append(_row(f"slow-{kind}", compared.place(slow, there), slow, "its blocks take longer than on its peers"))
    return rows


def _slow_links(summary: Summary, compared: Compared) -> list[dict[str, object]]:
    """The links whose transfers take longer than those of their peers. Those of guessed transfers have peers between
    the same stages alone, and exceed them by more than is in doubt: how much of a gap the receiver is late by itself is
    guessed for each stage."""
    ends = [pl.col(name).is_in(compared.ranks["rank"].implode()) for name in ("src_rank", "dst_rank")]
    table = summary.links.filter(*ends)
    if table.is_empty():
        return []
    kinds = sorted(set(table["direction"]))
    number = table["direction"].replace_strict(dict(zip(kinds, range(len(kinds)), strict=True)), return_dtype=pl.Int64)
    links = np.stack([table[c].cast(pl.Int64).to_numpy() for c in ("src_rank", "dst_rank")] + [number.to_numpy()])
    alike, groups = compared.link_alike(links), compared.link_groups(links)
    items = mean_lengths(np.arange(len(table)), _sums(table), alike)
    if table["guessed"].any():
        groups = [group for group in groups if np.isin(alike[group.items], np.delete(alike, group.items)).all()]
    rows, doubt = [], table["doubt_ns"].to_numpy()
    for slow in slow_groups(replace(items, least=SLOW_LINK - 1), groups, MOST_NAMED):
        if (items.mean[slow.items] - slow.base).mean() <= doubt[slow.items].max():
            continue
        place = compared.link_place(links[:, slow.items], kinds)
        ways = {"F": "activations", "B": "gradients"}.get(str(place["direction"]), "both directions")
        row = _row("slow-link", place, slow, f"its transfers take longer ({ways})")
        rows.append({**row, "rank": place["src_rank"], "to_rank": place["dst_rank"]})
    return rows


def _row(kind: str, place: dict[str, object], slow: Slow, what: str) -> dict[str, object]:
    ranks, hosts = place["ranks"], place["hosts"]
    assert isinstance(ranks, list)
    assert isinstance(hosts, list)
    return {
        "kind": kind, "replica": place["replica"], "rank": ranks[0] if len(ranks) == 1 else None, "to_rank": None,
        "stage": place.get("stage"), "host": hosts[0] if len(hosts) == 1 else None, "ranks": ranks, "what": what,
        "ratio": 1 + slow.excess,
    }  # fmt: skip


def _other_settings(alike: pl.DataFrame) -> pl.DataFrame:
    """The replicas that have other micro-batches, or another order of blocks, than most have."""
    usual = alike.group_by("microbatches", "order").len().sort("len", "microbatches", descending=True)
    if usual.is_empty() or usual["len"][0] <= len(alike) / 2:
        return pl.DataFrame(schema={"replica": INT})
    microbatches, order = usual.select("microbatches", "order").row(0)
    other = alike.filter((pl.col("microbatches") != microbatches) | (pl.col("order") != order))
    counts = pl.col("microbatches") != microbatches
    return other.select(
        "replica",
        value=pl.when(counts).then("microbatches").otherwise(1.0),
        usual=pl.when(counts).then(pl.lit(microbatches)).otherwise(0.0),
        what=pl.when(counts)
        .then(
            pl.format("{} micro-batches in a step instead of {}", _short("microbatches"), pl.lit(f"{microbatches:g}"))
        )
        .otherwise(pl.lit("the order of its blocks is another one")),
    )


def _short(number: str) -> pl.Expr:
    """A column of numbers as text, without decimals where there are none."""
    return pl.col(number).round(2).cast(TEXT).str.strip_suffix(".0")


def _drifting(summary: Summary) -> pl.DataFrame:
    """The hosts whose clock runs faster or slower than those of the others.

    The exchanges of replicas hardly show the common rate of all hosts of one replica. So one clock that drifts may move
    the rates of its replica the opposite way until their mean is as usual: they are compared with the replica's median.
    """
    fitted = summary.hosts.filter(pl.col("status").is_in(["fitted", "confirmed"]))
    hosts = summary.ranks.group_by("host").agg(pl.col("replica").min(), pl.col("stage").min())
    rates = fitted.join(hosts, on="host", how="left")
    replicas = rates.group_by("replica").agg(pl.len(), mean=pl.col("drift").mean(), median=pl.col("drift").median())
    rates = rates.with_columns(usual=pl.col("drift").median()).join(replicas, on="replica", nulls_equal=True)
    balanced = (pl.col("len") >= MOST_ARE_SOUND) & ((pl.col("mean") - pl.col("usual")).abs() < DRIFT)
    rates = rates.with_columns(usual=pl.when(balanced).then("median").otherwise("usual"))
    drifting = rates.with_columns(value="drift", off=(pl.col("drift") - pl.col("usual")).abs())
    drifting = drifting.with_columns(spread=1.4826 * pl.col("off").median())
    drifting = drifting.filter((pl.col("off") > DRIFT) & (pl.col("off") > STANDS_OUT * pl.col("spread")))
    words = pl.format("its clock runs {} µs a second off the others'", (pl.col("off") * 1e6).round(0).cast(INT))
    return drifting.with_columns(what=words)
