"""Point-to-point transfers and collectives from the names of ranges (profiler-independent)."""

from __future__ import annotations

from collections.abc import Callable

import polars as pl

from trace_export.sources.ranges.blocks import with_chunks
from trace_export.sources.ranges.dialects import OPERATION_SUFFIX
from trace_export.sources.ranges.ranges import COMMUNICATION, Ranges

ALONE = {"ncclSend": "send", "ncclRecv": "recv"}
"""Calls of NCCL that are one side of a transfer."""
TOGETHER = tuple(
    f"nccl{name}"
    for name in (
        "AllGather", "AllReduce", "AlltoAll", "AlltoAllv", "AllToAll", "AllToAllv", "Bcast", "Broadcast", "Gather",
        "Reduce", "ReduceScatter", "Scatter",
    )
)  # fmt: skip
"""Calls of NCCL and RCCL that are collectives."""
KERNELS = {
    "process": pl.Int64(), "op": pl.String(), "group": pl.String(), "peer": pl.Int64(), "seq": pl.Int64(),
    "bytes": pl.Int64(), "start": pl.Int64(), "end": pl.Int64(), "device": pl.Int64(),
}  # fmt: skip
"""A kernel of NCCL with the data of the framework: what it does, the name of its group, the global rank of the other
side, and its number in the group."""
MOVES = (*ALONE, *TOGETHER)
"""Calls that move data; others (ncclGroupEnd, ncclCommInitRank) do not."""


def transfers(
    ranges: Ranges, work: pl.DataFrame, last_copies: Callable[[pl.DataFrame], pl.Series] | None = None
) -> pl.DataFrame:
    """One row per transfer: process, role, direction, microbatch, stage, chunk, op, group, member (the peer's rank in
    the group), bytes, sequence, start, end, guessed, exchange.

    `work`: the ranges with comm_start, comm_end (NCCL's kernels). A transfer lasts as long as the NCCL kernels of its
    range; where there are none, from the range's start to its end, for a receiver to its last copy, whose ends
    `last_copies` finds. The end of a repaired range is no time of a transfer, nor is that of a range whose kernels were
    lost, which is a time of the host: null. Unnumbered calls of NCCL count only outside named transfers; `guessed`:
    their direction is that of the blocks around them; `exchange`: they are part of an exchange inside a block, as of
    experts, and no transfer between stages.
    """
    named = work.filter(pl.col("role") == "p2p")
    ends = _seen_end()
    if last_copies is not None and named["comm_count"].min() == 0:
        ends = pl.coalesce(last_copies(named), ends)
    fields = [c for c in ranges.transfers.columns if c != "text"]
    ended = named.with_columns(end=pl.when("repaired").then(None).otherwise(ends))
    sides = ended.drop(fields, strict=False).join(ranges.transfers, on="text", maintain_order="left_right")
    sides, calls = with_calls(sides, work.filter(pl.col("role") == COMMUNICATION, pl.col("text").is_in(ALONE)))
    if calls.is_empty():
        both = sides.with_columns(exchange=pl.lit(False))
    else:
        directed = _with_directions(calls, work).with_columns(end=_seen_end())
        both = pl.concat([sides, directed], how="diagonal")
    unnumbered, exchange = pl.col("microbatch").is_null(), pl.col("exchange").fill_null(False)
    return with_chunks(both, ranges).select(
        "process",
        *fields,
        "group",
        "bytes",
        member="peer",
        op=pl.col("text").str.replace(OPERATION_SUFFIX + "$", ""),
        sequence=pl.when(unnumbered & ~exchange).then(
            pl.int_range(pl.len()).over("process", "group", "role", "direction", unnumbered, exchange)
        ),
        start=pl.coalesce("comm_start", "start"),
        end=pl.coalesce("comm_end", "end"),
        guessed=(pl.col("text").is_in(list(ALONE)) & pl.col("direction").is_not_null()),
        exchange=exchange,
    )


def _with_directions(calls: pl.DataFrame, work: pl.DataFrame) -> pl.DataFrame:
    """NCCL's own sends and receives between two blocks: the previous block made the data that are sent, the next block
    needs those that are received. Calls inside blocks may be an all-to-all of experts, and with several chunks a
    receive may be for any later block: they keep no direction. Inside a block a stage receives before it sends; what
    lies between the first send and the last receive is an `exchange`.
    """
    kind = pl.when(pl.col("kind").is_in(["F", "B"])).then("kind")
    single = (pl.col("chunk").max().fill_null(0) == 0) & (pl.col("stage").n_unique() <= 1)
    blocks = work.filter(pl.col("role") == "block").filter(single.over("process")).sort("start", "end")
    until, made = pl.col("end").cum_max().over("process"), kind.forward_fill().over("process")
    before = blocks.select("process", "start", block="id", until=until, made=made)
    after = blocks.select("process", "start", wanted=kind).drop_nulls()
    between_blocks = (
        calls.drop("direction", strict=False)
        .sort("start")
        .join_asof(before, on="start", by="process", check_sortedness=False)
        .join_asof(after, on="start", by="process", strategy="forward", check_sortedness=False)
    )
    between = pl.col("until").is_null() | (pl.col("start") >= pl.col("until"))
    direction = pl.when(between).then(pl.when(pl.col("role") == "send").then("made").otherwise("wanted"))
    return between_blocks.with_columns(_exchange(~between), direction=direction).sort("id")


def _exchange(inside: pl.Expr) -> pl.Expr:
    """Whether a call `inside` a block lies between the first send and the last receive of that block."""
    start, of = pl.col("start"), ["process", "block"]
    first = start.filter(inside, pl.col("role") == "send").min().over(of)
    last = start.filter(inside, pl.col("role") == "recv").max().over(of)
    return (inside & (start >= first) & (start <= last)).fill_null(False).alias("exchange")


def with_calls(sides: pl.DataFrame, calls: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """The named transfers, and the NCCL calls that belong to none of them.

    A call belongs to the last transfer of its role that its thread began before, when it lies inside. The end of a
    repaired range is unknown: there it belongs in any case, and the transfer has the times of its kernels.
    """
    if calls.is_empty():
        return sides, calls
    calls = calls.with_columns(role=pl.col("text").replace_strict(ALONE, return_dtype=pl.String))
    begun = sides.select("process", "thread", "role", "start", "end", "repaired", transfer="id")
    by = ["process", "thread", "role"]
    owned = calls.sort("start").join_asof(begun.sort("start"), on="start", by=by, suffix="_of", check_sortedness=False)
    first = owned.filter("repaired_of").unique("transfer", keep="first", maintain_order=True)
    first = first.select("role", "comm_start", "comm_end", id="transfer")
    sides = sides.join(first, on=["id", "role"], how="left", suffix="_of_call", maintain_order="left").with_columns(
        pl.coalesce(c, f"{c}_of_call").alias(c) for c in ("comm_start", "comm_end")
    )
    free = pl.col("transfer").is_null() | (~pl.col("repaired_of") & (pl.col("start") >= pl.col("end_of")))
    return sides, owned.filter(free).sort("id").select(calls.columns)


def collectives(work: pl.DataFrame) -> pl.DataFrame:
    """One row per NCCL collective: process, group, bytes, op, sequence, start, end; the k-th of its name in the group
    and process. Where the communicator is not in the file, equal names in different groups cannot be distinguished.
    """
    calls = work.filter((pl.col("role") == COMMUNICATION) & pl.col("text").is_in(TOGETHER))
    position = pl.int_range(pl.len()).over("process", "group", "text")
    times = {"start": pl.coalesce("comm_start", "start"), "end": pl.coalesce("comm_end", _seen_end())}
    return calls.select("process", "group", "bytes", op="text", sequence=position, **times)


def _seen_end() -> pl.Expr:
    """The end of a range as that of what it moved: null where the kernels that it launched are not in the file."""
    return pl.when(pl.col("lost_count") > 0).then(None).otherwise("end")


def transfers_of(kernels: pl.DataFrame) -> pl.DataFrame:
    """The sends and receives among `KERNELS`: process, role, peer, group, sequence, op, bytes, start, end.

    The k-th of its group, side and peer in the process; a batch of several is one kernel that names none, and left out.
    """
    sides = kernels.filter(pl.col("op").is_in(["send", "recv"]) & pl.col("peer").is_not_null())
    sides = sides.sort("start", maintain_order=True)
    position = pl.int_range(pl.len()).over("process", "group", "op", "peer")
    return sides.select("process", "peer", "group", "op", "bytes", "start", "end", role="op", sequence=position)


def collectives_of(kernels: pl.DataFrame) -> pl.DataFrame:
    """All other `KERNELS` that have a name: process, group, sequence, op, bytes, start, end.

    PyTorch's own sequence number of the group where all of a process have one, else the k-th of its group and name.
    """
    rest = kernels.filter(
        pl.col("op").is_not_null() & ~pl.col("op").str.contains("^(?i:send|recv|sendrecv|coalesced)$")
    )
    rest = rest.sort("start", maintain_order=True)
    numbered = pl.col("seq").is_not_null().all().over("process")
    position = pl.int_range(pl.len()).over("process", "group", "op")
    sequence = pl.when(numbered).then("seq").otherwise(position).alias("sequence")
    return rest.select("process", "group", sequence, "op", "bytes", "start", "end")
