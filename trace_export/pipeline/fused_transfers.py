"""Split transfers of which only a kernel is known, which may send, receive or do both at once."""

from __future__ import annotations

from dataclasses import replace

import polars as pl

from trace_export.model import P2P, Profile, conform
from trace_export.pipeline.stages import depth

_SILENT = (pl.col("role") == "both") & pl.col("peer").is_null() & pl.col("direction").is_null()
_NUMBERS = ["kind", "microbatch", "chunk"]


def split(profile: Profile) -> Profile:
    """`profile`, where kernels of `p2p` that name nothing become sends and receives with direction and micro-batch.

    Between two blocks of a rank the result of the first is sent and the input of the second received: by one kernel, or
    by one each in this order. A kernel that does both ends with the later one. That is also when the kernel of the
    other rank ends, if both exchange with each other; where some kernel does something else, no transfer has an end,
    and none is paired as a message. A gap with more kernels than that stays as it is, as does a kernel that
    overlaps a block. In a pipeline with several chunks a kernel stays one, too, and has a direction at most (see
    directed). Needs the blocks' micro-batches and the stage of `ranks`.

    Example: on a middle stage `F3 kernel B0` is the send of F3 and the receive of B0; on the last stage `F3 B3` has
    none, and `B3 kernel F4` sends B3 and receives F4.
    """
    rows = profile.p2p.with_row_index("row")
    silent = rows.filter(_SILENT)
    if silent.is_empty() or (profile.spans["kind"] == "FB").any():
        return profile
    if (profile.spans["chunk"].fill_null(0) != 0).any() or profile.declared.placement == "vee":
        return directed(profile, silent)
    gaps = _gaps(silent, _blocks(profile))
    parts = [
        gaps.filter(wanted).select("row", role=pl.lit(role), direction=f"kind_{side}", microbatch=f"microbatch_{side}",
                                   chunk=f"chunk_{side}")
        for role, side, wanted in (("send", "before", "sends"), ("recv", "after", "receives"))
    ]  # fmt: skip
    sides = pl.concat(parts)
    known = exchanged(sides.join(rows.select("row", "rank"), on="row"), profile.ranks)
    end = pl.col("end_ns") if known else pl.lit(None, P2P["end_ns"])
    named = (
        rows.drop("role", "direction", "microbatch", "chunk").join(sides, on="row").with_columns(end.alias("end_ns"))
    )
    rest = rows.join(sides, on="row", how="anti")
    both = pl.concat([rest, named], how="diagonal_relaxed").sort("row", "role", descending=[False, True])
    return replace(profile, p2p=conform(both, P2P))


def directed(profile: Profile, silent: pl.DataFrame) -> Profile:
    """`profile`, where the `silent` rows of `p2p` have the direction F or B if the two blocks before and the two after
    are all of that kind, fewer where the rank has no more: whatever is sent and received there goes one way.

    With several chunks one kernel may do all that two blocks need, for both neighbours, and a receive may be for the
    block after the next; so among forwards and backwards a kernel moves activations and gradients.

    Example: of `F0 k F1 k F2 k F3 k B0` the first two kernels move activations alone.
    """
    blocks = profile.spans.filter(pl.col("kind").is_in(["F", "B"])).sort(
        "rank", "start_ns", "end_ns", maintain_order=True
    )
    near = [pl.col("kind").shift(distance).over("rank") for distance in (1, 0, -1, -2)]
    around = blocks.select("rank", n=pl.int_range(pl.len()).over("rank"), forward=near[1], alike=pl.concat_list(near))
    alike = pl.col("alike").list.drop_nulls().list.n_unique() == 1
    gaps = _gaps(silent, _blocks(profile)).select("row", "rank", n="n_before")
    known = gaps.join(around.filter(alike), on=["rank", "n"]).select("row", one_way="forward")
    rows = profile.p2p.with_row_index("row").join(known, on="row", how="left", maintain_order="left")
    found = rows.with_columns(direction=pl.coalesce("direction", "one_way"))
    return replace(profile, p2p=conform(found, P2P))


def exchanged(sides: pl.DataFrame, ranks: pl.DataFrame) -> bool:
    """Whether every kernel that sends and receives does both with one rank, whose kernels do so, too.

    `sides`: rank, row (of the kernel), role and direction of each send and receive.

    Example: stage 1 sends F3 to stage 2 and receives B0 from it, stage 2 sends B0 and receives F3. Not so where stage 1
    sends F3 to stage 2 and receives F4 from stage 0, or where stage 2 first sends B0 and then receives F3.
    """
    onward = (pl.col("role") == "send") == (pl.col("direction") == "F")
    both = sides.filter(pl.len().over("row") > 1).group_by("row", "rank").agg(all=onward.all(), any=onward.any())
    if both.filter(pl.col("all") != pl.col("any")).height:
        return False
    placed = both.join(ranks.select("rank", "stage", "replica"), on="rank")
    link = pl.when("all").then("stage").otherwise(pl.col("stage") - 1).alias("link")
    there = ranks.select("replica", "stage").unique().drop_nulls()
    whole = there.join(there.with_columns(stage=pl.col("stage") - 1), on=["replica", "stage"]).rename({"stage": "link"})
    links = placed.group_by("replica", link).agg(sides=pl.col("all").n_unique())
    return bool((links.join(whole, on=["replica", "link"])["sides"] == 2).all())


def _blocks(profile: Profile) -> pl.DataFrame:
    """The forwards and backwards by rank and start: `n` (their number on the rank), and whether each `gives` something
    to another rank and `takes` something from one."""
    placed = profile.spans.filter(pl.col("kind").is_in(["F", "B"])).join(
        profile.ranks.select("rank", "stage").drop_nulls(), on="rank"
    )
    stages = depth(profile.ranks, profile.declared)
    forward, first, final = pl.col("kind") == "F", pl.col("stage") == 0, pl.col("stage") == stages - 1
    onward, back = ~final, ~first
    return placed.sort("rank", "start_ns", "end_ns").select(
        "rank", "start_ns", "end_ns", *_NUMBERS,
        n=pl.int_range(pl.len()).over("rank"),
        gives=pl.when(forward).then(onward).otherwise(back),
        takes=pl.when(forward).then(back).otherwise(onward),
    )  # fmt: skip


def _gaps(silent: pl.DataFrame, blocks: pl.DataFrame) -> pl.DataFrame:
    """The kernels that lie between two blocks that follow each other, with what is known of both (`*_before`,
    `*_after`), and whether each `sends` and `receives`."""
    sides = {
        side: blocks.select("rank", pl.col(at).alias("at"), "n", flag, *_NUMBERS).sort("at")
        for side, at, flag in (("before", "end_ns", "gives"), ("after", "start_ns", "takes"))
    }
    found = silent.select("row", "rank", "start_ns", "end_ns")
    for side, at, strategy in (("before", "start_ns", "backward"), ("after", "end_ns", "forward")):
        named = sides[side].rename({c: f"{c}_{side}" for c in ("n", *_NUMBERS)})
        found = found.sort(at).join_asof(
            named, left_on=at, right_on="at", by="rank", strategy=strategy, check_sortedness=False  # type: ignore[arg-type]
        ).drop("at", strict=False)  # fmt: skip
    counts = blocks.group_by("rank").agg(blocks=pl.len())
    follows = pl.col("n_after").fill_null(pl.col("blocks")) == pl.col("n_before").fill_null(-1) + 1
    gap = ["rank", pl.col("n_before").fill_null(-1)]
    gives, takes = pl.col("gives").fill_null(False), pl.col("takes").fill_null(False)
    size, place = pl.len().over(gap), pl.int_range(pl.len()).over(gap)
    pair = (size == 2) & gives & takes
    return (
        found.join(counts, on="rank")
        .filter(follows)
        .sort("rank", "start_ns", "row")
        .with_columns(
            sends=gives & ((size == 1) | (pair & (place == 0))), receives=takes & ((size == 1) | (pair & (place == 1)))
        )
    )
