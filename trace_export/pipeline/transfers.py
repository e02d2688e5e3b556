"""Completes point-to-point transfers: the ranks that a source's numbers mean (`name_peers`), the ends that can be
(`with_possible_ends`), whether a kernel sends, receives or does both (`split_fused`), the block to which each side
belongs (`label`) and its step (`in_steps`), and who is on the other side (`find_peers`).

A rank sends the result of the previous block and receives the input of the next one, among those that give or take
anything: `F3 send recv B0` on a middle stage sends the result of F3 and receives the gradients for B0. On the last
stage `F3 B3` passes nothing on, so a send after B3 belongs to B3.
"""

from __future__ import annotations

from dataclasses import replace

import polars as pl

from trace_export.model import INT, P2P, Note, Profile, conform
from trace_export.ordering import ordered
from trace_export.pipeline.stages import depth
from trace_export.schedules.passes import PAIRS
from trace_export.schedules.schedule import virtual_stage
from trace_export.tolerances import GRID_NS, OVERLAP_NS

LABELS = ("direction", "microbatch", "chunk")
_NUMBERS = ["kind", "microbatch", "chunk"]
NO_STEP = -1
"""In place of the step of an evaluation's forward, which is null: to have no step is not to have an unknown one."""
FEW, LONG = 3, 2
"""Of more than this many transfers one that takes this many times as long as all others may have a wrong end."""
BEFORE_IT = pl.max_horizontal(pl.col("start_ns") - pl.col("begun"), OVERLAP_NS)
_SILENT = (pl.col("role") == "both") & pl.col("peer").is_null() & pl.col("direction").is_null()


def name_peers(profile: Profile) -> Profile:
    """`profile` with `p2p.peer` where the source says its number in the group: the rank that has this number in any
    source. A number that two ranks claim is nobody's."""
    names = profile.members.unique(["group", "member"], keep="none").rename({"rank": "named"})
    if names.is_empty():
        return profile
    named = profile.p2p.join(names, on=["group", "member"], how="left", maintain_order="left")
    return replace(profile, p2p=conform(named.with_columns(peer=pl.coalesce("peer", "named")), P2P))


def with_possible_ends(profile: Profile) -> Profile:
    """`profile`, in which no transfer takes twice as long as all others between the same ranks and ends after the next
    one of them has begun, or, if it is the last, takes longer than all that its rank did before: one after the other
    uses their channel, so that the end is a wrong record, and would move the clock of a host by as much. A receive ends
    as late as it can instead, and a send as soon: then neither says more of the clocks than is true. Transfers with
    neither a peer nor a direction may be of several channels, and stay as they are."""
    channel = ("rank", "group", "role", "peer", "direction")
    rows = profile.p2p.with_row_index("row").filter(pl.any_horizontal(pl.col("peer", "direction").is_not_null()))
    rows = rows.select("row", *channel, "start_ns", "end_ns", length=pl.col("end_ns") - pl.col("start_ns"))
    two = pl.col("length").top_k(2)
    lengths = rows.group_by(channel).agg(
        least=pl.col("length").min(), usual=two.min(), most=two.max(), number=pl.col("length").count()
    )
    odd = lengths.filter(pl.col("number") > FEW, pl.col("most") > LONG * pl.col("usual"))
    if odd.is_empty():
        return profile
    of_odd = rows.join(odd, on=channel, nulls_equal=True).sort("start_ns", "row")
    of_odd = of_odd.join(rows.group_by("rank").agg(begun=pl.col("start_ns").min()), on="rank", maintain_order="left")
    next_ns = pl.col("start_ns").shift(-1).over(channel)
    past = (pl.col("end_ns") - next_ns > OVERLAP_NS) | (next_ns.is_null() & (pl.col("length") > BEFORE_IT))
    latest = pl.coalesce(next_ns, pl.col("start_ns") + pl.col("usual"))
    soonest = pl.min_horizontal(latest, pl.col("start_ns") + pl.col("least"))
    wrong = of_odd.with_columns(past=past, end=pl.when(role="send").then(soonest).otherwise(latest))
    wrong = wrong.filter("past", pl.col("length") == pl.col("most"))
    if wrong.is_empty():
        return profile
    ends = wrong.select("row", "end")
    cut = profile.p2p.with_row_index("row").join(ends, on="row", how="left", maintain_order="left")
    text = "transfers that end after the next one between the same ranks began, cut: when they ended is unknown"
    where = profile.ranks.filter(pl.col("rank").is_in(wrong["rank"].implode()))["source"].drop_nulls()
    note = Note("tasks-past-next", "warning", text, where[0] if len(where) else "", len(wrong))
    cut = conform(cut.with_columns(end_ns=pl.coalesce("end", "end_ns")), P2P)
    return replace(profile, p2p=cut).with_notes([note])


def split_fused(profile: Profile) -> Profile:
    """`profile`, where kernels of `p2p` that name nothing become sends and receives with direction and micro-batch.

    Between two blocks of a rank the result of the first is sent and the input of the second received: by one kernel, or
    by one each in this order. A kernel that does both ends with the later one. That is also when the kernel of the
    other rank ends, if both exchange with each other; where some kernel does something else, no transfer has an end,
    and none is paired as a message. A gap with more kernels than that stays as it is, as does a kernel that
    overlaps a block. In a pipeline with several chunks a kernel stays one, too, and has a direction at most (see
    `_directed`). Needs the blocks' micro-batches and the stage of `ranks`.

    Example: on a middle stage `F3 kernel B0` is the send of F3 and the receive of B0; on the last stage `F3 B3` has
    none, and `B3 kernel F4` sends B3 and receives F4.
    """
    rows = profile.p2p.with_row_index("row")
    silent = rows.filter(_SILENT)
    if silent.is_empty() or profile.spans.select(PAIRS.any()).item():
        return profile
    if (profile.spans["chunk"].fill_null(0) != 0).any() or profile.declared.placement == "vee":
        return _directed(profile, silent)
    gaps = _gaps(silent, _blocks(profile).join(profile.ranks.drop_nulls("stage"), on="rank", how="semi"))
    parts = [
        gaps.filter(wanted).select("row", role=pl.lit(role), direction=f"kind_{side}", microbatch=f"microbatch_{side}",
                                   chunk=f"chunk_{side}")
        for role, side, wanted in (("send", "before", "sends"), ("recv", "after", "receives"))
    ]  # fmt: skip
    sides = pl.concat(parts)
    exchanged = _exchanged(sides.join(rows.select("row", "rank"), on="row"), profile.ranks)
    end = pl.col("end_ns") if exchanged else pl.lit(None, P2P["end_ns"])
    named = (
        rows.drop("role", "direction", "microbatch", "chunk").join(sides, on="row").with_columns(end.alias("end_ns"))
    )
    rest = rows.join(sides, on="row", how="anti")
    both = pl.concat([rest, named], how="diagonal_relaxed").sort("row", "role", descending=[False, True])
    return replace(profile, p2p=conform(both, P2P))


def label(profile: Profile) -> Profile:
    """`profile` with `p2p.direction`, microbatch and chunk for transfers that lack both direction and peer.

    Transfers that do both, and ranks with overlapped pairs, are left as they are. Needs the stage of `ranks`.
    """
    rows = profile.p2p.with_row_index("row")
    pairs = profile.spans.filter(PAIRS).select("rank").unique()
    silent = rows.filter(pl.col("peer").is_null() & pl.col("direction").is_null()).join(pairs, on="rank", how="anti")
    if silent.is_empty():
        return profile
    blocks = _blocks(profile)
    labels = pl.concat([
        _with_adjacent(silent.filter(pl.col("role") == role), blocks.filter(passes), side)
        .select("row", direction=f"kind_{side}", microbatch=f"microbatch_{side}", chunk=f"chunk_{side}")
        for role, passes, side in (("send", "gives", BEFORE), ("recv", "takes", AFTER))
    ])  # fmt: skip
    joined = rows.join(labels, on="row", how="left", suffix="_found", maintain_order="left")
    filled = joined.with_columns(pl.coalesce(name, f"{name}_found").alias(name) for name in LABELS)
    return replace(profile, p2p=conform(filled, P2P))


def in_steps(profile: Profile) -> Profile:
    """`profile` with `p2p.step`: that of the last forward or backward to begin before a send, and of the first one to
    end after a receive; where the capture has none there, that of the block on the other side. Transfers that do both
    have one where the two agree, and those of evaluations none. Needs steps that the source counted: those that were
    counted on each rank from the start of its capture differ where captures are cut.

    Example: of `F0 B0 send recv F0` with a step's end after B0 the send is of that step, the receive of the next one.
    """
    if profile.p2p.is_empty() or profile.spans["step"].n_unique() < 2:
        return profile
    columns = ("rank", "start_ns", "end_ns")
    blocks = pl.concat([
        profile.spans.filter(pl.col("kind").is_in(["F", "B"])).select(*columns, "step"),
        profile.evaluations.select(*columns, step=pl.lit(NO_STEP, INT)),
    ])  # fmt: skip
    rows = profile.p2p.select("rank", "role", "start_ns", "end_ns").with_row_index("row")
    for step, time, strategy in (("before", "start_ns", "backward"), ("after", "end_ns", "forward")):
        near = ordered(blocks.select("rank", time, pl.col("step").alias(step)), "rank", time)
        rows = ordered(rows, "rank", time)
        rows = rows.join_asof(near, on=time, by="rank", strategy=strategy, check_sortedness=False)  # type: ignore[arg-type]
    both = pl.when(pl.col("before") == pl.col("after")).then("before")
    steps = rows.sort("row").select(
        step=pl.when(role="send").then(pl.coalesce("before", "after"))
        .when(role="recv").then(pl.coalesce("after", "before"))
        .otherwise(both)
    )  # fmt: skip
    of_step = pl.when(steps["step"] != NO_STEP).then(steps["step"])
    return replace(profile, p2p=conform(profile.p2p.with_columns(step=of_step), P2P))


def find_peers(profile: Profile) -> Profile:
    """`profile` with `p2p.peer` where role and direction are known: activations go to the next virtual stage of the
    same replica, gradients to the one before.

    Such a transfer bears the chunk that receives it, so that both sides name the same. Where chunks go round a loop and
    none is named, the last stage and the first are neighbours too. Needs the stage and replica of `ranks` and
    `Profile.interpretation`.
    """
    rows = profile.p2p.with_row_index("row")
    silent = rows.filter(pl.col("peer").is_null(), pl.col("direction").is_not_null(), pl.col("role") != "both")
    if silent.is_empty():
        return profile
    places = _virtual_stages(profile)
    onward = (pl.col("role") == "send") == (pl.col("direction") == "F")
    here = silent.with_columns(recorded=pl.col("chunk"), chunk=pl.col("chunk").fill_null(0)).join(
        places, on=["rank", "chunk"]
    )
    there = places.select("replica", "copy", other="virtual", found="rank", its_chunk="chunk")
    other, last = pl.col("virtual") + pl.when(onward).then(1).otherwise(-1), places["virtual"].max()
    if profile.interpreted.placement == "loop" and (places["chunk"] > 0).any():
        other = pl.when(pl.col("recorded").is_null()).then(other % (pl.lit(last) + 1)).otherwise(other)
    met = here.with_columns(other=other).join(there, on=["replica", "copy", "other"])
    receiving = pl.when(pl.col("role") == "send").then("its_chunk").otherwise("chunk")
    met = met.select("row", "found", receiving=pl.when(pl.col("recorded").is_not_null()).then(receiving))
    filled = rows.join(met, on="row", how="left", maintain_order="left").with_columns(
        peer=pl.coalesce("peer", "found"), chunk=pl.coalesce("receiving", "chunk")
    )
    return replace(profile, p2p=conform(filled, P2P))


def _virtual_stages(profile: Profile) -> pl.DataFrame:
    """rank, replica, chunk, virtual (its stage along the way of the data), copy of the model, of all chunks in use."""
    placement = profile.interpreted.placement
    first = pl.Series("chunk", [0], INT)  # that of a transfer which names none
    chunks = pl.concat([first, profile.spans["chunk"], profile.p2p["chunk"]]).drop_nulls().unique().to_frame()
    stages = profile.ranks["stage"].n_unique()
    stage, chunk = (pl.col(c).cast(pl.Int64) for c in ("stage", "chunk"))
    return (
        profile.ranks.select("rank", "stage", "replica")
        .drop_nulls()
        .join(chunks, how="cross")
        .with_columns(
            virtual=virtual_stage(placement, stages, chunk, stage),
            copy=pl.col("chunk") if placement == "both" else pl.lit(0, pl.Int32),
        )
    )


BEFORE, AFTER = "before", "after"


def _with_adjacent(rows: pl.DataFrame, blocks: pl.DataFrame, side: str) -> pl.DataFrame:
    """`rows` of `p2p` with what is known of the last of `blocks` on the rank to end before each, or of the first to
    start after it, as `n_before`, `kind_before` and so on."""
    at, time, strategy = {
        BEFORE: ("start_ns", pl.col("end_ns") - GRID_NS, "backward"),
        AFTER: ("end_ns", pl.col("start_ns") + GRID_NS, "forward"),
    }[side]
    facts = [pl.col(name).alias(f"{name}_{side}") for name in ("n", *_NUMBERS, "gives", "takes")]
    near = blocks.select("rank", time.alias("at"), *facts).sort("at")
    return rows.sort(at).join_asof(
        near, left_on=at, right_on="at", by="rank", strategy=strategy, check_sortedness=False  # type: ignore[arg-type]
    ).drop("at", strict=False)  # fmt: skip


def _blocks(profile: Profile) -> pl.DataFrame:
    """The forwards and backwards by rank and time: `n` (their number on the rank), and whether each `gives` something
    to another rank and `takes` something from one. In a pipeline of several chunks, and on a rank whose stage is
    unknown, each may do both."""
    placed = profile.spans.filter(pl.col("kind").is_in(["F", "B"])).join(
        profile.ranks.select("rank", "stage"), on="rank", how="left"
    )
    forward, first = pl.col("kind") == "F", pl.col("stage") == 0
    final = pl.col("stage") == depth(profile.ranks, profile.declared) - 1
    onward, back = ~(final & (not profile.declared.deeper)), ~first
    several = (placed["chunk"].fill_null(0) != 0).any()
    return placed.sort("rank", "start_ns", "end_ns", maintain_order=True).select(
        "rank", "start_ns", "end_ns", *_NUMBERS,
        n=pl.int_range(pl.len()).over("rank"),
        gives=pl.when(forward).then(onward).otherwise(back).fill_null(True) | several,
        takes=pl.when(forward).then(back).otherwise(onward).fill_null(True) | several,
    )  # fmt: skip


def _gaps(silent: pl.DataFrame, blocks: pl.DataFrame) -> pl.DataFrame:
    """The kernels that lie between two blocks that follow each other, with what is known of both (`*_before`,
    `*_after`), and whether each `sends` and `receives`.

    Example: of `F0 k F1 k k B0` on the first of two stages the first kernel sends F0, for F1 takes nothing from another
    rank; the second sends F1, and the third receives the input of B0.
    """
    kernels = silent.select("row", "rank", "start_ns", "end_ns")
    for side in (BEFORE, AFTER):
        kernels = _with_adjacent(kernels, blocks, side)
    counts = blocks.group_by("rank").agg(blocks=pl.len())
    follows = pl.col("n_after").fill_null(pl.col("blocks")) == pl.col("n_before").fill_null(-1) + 1
    gap = ["rank", pl.col("n_before").fill_null(-1)]
    gives, takes = pl.col("gives_before").fill_null(False), pl.col("takes_after").fill_null(False)
    size, index = pl.len().over(gap), pl.int_range(pl.len()).over(gap)
    pair = (size == 2) & gives & takes
    return (
        kernels.join(counts, on="rank")
        .filter(follows)
        .sort("rank", "start_ns", "row")
        .with_columns(
            sends=gives & ((size == 1) | (pair & (index == 0))), receives=takes & ((size == 1) | (pair & (index == 1)))
        )
    )


def _directed(profile: Profile, silent: pl.DataFrame) -> Profile:
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
    directed = gaps.join(around.filter(alike), on=["rank", "n"]).select("row", one_way="forward")
    rows = profile.p2p.with_row_index("row").join(directed, on="row", how="left", maintain_order="left")
    named = rows.with_columns(direction=pl.coalesce("direction", "one_way"))
    return replace(profile, p2p=conform(named, P2P))


def _exchanged(sides: pl.DataFrame, ranks: pl.DataFrame) -> bool:
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
