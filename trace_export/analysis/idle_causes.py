"""What the idle stretches between a rank's blocks are due to: missing data, their transfer, or the rank itself."""

from __future__ import annotations

import numpy as np
import polars as pl

from trace_export.model import RANK_STEP_KEY, TIME, WORD, Profile
from trace_export.schedules.schedule import virtual_stage

CAUSES = {
    "warm_up": "warm-up",
    "forward": "waiting for forward",
    "backward": "waiting for backward",
    "transfer": "exposed transfer",
    "late": "late start",
    "unknown": "unknown cause",
    "optimizer": "optimizer tail",
    "cool_down": "cool-down",
}
"""What idle time is due to, by the stem of its column (`warm_up_ns`):

warm-up: before the rank's first block; cool-down: after its last; optimizer tail: the part of that in which its
optimizer runs; waiting for forward, for backward: the block of another rank on which the next one depends, and which
passes on activations or gradients, has not ended yet; exposed transfer: it has, and nothing runs until the data are
here; late start: nothing is missing, but the block does not start (host, scheduler, data loader); unknown: the block
before was not read, or has no number."""

INNER = ["forward_ns", "backward_ns", "transfer_ns", "late_ns", "unknown_ns"]
"""The columns of the causes between a rank's blocks."""


def producers_of(profile: Profile) -> pl.DataFrame:
    """made_ns, producer, direction for each row of `spans`: when the last of the block's inputs from another rank was
    made, and where; null where it has none."""
    edges = profile.edge_rows()
    rank, end = profile.spans["rank"].to_numpy(), profile.spans["end_ns"].to_numpy()
    maker, onward = np.full(len(rank), -1, np.int64), np.zeros(len(rank), np.bool_)
    for direction in ("F", "B"):
        chosen = edges.filter(pl.col("direction") == direction)
        src, dst = chosen["src"].to_numpy(), chosen["dst"].to_numpy()
        later = (rank[src] != rank[dst]) & ((maker[dst] < 0) | (end[src] > end[maker[dst]]))
        maker[dst[later]] = src[later]
        onward[dst[later]] = direction == "F"
    known = pl.Series(maker >= 0)
    return pl.select(
        made_ns=pl.when(known).then(pl.Series(end[maker])),
        producer=pl.when(known).then(pl.Series(rank[maker])),
        direction=pl.when(known).then(pl.when(pl.Series(onward)).then(pl.lit("F")).otherwise(pl.lit("B"))).cast(WORD),
    )


def ended_by(gaps: pl.DataFrame, profile: Profile, producers: pl.DataFrame) -> pl.DataFrame:
    """`gaps` with the block that ends each, and when its input was made, and where."""
    columns = [*RANK_STEP_KEY, "kind", "chunk", "chunk_b", "start_ns"]
    return pl.concat([gaps, profile.spans.select(columns)[gaps["row"]], producers[gaps["row"]]], how="horizontal")


def receives_before(parts: list[pl.DataFrame], profile: Profile, producers: pl.DataFrame) -> pl.DataFrame:
    """row, recv_start_ns, recv_end_ns: for the gaps of all `parts` the last receive of the data that the block needs,
    begun before the gap ends; not of gaps before which the data were not made."""
    if profile.messages.is_empty():
        return pl.DataFrame(schema={"row": pl.UInt32(), "recv_start_ns": TIME, "recv_end_ns": TIME})
    of = ["row", "producer", "direction"]
    wanted = pl.concat([
        ended_by(gaps, profile, producers).filter(pl.col("made_ns") <= pl.col("idle_ns")).select(*of, "start_ns")
        for gaps in parts
    ])  # fmt: skip
    received = profile.message_rows().select(
        "recv_start_ns", "recv_end_ns", "direction", row="dst", producer="src_rank"
    )
    found = received.join(wanted, on=of).filter(pl.col("recv_start_ns") <= pl.col("start_ns"))
    last = found.sort("recv_start_ns").unique("row", keep="last", maintain_order=True)
    return last.select("row", "recv_start_ns", "recv_end_ns")


def split_by_cause(gaps: pl.DataFrame, profile: Profile) -> pl.DataFrame:
    """`gaps` with forward_ns, backward_ns, transfer_ns, late_ns, unknown_ns, whose sum is the gap, and moving_ns, when
    the transfer begins, where that is recorded.

    They have usual_ns, how long a transfer on the link usually takes once data were made, and the receive of
    `receives_before`.
    """
    idle, start, made = pl.col("idle_ns"), pl.col("start_ns"), pl.col("made_ns")
    known = made.is_not_null()
    gaps = pl.concat([gaps.filter(known).with_columns(lacks=False), _lacks(gaps.filter(~known), profile)])
    unknown = pl.when("lacks").then(start - idle).otherwise(0)
    waiting = pl.when(known).then((pl.min_horizontal(start, made) - idle).clip(0)).otherwise(0)
    # Data that were made before the rank fell idle are here when their receive ends; where that is not recorded, when
    # a transfer on this link usually ends.
    here = pl.when(made > idle).then(start).otherwise(made + pl.col("usual_ns").fill_null(0))
    estimated = pl.min_horizontal(start, here) - pl.max_horizontal(idle, made)
    recorded = pl.min_horizontal(start, "recv_end_ns") - pl.max_horizontal(idle, "recv_start_ns")
    is_recorded = pl.col("recv_end_ns").is_not_null() & (recorded > 0)
    transfer = pl.when(is_recorded).then(recorded).when(known).then(estimated.clip(0)).otherwise(0)
    return gaps.with_columns(
        unknown_ns=unknown,
        forward_ns=pl.when(pl.col("direction") == "F").then(waiting).otherwise(0),
        backward_ns=pl.when(pl.col("direction") == "B").then(waiting).otherwise(0),
        transfer_ns=transfer,
        moving_ns=pl.when(is_recorded).then(pl.max_horizontal(idle, "recv_start_ns")),
    ).with_columns(late_ns=start - idle - pl.sum_horizontal("unknown_ns", "forward_ns", "backward_ns", "transfer_ns"))


def _lacks(gaps: pl.DataFrame, profile: Profile) -> pl.DataFrame:
    """`gaps` with `lacks`: whether the block, of which no producer is known, must have one on another rank."""
    placement = profile.interpreted.placement
    stages, chunks = (
        frame[c].drop_nulls().to_numpy() for frame, c in ((profile.ranks, "stage"), (profile.spans, "chunk"))
    )
    count = max(int(stages.max()) + 1 if len(stages) else 1, profile.declared.pp or 1)  # the last may not be read
    count += bool(profile.declared.deeper)
    last = count * (int(chunks.max()) + 1 if len(chunks) and placement != "both" else 1) - 1
    stage = pl.col("stage").fill_null(0)
    at = virtual_stage(placement, count, pl.col("chunk").fill_null(0), stage)
    at_b = virtual_stage(placement, count, pl.coalesce("chunk_b", "chunk").fill_null(0), stage)
    # A V turns round on one rank: its next chunk there needs nobody else.
    alone = pl.lit(count == 1)
    turn, turn_b = (at % count == 0, (at_b + 1) % count == 0) if placement == "vee" else (alone, alone)
    forward = pl.col("kind").is_in(["F", "FB"]) & (at > 0) & ~turn
    back = pl.col("kind").is_in(["B", "FB"]) & (at_b < last) & ~turn_b
    placed = gaps.join(profile.ranks.select("rank", "stage"), on="rank", how="left", maintain_order="left")
    return placed.with_columns(lacks=forward | back).drop("stage")
