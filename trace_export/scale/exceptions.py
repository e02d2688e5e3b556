"""What differs from its peers, by name: ranks, links, hosts' clocks and replicas; and which replicas behave alike.

Everything is compared with the same thing of the other replicas: a rank with the ranks of its stage, a link with the
links between the same stages. An exception is larger than a threshold and stands out of the scatter of its peers.
"""

from __future__ import annotations

import polars as pl

from trace_export.analysis.stragglers import ENOUGH, SLOW, SLOW_LINK
from trace_export.model import INT, REAL, TEXT, Schema, conform
from trace_export.scale.summary import Summary

STANDS_OUT = 6.0
"""An exception lies so many robust standard deviations (1.4826 × the median absolute deviation) from its peers' median.
Of a million normal values none does."""
DRIFT = 60e-6
"""A host whose rate differs more than this from the usual one has a drifting clock: twice the largest difference that
Huygens measured between sound hosts (30 µs/s, NSDI '18)."""
MOST_ARE_SOUND = 3
"""Of so many hosts of a replica the median is the rate of a sound one where one drifts."""
ALL = 0.75
"""A host or a replica of which so large a part of the ranks is slow is slow itself; its ranks are not named one by
one."""
SAME_SPEED = 0.03
"""Replicas of the same settings behave alike where their speeds, in order, lie no further apart than this."""
BIAS_NS = 1000.0
"""A difference of times below this is no exception, however small the scatter: clocks and profilers are not better."""

EXCEPTIONS: Schema = {
    "kind": TEXT, "replica": INT, "rank": INT, "to_rank": INT, "stage": INT, "host": TEXT, "what": TEXT,
    "value": REAL, "usual": REAL, "ratio": REAL,
}  # fmt: skip
"""`kind`: `settings`, `slow-host`, `slow-replica`, `slow-rank`, `slow-link`, `drifting-clock`. `value` beside what is
`usual`: ns; micro-batches in a step, or 1 beside 0 where the order of blocks is another one, for settings; ns/ns for
clocks."""
COHORTS: Schema = {
    "replica": INT, "cohort": INT, "microbatches": REAL, "order": pl.UInt64(), "speed": REAL, "ranks": INT,
}  # fmt: skip
"""`cohort` is numbered from 0 by size; `speed` is the median over the replica's ranks of their work on a micro-batch,
by the median of their stage."""


def cohorts(summary: Summary) -> pl.DataFrame:
    """The replicas (`COHORTS`), sorted by number."""
    ranks = summary.ranks.drop_nulls(["replica", "work_ns"])
    relative = pl.col("work_ns") / pl.col("work_ns").median().over("stage")
    of_replica = ranks.with_columns(relative=relative).group_by("replica").agg(
        pl.col("microbatches").median(),
        order=pl.struct("stage", "order").sort_by("stage", "tp").implode().hash(),
        speed=pl.col("relative").median(),
        ranks=pl.len(),
    )  # fmt: skip
    if of_replica["order"].n_unique() > max(1, len(of_replica) // 2):  # then the order is not a setting, but chance
        of_replica = of_replica.with_columns(order=pl.lit(0, pl.UInt64))
    settings = ["microbatches", "order"]
    apart = pl.col("speed") / pl.col("speed").shift(1) > 1 + SAME_SPEED
    ordered = of_replica.sort(*settings, "speed", "replica")
    numbered = ordered.with_columns(place=apart.fill_null(False).cum_sum().over(settings))
    sizes = numbered.group_by(*settings, "place").agg(size=pl.len(), first=pl.col("replica").min())
    sizes = sizes.sort("size", "first", descending=[True, False]).with_row_index("cohort")
    found = numbered.join(sizes, on=[*settings, "place"], nulls_equal=True)
    return conform(found.sort("replica"), COHORTS)


def representative(cohorts: pl.DataFrame) -> int | None:
    """The replica of the largest cohort whose speed is that cohort's median."""
    largest = cohorts.filter(pl.col("cohort") == 0)
    if largest.is_empty():
        return None
    distance = (pl.col("speed") - pl.col("speed").median()).abs()
    return int(largest.sort(distance, "replica")["replica"][0])


def exceptions(summary: Summary, alike: pl.DataFrame) -> pl.DataFrame:
    """All exceptions (`EXCEPTIONS`), those of hosts and replicas first, of a kind the largest first; `alike` as
    `cohorts` gives it."""
    settings = _other_settings(alike)
    compared = summary.ranks.filter(~pl.col("replica").is_in(settings["replica"].implode()))
    slow = _slow_ranks(compared)
    several_hosts = compared.group_by("replica").agg(several=pl.col("host").n_unique() > 1)
    across_hosts = _whole(slow, compared, "replica", 1).join(several_hosts.filter("several"), on="replica", how="semi")
    replicas = slow.join(across_hosts, on="replica", how="semi")
    slow = slow.join(across_hosts, on="replica", how="anti")
    hosts = slow.join(_whole(slow, compared, "host", 2), on="host", how="semi")
    slow = slow.join(hosts, on="host", how="anti")
    rest = _whole(slow, compared, "replica", 1)
    replicas = pl.concat([replicas, slow.join(rest, on="replica", how="semi")])
    parts = [
        ("settings", settings),
        ("slow-host", _together(hosts, "host")),
        ("slow-replica", _together(replicas, "replica")),
        ("slow-rank", slow.join(rest, on="replica", how="anti")),
        ("slow-link", _slow_links(summary)),
        ("drifting-clock", _drifting(summary)),
    ]
    rows = [conform(frame.with_columns(kind=pl.lit(kind)), EXCEPTIONS) for kind, frame in parts]
    return pl.concat(
        [frame.sort("ratio", "rank", "host", descending=[True, False, False], nulls_last=True) for frame in rows]
    )


def _whole(slow: pl.DataFrame, ranks: pl.DataFrame, what: str, least: int) -> pl.DataFrame:
    """The replicas or hosts (`what`) of `least` ranks or more that are slow as a whole, unless all would be."""
    counts = ranks.group_by(what).agg(ranks=pl.col("rank").n_unique())
    shares = slow.group_by(what).agg(slow=pl.col("rank").n_unique()).join(counts, on=what)
    whole = (pl.col("slow") >= ALL * pl.col("ranks")) & (pl.col("ranks") >= least) & (pl.len() < counts.height)
    return shares.filter(whole).select(what)


def _together(slow: pl.DataFrame, what: str) -> pl.DataFrame:
    """A row for the slow ranks of each replica or host (`what`), with the stage, replica and host of all of them where
    that is one."""
    one = [pl.when(pl.col(c).n_unique() == 1).then(pl.col(c).first()).alias(c) for c in ("stage", "replica", "host")]
    return slow.group_by(what).agg(
        *(each for each in one if each.meta.output_name() != what),
        pl.col("value", "usual", "ratio").median(),
        what=pl.lit("its blocks take longer on nearly all of its ranks"),
    )


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


def _slow_ranks(ranks: pl.DataFrame) -> pl.DataFrame:
    """The ranks whose forwards, backwards or weight gradients take longer than on the other ranks of their stage; of
    several kinds the one that is slowest."""
    kinds = {"forward_ns": "forwards", "backward_ns": "backwards", "weight_ns": "weight gradients"}
    long = ranks.unpivot(
        list(kinds), index=["rank", "replica", "stage", "host", "blocks"], variable_name="which"
    ).drop_nulls("value")
    compared = _beside_peers(long, ["stage", "which"], "value", SLOW)
    slow = compared.filter(pl.col("stands_out") & (pl.col("blocks") >= ENOUGH))
    slowest = slow.sort("ratio", descending=True).unique("rank", keep="first", maintain_order=True)
    return slowest.with_columns(what=pl.format("its {} take longer than on its peers", pl.col("which").replace(kinds)))


def _slow_links(summary: Summary) -> pl.DataFrame:
    """The links that are slower than those between the same stages; a slow one in both directions is named once."""
    places = summary.ranks.select("rank", "replica", "stage", "host")
    ends = summary.links.join(places, left_on="src_rank", right_on="rank").join(
        places.select(dst_rank="rank", to_stage="stage"), on="dst_rank"
    )
    compared = _beside_peers(ends, ["stage", "to_stage", "direction"], "median_ns", SLOW_LINK)
    slow = compared.filter(pl.col("stands_out") & (pl.col("transfers") >= ENOUGH)).sort("ratio", descending=True)
    pair = [
        pl.min_horizontal("src_rank", "dst_rank").alias("low"),
        pl.max_horizontal("src_rank", "dst_rank").alias("high"),
    ]
    named = slow.with_columns(pair).with_columns(both=pl.len().over("low", "high") > 1)
    named = named.unique(["low", "high"], keep="first", maintain_order=True)
    way = (
        pl.when("both")
        .then(pl.lit("both directions"))
        .when(pl.col("direction") == "F")
        .then(pl.lit("activations"))
        .otherwise(pl.lit("gradients"))
    )
    return named.with_columns(
        rank="src_rank", to_rank="dst_rank", value="median_ns", what=pl.format("its transfers take longer ({})", way)
    )


def _drifting(summary: Summary) -> pl.DataFrame:
    """The hosts whose clock runs faster or slower than those of the others.

    What replicas exchange hardly says how fast the hosts of one run as a whole. So one clock that drifts may move the
    rates of its replica the opposite way until their mean is as usual: these are compared with the replica's median.
    """
    fitted = summary.hosts.filter(pl.col("status").is_in(["fitted", "confirmed"]))
    places = summary.ranks.group_by("host").agg(pl.col("replica").min(), pl.col("stage").min())
    rates = fitted.join(places, on="host", how="left")
    replicas = rates.group_by("replica").agg(pl.len(), mean=pl.col("drift").mean(), median=pl.col("drift").median())
    rates = rates.with_columns(usual=pl.col("drift").median()).join(replicas, on="replica", nulls_equal=True)
    balanced = (pl.col("len") >= MOST_ARE_SOUND) & ((pl.col("mean") - pl.col("usual")).abs() < DRIFT)
    rates = rates.with_columns(usual=pl.when(balanced).then("median").otherwise("usual"))
    found = rates.with_columns(value="drift", off=(pl.col("drift") - pl.col("usual")).abs())
    found = found.with_columns(spread=1.4826 * pl.col("off").median())
    found = found.filter((pl.col("off") > DRIFT) & (pl.col("off") > STANDS_OUT * pl.col("spread")))
    words = pl.format("its clock runs {} µs a second off the others'", (pl.col("off") * 1e6).round(0).cast(INT))
    return found.with_columns(what=words)


def _beside_peers(frame: pl.DataFrame, peers: list[str], value: str, least: float) -> pl.DataFrame:
    """`frame` with usual, ratio and stands_out: the `value` beside that of the rows that agree in `peers`."""
    usual = pl.col(value).median().over(peers)
    spread = 1.4826 * (pl.col(value) - usual).abs().median().over(peers)
    placed = frame.with_columns(usual=usual, spread=spread).with_columns(ratio=pl.col(value) / pl.col("usual"))
    margin = pl.max_horizontal(STANDS_OUT * pl.col("spread"), pl.lit(BIAS_NS))
    out = (pl.col("ratio") > least) & (pl.col(value) - pl.col("usual") > margin)
    return placed.with_columns(stands_out=out.fill_null(False))
