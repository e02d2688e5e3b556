"""The content of a source: the blocks that ranges name and those that were inferred, with what belongs to them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import polars as pl

from trace_export.model import OUTSIDE, WORK_KINDS, Declared, Note
from trace_export.sources.ranges import notes as range_notes
from trace_export.sources.ranges.blocks import declared
from trace_export.sources.ranges.devices import Attributed
from trace_export.sources.ranges.notes import counted_as_idle, impossible_times, without_launch, without_times
from trace_export.sources.ranges.transfers import ALONE

if TYPE_CHECKING:
    from trace_export.inference.process import Inferred

BY_THREADS = "blocks inferred from the threads that launched their kernels, because no pass is named"
SEPARATED = {
    "transfers": "transfers between them",
    "waits": "waits of the host between them, because there are no transfers",
}
"""The evidence that separates one pass from the next, the most certain first."""
BY_NUMBERS = "blocks inferred from operators' sequence numbers, because no pass is named"


@dataclass(frozen=True)
class Content:
    """The content of a source, or of some of its processes: `blocks`, `p2p` and `collectives` have process, start and
    end in session time, and otherwise columns of SPANS, P2P and COLLECTIVES. `outside`: by process, as far as that is
    known, see `outside` in model.RANKS."""

    blocks: pl.DataFrame
    p2p: pl.DataFrame
    collectives: pl.DataFrame
    declared: Declared
    notes: tuple[Note, ...]
    outside: Mapping[int, float] = field(default_factory=dict)


def marked(path: Path, work: Attributed, passes: pl.DataFrame, p2p: pl.DataFrame, collectives: pl.DataFrame) -> Content:
    """The content of the processes whose passes are named: the blocks `passes`, transfers and collectives, by the
    `work` in their ranges. Raises SourceError when no GPU work was launched in a block."""
    ranges, activity = work.ranges, work.activity
    if passes.is_empty():
        raise range_notes.no_work(path, activity)
    worked = ranges.frame if activity is None else work.worked
    notes = (*range_notes.of_ranges(path, ranges, worked, activity), *range_notes.of_transfers(path, p2p))
    moved = p2p.filter(~pl.col("exchange").fill_null(False)) if p2p["exchange"].any() else p2p
    shares = {} if activity is None else activity.outside_shares()
    return Content(passes.drop("id"), moved, collectives, declared(ranges, passes), notes, shares)


def from_launches(path: Path, inferred: Mapping[int, Inferred]) -> Content:
    """The content of the processes with inferred blocks (process → result)."""
    with_blocks = {process: one for process, one in inferred.items() if not one.impossible}
    number = {process: pl.lit(process, pl.Int64).alias("process") for process in with_blocks}
    blocks = pl.concat(one.blocks.with_columns(number[process]) for process, one in with_blocks.items())
    p2p = pl.concat(one.transfers.with_columns(number[process]) for process, one in with_blocks.items())
    return Content(
        blocks.drop("launched").with_columns(run=0, origin=pl.lit("inferred")),
        p2p.sort("start"),
        pl.DataFrame(schema={"process": pl.Int64, "start": pl.Int64, "end": pl.Int64}),
        Declared(),
        tuple(_notes(path, inferred, blocks.height)),
        {process: one.outside for process, one in with_blocks.items()},
    )


def completed(path: Path, named: Content, inferred: Mapping[int, Inferred]) -> Content:
    """The content of processes whose passes are `named` in part, as those of DeepSpeed's pipeline engine, with the
    kinds that no name says from what was found by launches (process → what was found), where both agree on the others.

    Example: four ranges name forwards, and the launches show four forwards at these times and four backwards. The
    backwards are taken. If they show three forwards, nothing is, for then they may be wrong about the backwards, too.
    """
    blocks, p2p = [named.blocks], [named.p2p]
    taken, refused, unknown, outside = 0, [], [], dict(named.outside)
    for process, one in inferred.items():
        of_process = named.blocks.filter(pl.col("process") == process)
        kinds = set(of_process["kind"].drop_nulls())
        if of_process.is_empty():
            continue
        if one.impossible:
            unknown += [one] if outside.get(process, 0.0) >= OUTSIDE else []
            continue
        if not all(alike(of_process, one.blocks, kind) for kind in kinds & set(WORK_KINDS)):
            refused.append(process)
            continue
        number = pl.lit(process, pl.Int64).alias("process")
        more = one.blocks.filter(~pl.col("kind").is_in(list(kinds))).drop("launched")
        blocks.append(more.with_columns(number, run=0, origin=pl.lit("inferred")))
        taken += more.height
        outside[process] = one.outside
        moved = pl.col("process") == process
        if named.p2p.filter(moved)["op"].is_in(list(ALONE)).all():  # which may name one side of a group
            p2p[0] = p2p[0].filter(~moved)
            p2p.append(one.transfers.with_columns(number))
    notes, of_all = [], ("tasks-outside-blocks", "compute-outside-blocks")
    if taken:
        text = "blocks inferred from the threads that launched their kernels, because names say only some of the passes"
        notes.append(Note("blocks-inferred", "note", text, str(path), taken))
        notes += counted_as_idle(path, outside.values())
    if refused:
        text = (
            "processes whose names say only some of the passes, and whose launches do not agree with them; to draw "
            "what the launches show give --infer only"
        )
        notes.append(Note("names-partial", "warning", text, str(path), len(refused)))
    if unknown:
        text = (
            f"processes whose names say only some of the passes; of the others, {most_frequent_reason(unknown)}; name "
            "all passes (trace-export docs instrument)"
        )
        notes.append(Note("names-partial", "warning", text, str(path), len(unknown)))
    return replace(
        named, blocks=pl.concat(blocks, how="diagonal_relaxed"), p2p=pl.concat(p2p, how="diagonal_relaxed"),
        notes=(*(n for n in named.notes if not taken or n.code not in of_all), *notes),
        outside=outside,
    )  # fmt: skip


def alike(named: pl.DataFrame, inferred: pl.DataFrame, kind: str) -> bool:
    """Whether the blocks of a kind (start, end) are as many, and the k-th of both overlap."""
    one, other = (blocks.filter(pl.col("kind") == kind).sort("start") for blocks in (named, inferred))
    return one.height == other.height and bool(((one["start"] < other["end"]) & (other["start"] < one["end"])).all())


def _notes(path: Path, inferred: Mapping[int, Inferred], blocks: int) -> list[Note]:
    numbered = any(one.numbered for one in inferred.values())
    kinds = {one.evidence for one in inferred.values() if one.evidence}
    by_threads = f"{BY_THREADS}; passes are separated by {', or '.join(SEPARATED[k] for k in SEPARATED if k in kinds)}"
    notes = [Note("blocks-inferred", "note", BY_NUMBERS if numbered else by_threads, str(path), blocks)]
    refused = [step for one in inferred.values() for step in one.refused]
    if refused:
        text = (
            f"steps whose forwards are unknown and left out (first: {refused[0]}); their "
            f"{sum(step.backwards for step in refused)} backwards are kept"
        )
        notes.append(Note("forwards-unknown", "warning", text, str(path), len(refused)))
    drawn = [one for one in inferred.values() if not one.impossible]
    tasks, orphans, early, cut, lost = (sum(numbers) for numbers in zip(*(one.counts for one in drawn), strict=True))
    if orphans:
        notes.append(without_launch(path, orphans, tasks))
    notes += impossible_times(path, early, cut, tasks)
    if lost:
        text = "kernels that were launched are not in the file; the blocks inferred from the others may be too short"
        notes.append(Note("kernels-lost", "warning", text, str(path), lost))
    if untimed := sum(one.untimed for one in drawn):
        notes.append(without_times(path, untimed))
    return [*notes, *counted_as_idle(path, (one.outside for one in drawn))]


def left_out(path: Path, inferred: Mapping[int, Inferred]) -> list[Note]:
    """The note on processes without named passes in which no block was found (process → what was found)."""
    if not (impossible := sum(bool(one.impossible) for one in inferred.values())):
        return []
    text = f"processes without named passes, left out: {most_frequent_reason(inferred.values())}"
    return [Note("process-without-blocks", "note", text, str(path), impossible)]


def not_asked_for(path: Path, processes: int, option: str) -> list[Note]:
    """The warning on this many processes without named passes whose blocks were not looked for."""
    text = f"processes without named passes, left out: {option} draws named ones only"
    return [Note("process-without-blocks", "warning", text, str(path), processes)] if processes else []


def most_frequent_reason(inferred: Iterable[Inferred]) -> str:
    """Why nothing was found in most of the processes without blocks."""
    return Counter(one.impossible for one in inferred if one.impossible).most_common(1)[0][0]
