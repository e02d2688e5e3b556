"""The segments of a profile, which are its contiguous recordings: cut into them, and joined again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import polars as pl

from trace_export.model import INT, SEGMENT, STEP_KEY, Profile

TIMES = {"p2p": "start_ns", "collectives": "start_ns", "counters": "ts_ns"}
"""The tables that do not say their segment, and the time by which their rows are in one."""


def cut(profile: Profile, by: Sequence[str] = SEGMENT) -> list[Profile]:
    """The profile of each segment, or of each run, by time. Rows that lie between two segments of their rank belong to
    the nearer one. Notes, ranks and hosts are those of the whole."""
    spans = profile.spans
    if all(_is_constant(spans[name]) for name in by):  # nearly always, and quickly seen
        return [profile]
    keys = spans.select(by).unique().sort(by)
    if keys.height < 2:
        return [profile]
    keys = keys.with_row_index("segment")
    numbered = spans.join(keys, on=list(by), how="left", nulls_equal=True, maintain_order="left")
    begins = _begins(numbered)
    rows = {"spans": numbered}
    if not profile.evaluations.is_empty():
        rows["evaluations"] = profile.evaluations.join(keys, on=list(by), nulls_equal=True, maintain_order="left")
    for name, time in TIMES.items():
        if not (table := getattr(profile, name)).is_empty():
            rows[name] = _placed(table, time, begins)
    if not profile.messages.is_empty():
        rows["messages"] = _placed(profile.messages, "send_start_ns", begins.rename({"rank": "src_rank"}), "src_rank")
    parts: dict[str, dict[Any, pl.DataFrame]] = {
        name: table.partition_by("segment", as_dict=True, include_key=False, maintain_order=True)
        for name, table in rows.items()
    }
    return [
        replace(
            profile,
            **{name: of_segment.get((number,), getattr(profile, name).clear()) for name, of_segment in parts.items()},
        )
        for number in keys["segment"]
    ]


def _is_constant(values: pl.Series) -> bool:
    return values.null_count() == len(values) or (not values.null_count() and values.min() == values.max())


def joined(parts: Sequence[Profile], notes_of: Profile) -> Profile:
    """The profile of all segments that `cut` made of one, each changed since. What the parts have added to the notes of
    `notes_of`, the whole, is said once."""
    if len(parts) == 1:
        return parts[0]
    before = len(notes_of.notes)
    further = dict.fromkeys(note for part in parts for note in part.notes[before:])
    names = ("spans", "evaluations", "messages", *TIMES)
    frames: dict[str, Any] = {name: pl.concat([getattr(part, name) for part in parts]) for name in names}
    frames["spans"] = frames["spans"].sort("id")
    return replace(parts[0], notes=(*notes_of.notes, *further), **frames)


def apart(profile: Profile) -> tuple[Profile, pl.DataFrame | None]:
    """`profile` with a run for each window, and run, window, segment: which is which; None where no run has several.
    The steps of a window may not be numbered yet, and those of another one are other steps."""
    if not profile.spans["window"].count():
        return profile, None
    keys = profile.spans.select(SEGMENT).unique().sort(SEGMENT).with_columns(segment=pl.int_range(pl.len(), dtype=INT))
    tables = {
        name: getattr(profile, name).join(keys, on=SEGMENT, nulls_equal=True, maintain_order="left")
        .with_columns(run="segment", window=pl.lit(None, INT)).drop("segment")
        for name in ("spans", "evaluations")
    }  # fmt: skip
    return replace(profile, **tables), keys


def restored(profile: Profile, keys: pl.DataFrame | None) -> Profile:
    """The profile that `apart` gave, whose steps have been numbered since, with its runs and windows: the steps of a
    window are further steps of its run."""
    if keys is None:
        return profile
    spans, evaluations = (
        frame.rename({"run": "segment"}).drop("window").join(keys, on="segment", maintain_order="left")
        for frame in (profile.spans, profile.evaluations)
    )
    extents = spans.group_by("segment").agg(pl.col("step").min().alias("first"), pl.col("step").max().alias("last"))
    moves, reached, run = [], -1, None
    for number, of_segment, first, last in keys.join(extents, on="segment").sort("segment").select(
        "segment", "run", "first", "last"
    ).iter_rows():  # fmt: skip
        if of_segment != run:
            reached, run = -1, of_segment
        move = 0 if first is None or first > reached else reached + 1 - first
        moves.append((number, move))
        reached = reached if last is None else last + move
    moved = pl.DataFrame(moves, {"segment": INT, "move": INT}, orient="row")
    spans = spans.join(moved, on="segment", maintain_order="left").with_columns(pl.col("step") + pl.col("move"))
    columns = profile.spans.columns
    return replace(profile, spans=spans.select(columns), evaluations=evaluations.select(columns))


def with_window(steps: pl.DataFrame, spans: pl.DataFrame) -> pl.DataFrame:
    """`steps`, rows with run and step, with the window that each lies in."""
    if not spans["window"].count():
        return steps.with_columns(window=pl.lit(None, INT))
    windows = spans.select(*STEP_KEY, "window").unique(STEP_KEY)
    return steps.join(windows, on=STEP_KEY, how="left", nulls_equal=True, maintain_order="left")


def _begins(numbered: pl.DataFrame) -> pl.DataFrame:
    """rank, segment, at: from when on rows of a rank are in a segment, which is the middle of the gap before it."""
    extents = numbered.group_by("rank", "segment").agg(first=pl.col("start_ns").min(), last=pl.col("end_ns").max())
    ordered = extents.sort("rank", "first")
    middle = (pl.col("last").shift(1) + (pl.col("first") - pl.col("last").shift(1)) // 2).over("rank")
    return ordered.select("rank", "segment", at=middle).sort("at")


def _placed(rows: pl.DataFrame, time: str, begins: pl.DataFrame, rank: str = "rank") -> pl.DataFrame:
    """`rows` with their segment, by the `time` of a `rank`; of a rank without blocks the first."""
    first = begins.filter(pl.col("at").is_null()).select(rank, first="segment")
    later = begins.drop_nulls("at")
    order = rows.with_row_index("row").sort(time)
    met = order.join_asof(later, left_on=time, right_on="at", by=rank, check_sortedness=False)
    placed = met.join(first, on=rank, how="left", maintain_order="left")
    segment = pl.coalesce("segment", "first").fill_null(0).cast(pl.UInt32)
    return placed.with_columns(segment=segment).sort("row").drop("row", "at", "first", strict=False)
