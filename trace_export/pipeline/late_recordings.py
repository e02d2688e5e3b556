"""The steps of ranks whose recording begins a step or more after that of the others."""

from __future__ import annotations

from dataclasses import replace

import polars as pl

from trace_export.model import INT, WORK_KINDS, Note, Profile
from trace_export.ordering import run_number
from trace_export.selection import Numbers

_MIDDLE = {"middle": (pl.col("start_ns") + pl.col("end_ns")) // 2, "length": pl.col("end_ns") - pl.col("start_ns")}


def renumbered(profile: Profile) -> Profile:
    """`profile`, of one segment, in which a rank numbers its steps as the others do at the same time. Steps are counted
    from the first one that is recorded, so that a rank whose recording lacks steps counts too low. All steps of a rank
    move alike, and only where it then runs more of them together with the rank of its host that has most.

    The same is done for all ranks of a host together, by wall clocks, where the host has as many steps less than the
    one that has most as they move: clocks that are a step apart do not change the number of steps.

    Example: rank 0 runs steps 0, 1 and 2 at 0, 50 and 100 ms. Rank 1 runs its steps 0 and 1 at 51 and 101 ms; they
    become 1 and 2.
    """
    parts = _parts(profile)
    moves = _moves(parts)
    parts = _moved(parts, moves)
    of_hosts = _moves(_of_hosts(parts, profile.hosts)).filter(pl.col("move") == pl.col("fewer"))
    if of_hosts.height:
        further = parts.select("rank", "host").unique().join(of_hosts.select(host="rank", more="move"), on="host")
        both = moves.select("rank", "move").join(further.select("rank", "more"), on="rank", how="full", coalesce=True)
        moves = both.select("rank", move=pl.col("move").fill_null(0) + pl.col("more").fill_null(0))
    if moves.is_empty():
        return profile
    ranks = Numbers.of(moves["rank"])
    whose = "its steps are" if ranks.count() == 1 else "their steps are"
    text = f"{ranks.named('rank')}: recorded from a later step on; {whose} numbered as those of others at the same time"
    note = Note("steps-renumbered", "note", text, count=moves.height)
    return replace(profile, spans=_moved(profile.spans, moves)).with_notes([note])


def _moves(parts: pl.DataFrame) -> pl.DataFrame:
    """rank, move, fewer: by how much the steps of a rank move, and how many less it has than the reference of its host.
    Only ranks whose steps move."""
    nothing = pl.DataFrame(schema={"rank": parts.schema["rank"], "move": pl.Int64, "fewer": pl.Int64})
    if not _are_apart(parts):
        return nothing
    size = parts.group_by("host", "rank").agg(steps=pl.len().cast(pl.Int64), at=pl.col("middle").min())
    first = size.sort("host", "steps", "at", "rank", descending=[False, True, False, False])
    first = first.unique("host", keep="first", maintain_order=True)
    reference = parts.join(first, on="rank", how="semi")
    longest = parts.sort("rank", "length", descending=[False, True]).unique("rank", keep="first")
    moves = (
        longest.sort("middle")
        .join_asof(
            reference.select("host", "middle", at="step").sort("middle"),
            on="middle", by="host", strategy="nearest", check_sortedness=False,
        )
        .join(size.select("rank", "steps"), on="rank")
        .join(first.select("host", most="steps"), on="host")
        .select("rank", move=(pl.col("at") - pl.col("step")).cast(pl.Int64), fewer=pl.col("most") - pl.col("steps"))
        .filter(pl.col("move") != 0)
    )  # fmt: skip
    if moves.is_empty():
        return nothing
    before, after = (_with(reference, rows) for rows in (parts, _moved(parts, moves)))
    together = (pl.Series([of.get(rank, 0) for rank in moves["rank"]], dtype=pl.Int64) for of in (before, after))
    less, more = together
    return moves.filter(more > less)


def _parts(profile: Profile) -> pl.DataFrame:
    """rank, host, step, start_ns, end_ns, middle, length: when each rank works on each step."""
    work = profile.spans.select("rank", "step", "kind", "start_ns", "end_ns")
    work = work.filter(pl.col("kind").is_in(WORK_KINDS)).drop_nulls("step")
    both = pl.col("start_ns").min(), pl.col("end_ns").max()
    parts = work.group_by(run_number("rank", "step")).agg(pl.col("rank", "step").first(), *both)
    return (
        parts.group_by("rank", "step").agg(*both)
        .join(profile.ranks.select("rank", "host"), on="rank")
        .with_columns(**_MIDDLE)
        .sort("rank", "step")
    )  # fmt: skip


def _of_hosts(parts: pl.DataFrame, hosts: pl.DataFrame) -> pl.DataFrame:
    """The same of whole hosts, each as `rank`, that show the time of day."""
    wall = hosts.filter(pl.col("epoch").is_null())["host"]
    both = pl.col("start_ns").min(), pl.col("end_ns").max()
    of_hosts = parts.filter(pl.col("host").is_in(wall.implode())).group_by(rank="host", step="step").agg(*both)
    return of_hosts.with_columns(host=pl.lit(""), **_MIDDLE).sort("rank", "step")


def _are_apart(parts: pl.DataFrame) -> bool:
    """Whether ranks of a host have no time in common in some step."""
    steps = parts.group_by("host", "step").agg(pl.col("start_ns").max(), pl.col("end_ns").min())
    return bool((steps["start_ns"] > steps["end_ns"]).any())


def _with(reference: pl.DataFrame, parts: pl.DataFrame) -> dict[int | str, int]:
    """In how many steps each rank works at the time at which the `reference` of its host works on the same."""
    both = parts.join(reference, on=["host", "step"], suffix="_there")
    at_once = (pl.col("start_ns") <= pl.col("end_ns_there")) & (pl.col("start_ns_there") <= pl.col("end_ns"))
    return dict(both.filter(at_once).group_by("rank").len().iter_rows())


def _moved(rows: pl.DataFrame, moves: pl.DataFrame) -> pl.DataFrame:
    joined = rows.join(moves, on="rank", how="left", maintain_order="left")
    return joined.with_columns(step=(pl.col("step") + pl.col("move").fill_null(0)).cast(INT)).drop("move")
