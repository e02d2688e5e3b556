"""What the user is told about an Nsight Systems export: why it cannot be drawn, and what the drawing leaves out."""

from __future__ import annotations

from pathlib import Path

import polars as pl

from trace_export.errors import SourceError
from trace_export.model import Note
from trace_export.sources.attribution import Work
from trace_export.sources.ranges import Ranges

EXAMPLES = 5
"""How many names a sentence lists."""
_HOST = "draw the CPU-side ranges with --host"


def no_ranges(path: Path) -> SourceError:
    return SourceError(
        path,
        "no NVTX ranges in the file: it was captured without NVTX, or the program has no ranges",
        "capture with nsys profile -t cuda,nvtx and a runtime that names its passes",
    )


def no_names(path: Path, frequent: list[str]) -> SourceError:
    """For a capture whose runtime does not name its passes."""
    names = ", ".join(map(_short, frequent))
    return SourceError(
        path,
        "no NVTX range is named like a pipeline block (looked for names such as F3.0.0, PP:0F3, Forward 3, "
        f"forward_step, forward-0 and DeepSpeedEngine.forward); the most frequent names here: {names}",
        "wrap each pass in torch.cuda.nvtx.range(f'F{microbatch}.{chunk}.0') or name your own with --marker 'REGEX=>F'",
    )


def no_kernels(path: Path) -> SourceError:
    return SourceError(
        path,
        "no GPU work in the file: it was captured without CUDA, or the profiler is too old for the driver",
        f"capture with -t cuda,nvtx and a current nsys, or {_HOST}",
    )


def no_work(path: Path) -> SourceError:
    return SourceError(path, "no GPU work was launched inside any pipeline range", _HOST)


def of_ranges(path: Path, ranges: Ranges, worked: pl.DataFrame, work: Work | None) -> list[Note]:
    """What was repaired and left out. `worked`: the ranges with work_count; `work` None: CPU-side ranges are drawn."""
    notes = []

    def tell(rows: pl.DataFrame, text: str) -> None:
        if rows.height:
            notes.append(Note("note", f"{text}: {_examples(rows)}", str(path), rows.height))

    tell(ranges.frame.filter("repaired"), "ends of ranges were wrong and taken from the next range's start")
    unclosed = ranges.unclosed
    tell(unclosed.filter(pl.col("role") != "step"), "ranges still open at the end of the capture were left out")
    tell(unclosed.filter(pl.col("role") == "step"), "steps still open at the end of the capture are incomplete")
    if work is None:
        return notes
    tell(worked.filter(pl.col("role") == "block", pl.col("work_count") == 0), "blocks without GPU work were left out")
    if work.every_call:
        notes.append(Note("note", "launches by calls of unusual names: all calls were read", str(path)))
    if work.orphans:
        notes.append(Note("note", "GPU tasks whose launch call is not in the file", str(path), work.orphans))
    if work.outside:
        share = f"{work.outside / work.tasks:.1%}"
        notes.append(Note("note", f"GPU tasks launched outside every block ({share})", str(path), work.outside))
    return notes


def _examples(rows: pl.DataFrame) -> str:
    names = rows["text"].str.split(",").list.first().unique(maintain_order=True)
    return ", ".join(map(_short, names[:EXAMPLES])) + (", …" if len(names) > EXAMPLES else "")


def _short(name: str) -> str:
    return name if len(name) <= 60 else name[:59] + "…"
