"""A process without named passes, as a reader knows it, and the blocks that are inferred in it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import polars as pl

from trace_export.inference.infer import Passes, Refusal, infer
from trace_export.inference.pieces import Evidence, Piece, cuts_of
from trace_export.inference.sequence_numbers import OPERATORS, Numbered, by_numbers
from trace_export.inference.threads import Threads, calling_thread, engine_threads, find_threads
from trace_export.inference.work import COMPUTE, Counts, Timeline, Work, pipeline_transfers

BLOCKS = {"kind": pl.String(), "start": pl.Int64(), "end": pl.Int64(), "launched": pl.Int64(), "pair": pl.Int32()}
"""An inferred block: its time on the device, when its first work was launched, and `pair` if sequence numbers say it
(see model.SPANS)."""
INTERVAL = {"start": pl.Int64(), "end": pl.Int64()}
TRANSFERS = {"role": pl.String(), "op": pl.String(), "start": pl.Int64(), "end": pl.Int64()}
"""A kernel that sends, receives or does both, of the pipeline."""


@dataclass(frozen=True)
class Process:
    """`devices`: how many kernels ran on each of its GPUs. `named`: the threads whose names are those of the autograd
    engine; `first_thread`: the one that the process began with (None: of those that launched work the one with the
    least number). `operators`: see sequence_numbers.OPERATORS; may be empty. `untimed`: how much device work has
    invalid times and is not in `work`."""

    work: Work
    devices: Mapping[int, int]
    named: frozenset[int] = frozenset()
    first_thread: int | None = None
    operators: pl.DataFrame = field(default_factory=lambda: pl.DataFrame(schema=OPERATORS))
    untimed: int = 0


class Inferred(NamedTuple):
    """The `blocks` and `transfers` of a process, and its `device`, the first of several, None where nothing shows that
    it trains. `refused`: the steps whose forwards are unknown; `impossible`: why nothing was found ("" where something
    was). `numbered`: the passes are known by sequence numbers. `counts`: see `work.Counts`; `outside`: see
    model.RANKS; `untimed`: see
    `Process`."""

    blocks: pl.DataFrame
    transfers: pl.DataFrame
    refused: tuple[Refusal, ...] = ()
    impossible: str = ""
    numbered: bool = False
    evidence: Evidence | None = None
    device: int | None = None
    counts: Counts = Counts()
    outside: float = 0.0
    untimed: int = 0


def find_blocks(process: Process, beside: pl.DataFrame) -> Inferred:
    """The blocks of a process: by the sequence numbers of its operators where they were recorded, else by its launches
    alone. `beside`: the ranges around its steps and optimizers: role, kind, start, end."""
    work, operators, first = process.work, process.operators, process.first_thread
    optimizers = beside.filter(kind="OPT").select("start", "end")
    recorded = None if optimizers.is_empty() else optimizers
    if first is None:
        first = min(work.thread[work.role == COMPUTE].tolist(), default=None)
    threads = find_threads(work, process.named, engine_threads(operators), first, optimizer=recorded is not None)
    if isinstance(threads, str):
        return _on_one_thread(process, threads, recorded)
    begins = beside.filter(role="step")["start"].sort().to_numpy()
    passes = infer(work, threads, None if recorded is None else recorded.to_numpy(), begins)
    cuts = cuts_of(passes.timeline)
    if recorded is None:
        optimizers = _intervals(passes, [piece for piece in passes.passes if piece.kind == "OPT"])
    main = passes.timeline.main
    own = [p for p in passes.passes if p.kind == "W" and main[p.begin : p.end].all()]  # of the calling thread alone
    numbered = by_numbers(passes.timeline, operators, threads, cuts, optimizers, _intervals(passes, own))
    forwards = sum(piece.kind == "F" for piece in passes.passes)
    device = min(process.devices, default=None)
    if numbered is None and not forwards:
        return nothing(str(passes.refused[0]) if passes.refused else "no backward was launched", device)
    blocks, refused = _blocks(passes), passes.refused
    if numbered is not None:
        blocks, refused = _numbered_blocks(passes.timeline, numbered), []
    evidence = passes.evidence if numbered is None else None
    return _inferred(process, threads.main, blocks.sort("launched"), refused, evidence)


def _inferred(
    process: Process, main: int, blocks: pl.DataFrame, refused: Sequence[Refusal] = (), evidence: Evidence | None = None
) -> Inferred:
    """What was found in a process whose calling thread is `main`; without `evidence` by sequence numbers."""
    work = process.work
    return Inferred(
        blocks, _transfers(work, main), tuple(refused), numbered=evidence is None, evidence=evidence,
        device=min(process.devices, default=None), counts=work.counts, outside=outside_share(work, blocks),
        untimed=process.untimed,
    )  # fmt: skip


def outside_share(work: Work, blocks: pl.DataFrame) -> float:
    """The share of the time of computing that begins in none of the `blocks` (start, end)."""
    rows = work.role == COMPUTE
    start, length = work.start[rows], (work.end - work.start)[rows]
    begins, ends = (np.sort(blocks[column].to_numpy()) for column in ("start", "end"))
    inside = np.searchsorted(begins, start, side="right") > np.searchsorted(ends, start, side="right")
    return float(length[~inside].sum() / length.sum()) if len(length) and length.sum() else 0.0


def _on_one_thread(process: Process, why: str, optimizers: pl.DataFrame | None) -> Inferred:
    """The blocks of a process whose calling thread runs the backwards, too: by sequence numbers, if they were recorded;
    `why` says why nothing else tells them apart. `optimizers`: start and end of their ranges, if there are any."""
    work, operators = process.work, process.operators
    main = calling_thread(operators)
    if main is None:
        return nothing(why)
    timeline = Timeline.of(work, main, frozenset())
    cuts = cuts_of(timeline)
    numbered = by_numbers(timeline, operators, Threads(main, frozenset()), cuts, optimizers)
    if numbered is None:
        return nothing(why)
    return _inferred(process, main, _numbered_blocks(timeline, numbered))


def _intervals(passes: Passes, pieces: Sequence[Piece]) -> pl.DataFrame:
    """start and end (CPU time) of the launches of these pieces."""
    launch = passes.timeline.launch
    return pl.DataFrame([(launch[p.begin], launch[p.end - 1]) for p in pieces], INTERVAL, orient="row")


def _numbered_blocks(timeline: Timeline, numbered: Numbered) -> pl.DataFrame:
    """The anchors with work, with its times."""
    rows = pl.DataFrame(
        {"anchor": numbered.rows, "start": timeline.start, "end": timeline.end, "launched": timeline.launch}
    )
    work = rows.filter(pl.col("anchor") >= 0).group_by("anchor").agg(
        pl.col("start").min(), pl.col("end").max(), pl.col("launched").min()
    )  # fmt: skip
    named = numbered.anchors.select("kind", "pair").with_row_index("anchor").cast({"anchor": pl.Int64})
    return named.join(work, on="anchor").sort("launched").select("kind", "start", "end", "launched", "pair")


def nothing(why: str, device: int | None = None) -> Inferred:
    return Inferred(pl.DataFrame(schema=BLOCKS), pl.DataFrame(schema=TRANSFERS), impossible=why, device=device)


def _blocks(inferred: Passes) -> pl.DataFrame:
    """The passes with their times: from the first start to the last end of their work."""
    timeline, passes = inferred.timeline, sorted(inferred.passes, key=lambda piece: piece.begin)
    begins, ends = (np.array([piece[n] for piece in passes], np.int64) for n in (1, 2))
    bounds = np.column_stack([begins, ends]).ravel()  # every other range lies between two passes
    bounds = bounds[bounds < len(timeline.start)]
    return pl.DataFrame(
        {
            "kind": pl.Series([piece.kind for piece in passes], dtype=pl.String),
            "start": np.minimum.reduceat(timeline.start, bounds)[::2] if passes else begins,
            "end": np.maximum.reduceat(timeline.end, bounds)[::2] if passes else begins,
            "launched": timeline.launch[begins],
        }
    ).with_columns(pair=pl.lit(None, pl.Int32))


def _transfers(work: Work, main: int) -> pl.DataFrame:
    rows = pipeline_transfers(work, main)
    if not len(rows):
        return pl.DataFrame(schema=TRANSFERS)
    names = work.names.texts.gather(work.name[rows]).str.extract(r"^(?:void )?([A-Za-z0-9_]+)")
    return pl.DataFrame({"op": names, "start": work.start[rows], "end": work.end[rows]}).select(
        pl.lit("both").alias("role"), "op", "start", "end"
    )
