"""Gathers the tracks of a chart and what lies on them, and spreads overlapping slices over lanes."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import polars as pl

from trace_export.chart.chart import INSTANTS, SAMPLES, SLICES, Part, Track
from trace_export.chart.lanes import Lanes

ROOT = 1


class Builder:
    """One root group, to which tracks and frames are added; `part` is the result."""

    def __init__(self) -> None:
        self._tracks = [Track(ROOT, "", None, kind="group")]
        self._slices: list[pl.DataFrame] = []
        self._instants = pl.DataFrame(schema=INSTANTS)
        self._samples = pl.DataFrame(schema=SAMPLES)

    @property
    def next_id(self) -> int:
        return len(self._tracks) + 1

    def track(self, name: str, order: int, parent: int = ROOT, **more: Any) -> int:
        """Adds a track (further fields of `Track` by name); its id."""
        self._tracks.append(Track(self.next_id, name, parent, order, **more))
        return len(self._tracks)

    def slices(self, frame: pl.DataFrame, track: int | pl.Expr) -> None:
        """Adds slices; columns that `SLICES` and `frame` do not share are null, or arguments."""
        place = track if isinstance(track, pl.Expr) else pl.lit(track)
        self._slices.append(frame.with_columns(place.cast(pl.UInt32).alias("track")))

    def instants(self, frame: pl.DataFrame, track: int) -> None:
        self._instants = self._instants.vstack(frame.select(_on(track), "ts_ns", "name"))

    def samples(self, frame: pl.DataFrame, track: int) -> None:
        self._samples = self._samples.vstack(frame.select(_on(track), "ts_ns", pl.col("value").cast(pl.Float64)))

    def first_ns(self) -> int | None:
        """The first time in any frame."""
        columns = [f["start_ns"] for f in self._slices] + [self._instants["ts_ns"], self._samples["ts_ns"]]
        times = [int(first) for c in columns if (first := c.min()) is not None]  # type: ignore[arg-type]
        return min(times, default=None)

    def part(self, title: str, description: str) -> Part:
        """All that was added, under a root of that name."""
        self._tracks[0] = replace(self._tracks[0], name=title, description=description)
        slices = pl.concat([pl.DataFrame(schema=SLICES), *self._slices], how="diagonal_relaxed")
        slices = slices.sort("track", "start_ns", "end_ns", maintain_order=True)
        slices = self._with_lanes(slices)
        # The track is the same for runs of rows, so this sort is cheap; it keeps a lane's rows together.
        slices = slices.sort("track", maintain_order=True)
        return Part(tuple(self._tracks), slices, self._instants, self._samples)

    def _with_lanes(self, slices: pl.DataFrame) -> pl.DataFrame:
        track = slices["track"].to_numpy().copy()
        start, end = slices["start_ns"].to_numpy(), slices["end_ns"].to_numpy()
        for low, high in pairwise([*np.flatnonzero(np.diff(track, prepend=0)).tolist(), len(track)]):
            lanes = Lanes()
            lane = lanes.assign(start[low:high], end[low:high])
            if lanes.count > 1:
                ids = self._lane_ids(int(track[low]), lanes.count)
                track[low:high] = np.array(ids, np.uint32)[lane]
        return slices.with_columns(track=pl.Series(track))

    def _lane_ids(self, track: int, count: int) -> list[int]:
        first = self._tracks[track - 1]
        ids = [track, *range(self.next_id, self.next_id + count - 1)]
        self._tracks += [replace(first, id=i, lane=lane) for lane, i in enumerate(ids) if lane]
        return ids


def _on(track: int) -> pl.Expr:
    return pl.lit(track, pl.UInt32).alias("track")
