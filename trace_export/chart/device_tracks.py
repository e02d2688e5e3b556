"""Tracks below the blocks: per rank its communication and the streams of its device, read while they are written."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import count
from typing import Any

import numpy as np
import polars as pl

from trace_export.chart.builder import NOT_NEGATIVE, Builder
from trace_export.chart.chart import Part, Track
from trace_export.chart.lanes import Lanes
from trace_export.model import TEXT, WORD, Profile
from trace_export.ordering import natural, ordered

COMMUNICATION = "communication"
TIMES = ["start_ns", "end_ns"]
ROWS = 1 << 17
"""Device tasks of a rank that are drawn at a time. A fourth takes half as much time again, for each operation on a
table has a price of its own; twice as many take memory, and 5 % less time."""
ROWS_READ = 1 << 18
"""Of a file of device tasks, where only the names of its streams are wanted."""
FIRST_ROWS = 1 << 12
"""Of a file of device tasks, where only the first one is wanted."""

MOST_STREAMS, OTHERS = 500, "further streams"
"""Streams of a rank that have a track each, and what that of all others is called. Each takes milliseconds; a GPU
has some dozens."""

TaskBatches = Callable[[int, int], Iterable[pl.DataFrame]]
"""The device tasks (schema `KERNELS`) of a rank on the corrected clock, in frames of at most this many rows."""


def no_tasks(rank: int, rows: int) -> Iterable[pl.DataFrame]:
    return ()


def add_ranks(
    builder: Builder, profile: Profile, ranks: list[dict[str, Any]], order: int, batches_of: TaskBatches
) -> dict[int, DeviceTasks]:
    """Adds the group "Ranks" with a group per rank that has communication or device tasks, and to it the communication
    that is not a device task. Returns by rank where its device tasks go, and what they are called.

    `ranks` are rows of `profile.ranks` in the order wanted, with their `text`.
    """
    if not ranks:
        return {}
    communication = _communication(profile)
    with_tasks = {file.rank for file in profile.kernels}
    wanted = [r for r in ranks if r["rank"] in with_tasks or r["rank"] in communication]
    if not wanted:
        return {}
    top = builder.track("Ranks", order, kind="group", description="Device tasks and communication of each rank drawn")
    devices = {}
    for number, rank in enumerate(wanted):
        name = f"rank {rank['rank']}"
        group = builder.track(name, number, top, kind="group", description=rank["text"])
        slices = communication.get(rank["rank"])
        names = None
        if slices is not None and rank["rank"] in with_tasks:
            slices, names = _apart(slices, batches_of(rank["rank"], ROWS))
        if slices is not None and len(slices):
            builder.slices(slices, builder.track(COMMUNICATION, 0, group, flat=f"{name} · {COMMUNICATION}"))
        if rank["rank"] in with_tasks:
            devices[rank["rank"]] = DeviceTasks(group, names)
    return devices


@dataclass(frozen=True)
class DeviceTasks:
    """The group of tracks to which the device tasks of a rank go, and the transfers and collectives among them, by
    which they are called: start_ns, end_ns, name and arguments (None: no one is known)."""

    group: int
    names: pl.DataFrame | None


def _apart(slices: pl.DataFrame, batches: Iterable[pl.DataFrame]) -> tuple[pl.DataFrame, pl.DataFrame | None]:
    """Of the slices of communication those that are no device task, for which they have the times of one, and the rest
    once for each of these times: several transfers of one kernel share a name."""
    kernels = [batch.filter(pl.col("category") == COMMUNICATION).select(TIMES) for batch in batches]
    on_device = pl.concat([slices.select(TIMES).clear(), *kernels]).unique()
    alone = slices.join(on_device, on=TIMES, how="anti", maintain_order="left")
    shared = slices.join(on_device, on=TIMES, how="semi", maintain_order="left")
    same = [pl.when(pl.col(c).n_unique() == 1).then(pl.col(c).first()).alias(c) for c in _arguments(slices)]
    names = shared.group_by(TIMES, maintain_order=True).agg(pl.col("name").str.join(", "), *same)
    return alone, names if len(names) else None


def _arguments(slices: pl.DataFrame) -> list[str]:
    return [c for c in slices.columns if c not in (*TIMES, "name", "category")]


def first_task_ns(profile: Profile, ranks: list[int], batches_of: TaskBatches) -> int | None:
    """The start of the first device task of `ranks`."""
    wanted = {file.rank for file in profile.kernels} & set(ranks)
    batches = (next((b for b in batches_of(rank, FIRST_ROWS) if len(b)), None) for rank in wanted)
    return min((int(b["start_ns"][0]) for b in batches if b is not None), default=None)


def _communication(profile: Profile) -> dict[int, pl.DataFrame]:
    """Each rank's transfers and collectives as slices."""
    transfers = profile.p2p.with_columns(pl.col(WORD).cast(TEXT)).with_columns(
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


def tasks(
    profile: Profile, ranks: dict[int, DeviceTasks], batches_of: TaskBatches, first_id: int, seed: pl.Expr
) -> Iterator[Part]:
    """The device tasks of each of the `ranks`, with a track for each new stream, numbered from `first_id`; `seed` is
    their correlation id."""
    ids = count(first_id)
    for rank, device in ranks.items():
        names = _stream_names(profile, rank)
        shown = names if len(names) <= MOST_STREAMS else [*names[:MOST_STREAMS], OTHERS]
        streams = {name: _Stream(name, order, rank, device) for order, name in enumerate(shown, 1)}
        for batch in batches_of(rank, ROWS):
            if len(names) > MOST_STREAMS:
                stream = pl.col("stream").cast(TEXT)
                named = pl.when(stream.is_in(shown)).then(stream).otherwise(pl.lit(OTHERS))
                batch = batch.with_columns(stream=named.cast(WORD))
            yield _part(batch.with_columns(seed), streams, device, ids)


def _part(batch: pl.DataFrame, streams: dict[str, _Stream], device: DeviceTasks, ids: Iterator[int]) -> Part:
    """Tasks of a rank on the tracks of their streams. All together: a stream by itself takes milliseconds to encode."""
    batch = ordered(batch.with_columns(NOT_NEGATIVE), *TIMES)
    fresh: list[Track] = []
    slices = []
    for (name,), rows in batch.group_by("stream", maintain_order=True):
        tracks, track = streams[str(name)].lanes(rows, ids)
        fresh += tracks
        slices.append(_named(rows.select(track, *TIMES, "name", "category", "seed"), device.names))
    return Part(tuple(fresh), pl.concat(slices, how="diagonal")) if slices else Part()


def _named(slices: pl.DataFrame, names: pl.DataFrame | None) -> pl.DataFrame:
    """The slices of a stream with the `names` and arguments of communication, if there is any on it: its kernels all
    have the same few names."""
    if names is None or not (slices["category"] == COMMUNICATION).any():
        return slices
    communication = names.with_columns(pl.col("name").cast(WORD), category=pl.lit(COMMUNICATION, WORD))
    named = slices.join(communication, on=[*TIMES, "category"], how="left", maintain_order="left", suffix="_known")
    kernel = pl.when(pl.col("name_known").is_not_null()).then("name").alias("kernel")
    return named.with_columns(kernel, name=pl.coalesce("name_known", "name")).drop("name_known")


def _stream_names(profile: Profile, rank: int) -> list[str]:
    """The streams of a rank, in natural order. What one query reads of a file is in memory at the same time."""
    names: set[str] = set()
    for file in profile.kernels:
        if file.rank != rank:
            continue
        scan = pl.scan_ipc(file.path)
        for at in range(0, scan.select(pl.len()).collect().item(), ROWS_READ):
            part = scan.slice(at, ROWS_READ).select(pl.col("stream").unique())
            names.update(part.collect()["stream"].cast(TEXT))
    return sorted(names, key=natural)


class _Stream:
    """The track of one stream; its lanes persist from batch to batch."""

    def __init__(self, name: str, order: int, rank: int, device: DeviceTasks) -> None:
        name = f"{name} stream" if name == COMMUNICATION else name  # siblings of one name are drawn as one
        self._track = Track(0, name, device.group, order, flat=f"rank {rank} · {name}")
        self._lanes = Lanes()
        self._ids: list[int] = []

    def lanes(self, rows: pl.DataFrame, ids: Iterator[int]) -> tuple[list[Track], pl.Series]:
        """The new tracks, one for each new lane, and the track of each of the sorted `rows`."""
        lane = self._lanes.assign(rows["start_ns"].to_numpy(), rows["end_ns"].to_numpy())
        begun = len(self._ids)
        self._ids += [next(ids) for _ in range(begun, self._lanes.count)]
        fresh = [replace(self._track, id=self._ids[lane], lane=lane) for lane in range(begun, len(self._ids))]
        return fresh, pl.Series("track", np.array(self._ids, np.uint32)[lane])
