"""Who was late for each transfer: the sender, the receiver, or neither, so that the link was slow."""

from __future__ import annotations

import numpy as np
import polars as pl

from trace_export.analysis.stragglers import ENOUGH, SLOW_LINK
from trace_export.model import INT, MESSAGES, SPAN_ID, TEXT, TIME, Profile, Schema
from trace_export.pipeline.operations import Operations
from trace_export.pipeline.step_operations import StepOperations
from trace_export.schedules.operation_types import TRANSFERS

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
    known = pl.all_horizontal(pl.col("sender_late_ns", "receiver_late_ns", "wire_ns").is_not_null())
    return parts.with_columns(late=pl.when(known).then(longest)).select(pl.col(c).cast(t) for c, t in SPLIT.items())


def links(profile: Profile, messages: pl.DataFrame) -> pl.DataFrame:
    """src_rank, dst_rank, src_stage, dst_stage, direction, transfers, sender_late_ns, receiver_late_ns, wire_ns (means
    of a transfer), median_wire_ns, peers_ns (the median of the links between the same stages, else of the direction),
    ratio, slow; the slowest first. `messages` as `split_messages` gives them."""
    stages = profile.ranks.select("rank", "stage")
    between = ["src_stage", "dst_stage", "direction"]
    median = pl.col("median_wire_ns")
    return (
        messages.drop_nulls("wire_ns")
        .group_by("src_rank", "dst_rank", "direction")
        .agg(
            pl.len().alias("transfers"), pl.col("sender_late_ns", "receiver_late_ns", "wire_ns").mean(),
            median_wire_ns=pl.col("wire_ns").median(),
        )
        .join(stages.rename({"rank": "src_rank", "stage": "src_stage"}), on="src_rank", how="left")
        .join(stages.rename({"rank": "dst_rank", "stage": "dst_stage"}), on="dst_rank", how="left")
        .with_columns(
            peers_ns=pl.when(pl.len().over(between) > 1)
            .then(median.median().over(between))
            .otherwise(median.median().over("direction"))
        )
        .with_columns(ratio=pl.when(pl.col("peers_ns") > 0).then(median / pl.col("peers_ns")))
        .with_columns(slow=((pl.col("ratio") > SLOW_LINK) & (pl.col("transfers") >= ENOUGH)).fill_null(False))
        .select(
            "src_rank", "dst_rank", *between, "transfers", "sender_late_ns", "receiver_late_ns", "wire_ns",
            "median_wire_ns", "peers_ns", "ratio", "slow",
        )
        .sort("ratio", "src_rank", "dst_rank", "direction", descending=[True, False, False, False], nulls_last=True)
    )  # fmt: skip


INPUTS: Schema = {
    "id": SPAN_ID, "from_rank": INT, "sender_late_ns": TIME, "receiver_late_ns": TIME, "wire_ns": TIME,
}  # fmt: skip
"""The transfer that brought a block its input, of two the one that ended last; of recorded transfers only."""


def block_inputs(profile: Profile, operations: StepOperations) -> pl.DataFrame:
    """The table `INPUTS` of all steps."""
    parts = [_inputs_of(profile, one) for one in operations.all]
    found = pl.concat([pl.DataFrame(schema={**INPUTS, "ended": TIME}), *parts])
    return found.sort("ended").unique("id", keep="last", maintain_order=True).drop("ended")


def _inputs_of(profile: Profile, operations: Operations) -> pl.DataFrame:
    consumers: dict[int, list[int]] = {}
    for block, needed in enumerate(operations.graph.waits):
        for operation in needed:
            consumers.setdefault(operation, []).append(block)
    pairs = [g for g in operations.graph.groups if len(g) == 2 and all(operations.types[i] in TRANSFERS for i in g)]
    rows = [
        (send, receive, block)
        for send, receive in (sorted(pair, key=lambda i: TRANSFERS[operations.types[i]][0] == "recv") for pair in pairs)
        for block in consumers.get(receive, ()) if operations.span[block, 0, 0] >= 0
    ]  # fmt: skip
    sends, receives, blocks = np.array(rows, np.int64).reshape(-1, 3).T
    start, end = operations.start_ns, operations.end_ns
    sent, posted, ended = start[sends], start[receives], end[receives]
    sender = np.broadcast_to(operations.ranks[:, operations.stage[sends]].T[:, :, None], sent.shape)
    columns = {
        "from_rank": sender, "sender_late_ns": np.maximum(sent - posted, 0),
        "receiver_late_ns": np.maximum(posted - sent, 0), "wire_ns": ended - np.maximum(sent, posted),
        "ended": ended + operations.origin_ns,
    }  # fmt: skip
    ids = profile.spans["id"].gather(operations.span[blocks].reshape(-1))
    made = pl.DataFrame({"id": ids, **{name: values.reshape(-1) for name, values in columns.items()}})
    return made.select(pl.col(name).cast(dtype) for name, dtype in [*INPUTS.items(), ("ended", TIME)])
