"""The steps of ranks whose recording begins a step or more after that of the others."""

from __future__ import annotations

from dataclasses import replace

import polars as pl

from trace_export.model import INT, WORK_KINDS, Note, Profile
from trace_export.ordering import run_number
from trace_export.selection import Numbers


def renumbered(profile: Profile) -> Profile:
    """`profile`, of one segment, in which a rank numbers its steps as the other ranks of its host do at the same time.
    Steps are counted from the first one that is recorded, so that a rank whose recording lacks steps counts too low.
    All steps of a rank move alike, and only where more ranks run their steps together afterwards.

    Example: rank 0 runs steps 0, 1 and 2 at 0, 50 and 100 ms. Rank 1 runs its steps 0 and 1 at 51 and 101 ms; they
    become 1 and 2.
    """
    parts = _parts(profile)
    if not _are_apart(parts):
        return profile
    first = parts.group_by("host", "rank").agg(steps=pl.len(), at=pl.col("middle").min())
    first = first.sort("host", "steps", "at", "rank", descending=[False, True, False, False])
    reference = parts.join(first.unique("host", keep="first", maintain_order=True), on="rank", how="semi")
    longest = parts.sort("rank", "length", descending=[False, True]).unique("rank", keep="first")
    moves = (
        longest.sort("middle")
        .join_asof(
            reference.select("host", "middle", at="step").sort("middle"),
            on="middle", by="host", strategy="nearest", check_sortedness=False,
        )
        .select("rank", move=pl.col("at") - pl.col("step"))
        .filter(pl.col("move") != 0)
    )  # fmt: skip
    before, after = (_with(reference, rows) for rows in (parts, _moved(parts, moves)))
    moves = moves.filter(
        pl.col("rank").replace_strict(after, default=0) > pl.col("rank").replace_strict(before, default=0)
    )
    if moves.is_empty():
        return profile
    ranks = Numbers.of(moves["rank"]).named("rank")
    text = f"{ranks}: recorded from a later step on; its steps are numbered as those of the others at the same time"
    spans = _moved(profile.spans, moves)
    return replace(profile, spans=spans).with_notes([Note("steps-renumbered", "note", text, count=moves.height)])


def _parts(profile: Profile) -> pl.DataFrame:
    """rank, host, step, start_ns, end_ns, middle, length: when each rank works on each step."""
    work = profile.spans.select("rank", "step", "kind", "start_ns", "end_ns")
    work = work.filter(pl.col("kind").is_in(WORK_KINDS)).drop_nulls("step")
    both = pl.col("start_ns").min(), pl.col("end_ns").max()
    parts = work.group_by(run_number("rank", "step")).agg(pl.col("rank", "step").first(), *both)
    return (
        parts.group_by("rank", "step").agg(*both)
        .join(profile.ranks.select("rank", "host"), on="rank")
        .with_columns(middle=(pl.col("start_ns") + pl.col("end_ns")) // 2, length=pl.col("end_ns") - pl.col("start_ns"))
        .sort("rank", "step")
    )  # fmt: skip


def _are_apart(parts: pl.DataFrame) -> bool:
    """Whether ranks of a host have no time in common in some step."""
    steps = parts.group_by("host", "step").agg(pl.col("start_ns").max(), pl.col("end_ns").min())
    return bool((steps["start_ns"] > steps["end_ns"]).any())


def _with(reference: pl.DataFrame, parts: pl.DataFrame) -> dict[int, int]:
    """In how many steps each rank works at the time at which the `reference` of its host works on the same."""
    both = parts.join(reference, on=["host", "step"], suffix="_there")
    at_once = (pl.col("start_ns") <= pl.col("end_ns_there")) & (pl.col("start_ns_there") <= pl.col("end_ns"))
    return dict(both.filter(at_once).group_by("rank").len().iter_rows())


def _moved(rows: pl.DataFrame, moves: pl.DataFrame) -> pl.DataFrame:
    joined = rows.join(moves, on="rank", how="left", maintain_order="left")
    return joined.with_columns(step=(pl.col("step") + pl.col("move").fill_null(0)).cast(INT)).drop("move")
