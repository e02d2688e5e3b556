"""Infers the direction and micro-batch of a message from the block before its send and the block after its receive."""

from __future__ import annotations

from dataclasses import replace

import polars as pl

from trace_export.model import MESSAGES, Note, Profile, conform
from trace_export.tolerances import GRID_NS

CHANNEL = ["src_rank", "dst_rank"]
LABELS = ("direction", "microbatch", "chunk")


def label(profile: Profile) -> Profile:
    """`profile` with direction, microbatch and chunk (the receiver's) of messages that lack the micro-batch.

    Each end names a pair of blocks, by its own rank's clock: the producer is the block that ended last before the send,
    of those on which the other rank depends; the consumer the block that starts next after the receive, of those that
    depend on the other rank. A message gets its labels only where both ends name the same pair of blocks, no other
    message does, and the direction, where it is known, is the same; a note counts them. Needs `interpretation`.
    """
    met = (
        profile.messages.lazy().with_row_index("row").filter(pl.col("microbatch").is_null())
        .select("row", *CHANNEL, "send_start_ns", "recv_end_ns", known="direction").collect()
    )  # fmt: skip
    if profile.evaluations.height:
        met = _of_steps(met, profile)
    if met.is_empty():
        return profile
    pairs = _pairs(profile)
    for name, own, theirs, strategy in (
        ("sent", "send_start_ns", pl.col("produced_ns") - GRID_NS, "backward"),
        ("received", "recv_end_ns", pl.col("consumed_ns") + GRID_NS, "forward"),
    ):
        side = pairs.select(*CHANNEL, pl.col("pair").alias(name), theirs.alias(own)).sort(own)
        met = met.sort(own).join_asof(side, on=own, by=CHANNEL, strategy=strategy, check_sortedness=False)  # type: ignore[arg-type]
    sure = met.filter((pl.col("sent") == pl.col("received")) & ~pl.col("sent").is_duplicated())
    found = sure.select("row", "known", pair="sent").join(pairs.select("pair", *LABELS), on="pair")
    found = found.filter((pl.col("known") == pl.col("direction")).fill_null(True)).drop("known", "pair")
    if found.is_empty():
        return profile
    found = found.rename({name: f"{name}_found" for name in LABELS})
    rows = pl.select(row=pl.int_range(profile.messages.height, dtype=pl.UInt32))
    rows = rows.join(found, on="row", how="left", maintain_order="left").drop("row")
    filled = profile.messages.hstack(rows).with_columns(
        pl.coalesce(name, f"{name}_found").alias(name) for name in LABELS
    )
    text = "messages: micro-batch and direction inferred from the blocks before the send and after the receive"
    note = Note("message-labels-inferred", "detail", text, count=found.height)
    return replace(profile, messages=conform(filled, MESSAGES)).with_notes([note])


def _of_steps(messages: pl.DataFrame, profile: Profile) -> pl.DataFrame:
    """The `messages` before which the sender's last forward or backward is of a step and not of an evaluation."""
    last = profile.blocks.filter(pl.col("kind") != "OPT").select(
        src_rank="rank", send_start_ns=pl.col("end_ns") - GRID_NS, step="step"
    )  # fmt: skip
    made = messages.sort("send_start_ns").join_asof(
        last.sort("send_start_ns"), on="send_start_ns", by="src_rank", check_sortedness=False
    )
    return made.filter(pl.col("step").is_not_null()).drop("step")


def _pairs(profile: Profile) -> pl.DataFrame:
    """A row per edge between two ranks: pair (its number), src_rank, dst_rank, direction, produced_ns (end of the
    producer), consumed_ns (start of the consumer), and the latter's microbatch and chunk."""
    edges, spans = profile.edge_rows(), profile.spans
    edges = edges.filter(spans["rank"].gather(edges["src"]) != spans["rank"].gather(edges["dst"]))
    src, dst = edges["src"], edges["dst"]
    backward = (edges["direction"] == "B") & (spans["kind"].gather(dst) == "FB")
    return pl.DataFrame(
        {
            "src_rank": spans["rank"].gather(src), "dst_rank": spans["rank"].gather(dst),
            "direction": edges["direction"],
            "produced_ns": spans["end_ns"].gather(src), "consumed_ns": spans["start_ns"].gather(dst),
            **{
                name: spans[f"{name}_b"].gather(dst).zip_with(backward.fill_null(False), spans[name].gather(dst))
                for name in ("microbatch", "chunk")
            },
        }
    ).with_row_index("pair")  # fmt: skip
