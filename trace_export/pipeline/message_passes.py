"""The two passes between which each message lies.

A message belongs to a dependency between two passes. Its labels name the dependency; without labels the pass before the
send and the pass after the receive do. No time of one rank is compared with one of the other.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import polars as pl

from trace_export.model import MESSAGES, Note, Profile, conform
from trace_export.ordering import ordered
from trace_export.tolerances import GRID_NS

LABELS = ("direction", "microbatch", "chunk")
RANKS_OF = ["src_rank", "dst_rank"]
PASSES_OF = ["src_pass", "dst_pass"]


def link(profile: Profile) -> Profile:
    """`profile` with src_pass, dst_pass and ready_ns of its messages, and with direction, microbatch and chunk of those
    that lack the micro-batch or the direction; a note counts these.

    A message with a micro-batch and a direction belongs to the dependency between its ranks with these labels whose
    producer began last before the send ended. Other messages belong to the dependencies between their ranks in order,
    if there are as many and all times agree: receives that were posted early end before further consumers start.
    Otherwise each end of a message names a dependency: the send the one whose producer ended last before it, the
    receive the one whose consumer starts next after it. The message gets labels only if both ends name the same one, no
    other message does, and the known direction and micro-batch are the same. Needs `interpretation`, and the blocks
    that it was made of.
    """
    messages = profile.messages.with_row_index("message")
    if messages.is_empty():
        return profile
    links = _links(profile)
    named = pl.all_horizontal(pl.col("microbatch", "direction").is_not_null())
    by_labels = _by_labels(messages.filter(named), links)
    nameless = _of_steps(messages.filter(~named), profile)
    in_turn = _in_turn(nameless, links)
    by_ends = pl.concat([in_turn, _by_ends(nameless.join(in_turn, on="message", how="anti"), links)])
    pairs = pl.concat([by_labels, by_ends])
    link_of = np.full(len(messages), len(links))
    link_of[pairs["message"].to_numpy()] = pairs["link"].to_numpy()
    chunk = pl.when("has_chunk").then("chunk")
    linked = links.select("direction", "microbatch", chunk, *PASSES_OF, "ready_ns")
    linked = pl.concat([linked, linked.clear(1)])[link_of]  # the last row: of a message that has none
    filled = profile.messages.with_columns(
        *(pl.when(named).then(c).otherwise(pl.coalesce(c, linked[c])).alias(c) for c in LABELS),
        *linked.select(*PASSES_OF, "ready_ns"),
    )
    text = "messages: micro-batch and direction inferred from the blocks before the send and after the receive"
    notes = [Note("message-labels-inferred", "detail", text, count=by_ends.height)] if by_ends.height else []
    return replace(profile, messages=conform(filled, MESSAGES)).with_notes(notes)


def _links(profile: Profile) -> pl.DataFrame:
    """A row per dependency between two ranks: link (its number), src_rank, dst_rank, direction, src_pass, dst_pass, the
    latter's microbatch and chunk (and has_chunk, whether its block has one), begun_ns and ready_ns (start and end of
    the producer), taken_ns and done_ns (start and end of the consumer)."""
    edges, blocks, passes = profile.edge_rows(), profile.spans, profile.interpreted.passes
    ends = {
        "src": {"rank": "src_rank", "start_ns": "begun_ns", "end_ns": "ready_ns"},
        "dst": {"rank": "dst_rank", "start_ns": "taken_ns", "end_ns": "done_ns"},
    }
    times = [
        blocks[name].gather(edges[end]).alias(shown) for end, names in ends.items() for name, shown in names.items()
    ]
    labels = [passes[name].gather(edges["dst_pass"]) for name in ("microbatch", "chunk")]
    has_chunk = blocks["chunk"].is_not_null().gather(edges["dst"]).alias("has_chunk")
    linked = edges.drop("src", "dst").with_columns(*times, *labels, has_chunk)
    return linked.filter(pl.col("src_rank") != pl.col("dst_rank")).with_row_index("link")


def _by_labels(messages: pl.DataFrame, links: pl.DataFrame) -> pl.DataFrame:
    """message, link: for `messages` with labels. The receive began before the consumer ended."""
    key = [*RANKS_OF, *LABELS]
    sent = messages.with_columns(pl.col("chunk").fill_null(0)).sort("send_end_ns")
    met = sent.join_asof(
        links.select("link", *key, "begun_ns", "done_ns").sort("begun_ns"), left_on="send_end_ns",
        right_on="begun_ns", by=key, strategy="backward", check_sortedness=False,
    )  # fmt: skip
    return met.filter(pl.col("recv_start_ns") <= pl.col("done_ns")).select("message", "link")


def _in_turn(messages: pl.DataFrame, links: pl.DataFrame) -> pl.DataFrame:
    """message, link: for `messages` between two ranks that are as many as the dependencies, in the same order, if each
    was sent after its producer ended and had arrived when its consumer started. Of the results of one block, the one
    that is needed first is sent first, and activations before gradients, as runtimes name the halves of a pair.
    Consumers in another order get no link."""
    sent = messages.select("message", *RANKS_OF, "direction", "microbatch", "send_start_ns", "recv_end_ns")
    made = links.select(*RANKS_OF, "link", "direction", "microbatch", "ready_ns", "taken_ns")
    made = made.with_columns(back=(pl.col("direction") != "F").cast(pl.Int8))
    as_many = sent.group_by(RANKS_OF).len().join(made.group_by(RANKS_OF).len(), on=[*RANKS_OF, "len"])
    sent, made = (side.join(as_many, on=RANKS_OF, how="semi", maintain_order="left") for side in (sent, made))
    sent = ordered(sent, *RANKS_OF, "send_start_ns")
    made = ordered(made, *RANKS_OF, "ready_ns", "taken_ns", "back").drop(RANKS_OF)
    renamed = {name: f"{name}_made" for name in ("direction", "microbatch")}
    met = pl.concat([sent, made.rename(renamed)], how="horizontal")
    alike = [pl.col(name).eq(pl.col(f"{name}_made")).fill_null(True) for name in ("direction", "microbatch")]
    in_time = (pl.col("send_start_ns") >= pl.col("ready_ns") - GRID_NS) & (
        pl.col("recv_end_ns") <= pl.col("taken_ns") + GRID_NS
    )
    in_order = (pl.col("taken_ns").diff().over(RANKS_OF) >= 0).fill_null(True)
    agrees = pl.all_horizontal(in_time, in_order, *alike).all().over(RANKS_OF)
    return met.filter(agrees).select("message", "link")


def _by_ends(messages: pl.DataFrame, links: pl.DataFrame) -> pl.DataFrame:
    """message, link: for `messages` whose two ends name the same dependency, if no other message names it."""
    met = messages.select("message", *RANKS_OF, "direction", "microbatch", "send_start_ns", "recv_end_ns")
    for name, time, theirs, strategy in (
        ("sent", "send_start_ns", pl.col("ready_ns") - GRID_NS, "backward"),
        ("received", "recv_end_ns", pl.col("taken_ns") + GRID_NS, "forward"),
    ):
        side = ordered(links.select(*RANKS_OF, pl.col("link").alias(name), theirs.alias(time)), *RANKS_OF, time)
        met = ordered(met, *RANKS_OF, time)
        met = met.join_asof(side, on=time, by=RANKS_OF, strategy=strategy, check_sortedness=False)  # type: ignore[arg-type]
    sure = met.filter((pl.col("sent") == pl.col("received")) & ~pl.col("sent").is_duplicated())
    named = links.select("direction", "microbatch")[sure["sent"]]
    alike = [(sure[name] == named[name]).fill_null(True) for name in named.columns]
    return sure.filter(alike[0] & alike[1]).select("message", link="sent")


def _of_steps(messages: pl.DataFrame, profile: Profile) -> pl.DataFrame:
    """The `messages` before which the sender's last forward or backward is of a step and not of an evaluation."""
    if profile.evaluations.is_empty():
        return messages
    last = profile.blocks.filter(pl.col("kind") != "OPT").select(
        src_rank="rank", send_start_ns=pl.col("end_ns") - GRID_NS, step="step"
    )  # fmt: skip
    made = messages.sort("send_start_ns").join_asof(
        last.sort("send_start_ns"), on="send_start_ns", by="src_rank", check_sortedness=False
    )
    return made.filter(pl.col("step").is_not_null()).drop("step")
