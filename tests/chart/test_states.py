"""State tracks: what a rank does changes at each end of a block and of a cause of idle time."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import orjson
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as pb

import trace_export
from tests.support.profiles import two_stages
from tests.support.trace_processor import PROBLEMS, TraceProcessor
from trace_export.analysis.bubbles import Bubbles
from trace_export.chart.layout import ChartOptions, lay_out
from trace_export.chart.states import states
from trace_export.model import Declared
from trace_export.pipeline.interpret import interpret
from trace_export.writers.traces import perfetto

SAMPLE = Path(__file__).parent.parent.parent / "samples" / "nsys" / "two_hosts"
BLOCKS = {"rank": pl.Int32, "start_ns": pl.Int64, "end_ns": pl.Int64, "kind": pl.String}
IDLE = {"rank": pl.Int32, "start_ns": pl.Int64, "end_ns": pl.Int64, "name": pl.String}


def found(blocks: list[tuple[object, ...]], idle: list[tuple[object, ...]] | None = None) -> list[tuple[object, ...]]:
    of_blocks = pl.DataFrame(blocks, BLOCKS, orient="row")
    return states(of_blocks, pl.DataFrame(idle or [], IDLE, orient="row")).rows()


def test_one_state_after_another() -> None:
    blocks = [(0, 10, 20, "F"), (0, 20, 30, "F"), (0, 40, 50, "B"), (1, 5, 6, None)]
    assert found(blocks, [(0, 30, 35, "waiting for backward of stage 1"), (2, 0, 9, "another rank")]) == [
        (0, 10, "forward"), (0, 30, "waiting for backward of stage 1"), (0, 35, None), (0, 40, "backward"),
        (0, 50, None), (1, 5, "other work"), (1, 6, None),
    ]  # fmt: skip


def test_a_block_inside_another_takes_over() -> None:
    assert found([(0, 0, 100, "F"), (0, 10, 20, "W"), (0, 150, 160, "OPT")]) == [
        (0, 0, "forward"), (0, 10, "weight gradient"), (0, 100, None), (0, 150, "optimizer"), (0, 160, None),
    ]  # fmt: skip


@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 5), st.integers(1, 5), st.sampled_from("FBW")), max_size=30)
)
def test_of_blocks_that_follow_each_other_the_state_is_the_block_that_runs(
    draws: list[tuple[int, int, int, str]],
) -> None:
    """At each nanosecond, against a direct search."""
    ends = [0, 0, 0]
    blocks = []
    for rank, gap, length, kind in draws:
        start = ends[rank] + gap
        ends[rank] = start + length
        blocks.append((rank, start, ends[rank], kind))
    changes = found(blocks)
    names = {"F": "forward", "B": "backward", "W": "weight gradient"}
    for rank in range(3):
        own = [(ts, name) for of_rank, ts, name in changes if of_rank == rank]
        assert all(a[1] != b[1] and a[0] < b[0] for a, b in pairwise(own))  # type: ignore[operator]
        for at in range(ends[rank] + 2):
            running = [names[kind] for of, start, end, kind in blocks if of == rank and start <= at < end]
            shown = [name for ts, name in own if ts <= at]  # type: ignore[operator]
            assert (shown or [None])[-1] == (running or [None])[-1]


def test_packets_are_those_of_the_schema(tmp_path: Path) -> None:
    """A track with a StateDescriptor, and events of the type STATE, whose name is the value; without one, nothing."""
    profile = interpret(two_stages(), Declared())
    chart = lay_out(profile, ChartOptions(states=Bubbles(profile).slices))
    perfetto.write(chart, tmp_path / "a.pftrace")
    packets = pb.Trace.FromString((tmp_path / "a.pftrace").read_bytes()).packet
    tracks = {p.track_descriptor.uuid: p.track_descriptor.name for p in packets if p.track_descriptor.HasField("state")}
    assert list(tracks.values()) == ["state · stage 0 · rank 0", "state · stage 1 · rank 2"]
    names = {entry.iid: entry.name for p in packets for entry in p.interned_data.event_names}
    events = [p for p in packets if p.track_event.type == pb.TrackEvent.TYPE_STATE]
    assert {e.track_event.track_uuid for e in events} == tracks.keys()
    shown = [
        (tracks[e.track_event.track_uuid], chart.origin_ns + e.timestamp, names.get(e.track_event.name_iid))
        for e in events
    ]
    expected = [
        (f"state · stage {rank // 2} · rank {rank}", ts, name)
        for rank, ts, name in states(profile.spans.filter(pl.col("rank").is_in([0, 2])), Bubbles(profile).slices).rows()
    ]
    assert shown == expected


def test_an_older_trace_processor_reads_the_rest(tmp_path: Path) -> None:
    run = trace_export.load(SAMPLE).align()
    run.write(tmp_path / "with.pftrace", states=True)
    run.write(tmp_path / "without.pftrace")
    query = "select count(*) as n, sum(dur) as total from slice"
    with TraceProcessor(tmp_path / "with.pftrace") as one, TraceProcessor(tmp_path / "without.pftrace") as other:
        assert one.query(query).equals(other.query(query))
        assert other.query(PROBLEMS).is_empty()


def test_formats_without_states_leave_them_out(tmp_path: Path) -> None:
    run = trace_export.load(SAMPLE).align()
    run.write(tmp_path / "with.json", states=True)
    run.write(tmp_path / "without.json")
    one, other = (
        [{**event, "tid": 0} for event in orjson.loads((tmp_path / name).read_bytes())["traceEvents"]]
        for name in ("with.json", "without.json")
    )
    assert [e for e in one if e.get("name") != "thread_sort_index"] == [
        e for e in other if e.get("name") != "thread_sort_index"
    ]


def test_without_blocks_there_are_none() -> None:
    assert found([]) == []


def test_the_flag_is_one(tmp_path: Path) -> None:
    with pytest.raises(trace_export.UsageError, match="states"):
        trace_export.load(SAMPLE).write(tmp_path / "a.pftrace", states="yes")  # type: ignore[arg-type]
