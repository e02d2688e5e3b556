"""Communication operators of an Ascend rank → its sides of point-to-point transfers, and its parts of collectives.

An operator is called `hcom_{what}__{last 3 digits of the group's hash}_{index}_1`. The index counts the group's
operators on that rank since its process began, so for a collective it is the same on all ranks, whenever their
captures began; so it is for transfers in a group of two.
"""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from trace_export.model import COLLECTIVES, INT, P2P, TEXT, TIME, Schema, conform
from trace_export.sources.ascend.metadata import Metadata

OPERATORS: Schema = {"op": TEXT, "group": TEXT, "start_ns": TIME, "end_ns": TIME, "bytes": TIME}
"""One operator; `op` its whole name, `group` the decimal hash of its group, null where the source does not have it."""

COPIES: Schema = {"op": TEXT, "group": TEXT, "peer": INT, "remote": TIME, "local": TIME}
"""The data that a point-to-point operator moved: `remote` bytes read from the member `peer` of the group (its place in
it), and `local` bytes moved on this rank. Each is null where the source does not have it."""

SLACK_BYTES = 1024
"""Local copies hold a few bytes of bookkeeping besides the data sent."""

_NAME = r"^(?:hcom_)?([A-Za-z]+?)_*_(\d+)_(\d+)_\d+$"
_TRANSFERS = {"send": "send", "receive": "recv", "recv": "recv", "batchsendrecv": "both"}


def tables(
    operators: pl.DataFrame, copies: pl.DataFrame, ranks: Sequence[tuple[Metadata, int]]
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """(p2p, collectives) as in model.P2P and model.COLLECTIVES from `OPERATORS` and `COPIES`, both with a column
    `capture` (see marker_blocks.CAPTURE), which becomes the rank. `ranks`: metadata and rank of each capture."""
    named = (
        operators.sort("start_ns", "op", maintain_order=True)
        .rename({"op": "whole_name"})
        .join(_parsed(operators["op"].unique()), on="whole_name", how="left", maintain_order="left")
        .with_columns(pl.col("group").fill_null(pl.col("digits")), rank="capture")
    )
    collectives = named.filter(pl.col("role").is_null())
    p2p = _sides(named.filter(pl.col("role").is_not_null()), copies, ranks)
    return conform(p2p, P2P), conform(collectives, COLLECTIVES)


def _parsed(names: pl.Series) -> pl.DataFrame:
    """For each of the `names`, which differ: whole_name, op (what is done), digits (of the group's hash), sequence, and
    role, null for a collective."""
    groups = pl.col("whole_name").str.extract_groups(_NAME).struct.rename_fields(["what", "digits", "index"])
    parts = pl.DataFrame({"whole_name": names}).with_columns(groups.alias("n")).unnest("n")
    what = pl.coalesce("what", "whole_name")
    role = what.str.to_lowercase().str.replace("^hccl_?", "").replace_strict(_TRANSFERS, default=None)
    sequence = pl.col("index").cast(TIME, strict=False)
    return parts.select("whole_name", "digits", op=what, sequence=sequence, role=role)


def _sides(transfers: pl.DataFrame, copies: pl.DataFrame, ranks: Sequence[tuple[Metadata, int]]) -> pl.DataFrame:
    """One row per operator and peer, with the peer's global rank and what a batch really did.

    The receiver reads the sender's memory. So an operator received when it copied from another rank; what it copied
    locally beyond that it sent. Seen on real captures, in both directions.
    """
    key = ["capture", "whole_name", "group"]
    moved = _single(copies.rename({"op": "whole_name"}), transfers, key)
    remote, local = pl.col("remote").fill_null(0), pl.col("local").fill_null(0)
    sends = (local - remote > SLACK_BYTES) | (remote == 0)
    observed = pl.when(remote == 0).then(pl.lit("send")).when(sends).then(pl.lit("both")).otherwise(pl.lit("recv"))
    seen = pl.col("remote").is_not_null() & (remote + local > SLACK_BYTES)
    sides = transfers.join(moved, on=key, how="left", maintain_order="left_right")
    peers = ["capture", "group", "peer"]
    return (
        sides.with_columns(
            role=pl.when((pl.col("role") == "both") & seen).then(observed).otherwise("role"),
            bytes=pl.when(seen).then(pl.max_horizontal(remote, local - remote)).otherwise("bytes"),
        )
        .join(_members(sides, ranks), on=peers, how="left", maintain_order="left", nulls_equal=True)
        .with_columns(peer="global")
    )


def _single(copies: pl.DataFrame, transfers: pl.DataFrame, key: list[str]) -> pl.DataFrame:
    """Without the `copies` of several peers that several `transfers` share: nobody can say whose they are."""
    several = copies.select(key).is_duplicated()
    if not several.any():
        return copies
    shared = transfers.select(key).filter(transfers.select(key).is_duplicated())
    return pl.concat(
        [copies.filter(~several), copies.filter(several).join(shared, on=key, how="anti", maintain_order="left")]
    )


def _members(sides: pl.DataFrame, ranks: Sequence[tuple[Metadata, int]]) -> pl.DataFrame:
    """capture, group, peer (its place in the group, or null), global (its global rank) of the `sides`. Where the source
    does not name the peer, the only other member of the group is it."""
    rows = []
    for capture, group, peer in sides.select("capture", "group", "peer").unique().drop_nulls("group").iter_rows():
        meta, rank = ranks[capture]
        members = meta.members(group)
        others = [member for member in members if member != rank] if len(members) <= 2 else []
        named = members[peer] if peer is not None and 0 <= peer < len(members) else rank
        rows.append((capture, group, peer, named if named != rank else others[0] if len(others) == 1 else None))
    return pl.DataFrame(rows, schema={"capture": INT, "group": TEXT, "peer": INT, "global": INT}, orient="row")
