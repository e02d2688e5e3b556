"""External merge sort of device tasks, one Arrow file per rank."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl
from polars.io.plugins import register_io_source

from trace_export.model import KERNELS, KernelFile, conform
from trace_export.ordering import is_ordered
from trace_export.sources.shared.timestamps import valid_tasks

_TIMES = ("start_ns", "end_ns")


@dataclass(frozen=True)
class _Piece:
    """A sorted file of some tasks of one rank, the first of which starts at `start_ns`."""

    path: Path
    start_ns: int


class ExternalSort:
    """Collects the device tasks of one source below `folder`.

    Memory holds one piece at a time, and while the files are put together the tasks of those pieces that overlap in
    time.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = Path(tempfile.mkdtemp(dir=folder))
        self._pieces: dict[int, list[_Piece]] = {}

    def add(self, rank: int, tasks: pl.DataFrame) -> None:
        """Adds `tasks`, a frame with the columns of model.KERNELS in any order of rows, except those with invalid times
        (the reader reports these)."""
        tasks = tasks.filter(valid_tasks())
        if tasks.is_empty():
            return
        pieces = self._pieces.setdefault(rank, [])
        tasks = _sorted(conform(tasks, KERNELS))
        pieces.append(_Piece(self._folder / f"{rank}.{len(pieces)}", tasks["start_ns"][0]))
        tasks.write_ipc(pieces[-1].path)

    def files(self) -> tuple[KernelFile, ...]:
        """The files of all ranks, by rank. Nothing can be added afterwards."""
        return tuple(self._joined(rank) for rank in sorted(self._pieces))

    def _joined(self, rank: int) -> KernelFile:
        path = self._folder / f"{rank}.arrow"
        pieces = sorted(self._pieces.pop(rank), key=lambda p: p.start_ns)
        if len(pieces) == 1:
            return KernelFile(rank, pieces[0].path.rename(path))

        def batches(columns: object, predicate: object, rows: object, batch_rows: object) -> Iterator[pl.DataFrame]:
            yield from _in_order(pieces)

        # The one way in Polars to write an Arrow file batch by batch.
        register_io_source(batches, schema=KERNELS).sink_ipc(path)
        return KernelFile(rank, path)


def _in_order(pieces: list[_Piece]) -> Iterator[pl.DataFrame]:
    """The tasks of all pieces by start; `pieces` are in the order of their first starts. Deletes the pieces."""
    waiting = pl.DataFrame(schema=KERNELS)
    for piece, following in zip(pieces, [*pieces[1:], None], strict=True):
        tasks = pl.read_ipc(piece.path)
        piece.path.unlink()
        waiting = _sorted(pl.concat([waiting, tasks]))
        if following is not None:
            ready = waiting["start_ns"].search_sorted(following.start_ns)
            yield waiting[:ready]
            waiting = waiting[ready:]
    yield waiting


def _sorted(tasks: pl.DataFrame) -> pl.DataFrame:
    """`tasks` by start and end, and those of equal times by stream and name, whatever their order was."""
    if is_ordered(tasks, *_TIMES, strictly=True):
        return tasks
    start, end = (tasks[time].to_numpy() for time in _TIMES)
    rows = np.lexsort((end, start))  # takes little for a few runs that are in order
    start, end = start[rows], end[rows]
    as_next = np.append((start[1:] == start[:-1]) & (end[1:] == end[:-1]), False)
    same = np.flatnonzero(as_next | np.roll(as_next, 1))
    if len(same):  # texts are compared of these alone
        order = tasks[rows[same]].with_row_index("row").sort(*_TIMES, "stream", "name", "category")["row"]
        rows[same] = rows[same[order.to_numpy()]]
    return tasks[rows]
