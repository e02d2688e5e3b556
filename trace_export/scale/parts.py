"""The sources that one task reads: whole replicas, enough to make the task worth its start."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl

from trace_export.clocks.graph import components
from trace_export.sources.source import Source

RANKS_A_PART = 256
"""Replicas are read together as long as they have no more ranks than this: a task for each small one would take longer
to begin than to run."""
MOST_RANKS = 2048
"""Replicas that share hosts are read together, for they share clocks, as long as they have no more ranks than this."""


@dataclass(frozen=True)
class Part:
    """The sources of whole replicas, and the places (`places.PLACES`) of the ranks in them."""

    number: int
    sources: tuple[Source, ...]
    places: pl.DataFrame

    @property
    def path(self) -> Path:
        """The path by which errors name the part."""
        return self.sources[0].path

    @property
    def replicas(self) -> list[int]:
        return self.places["dp"].unique().sort().to_list()


def in_parts(sources: Sequence[Source], places: pl.DataFrame) -> list[Part]:
    """The parts of a run, in order of their replicas. Sources with ranks of several replicas keep these together, and
    so do hosts."""
    if places.is_empty():
        return []
    replica = _joined(places, sources, with_hosts=True)
    sizes = places.group_by(replica.alias("unit")).len()["len"]
    if int(sizes.to_numpy().max()) > MOST_RANKS:
        replica = _joined(places, sources, with_hosts=False)
    units = places.with_columns(replica.alias("unit")).partition_by("unit", maintain_order=True)
    ordered = sorted(units, key=lambda unit: int(unit["dp"].to_numpy().min()))
    return [
        Part(
            number, tuple(sources[index] for index in group["source"].unique().sort()), group.drop("unit").sort("rank")
        )
        for number, group in enumerate(_grouped(ordered))
    ]


def _joined(places: pl.DataFrame, sources: Sequence[Source], *, with_hosts: bool) -> pl.Series:
    """The component of each rank in the graph of sources, replicas, and hosts."""
    source, (dp, replicas) = places["source"].to_numpy().astype(np.int64), _numbered(places["dp"])
    of_source, hosts = _numbered(pl.Series([s.host for s in sources]))
    first_replica, first_host = len(sources), len(sources) + replicas
    one, other = [source], [dp + first_replica]
    if with_hosts:
        one.append(np.arange(len(sources)))
        other.append(of_source + first_host)
    label = components(np.concatenate(one), np.concatenate(other), first_host + hosts)
    return pl.Series("unit", label[source])


def _numbered(values: pl.Series) -> tuple[np.ndarray[tuple[int], np.dtype[np.int64]], int]:
    """Each value as a number from 0, and how many there are."""
    number = values.rank("dense").cast(pl.Int64).to_numpy() - 1
    return number, int(number.max()) + 1 if len(number) else 0


def _grouped(units: Sequence[pl.DataFrame]) -> Iterator[pl.DataFrame]:
    waiting: list[pl.DataFrame] = []
    for unit in units:
        if waiting and sum(map(len, waiting)) + len(unit) > RANKS_A_PART:
            yield pl.concat(waiting)
            waiting = []
        waiting.append(unit)
    if waiting:
        yield pl.concat(waiting)
