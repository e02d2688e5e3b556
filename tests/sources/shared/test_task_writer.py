"""Device tasks in the order of their times, from any order and number of pieces."""

import tempfile
from pathlib import Path

import polars as pl
from hypothesis import given
from hypothesis import strategies as st

from tests.support.profiles import table
from tests.support.rows import examples
from trace_export.model import KERNELS
from trace_export.sources.shared.task_writer import TaskWriter

START_NS = 10**18

task = st.fixed_dictionaries(
    {
        "stream": st.sampled_from(["stream 2", "stream 10"]),
        "name": st.sampled_from(["matmul", "add", "ncclSend"]),
        "category": st.sampled_from(["compute", "communication", None]),
        "start_ns": st.integers(START_NS, START_NS + 6),
        "length": st.integers(0, 2),
    }
).map(lambda row: {**row, "end_ns": row["start_ns"] + row["length"]})


@examples(10)
@given(st.lists(st.lists(task, max_size=5), max_size=18), st.sampled_from([1, 3, 1 << 16]))
def test_tasks_come_by_start_end_stream_and_name(pieces: list[list[dict[str, object]]], piece_rows: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        writer = TaskWriter(Path(folder), piece_rows)
        for piece in pieces:
            writer.add(3, table(piece, KERNELS))
        rows = [tuple(row[name] for name in KERNELS) for piece in pieces for row in piece]
        files = writer.files()
        assert [file.rank for file in files] == ([3] if rows else [])
        result = [row for file in files for row in pl.read_ipc(file.path).rows()]

    def order(row: tuple[object, ...]) -> tuple[object, ...]:
        stream, name, category, start, end = row
        return start, end, stream, name, category or ""

    assert result == sorted(rows, key=order)
