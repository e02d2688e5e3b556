"""The one writer of device tasks: they come in any order, and go into an Arrow file per rank in the order of time.

Few tasks are sorted in memory. Many are collected, sorted and written in pieces. Pieces that follow one another in time
make a run, and up to `WAYS` runs are merged at once, with one piece of each in memory:

    pieces   [1 2 3] [2 4 6] [4 5] [7 8]
    runs     [1 2 3][4 5][7 8]   [2 4 6]
    merged   1 | 2 2 3 | 4 4 5 6 | 7 8
"""

from __future__ import annotations

import tempfile
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import polars as pl
from polars.io.plugins import register_io_source

from trace_export.model import KERNELS, KernelFile, conform
from trace_export.ordering import is_ordered
from trace_export.sources.shared.timestamps import valid_tasks
from trace_export.sources.source import TaskRequest

PIECE_ROWS: Final = 1 << 16
"""Rows of a piece, 2 MB in memory."""
WAYS: Final = 16
COLLECTED: Final = 8
"""As many pieces of tasks are collected before any is written."""

_TIMES = ("start_ns", "end_ns")


@dataclass(frozen=True)
class _Piece:
    """A file of sorted tasks; the first and the last start at these times."""

    path: Path
    first_ns: int
    last_ns: int


_Run = list[_Piece]
"""Pieces; each starts when the one before has started its last task, or later."""


class TaskWriter:
    """Collects the device tasks of one source below `folder`. Memory holds `WAYS` pieces of `piece_rows` at most, what
    is added at once, and all tasks that start at the same moment."""

    def __init__(self, folder: Path, piece_rows: int = PIECE_ROWS) -> None:
        self._folder = Path(tempfile.mkdtemp(dir=folder))
        self._piece_rows = piece_rows
        self._tasks: dict[int, list[pl.DataFrame]] = {}
        self._collected = 0
        self._pieces: dict[int, list[_Piece]] = {}
        self._written = 0

    def add(self, rank: int, tasks: pl.DataFrame) -> None:
        """Adds `tasks`, a frame with the columns of model.KERNELS in any order of rows, except those with invalid times
        (the reader reports these)."""
        tasks = tasks.filter(valid_tasks())
        if tasks.is_empty():
            return
        self._tasks.setdefault(rank, []).append(conform(tasks, KERNELS))
        self._collected += tasks.height
        if self._collected >= COLLECTED * self._piece_rows:
            self._write_pieces()

    def add_of(
        self, request: TaskRequest, tasks: pl.DataFrame, names: Mapping[int, str], missing: str, *, memory: bool = False
    ) -> None:
        """Adds those of the `tasks` of several processes that are of the ranks of a request: process, stream, start_ns,
        end_ns, what (a number of `names`; one without a name is called `missing`), nccl (0 or 1), and where devices are
        ranks, device. `memory`: they copy or fill."""
        parts = pl.DataFrame(request.parts(), {"process": pl.Int64, "rank": pl.Int32, "only": pl.Int64}, orient="row")
        here = tasks.join(parts, on="process")
        if request.devices:
            here = here.filter(pl.col("only").is_null() | (pl.col("only") == pl.col("device")))
        kind = pl.when(pl.col("nccl") != 0).then(pl.lit("communication")).otherwise(pl.lit("compute"))
        here = here.with_columns(
            texts_of(here["what"], names, missing),
            stream=pl.format("stream {}", pl.col("stream")),
            category=pl.lit("memory") if memory else kind,
        )
        for (rank,), part in here.partition_by("rank", as_dict=True).items():
            self.add(rank, part)

    def files(self) -> tuple[KernelFile, ...]:
        """The files of all ranks, by rank. Nothing can be added afterwards."""
        if self._pieces:
            self._write_pieces()
            return tuple(self._joined(rank) for rank in sorted(self._pieces))
        return tuple(self._file(rank) for rank in sorted(self._tasks))

    def _file(self, rank: int) -> KernelFile:
        """The file of a rank without a piece."""
        path = self._folder / f"{rank}.arrow"
        _sorted(pl.concat(self._tasks.pop(rank))).write_ipc(path, record_batch_size=self._piece_rows)
        return KernelFile(rank, path)

    def _write_pieces(self) -> None:
        for rank, collected in self._tasks.items():
            tasks = _sorted(pl.concat(collected))
            self._pieces.setdefault(rank, []).extend(map(self._write, tasks.iter_slices(self._piece_rows)))
        self._tasks, self._collected = {}, 0

    def _write(self, tasks: pl.DataFrame) -> _Piece:
        path = self._folder / f"{self._written}.piece"
        self._written += 1
        tasks.write_ipc(path)
        return _Piece(path, tasks["start_ns"][0], tasks["start_ns"][-1])

    def _joined(self, rank: int) -> KernelFile:
        path = self._folder / f"{rank}.arrow"
        runs = _runs(self._pieces.pop(rank))
        while len(runs) > WAYS:
            runs = [*runs[WAYS:], [self._write(tasks) for tasks in _merged(runs[:WAYS])]]

        def batches(columns: object, predicate: object, rows: object, batch_rows: object) -> Iterator[pl.DataFrame]:
            yield from _merged(runs)

        # The one way in Polars to write an Arrow file batch by batch.
        register_io_source(batches, schema=KERNELS).sink_ipc(path)
        return KernelFile(rank, path)


def texts_of(numbers: pl.Series, names: Mapping[int, str], missing: str) -> pl.Series:
    """`name`: what each of the `numbers` is called; one without a name is `missing`."""
    distinct = numbers.unique()
    texts = pl.Series([names.get(number, missing) for number in distinct], dtype=pl.Categorical)
    return numbers.replace_strict(distinct, texts, return_dtype=pl.Categorical).alias("name")


def _runs(pieces: Sequence[_Piece]) -> list[_Run]:
    """As few runs as possible: each piece goes to one that ends before it."""
    runs: list[_Run] = []
    for piece in sorted(pieces, key=lambda piece: piece.first_ns):
        run = next((run for run in runs if run[-1].last_ns <= piece.first_ns), None)
        if run is None:
            runs.append([piece])
        else:
            run.append(piece)
    return runs


def _merged(runs: Sequence[_Run]) -> Iterator[pl.DataFrame]:
    """The tasks of the runs in order, a frame after the other. Deletes the pieces."""
    lasts = [run[0].last_ns for run in runs]
    held = [_taken(run[0]) for run in runs]
    waiting = [deque(run[1:]) for run in runs]
    while any(waiting):
        until = min(last for last, pieces in zip(lasts, waiting, strict=True) if pieces)
        cuts = [tasks["start_ns"].search_sorted(until) for tasks in held]
        ready = pl.concat([tasks[:cut] for tasks, cut in zip(held, cuts, strict=True)])
        if ready.height:
            yield _sorted(ready)
        held = [tasks[cut:] for tasks, cut in zip(held, cuts, strict=True)]
        for number, pieces in enumerate(waiting):
            if pieces and lasts[number] == until:  # the next piece may have more that start then
                piece = pieces.popleft()
                lasts[number], held[number] = piece.last_ns, pl.concat([held[number], _taken(piece)])
    yield _sorted(pl.concat(held))


def _taken(piece: _Piece) -> pl.DataFrame:
    tasks = pl.read_ipc(piece.path)
    piece.path.unlink()
    return tasks


def _sorted(tasks: pl.DataFrame) -> pl.DataFrame:
    """`tasks` by start and end, and those of equal times by stream and name, so that their order does not matter."""
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
