"""Notes and errors about named ranges, for every profiler that has them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import polars as pl

from trace_export.errors import SourceError
from trace_export.model import OUTSIDE, Note, Profile
from trace_export.sources.ranges.attribution import GpuActivity
from trace_export.sources.ranges.by_launch import ORPHANS
from trace_export.sources.ranges.dialects import OPERATION_SUFFIX
from trace_export.sources.ranges.named import EXAMPLES, NameCounts
from trace_export.sources.ranges.ranges import Ranges
from trace_export.sources.shared.names import shortened
from trace_export.sources.shared.timestamps import UNTIMED
from trace_export.stream_order import are_many

FEW = 0.01
"""Any run has a smaller part of the GPU tasks outside all blocks: copies of the data loader, the optimizer."""
TOO_EARLY = "its GPU work begins before it was launched"
HOST = "draw the CPU ranges with `host_ranges`"


def unmatched(path: Path, rules: Sequence[str]) -> list[Note]:
    """A warning for each of the user's `rules` that matches no name in a source; `of_no_source` takes back those that
    match one in another source."""
    return [
        Note("marker-unmatched", "warning", f"--marker '{rule}' matches no name of a range", str(path))
        for rule in rules
    ]


NAMELESS = {"paddle", "recorder", "spans"}
"""Formats that record passes and no names of ranges."""


def of_no_source(profile: Profile) -> Profile:
    """`profile` without the notes on rules that match a name in another of its sources with names; with a warning where
    no source has names."""
    kinds = profile.recordings["kind"].unique().sort()
    if len(kinds) and NAMELESS.issuperset(kinds):
        text = f"--marker says what names of ranges mean, and a profile of {' or '.join(kinds)} has no names"
        return profile.with_notes([Note("marker-unmatched", "warning", text)])
    said = [note for note in profile.notes if note.code == "marker-unmatched"]
    if not said:
        return profile
    read = profile.recordings.select("source", "kind").unique()
    kinds = read.filter(pl.col("source").is_in([note.where for note in said]))["kind"]
    sources = read.filter(pl.col("kind").is_in(kinds.implode())).height
    counts = Counter(note.text for note in said)
    kept = (note for note in profile.notes if note.code != "marker-unmatched" or counts[note.text] >= sources)
    return replace(profile, notes=tuple(kept))


def no_names(
    path: Path, kind: str, counts: NameCounts, remedy: str, launches: str = "", rules: Sequence[str] = ()
) -> SourceError:
    """For a capture whose runtime does not name its passes; `kind` is what the profiler calls its ranges, `counts` are
    their names, and `remedy` is how to collect a better one. `launches`: why they cannot be found without names;
    `rules`: those of the user that match no name."""
    looked_for = (
        "looked for names such as F3.0.0, PP:0F3, Forward 3, forward_step, forward-0 and DeepSpeedEngine.forward"
    )
    if frequent := counts.most_frequent():
        frequent_names = f"the most frequent names here: {', '.join(map(shortened, frequent))}"
        remedy = f"say which of these names are passes with `markers` 'REGEX=>F', or {remedy}"
    else:
        frequent_names = "all names here belong to the framework" if counts.total else "there is none here"
    what = f"no {kind} is named like a pipeline block ({looked_for})"
    if launches:
        what = f"no pass is named, and the launches do not show any: {launches}"
    if frequent or not launches:
        what += f"; {frequent_names}"
    if rules:
        what += f"; no name is matched by `markers` {', '.join(map(repr, rules))}"
    return SourceError(path, what, remedy)


def no_work(path: Path, activity: GpuActivity | None) -> SourceError:
    if activity and activity.early > activity.untimed:
        return SourceError(path, TOO_EARLY, HOST)
    if activity and activity.untimed:
        return SourceError(path, "its GPU work has no valid time", HOST)
    if activity and 0 < activity.tasks == activity.orphans:
        what = "by the correlation ids no call here launched any of its GPU tasks, so that no range has GPU work"
        return SourceError(path, what, HOST)
    return SourceError(path, "no GPU work was launched inside any pipeline range", HOST)


def no_kernels(path: Path, without: str, remedy: str, *, launched: bool) -> SourceError:
    """For a file without a kernel, recorded `without` the option for kernels, unless kernels were `launched`."""
    if launched:
        what = "no GPU work in the file, though kernels were launched: the profiler lost all of them"
        return SourceError(path, what, f"record again, with a newer version of the profiler, or {HOST}")
    return SourceError(path, f"no GPU work in the file: it was {without}", f"{remedy}, or {HOST}")


def no_times(path: Path) -> SourceError:
    return SourceError(path, "its pipeline ranges have no valid time", "collect or export the profile again")


def of_transfers(path: Path, moved: pl.DataFrame) -> list[Note]:
    """`moved`: see transfers.transfers; where there is no column `guessed` or `exchange`, none is."""
    guessed, exchanged = (int(moved[c].sum()) if c in moved.columns else 0 for c in ("guessed", "exchange"))
    notes = []
    if guessed:
        text = "sends and receives without a name; direction taken from the blocks before and after"
        notes.append(Note("transfer-direction-inferred", "detail", text, str(path), guessed))
    if exchanged:
        text = "sends and receives in turns inside a block (an exchange of experts), no messages between stages"
        notes.append(Note("transfers-inside-blocks", "detail", text, str(path), exchanged))
    return notes


def of_ranges(path: Path, ranges: Ranges, worked: pl.DataFrame, activity: GpuActivity | None) -> list[Note]:
    """Notes on repaired and omitted blocks. `worked`: the ranges with work_count. `activity` is None where CPU-side
    ranges are drawn."""
    notes = []

    def add(rows: pl.DataFrame, note: Note) -> None:
        if rows.height:
            notes.append(replace(note, text=f"{note.text}: {_examples(rows)}", where=str(path), count=rows.height))

    if ranges.frame["repaired"].any():
        text = "ranges closed in the wrong order; the start of the next range is taken as their end"
        add(ranges.frame.filter("repaired"), Note("range-ends-repaired", "note", text))
    if ranges.unclosed.height:
        text = "ranges still open at the end of the capture, left out"
        add(ranges.unclosed.filter(~pl.col("role").is_in(["step", "setup"])), Note("ranges-unclosed", "note", text))
        text = "incomplete steps, still open at the end of the capture"
        add(ranges.unclosed.filter(pl.col("role") == "step"), Note("steps-unclosed", "note", text))
    if ranges.unused.height:
        kinds = ranges.unused.select(pl.concat_str(pl.lit("'"), _escaped(), pl.lit("=>"), "kind", pl.lit("'")))
        markers = " ".join(f"--marker {marker}" for marker in kinds.to_series().drop_nulls().unique().sort()[:EXAMPLES])
        text = f"ranges with names of passes, not used beside other names of passes (to draw them: {markers})"
        add(ranges.unused, Note("names-unused", "warning", text))
    if ranges.untimed:
        notes.append(Note("times-unusable", "warning", f"ranges {UNTIMED}", str(path), ranges.untimed))
    if activity is None:
        return notes
    blocks = worked.filter(pl.col("role") == "block")
    empty, lacking = blocks.filter(pl.col("work_count") == 0), blocks.filter(pl.col("lost_count") > 0)
    add(empty, Note("blocks-without-work", "note", "blocks without GPU work, left out"))
    text = f"blocks that launched kernels which are not in the file ({lacking['lost_count'].sum()} in all)"
    add(lacking, Note("kernels-lost", "warning", f"{text}; their times may be wrong"))
    return notes + _of_activity(path, activity)


def without_launch(path: Path, orphans: int, tasks: int) -> Note:
    """A note that this many GPU tasks have no launch call."""
    text, few = "GPU tasks without a launch call in the file", orphans <= tasks * ORPHANS
    return Note("tasks-without-launch", "note" if few else "warning", text, str(path), orphans)


def without_times(path: Path, untimed: int) -> Note:
    """A note that this many GPU tasks have invalid times."""
    return Note("times-unusable", "warning", f"GPU tasks {UNTIMED}", str(path), untimed)


def impossible_times(path: Path, early: int, cut: int, tasks: int = 0) -> list[Note]:
    """Notes that this many GPU tasks begin before their launch, and this many run past the next one of their stream.
    Raises SourceError where many of the `tasks` begin before their launch: then the times of none are right."""
    if are_many(early, tasks):
        raise SourceError(path, f"{TOO_EARLY}, in {early:,} tasks", HOST)
    notes = []
    if early:
        text = "GPU tasks that begin before their launch by more than clocks are off, left out"
        notes.append(Note("tasks-before-launch", "warning", f"{text}; their blocks may be too short", str(path), early))
    if cut:
        text = (
            "GPU tasks that end after the next one of their stream began or, if they are its last, outlast all before"
        )
        text += ", cut"
        notes.append(Note("tasks-past-next", "warning", f"{text}; their blocks may be too long", str(path), cut))
    return notes


def _of_activity(path: Path, activity: GpuActivity) -> list[Note]:
    notes, where = [], str(path)
    if activity.every_call:
        text = "kernels launched by uncommon calls; all calls were read"
        notes.append(Note("launch-calls-unusual", "note", text, where))
    if activity.beside:
        text = "most GPU tasks of a stream end after the next one of it began; their times are kept"
        text += ", and blocks may be too long"
        notes.append(Note("tasks-beside-next", "warning", text, where, activity.beside))
    if activity.untimed:
        notes.append(without_times(path, activity.untimed))
    notes += impossible_times(path, activity.early, activity.cut, activity.tasks)
    if activity.orphans:
        notes.append(without_launch(path, activity.orphans, activity.tasks))
    if activity.outside:
        part = activity.outside / activity.tasks
        share = f"{part:.1%}" if part >= 0.001 else "less than 0.1%"
        text = f"GPU tasks launched outside all blocks ({share})"
        notes.append(Note("tasks-outside-blocks", "detail" if part < FEW else "note", text, where, activity.outside))
    return notes + counted_as_idle(path, activity.outside_shares().values())


def counted_as_idle(path: Path, outside: Iterable[float]) -> list[Note]:
    """A warning where processes compute much `outside` all blocks: these are their shares, see model.RANKS."""
    many = [share for share in outside if share >= OUTSIDE]
    if not many:
        return []
    text = f"GPUs compute outside all blocks, up to {max(many):.1%} of their time, which the bubble counts as idle"
    return [Note("compute-outside-blocks", "warning", text, str(path), len(many))]


def _escaped() -> pl.Expr:
    """The names of ranges as patterns; different numbers are one pattern."""
    name = pl.col("text").str.replace(OPERATION_SUFFIX + "$", "").str.escape_regex()
    return name.str.replace_all(r"\d+", r"\d+")


def _examples(rows: pl.DataFrame) -> str:
    names = rows["text"].str.split(",").list.first().unique(maintain_order=True)
    return ", ".join(map(shortened, names[:EXAMPLES])) + (", …" if len(names) > EXAMPLES else "")
