"""All device tasks of an Ascend rank, for the rows below the blocks: read in pieces, kept in a file."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import polars as pl

from trace_export.errors import SourceError
from trace_export.model import WORD, KernelFile
from trace_export.sources.ascend.database import NAMES, ON_DEVICE
from trace_export.sources.ascend.metadata import COMMUNICATION
from trace_export.sources.shared.sqlite import Database, overlapping
from trace_export.sources.shared.task_writer import TaskWriter
from trace_export.sources.shared.timestamps import valid_tasks
from trace_export.sources.source import TaskRequest

PIECE_ROWS = 1 << 19
_UNNAMED = -1
"""The names of tasks of which only the type is recorded, and the number of a missing type."""
_CATEGORIES = pl.Series(["compute", "communication", "memory", None], dtype=WORD)


def from_database(db: Database, request: TaskRequest) -> tuple[KernelFile, ...]:
    """The tasks of the table TASK that the request asks for: the small tasks of communication, or everything.

    A task is called as its kernel, as the small task of communication that it is, or as its own type. Raises
    SourceError where none has a valid time.
    """
    communicates = db.has("COMMUNICATION_TASK_INFO", "globalTaskId", "taskType")
    computes = request.detail == "kernels" and db.has("COMPUTE_TASK_INFO", "globalTaskId", "name")
    if request.detail == "comm" and not communicates:
        return ()
    joins = ""
    if request.detail == "comm":
        joins = "JOIN COMMUNICATION_TASK_INFO m ON m.globalTaskId = t.globalTaskId AND m.taskType IS NOT NULL"
    elif computes:
        joins = "LEFT JOIN COMPUTE_TASK_INFO c ON c.globalTaskId = t.globalTaskId"
    kernel, task = "c.name" if computes else "NULL", "t.globalTaskId" if communicates else "NULL"
    untimed, names, writer = 0, _Names(db, small=communicates), TaskWriter(request.folder)
    inside = overlapping(request.window_ns, "t.startNs", "t.endNs")
    several = len(request.ranks) > 1 or None not in request.ranks  # then they are by device
    device = ", t.deviceId AS device" if several else ""
    for where in db.chunks("TASK", PIECE_ROWS):
        rows = db.frame(
            f"SELECT t.startNs AS start_ns, t.endNs AS end_ns, t.streamId AS stream, t.taskType AS type,"
            f" COALESCE({kernel}, {_UNNAMED - 1} - {task}, {_UNNAMED}) AS what{device}"
            f" FROM TASK t {joins} WHERE t.{where} AND {inside} AND NOT ({ON_DEVICE})"
        )
        valid = rows.filter(valid_tasks())
        untimed += len(rows) - len(valid)
        for number, rank in request.ranks.items():
            writer.add(rank, names.named(valid.filter(device=number) if several else valid))
    files = writer.files()
    if untimed and not files:
        raise SourceError(db.path, "none of its device tasks has a valid time", "export the profile again")
    return tuple(replace(file, untimed=untimed) for file in files)


class _Names:
    """The names of the tasks of a database; `small`: whether it knows the small tasks of communication. Their types are
    in memory, 16 bytes each."""

    def __init__(self, db: Database, *, small: bool) -> None:
        self._db = db
        self._texts: dict[int, str] = {}
        sql = "SELECT globalTaskId AS id, taskType AS type FROM COMMUNICATION_TASK_INFO"
        operators = db.frame(sql) if small else pl.DataFrame(schema={"id": pl.Int64, "type": pl.Int64})
        operators = operators.drop_nulls("id").unique("id", keep="first", maintain_order=True).drop_nulls().sort("id")
        self._small, self._types = operators["id"].to_numpy(), operators["type"].to_numpy()

    def named(self, rows: pl.DataFrame) -> pl.DataFrame:
        """`rows` of TASK with the columns of model.KERNELS: of `what` and `type` the texts."""
        what = rows["what"].to_numpy()
        computes, communicates = what >= 0, np.zeros(len(rows), np.bool_)
        number = np.where(computes, what, rows["type"].fill_null(_UNNAMED).to_numpy())
        if len(self._small):
            others = np.flatnonzero(~computes)
            task = _UNNAMED - 1 - what[others]
            at = np.minimum(np.searchsorted(self._small, task), len(self._small) - 1)
            communicating = self._small[at] == task
            number[others[communicating]] = self._types[at[communicating]]
            communicates[others[communicating]] = True
        numbers = np.unique(number)
        wanted = numbers.tolist()
        self._texts |= self._db.names(NAMES, [number for number in wanted if number not in self._texts])
        texts = pl.Series([self._texts.get(number, "task") for number in wanted], dtype=pl.String)
        index = np.searchsorted(numbers, number)
        memory = texts.str.contains("^(?:MEMCPY|SDMA)").to_numpy()[index]
        category = np.select([computes, communicates, memory], [0, 1, 2], 3)
        streams = rows["stream"].unique()
        titles = pl.select(pl.format("stream {}", streams).cast(WORD)).to_series()
        return rows.select(
            "start_ns", "end_ns", stream=pl.col("stream").replace_strict(streams, titles, return_dtype=WORD),
            name=texts.cast(WORD).gather(index), category=_CATEGORIES.gather(category),
        )  # fmt: skip


def from_text(rows: pl.LazyFrame, request: TaskRequest) -> tuple[KernelFile, ...]:
    """The same of kernel_details.csv (text_export.KERNELS); operators of communication are a stream of their own."""
    communicates = pl.col("core").is_in(COMMUNICATION).fill_null(False)
    stream = pl.format("stream {}", pl.col("stream").fill_null(0))
    tasks = rows.select(
        "start_ns", "end_ns", pl.col("name").cast(pl.Categorical),
        stream=pl.when(communicates).then(pl.lit("communication")).otherwise(stream),
        category=pl.when(communicates).then(pl.lit("communication")).otherwise(pl.lit("compute")),
    ).filter(request.asks_for())  # fmt: skip
    writer = TaskWriter(request.folder)
    for piece in tasks.collect_batches(chunk_size=PIECE_ROWS):
        writer.add(request.rank, piece)
    return writer.files()
