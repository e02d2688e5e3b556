"""Collects the tracks of a chart and their slices, and distributes overlapping slices over lanes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray
from polars import selectors

from trace_export.chart.chart import INSTANTS, SAMPLES, SLICES, Part, Track
from trace_export.chart.lanes import Lanes
from trace_export.ordering import ordered

ROOT = 1
NOT_NEGATIVE = pl.max_horizontal("start_ns", "end_ns").alias("end_ns")
"""No format can hold a slice that ends before it starts, which a damaged input may contain."""


class Builder:
    """One root group, to which tracks and frames are added; `part` is the result.

    `texts` is the type of all texts of its slices: codes take a quarter of the room, and the encoders need them anyway.
    """

    def __init__(self) -> None:
        self._tracks = [Track(ROOT, "", None, kind="group")]
        self._names: set[tuple[int, str]] = set()
        self._slices: list[pl.DataFrame] = []
        self.texts = pl.Categorical(pl.Categories.random())
        self._instants = pl.DataFrame(schema=INSTANTS)
        self._samples = pl.DataFrame(schema=SAMPLES)

    @property
    def _next_id(self) -> int:
        return len(self._tracks) + 1

    def track(self, name: str, order: int, parent: int = ROOT, **more: Any) -> int:
        """Adds a track (further fields of `Track` by name); its id.

        A name that a sibling has gets a number: viewers draw siblings of one name as one track.
        """
        unique, number = name, 1
        while (parent, unique) in self._names:
            number += 1
            unique = f"{name} ({number})"
        self._names.add((parent, unique))
        self._tracks.append(Track(self._next_id, unique, parent, order, **more))
        return len(self._tracks)

    def slices(self, frame: pl.DataFrame, track: int | pl.Expr) -> None:
        """Adds slices; columns that `SLICES` and `frame` do not share are null, or arguments."""
        number = track if isinstance(track, pl.Expr) else pl.lit(track)
        texts = selectors.string(include_categorical=True).cast(self.texts)
        self._slices.append(frame.with_columns(texts, number.cast(pl.UInt32).alias("track")))

    def instants(self, frame: pl.DataFrame, track: int) -> None:
        self._instants = self._instants.vstack(frame.select(_on(track), "ts_ns", "name"))

    def samples(self, frame: pl.DataFrame, track: int) -> None:
        self._samples = self._samples.vstack(frame.select(_on(track), "ts_ns", pl.col("value").cast(pl.Float64)))

    def first_ns(self) -> int | None:
        """The first time in any frame."""
        columns = [f["start_ns"] for f in self._slices] + [self._instants["ts_ns"], self._samples["ts_ns"]]
        times = [int(first) for c in columns if (first := c.min()) is not None]  # type: ignore[arg-type]
        return min(times, default=None)

    def part(self, title: str, description: str) -> tuple[Part, dict[int, int]]:
        """All that was added, under a root of that name, and the final id of each track.

        Tracks are numbered in the order they are drawn, which is how formats without an order of their own show them.
        """
        self._tracks[0] = replace(self._tracks[0], name=title, description=description)
        final = self._number()
        slices = self._all_slices(final)
        slices = slices.with_columns(track=pl.Series(self._lanes(slices), dtype=pl.UInt32))
        if len(self._tracks) > len(final):
            with_lanes = self._number()
            slices = ordered(slices.with_columns(_renumbered(with_lanes)), "track")
            final = {track: with_lanes[number] for track, number in final.items()}
        marks = (f.with_columns(_renumbered(final)) for f in (self._instants, self._samples))
        return Part(tuple(self._tracks), slices, *marks), final

    def _number(self) -> dict[int, int]:
        """Puts the tracks into the order they are drawn, and numbers them in it: the new id of each."""
        drawn = self._in_order()
        new = {track.id: number for number, track in enumerate(drawn, ROOT)}
        self._tracks = [replace(t, id=new[t.id], parent=t.parent and new[t.parent]) for t in drawn]
        return new

    def _all_slices(self, numbers: dict[int, int]) -> pl.DataFrame:
        """The slices of all frames by track and time, their columns in the order in which they were added. Frames are
        joined in the order of their tracks, so that most need not be sorted."""
        schema = {name: self.texts if dtype == pl.String else dtype for name, dtype in SLICES.items()}
        columns = [pl.DataFrame(schema=schema), *(frame.clear() for frame in self._slices)]
        frames = [frame.with_columns(_renumbered(numbers)) for frame in self._slices if not frame.is_empty()]
        frames.sort(key=lambda frame: int(frame["track"][0]))
        slices = pl.concat([*columns, *frames], how="diagonal_relaxed")
        return ordered(slices.with_columns(NOT_NEGATIVE), "track", "start_ns", "end_ns")

    def _lanes(self, slices: pl.DataFrame) -> NDArray[np.uint32]:
        """The track of each row, where overlapping ones of a track go to further tracks."""
        track = slices["track"].to_numpy().copy()
        start, end = slices["start_ns"].to_numpy(), slices["end_ns"].to_numpy()
        for low, high in pairwise([*np.flatnonzero(np.diff(track, prepend=0)).tolist(), len(track)]):
            lanes = Lanes()
            lane = lanes.assign(start[low:high], end[low:high])
            if lanes.count > 1:
                first = self._tracks[track[low] - 1]
                ids = [first.id, *range(self._next_id, self._next_id + lanes.count - 1)]
                self._tracks += [replace(first, id=i, lane=n) for n, i in enumerate(ids) if n]
                track[low:high] = np.array(ids, np.uint32)[lane]
        return track

    def _in_order(self) -> list[Track]:
        """Each track with its lanes before those below it, siblings by their order."""
        below: dict[int | None, list[Track]] = {}
        for track in sorted(self._tracks, key=lambda t: (t.order, t.name, t.lane)):
            below.setdefault(track.parent, []).append(track)
        drawn: list[Track] = []
        waiting = below.pop(None)
        while waiting:
            first = waiting.pop(0)
            drawn.append(first)
            while waiting and waiting[0].lane:
                drawn.append(waiting.pop(0))
            waiting = below.get(first.id, []) + waiting
        return drawn


def _renumbered(numbers: Mapping[int, int]) -> pl.Expr:
    return pl.col("track").replace_strict(numbers, return_dtype=pl.UInt32)


def _on(track: int) -> pl.Expr:
    return pl.lit(track, pl.UInt32).alias("track")
