"""What a reader knows of a process without named passes, and the blocks that are found in it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import polars as pl

from trace_export.sources.launches.infer import Passes, Refusal, infer
from trace_export.sources.launches.pieces import pipeline_transfers
from trace_export.sources.launches.threads import find_threads
from trace_export.sources.launches.work import Ints, Work

BLOCKS = {
    "kind": pl.String(), "start": pl.Int64(), "end": pl.Int64(), "launched": pl.Int64(), "step": pl.Int32(),
}  # fmt: skip
"""A block that was found: its time on the device, when its first work was launched, and its step where that was
recorded."""
TRANSFERS = {"role": pl.String(), "op": pl.String(), "start": pl.Int64(), "end": pl.Int64()}
"""A kernel that sends, receives or does both, of the pipeline."""

NO_INTERVALS: Ints = np.zeros((0, 2), np.int64)


@dataclass(frozen=True)
class Process:
    """`named`: the threads whose names are those of the autograd engine; `engine`: those that executed its nodes;
    `first_thread`: the one that the process began with, where that is known. `optimizer`: intervals (n × 2) of CPU time
    in which the optimizer ran, as ranges say. `steps`: start and step of the ranges around steps."""

    work: Work
    named: frozenset[int] = frozenset()
    engine: frozenset[int] = frozenset()
    first_thread: int | None = None
    optimizer: Ints | None = None
    steps: pl.DataFrame | None = None


class Inferred(NamedTuple):
    """The `blocks` and `transfers` of a process. `refused`: the steps whose forwards are unknown, of `steps` in all;
    `impossible`: why nothing was found ("" where something was)."""

    blocks: pl.DataFrame
    transfers: pl.DataFrame
    refused: tuple[Refusal, ...]
    steps: int
    impossible: str


def find_blocks(process: Process) -> Inferred:
    """The blocks of a process, from its launches alone."""
    threads = find_threads(process.work, process.named, process.engine, process.first_thread)
    if isinstance(threads, str):
        return _nothing(threads)
    begins = np.zeros(0, np.int64) if process.steps is None else process.steps["start"].sort().to_numpy()
    found = infer(process.work, threads, process.optimizer, begins)
    if not any(piece.kind == "F" for piece in found.passes):
        return _nothing(_first_reason(found))
    return Inferred(
        _with_steps(_blocks(found), process.steps),
        _transfers(process.work, threads.main),
        tuple(found.refused),
        found.steps,
        "",
    )


def _nothing(why: str) -> Inferred:
    return Inferred(pl.DataFrame(schema=BLOCKS), pl.DataFrame(schema=TRANSFERS), (), 0, why)


def _first_reason(found: Passes) -> str:
    if not found.refused:
        return "no backward was launched"
    first = found.refused[0]
    return f"{first.why} in step {first.step}"


def _blocks(found: Passes) -> pl.DataFrame:
    """The passes with their times: from the first start to the last end of their work."""
    timeline = found.timeline
    rows = [(p.kind, timeline.start[p.begin : p.end].min(), timeline.end[p.begin : p.end].max(),
             timeline.launch[p.begin]) for p in found.passes]  # fmt: skip
    names = ["kind", "start", "end", "launched"]
    return pl.DataFrame(rows, {name: BLOCKS[name] for name in names}, orient="row")


def _with_steps(blocks: pl.DataFrame, steps: pl.DataFrame | None) -> pl.DataFrame:
    """`step` of each block: that of the last range around a step which began before its launch."""
    if steps is None or steps.is_empty():
        return blocks.with_columns(step=pl.lit(None, pl.Int32))
    begun = steps.select(launched="start", step=pl.col("step").cast(pl.Int32)).sort("launched")
    first = begun.select(pl.col("step").first() - 1).item()
    found = blocks.sort("launched").join_asof(begun, on="launched")
    return found.with_columns(pl.col("step").fill_null(first if first >= 0 else None))


def _transfers(work: Work, main: int) -> pl.DataFrame:
    rows = pipeline_transfers(work, main)
    names = work.names.texts.gather(work.name[rows]).str.extract(r"^(?:void )?([A-Za-z0-9_]+)")
    return pl.DataFrame({"op": names, "start": work.start[rows], "end": work.end[rows]}).select(
        pl.lit("both").alias("role"), "op", "start", "end"
    )
