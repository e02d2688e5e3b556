"""What a message carries, where its source says only who sent it to whom: `tell(profile) -> Profile`."""

from __future__ import annotations

from dataclasses import replace

import polars as pl

from trace_export.model import MESSAGES, Note, Profile, conform
from trace_export.pipeline.edges import block_edges

LANE = ["src_rank", "dst_rank"]


def tell(profile: Profile) -> Profile:
    """`profile` with direction, microbatch and chunk (the receiver's) of messages that lack the micro-batch.

    A message has two witnesses, each by its own rank's clock: the block that ended last before the send, of those that
    feed the other rank, and the block that starts next after the receive, of those that the other rank feeds. Only
    where both name the same pair of blocks, and no other message does, it is filled in, if that is the direction where
    it is known; a note counts these.
    """
    silent = profile.messages.with_row_index("row").filter(pl.col("microbatch").is_null())
    if silent.is_empty():
        return profile
    pairs = _pairs(profile.spans, block_edges(profile))
    met = silent.select("row", *LANE, "send_start_ns", "recv_end_ns", known="direction")
    for name, own, theirs, strategy in (
        ("gave", "send_start_ns", "given_ns", "backward"), ("took", "recv_end_ns", "taken_ns", "forward")
    ):  # fmt: skip
        side = pairs.select(*LANE, pl.col("pair").alias(name), pl.col(theirs).alias(own)).sort(own)
        met = met.sort(own).join_asof(side, on=own, by=LANE, strategy=strategy, check_sortedness=False)  # type: ignore[arg-type]
    sure = met.filter((pl.col("gave") == pl.col("took")) & ~pl.col("gave").is_duplicated())
    names = ("direction", "microbatch", "chunk")
    found = sure.select("row", "known", pair="gave").join(pairs.select("pair", *names), on="pair")
    found = found.filter((pl.col("known") == pl.col("direction")).fill_null(True)).drop("known", "pair")
    if found.is_empty():
        return profile
    filled = profile.messages.with_row_index("row").join(
        found, on="row", how="left", suffix="_told", maintain_order="left"
    )
    filled = filled.with_columns(pl.coalesce(name, f"{name}_told").alias(name) for name in names)
    text = "messages: what they carry is inferred from the blocks before the send and after the receive"
    return replace(profile, messages=conform(filled, MESSAGES)).with_notes(
        [Note("message-labels-inferred", "note", text, count=found.height)]
    )


def _pairs(spans: pl.DataFrame, edges: pl.DataFrame) -> pl.DataFrame:
    """A row per edge between two ranks: pair (its number), src_rank, dst_rank, direction, given_ns (end of the block
    that gives), taken_ns (start of the one that takes), and the latter's microbatch and chunk."""
    giver, taker = spans[edges["src"]], spans[edges["dst"]]
    backward = (edges["direction"] == "B") & (taker["kind"] == "FB")
    numbers = taker.select(
        pl.when(backward).then(f"{name}_b").otherwise(name).alias(name) for name in ("microbatch", "chunk")
    )
    return pl.DataFrame(
        {
            "src_rank": giver["rank"],
            "dst_rank": taker["rank"],
            "direction": edges["direction"],
            "given_ns": giver["end_ns"],
            "taken_ns": taker["start_ns"],
            **{name: numbers[name] for name in numbers.columns},
        }
    ).filter(pl.col("src_rank") != pl.col("dst_rank")).with_row_index("pair")  # fmt: skip
