"""Communication and device tasks that overlap: each is in the trace once, on a track of its rank, across no other."""

from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType

import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.charts import write_trace
from tests.support.profiles import ORIGIN, detailed, profile, span, table
from tests.support.trace_check import differences
from tests.support.trace_processor import TraceProcessor
from tests.writers.traces.test_writers import FORMATS
from trace_export.chart.layout import lay_out
from trace_export.model import KERNELS, P2P, KernelFile

RANKS = 3
Task = tuple[int, str, int, int]
"""Rank, where it lies ("" is the communication), start, length."""
TASKS = st.lists(
    st.tuples(
        st.integers(0, RANKS - 1),
        st.sampled_from(["", "", "stream 5", "stream 6"]),
        st.integers(0, 60),
        st.integers(1, 30),
    ),
    max_size=30,
)


@pytest.mark.parametrize(("writer", "name"), FORMATS)
@settings(max_examples=8, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(tasks=TASKS)
def test_every_task_lies_once_on_a_track_of_its_rank(writer: ModuleType, name: str, tasks: list[Task]) -> None:
    with TemporaryDirectory() as made:
        folder = Path(made)
        named = [(f"task {number}", *task) for number, task in enumerate(tasks)]
        communication = [
            {"rank": rank, "op": text, "start_ns": ORIGIN + start, "end_ns": ORIGIN + start + length}
            for text, rank, stream, start, length in named
            if not stream
        ]
        files = []
        for rank in range(RANKS):
            rows = [
                dict(zip(KERNELS, (stream, text, "compute", ORIGIN + start, ORIGIN + start + length), strict=True))
                for text, of, stream, start, length in sorted(named, key=lambda row: row[3:])
                if stream and of == rank
            ]
            if rows:
                files.append(KernelFile(rank, folder / f"{rank}.arrow"))
                table(rows, KERNELS).write_ipc(folder / f"{rank}.arrow")
        blocks = [span(rank, "F", 0, 0, 100) for rank in range(RANKS)]
        stages = {rank: rank for rank in range(RANKS)}
        run = profile(blocks, stages, p2p=table(communication, P2P), kernels=tuple(files))
        chart = lay_out(run, detailed(run))
        ids = [track.id for part in chart.parts() for track in part.tracks]
        assert sorted(ids) == list(range(1, len(ids) + 1))
        write_trace(writer, chart, folder / name)
        assert differences(chart, folder / name) == []
        result = _tasks(folder / name)
    wanted = [(text, f"rank {rank}", start, length) for text, rank, _, start, length in named]
    assert sorted(result.drop("track").rows()) == sorted(wanted)
    for _, on_track in result.group_by("track"):
        in_order = on_track.sort("start", "length")
        ends = in_order["start"] + in_order["length"]
        assert (in_order["start"][1:] >= ends[:-1]).all()


def _tasks(path: Path) -> pl.DataFrame:
    """name, rank, start, length and track of the tasks in a trace."""
    query = """
        select s.name, coalesce(p.name, substr(h.name, 1, 6)) rank, s.ts - (select min(ts) from slice) start,
          s.dur length, t.id track
        from slice s join track t on s.track_id = t.id left join track p on t.parent_id = p.id
          left join thread_track k on k.id = t.id left join thread h on h.utid = k.utid
        where s.name glob 'task *'"""
    with TraceProcessor(path) as processor:
        return processor.query(query)
