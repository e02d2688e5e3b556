"""Passes inside CUDA graphs, by the annotations of their kernels.

A replay of a graph runs no code on the CPU that could name its parts: all its kernels have the correlation id of the
one launch. PyTorch remembers which kernels were captured under which name (torch.cuda.graph_annotations.mark_kernels,
2.14), and writes that as `name` among their `args` (`export_chrome_trace(…, cuda_graph_annotations=…)`, 2.15; before,
torch/cuda/_annotate_cuda_graph_trace.py added it to a trace, in 2.12 and 2.13 as `str`). Traces of its CUPTI monitor,
JSON and Perfetto's, have `annotation` there: the list of what was recorded, as JSON (torch/profiler/_cupti/
monitor_trace.py), of which the last entry counts where several name the kernel.
The schedules of torch.distributed.pipelining annotate each action as they name its range: `PP:0F3`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import orjson
import polars as pl

from trace_export.sources.kineto.device_tasks import TIMED
from trace_export.sources.kineto.gpu_work import STREAM
from trace_export.sources.kineto.json_events import ANNOTATIONS
from trace_export.sources.ranges.attribution import NONE, RangeIndex
from trace_export.sources.ranges.dialects import Dialects
from trace_export.sources.ranges.ranges import Ranges

_FIRST_ID = -(1 << 62)
"""From here down are the ids of the made-up launches; no correlation id is one of them."""
_PART = ["correlation", "text"]
"""What an annotated part of a replay is known by."""


@dataclass(frozen=True)
class Replayed:
    """What stands for the annotated parts of replays: `named` ranges (see ranges.gather), the `launches` in them
    (start, thread, correlation), and `tasks` (gpu_work.KERNELS) with the ids of these launches, where they
    have one."""

    named: pl.DataFrame
    launches: pl.DataFrame
    tasks: pl.DataFrame


@dataclass
class GraphAnnotations:
    """The annotated kernels of a trace, in pieces: gpu_work.KERNELS, text."""

    kernels: list[pl.DataFrame] = field(default_factory=list)

    def take(self, kernels: pl.DataFrame, correlation: pl.Expr, nccl: pl.Expr, dialects: Dialects) -> pl.DataFrame:
        """Keeps those `kernels` (columns of json_events.SCHEMA) whose annotation says what they are part of, and
        returns the others.

        What ran backward through a part that was annotated going forward has the name of that part and says so
        (`autograd_phase`): its name is no name of a pass. A part without a micro-batch cannot be distinguished from
        others of its name in the same replay.
        """
        if all(kernels[column].null_count() == kernels.height for column in ANNOTATIONS):
            return kernels
        kernels = _named(kernels)
        known = dialects.parse(kernels["text"].drop_nulls()).names
        numbered = known.filter(pl.col("role").is_in(["block", "p2p"]), _has_number()).select("text", "role")
        found = kernels.join(numbered, on="text", how="left", maintain_order="left")
        part = (pl.col("role") == "block") | ((pl.col("role") == "p2p") & nccl)
        ours = (TIMED & part & pl.col("autograd_phase").ne_missing("backward")).fill_null(False)
        kept = found.filter(ours).select(correlation, "start", "end", STREAM, "text", nccl=nccl)
        if kept.height:
            self.kernels.append(kept)
        return found.filter(~ours).drop("role")

    def replayed(self, ranges: Ranges, launches: Iterable[pl.DataFrame]) -> Replayed:
        """A range, and a launch in it, for every annotation of every replay, right after the graph was launched,
        in the order in which they ran. Their rows and threads are negative, which no others are. `launches`: start,
        thread, correlation; one piece or more.

        A graph that was launched inside one of the `ranges` belongs to that, as all that was launched there: a graph of
        one pass is replayed for many micro-batches, and has the name of the one that it was captured for.
        """
        kernels = pl.concat(self.kernels)
        launched = _launched(launches, kernels["correlation"].unique())
        index, _ = RangeIndex.both(ranges.frame)
        outside = index.find(launched["start"].to_numpy(), launched["thread"].to_numpy()) == NONE
        parts = _parts(kernels, launched.with_columns(outside=pl.Series(outside)))
        own = kernels.join(parts.select(*_PART, "own"), on=_PART, how="left", maintain_order="left")
        return Replayed(
            parts.select("row", "process", "thread", "start", end=pl.col("start") + 1, text="text"),
            parts.select("start", "thread", correlation="own"),
            own.select(pl.coalesce("own", "correlation").alias("correlation"), "start", "end", "stream", "nccl"),
        )


def _named(kernels: pl.DataFrame) -> pl.DataFrame:
    """The `kernels` with their annotation as `text`, in whichever form it is written."""
    written = kernels["annotation"].drop_nulls().unique()
    rows = [(text, *_entries(text)) for text in written]
    listed = pl.DataFrame(rows, dict.fromkeys(("annotation", "listed", "phase"), pl.String()), orient="row")
    found = kernels.join(listed, on="annotation", how="left", maintain_order="left")
    return found.with_columns(
        pl.coalesce("autograd_phase", "phase").alias("autograd_phase"),
        text=pl.coalesce("args name", "args str", "listed"),
    ).drop("listed", "phase")


def _entries(written: str) -> tuple[str | None, str | None]:
    """The name and the `autograd_phase` in a list of annotations, which is written as JSON; or in a single one."""
    try:
        found = orjson.loads(written)
    except orjson.JSONDecodeError:
        return written, None
    merged: dict[str, object] = {}
    for entry in found if isinstance(found, list) else [found]:
        merged |= entry if isinstance(entry, dict) else {"name": entry}
        if isinstance(entry, dict) and "str" in entry:
            merged["name"] = entry["str"]
    name, phase = (merged.get(key) for key in ("name", "autograd_phase"))
    return (name if isinstance(name, str) else None), (phase if isinstance(phase, str) else None)


def _parts(kernels: pl.DataFrame, launched: pl.DataFrame) -> pl.DataFrame:
    """The annotated parts of the replays that were `launched` (correlation, start, outside) outside all ranges, or that
    have no launch in the trace: correlation, text, row, process, thread, start and the `own` id."""
    number = pl.int_range(pl.len())
    return (
        kernels.group_by(_PART)
        .agg(pl.col("start").min())
        .join(launched.select("correlation", "outside", launch="start"), on="correlation", how="left")
        .filter(pl.col("outside").fill_null(True))
        .sort("start", *_PART)
        .with_columns(after=pl.int_range(1, pl.len() + 1).over("correlation"))
        .select(
            *_PART,
            row=-1 - number,
            process=pl.lit(0, pl.Int64),
            thread=-1 - number,
            start=pl.min_horizontal(pl.col("launch") + pl.col("after"), "start"),
            own=_FIRST_ID - number,
        )
    )


def _has_number() -> pl.Expr:
    """Whether a name says its micro-batch, or is that of a transfer, which says it elsewhere."""
    return (pl.col("role") == "p2p") | pl.any_horizontal(pl.col("microbatch", "microbatch_b").is_not_null())


def _launched(launches: Iterable[pl.DataFrame], correlations: pl.Series) -> pl.DataFrame:
    """Where the graphs with these ids were launched: correlation, start, thread."""
    wanted = pl.col("correlation").is_in(correlations.implode())
    found = pl.concat(calls.filter(wanted).select("correlation", "start", "thread") for calls in launches)
    return found.sort("start", "thread").unique("correlation", keep="first", maintain_order=True)
