"""Tracks below the blocks: per rank its communication and the streams of its device, read while they are written."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import count
from typing import Any

import numpy as np
import polars as pl

from trace_export.chart.builder import NOT_NEGATIVE, Builder
from trace_export.chart.chart import Part, Track
from trace_export.chart.lanes import Lanes
from trace_export.model import Profile
from trace_export.names import natural

COMMUNICATION = "communication"
ROWS = 1 << 18
"""Device tasks held at a time."""

TaskBatches = Callable[[int, int], Iterable[pl.DataFrame]]
"""The device tasks (schema `KERNELS`) of a rank on the corrected clock, in frames of at most so many rows, by start."""


def no_tasks(rank: int, rows: int) -> Iterable[pl.DataFrame]:
    return ()


def add_ranks(builder: Builder, profile: Profile, ranks: list[dict[str, Any]], order: int) -> dict[int, int]:
    """Adds the group "Ranks" with a group per rank that has communication or device tasks.

    Returns the groups that device tasks go to: rank → track.

    `ranks` are rows of `profile.ranks` in the order wanted, with their `text`.
    """
    communication = _communication(profile)
    with_tasks = {file.rank for file in profile.kernels}
    wanted = [r for r in ranks if r["rank"] in with_tasks or r["rank"] in communication]
    if not wanted:
        return {}
    top = builder.track("Ranks", order, kind="group", description="Device tasks and communication of each rank drawn")
    groups = {}
    for place, rank in enumerate(wanted):
        name = f"rank {rank['rank']}"
        groups[rank["rank"]] = group = builder.track(name, place, top, kind="group", description=rank["text"])
        if (frame := communication.get(rank["rank"])) is not None:
            builder.slices(frame, builder.track(COMMUNICATION, 0, group, flat=f"{name} · {COMMUNICATION}"))
    return {rank: group for rank, group in groups.items() if rank in with_tasks}


def first_task_ns(profile: Profile, ranks: list[int], batches_of: TaskBatches) -> int | None:
    """The start of the first device task of `ranks`."""
    wanted = {file.rank for file in profile.kernels} & set(ranks)
    batches = (next((b for b in batches_of(rank, ROWS) if len(b)), None) for rank in wanted)
    return min((int(b["start_ns"][0]) for b in batches if b is not None), default=None)


def _communication(profile: Profile) -> dict[int, pl.DataFrame]:
    """Each rank's transfers and collectives as slices."""
    transfers = profile.p2p.with_columns(
        pl.coalesce(pl.format("{} {}{}", "role", "direction", "microbatch"), "op", "role", pl.lit("transfer")).alias(
            "name"
        ),
        pl.lit("p2p").alias("category"),
    )
    collectives = profile.collectives.with_columns(
        pl.col("op").fill_null("collective").alias("name"), pl.lit("collective").alias("category")
    )
    both = pl.concat([transfers, collectives], how="diagonal").drop_nulls(["rank", "start_ns", "end_ns"])
    return {int(rank): frame.drop("rank") for (rank,), frame in both.group_by("rank", maintain_order=True)}


def tasks(profile: Profile, groups: dict[int, int], batches_of: TaskBatches, first_id: int) -> Iterator[Part]:
    """The device tasks of each rank in `groups`, with a track for each new stream, numbered from `first_id`."""
    ids = count(first_id)
    for rank, group in groups.items():
        streams = {
            name: _Stream(name, order, rank, group) for order, name in enumerate(_stream_names(profile, rank), 1)
        }
        for batch in batches_of(rank, ROWS):
            for (name,), rows in batch.group_by("stream", maintain_order=True):
                yield streams[str(name)].part(rows, ids)


def _stream_names(profile: Profile, rank: int) -> list[str]:
    scans = [pl.scan_ipc(file.path).select(pl.col("stream").unique()) for file in profile.kernels if file.rank == rank]
    names = {str(name) for scan in scans for name in scan.collect()["stream"]}
    return sorted(names, key=natural)


class _Stream:
    """The track of one stream; its lanes persist from batch to batch."""

    def __init__(self, name: str, order: int, rank: int, group: int) -> None:
        name = f"{name} stream" if name == COMMUNICATION else name  # siblings of one name are drawn as one
        self._track = Track(0, name, group, order, flat=f"rank {rank} · {name}")
        self._lanes = Lanes()
        self._ids: list[int] = []

    def part(self, rows: pl.DataFrame, ids: Iterator[int]) -> Part:
        rows = rows.with_columns(NOT_NEGATIVE).sort("start_ns", "end_ns", maintain_order=True)
        lane = self._lanes.assign(rows["start_ns"].to_numpy(), rows["end_ns"].to_numpy())
        known = len(self._ids)
        self._ids += [next(ids) for _ in range(known, self._lanes.count)]
        fresh = tuple(
            Track(**{**vars(self._track), "id": self._ids[lane], "lane": lane}) for lane in range(known, len(self._ids))
        )
        track = pl.Series("track", np.array(self._ids, np.uint32)[lane])
        return Part(fresh, rows.select(track, "start_ns", "end_ns", "name", "category"))
