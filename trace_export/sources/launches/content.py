"""The blocks that were found in the processes of a source, as its content, and what the user should know of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import polars as pl

from trace_export.model import Declared, Note
from trace_export.sources.ranges.notes import counted_as_idle, impossible_times, without_launch, without_times
from trace_export.sources.ranges.profile import Content

if TYPE_CHECKING:
    from trace_export.sources.launches.process import Inferred

BY_THREADS = "blocks inferred from the threads that launched their kernels, because no pass is named"
SEPARATED = {
    "transfers": "transfers between them",
    "waits": "waits of the host between them, for want of transfers",
    "copies": "copies between them, for want of transfers",
    "none": "their repetition alone",
}
"""What separates one pass from the next, the most certain first."""
BY_NUMBERS = "blocks inferred from operators' sequence numbers, because no pass is named"


def content(path: Path, found: Mapping[int, Inferred]) -> Content:
    """The content of those processes in which blocks were found (process → what was found)."""
    with_blocks = {process: one for process, one in found.items() if not one.impossible}
    number = {process: pl.lit(process, pl.Int64).alias("process") for process in with_blocks}
    blocks = pl.concat(one.blocks.with_columns(number[process]) for process, one in with_blocks.items())
    p2p = pl.concat(one.transfers.with_columns(number[process]) for process, one in with_blocks.items())
    return Content(
        blocks.drop("launched").with_columns(run=0, origin=pl.lit("inferred")),
        p2p.sort("start"),
        pl.DataFrame(schema={"process": pl.Int64, "start": pl.Int64, "end": pl.Int64}),
        Declared(),
        tuple(_notes(path, found, blocks.height)),
        {process: one.outside for process, one in with_blocks.items()},
    )


def _notes(path: Path, found: Mapping[int, Inferred], blocks: int) -> list[Note]:
    numbered = any(one.numbered for one in found.values())
    kinds = {one.evidence for one in found.values() if one.evidence}
    by_threads = f"{BY_THREADS}; passes are separated by {', or '.join(SEPARATED[k] for k in SEPARATED if k in kinds)}"
    notes = [Note("blocks-inferred", "note", BY_NUMBERS if numbered else by_threads, str(path), blocks)]
    refused = [step for one in found.values() for step in one.refused]
    if refused:
        first = refused[0]
        text = (
            f"steps whose forwards are unknown and left out (first: {first.why} in step {first.step}); their "
            f"{sum(step.backwards for step in refused)} backwards are kept"
        )
        notes.append(Note("forwards-unknown", "warning", text, str(path), len(refused)))
    drawn = [one for one in found.values() if not one.impossible]
    tasks, orphans, early, cut = (sum(numbers) for numbers in zip(*(one.counts for one in drawn), strict=True))
    if orphans:
        notes.append(without_launch(path, orphans, tasks))
    notes += impossible_times(path, early, cut)
    if untimed := sum(one.untimed for one in drawn):
        notes.append(without_times(path, untimed))
    notes += counted_as_idle(path, (one.outside for one in drawn))
    if impossible := sum(bool(one.impossible) for one in found.values()):
        text = f"processes without named passes, left out: {most_frequent_reason(found.values())}"
        notes.append(Note("process-without-blocks", "note", text, str(path), impossible))
    return notes


def most_frequent_reason(found: Iterable[Inferred]) -> str:
    """Why nothing was found in most of the processes without blocks."""
    return Counter(one.impossible for one in found if one.impossible).most_common(1)[0][0]
