"""What the user is told about named ranges: that none is a pipeline block, and what their drawing leaves out."""

from __future__ import annotations

from pathlib import Path

import polars as pl

from trace_export.errors import SourceError
from trace_export.model import Note
from trace_export.sources.ranges.attribution import Work
from trace_export.sources.ranges.ranges import Ranges
from trace_export.sources.shared.timestamps import UNTIMED

EXAMPLES = 5
"""How many names a sentence lists."""
HOST = "draw the CPU-side ranges with --host"


def no_names(path: Path, kind: str, frequent: list[str], remedy: str) -> SourceError:
    """For a capture whose runtime does not name its passes; `kind` is what the profiler calls its ranges."""
    found = ", ".join(map(_short, frequent)) or "none"
    return SourceError(
        path,
        f"no {kind} is named like a pipeline block (looked for names such as F3.0.0, PP:0F3, Forward 3, "
        f"forward_step, forward-0 and DeepSpeedEngine.forward); the most frequent names here: {found}",
        remedy,
    )


def no_work(path: Path, work: Work | None) -> SourceError:
    if work and work.untimed:
        return SourceError(path, "its GPU work has no usable time", HOST)
    return SourceError(path, "no GPU work was launched inside any pipeline range", HOST)


def no_times(path: Path) -> SourceError:
    return SourceError(path, "its pipeline ranges have no usable time", "take or export the profile again")


def of_transfers(path: Path, moved: pl.DataFrame) -> list[Note]:
    """`moved`: see transfers.transfers."""
    guessed = int(moved["guessed"].sum())
    text = "sends and receives without a name: their directions are those of the blocks before and after them"
    return [Note("note", text, str(path), guessed)] if guessed else []


def of_ranges(path: Path, ranges: Ranges, worked: pl.DataFrame, work: Work | None) -> list[Note]:
    """What was repaired and left out. `worked`: the ranges with work_count; `work` None: CPU-side ranges are drawn."""
    notes = []

    def tell(rows: pl.DataFrame, text: str) -> None:
        if rows.height:
            notes.append(Note("note", f"{text}: {_examples(rows)}", str(path), rows.height))

    tell(ranges.frame.filter("repaired"), "ends of ranges were wrong and taken from the next range's start")
    unclosed, lost = ranges.unclosed, ranges.untimed
    tell(unclosed.filter(pl.col("role") != "step"), "ranges still open at the end of the capture were left out")
    tell(unclosed.filter(pl.col("role") == "step"), "steps still open at the end of the capture are incomplete")
    if lost:
        notes.append(Note("warning", f"ranges {UNTIMED}", str(path), lost))
    if work is None:
        return notes
    tell(worked.filter(pl.col("role") == "block", pl.col("work_count") == 0), "blocks without GPU work were left out")
    if work.every_call:
        notes.append(Note("note", "launches by calls of unusual names: all calls were read", str(path)))
    if work.untimed:
        notes.append(Note("warning", f"GPU tasks {UNTIMED}", str(path), work.untimed))
    if work.orphans:
        notes.append(Note("note", "GPU tasks whose launch call is not in the file", str(path), work.orphans))
    if work.outside:
        share = f"{work.outside / work.tasks:.1%}" if work.outside * 1000 >= work.tasks else "less than 0.1%"
        notes.append(Note("note", f"GPU tasks launched outside every block ({share})", str(path), work.outside))
    return notes


def _examples(rows: pl.DataFrame) -> str:
    names = rows["text"].str.split(",").list.first().unique(maintain_order=True)
    return ", ".join(map(_short, names[:EXAMPLES])) + (", …" if len(names) > EXAMPLES else "")


def _short(name: str) -> str:
    return name if len(name) <= 60 else name[:59] + "…"
