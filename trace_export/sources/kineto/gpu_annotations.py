"""The time of an annotation on the device as torch.profiler found it, a check on our attribution.

An event `gpu_user_annotation` lasts from the first to the last GPU task of one stream that was launched by the thread
of an annotation while that was its innermost, and carries its `External id`. Kineto writes it 1 ns longer at both ends
(libkineto/src/output_json.cpp, handleActivity).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from trace_export.model import Note
from trace_export.sources.kineto.gpu_work import Attributed
from trace_export.sources.ranges.attribution import GpuExtent
from trace_export.sources.shared.parted_rows import append

ON_DEVICE = "gpu_user_annotation"
LONGER_NS = 1
TOLERANCE_NS = 1_000


@dataclass
class GpuAnnotations:
    """What is needed for the check, in pieces: where `annotations` begin (thread, start), the External id of each range
    that counts (row, external), and the times `on_device` (external, start, end)."""

    annotations: list[pl.DataFrame] = field(default_factory=list)
    externals: list[pl.DataFrame] = field(default_factory=list)
    on_device: list[pl.DataFrame] = field(default_factory=list)

    def add(self, events: pl.DataFrame, annotations: pl.DataFrame, ranges: pl.DataFrame) -> None:
        """`events` of the trace; all `annotations` among them (thread, start); the `ranges` (row, external)."""
        append(self.annotations, annotations.select("thread", "start"))
        append(self.externals, ranges.select("row", "external").drop_nulls())
        seen = events.filter(pl.col("cat") == ON_DEVICE).select(
            external="External id",
            start=pl.col("start") + LONGER_NS,
            end=pl.col("end") - LONGER_NS,
        )
        append(self.on_device, seen.drop_nulls())

    def note(self, path: Path, ranges: pl.DataFrame, work: Attributed) -> list[Note]:
        """A note that counts the `ranges` (id, row, thread, start, end) whose GPU `work`, with its copies and memory
        sets, which blocks do not include, has another time than their annotation on the device, by more than a
        microsecond.

        Left out are ranges with launches of another thread or an annotation inside, whose work the annotation on the
        device does not have.
        """
        on_device = pl.concat(self.on_device)
        if on_device.is_empty():
            return []
        spans = on_device.group_by("external").agg(pl.col("start").min(), pl.col("end").max())
        found = (
            _alone(ranges.filter(pl.Series(~work.elsewhere)), pl.concat(self.annotations))
            .select("id", "row")
            .join(pl.concat(self.externals), on="row")
            .join(spans, on="external")
            .sort("id")
        )
        extents = (work.activity.compute, work.activity.communication, work.copies)
        first, last = _whole(extents, found["id"].to_numpy())
        ends = ((first, found["start"].to_numpy()), (last, found["end"].to_numpy()))
        different = np.logical_or.reduce([np.abs(ours - theirs) > TOLERANCE_NS for ours, theirs in ends])
        if not different.any():
            return []
        text = f"ranges whose GPU work has another time than their gpu_user_annotation, of {len(found)} compared"
        return [Note("gpu-annotations-differ", "note", text, str(path), int(np.count_nonzero(different)))]


def _alone(ranges: pl.DataFrame, annotations: pl.DataFrame) -> pl.DataFrame:
    """The ranges in which no annotation of their thread begins."""
    following = annotations.sort("start").with_columns(inner="start")
    after = ranges.sort("start").join_asof(
        following, on="start", by="thread", strategy="forward", allow_exact_matches=False, check_sortedness=False
    )
    return after.filter((pl.col("inner") >= pl.col("end")).fill_null(True))


def _whole(extents: Sequence[GpuExtent], ids: npt.NDArray[Any]) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """First start and last end of all GPU work of the ranges; beyond all times where there is none."""
    first = np.minimum.reduce([e.first[ids] for e in extents])
    return first, np.maximum.reduce([e.last[ids] for e in extents])
