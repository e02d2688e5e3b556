"""The chart, independent of file formats: a tree of tracks with frames of slices, instants and counter samples."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from typing import Literal

import polars as pl

SLICES: dict[str, pl.DataType] = {
    "track": pl.UInt32(), "start_ns": pl.Int64(), "end_ns": pl.Int64(), "name": pl.String(), "category": pl.String(),
    "seed": pl.String(), "flow_out": pl.List(pl.UInt64()), "flow_in": pl.List(pl.UInt64()),
}  # fmt: skip
"""`track` is a `Track.id`; `seed` the text that colours the slice in the Perfetto UI; flows are ids of arrows that
leave at the slice and end at it. All further columns of a frame of slices are arguments of the same name. Texts may be
Categorical."""

INSTANTS: dict[str, pl.DataType] = {"track": pl.UInt32(), "ts_ns": pl.Int64(), "name": pl.String()}
SAMPLES: dict[str, pl.DataType] = {"track": pl.UInt32(), "ts_ns": pl.Int64(), "value": pl.Float64()}


@dataclass(frozen=True)
class Track:
    """A row of the chart, or a group of rows.

    The root has the id 1. `parent` is the id of the group (None: the root), `order` the place among its siblings.
    Overlapping slices are on several lanes: tracks of one name, parent and order that are drawn as one. `flat` is the
    name for formats without groups (empty: the same).
    """

    id: int
    name: str
    parent: int | None
    order: int = 0
    kind: Literal["group", "slices", "counter"] = "slices"
    description: str = ""
    unit: str = ""
    lane: int = 0
    flat: str = ""


@dataclass(frozen=True)
class Part:
    """A piece of the chart that fits into memory: its new tracks, then slices on them or on earlier ones.

    The slices of a track come in the order of (start, end), over all parts, and do not overlap.
    """

    tracks: tuple[Track, ...] = ()
    slices: pl.DataFrame = field(default_factory=lambda: pl.DataFrame(schema=SLICES))
    instants: pl.DataFrame = field(default_factory=lambda: pl.DataFrame(schema=INSTANTS))
    samples: pl.DataFrame = field(default_factory=lambda: pl.DataFrame(schema=SAMPLES))


Put = Callable[[Part], None]
"""Takes the next part of a chart."""


@dataclass(frozen=True)
class Chart:
    """`main` holds all but the device tasks, which `more()` reads part by part, anew at each call.

    Times are Unix nanoseconds; a writer takes `origin_ns`, the first event, from them. `attributes` are facts about
    the whole: where the clock starts, how the hosts' clocks were aligned.
    """

    title: str
    origin_ns: int
    main: Part
    attributes: dict[str, str | int]
    more: Callable[[], Iterator[Part]] = lambda: iter(())

    def parts(self) -> Iterator[Part]:
        yield self.main
        yield from _ahead(self.more())

    def put(self, *files: AbstractContextManager[Put]) -> None:
        """Draws each part once, for all `files`, which are open meanwhile and are closed in their order."""
        with ExitStack() as open_files:
            puts = [open_files.enter_context(file) for file in reversed(files)]
            for part in self.parts():
                for put in puts:
                    put(part)


def _ahead(parts: Iterator[Part]) -> Iterator[Part]:
    """The parts; the next one is made in a thread of its own while one is used."""
    with ThreadPoolExecutor(1) as thread:
        coming = thread.submit(next, parts, None)
        while (part := coming.result()) is not None:
            coming = thread.submit(next, parts, None)
            yield part


def arguments(slices: pl.DataFrame) -> list[str]:
    """The columns of a frame of slices that are arguments."""
    return [name for name in slices.columns if name not in SLICES]
