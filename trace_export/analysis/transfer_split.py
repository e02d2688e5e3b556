"""Who was late for each transfer: the sender, the receiver, or neither, so that the link was slow."""

from __future__ import annotations

import polars as pl

from trace_export.model import INT, MESSAGES, SPAN_ID, TEXT, TIME, Profile, Schema
from trace_export.steps.recorded import Recorded

SPLIT: Schema = {
    **MESSAGES, "direction": TEXT, "sender_late_ns": TIME, "receiver_late_ns": TIME, "late": TEXT,
}  # fmt: skip
"""A message (`model.MESSAGES`) with the other parts of its time: `sender_late_ns`, in which only the receiver was
there; `receiver_late_ns`, in which only the sender was; `wire_ns`, from when both were there to the end of the receive.
`late`: the longest of them, `sender`, `receiver` or `wire`. In 1F1B a receiver is usually late because it computes;
only the wire time is that of the link."""


def split_messages(messages: pl.DataFrame) -> pl.DataFrame:
    """`messages` with their parts; null where a time was not recorded."""
    sent, posted = pl.col("send_start_ns"), pl.col("recv_start_ns")
    parts = messages.with_columns(
        sender_late_ns=(sent - posted).clip(0), receiver_late_ns=(posted - sent).clip(0)
    )  # fmt: skip
    sender, receiver, wire = (pl.col(f"{part}_ns") for part in ("sender_late", "receiver_late", "wire"))
    longest = (
        pl.when(wire >= pl.max_horizontal(sender, receiver)).then(pl.lit("wire"))
        .when(sender > receiver).then(pl.lit("sender")).when(receiver > sender).then(pl.lit("receiver"))
    )  # fmt: skip
    timed = pl.all_horizontal(pl.col("sender_late_ns", "receiver_late_ns", "wire_ns").is_not_null())
    return parts.with_columns(late=pl.when(timed).then(longest)).select(pl.col(c).cast(t) for c, t in SPLIT.items())


def links(profile: Profile, messages: pl.DataFrame) -> pl.DataFrame:
    """src_rank, dst_rank, src_stage, dst_stage, direction, transfers, sender_late_ns, receiver_late_ns, wire_ns (means
    of a transfer), median_wire_ns; the slowest first. `messages` as `split_messages` gives them."""
    stages = profile.ranks.select("rank", "stage")
    return (
        messages.drop_nulls("wire_ns")
        .group_by("src_rank", "dst_rank", "direction")
        .agg(
            pl.len().alias("transfers"), pl.col("sender_late_ns", "receiver_late_ns", "wire_ns").mean(),
            median_wire_ns=pl.col("wire_ns").median(),
        )
        .join(stages.rename({"rank": "src_rank", "stage": "src_stage"}), on="src_rank", how="left")
        .join(stages.rename({"rank": "dst_rank", "stage": "dst_stage"}), on="dst_rank", how="left")
        .select(
            "src_rank", "dst_rank", "src_stage", "dst_stage", "direction", "transfers", "sender_late_ns",
            "receiver_late_ns", "wire_ns", "median_wire_ns",
        )
        .sort("median_wire_ns", "src_rank", "dst_rank", "direction", descending=[True, False, False, False])
    )  # fmt: skip


INPUTS: Schema = {
    "id": SPAN_ID, "from_rank": INT, "sender_late_ns": TIME, "receiver_late_ns": TIME, "wire_ns": TIME,
}  # fmt: skip
"""The recorded transfer that brought a block its input; of two the one that ended last."""


def block_inputs(recorded: Recorded) -> pl.DataFrame:
    """The table `INPUTS` of all steps."""
    sent, posted, ended = pl.col("sent"), pl.col("received"), pl.col("arrived")
    last = (
        recorded.edges.drop_nulls("arrived")
        .sort("arrived", maintain_order=True)
        .unique("dst", keep="last", maintain_order=True)
    )
    spans = recorded.blocks.select(pl.col("span").alias("id"), dst="row")
    return last.join(spans, on="dst", maintain_order="left").select(
        "id", from_rank="src_rank", sender_late_ns=(sent - posted).clip(0), receiver_late_ns=(posted - sent).clip(0),
        wire_ns=ended - pl.max_horizontal(sent, posted),
    ).cast(INPUTS)  # type: ignore[arg-type]  # fmt: skip
