"""How fast traces are written, beside the usual ways, in one run.

    python -m tests.benchmarks.bench_encoder            # 1 M slices

Slices lie in memory as columns, on 16 tracks, with 50 names (categorical, as device tasks have them) and three
whole-number arguments.
"""

import argparse
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import orjson
import polars as pl
from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import TrackEvent
from perfetto.trace_builder.proto_builder import StreamingTraceProtoBuilder

from tests.benchmarks import table
from tests.benchmarks.measure import Amount, Cost, least, of_work
from tests.benchmarks.table import Row
from tests.support.charts import write_trace
from trace_export.chart.chart import Chart, Part, Track
from trace_export.writers.traces import chrome, perfetto

TRACKS = 16
ARGUMENTS = ["microbatch", "rank", "bytes"]
SAMPLE = 50_000
"""Slices that the others write; what they take grows with the number."""


def slices(rows: int) -> pl.DataFrame:
    """`rows` slices, track by track in the order of time."""
    random = np.random.default_rng(7)
    each = rows // TRACKS
    length = random.integers(1_000, 30_000, (TRACKS, each))
    end = np.cumsum(length + random.integers(0, 3_000, (TRACKS, each)), axis=1)
    names = pl.Series([f"F{i}" for i in range(50)]).gather(random.integers(0, 50, TRACKS * each))
    return pl.DataFrame(
        {
            "track": np.repeat(np.arange(2, TRACKS + 2, dtype=np.uint32), each),
            "start_ns": (end - length).ravel(),
            "end_ns": end.ravel(),
            "name": names.cast(pl.Categorical),
            "microbatch": random.integers(0, 50, TRACKS * each, np.int32),
            "rank": random.integers(0, 1000, TRACKS * each, np.int32),
            "bytes": random.integers(0, 1 << 33, TRACKS * each),
        }
    )


def chart(frame: pl.DataFrame) -> Chart:
    tracks = [Track(i, f"stage {i - 2}", 1, i) for i in range(2, TRACKS + 2)]
    return Chart("bench", 0, Part((Track(1, "bench", None, kind="group"), *tracks), frame), {})


def best(run: Callable[[], object], path: Path, rounds: int = 5) -> Cost:
    """The fastest round's time to write a new file at `path`."""

    def written() -> Cost:
        path.unlink(missing_ok=True)
        return of_work(run)

    return least(written() for _ in range(rounds))


def package_builder(rows: list[tuple[int, ...]], path: Path) -> None:
    """What the perfetto package's documentation shows."""
    with path.open("wb") as file:
        builder = StreamingTraceProtoBuilder(file)
        for track, start, end, name, *values in rows:
            packet = builder.create_packet()
            packet.timestamp, packet.trusted_packet_sequence_id = start, 1
            event = packet.track_event
            event.type, event.track_uuid, event.name = TrackEvent.TYPE_SLICE_BEGIN, track, str(name)
            for key, value in zip(ARGUMENTS, values, strict=True):
                event.debug_annotations.add(name=key, int_value=value)
            builder.write_packet(packet)
            packet = builder.create_packet()
            packet.timestamp, packet.trusted_packet_sequence_id = end, 1
            packet.track_event.type, packet.track_event.track_uuid = TrackEvent.TYPE_SLICE_END, track
            builder.write_packet(packet)


def list_of_dicts(rows: list[tuple[int, ...]], path: Path) -> None:
    events = []
    for track, start, end, name, *values in rows:
        event = {"ph": "X", "pid": 1, "tid": track, "ts": start / 1000, "dur": (end - start) / 1000, "name": name}
        event["args"] = dict(zip(ARGUMENTS, values, strict=True))
        events.append(event)
    path.write_bytes(orjson.dumps({"traceEvents": events}))


def speed(folder: Path, count: int) -> Iterator[Row]:
    frame = slices(count)
    drawn = chart(frame)
    trace, text, other = folder / "a.pftrace", folder / "a.json", folder / "other"
    ours = best(lambda: write_trace(perfetto, drawn, trace), trace)
    data = trace.read_bytes()
    raw = best(lambda: other.write_bytes(data), other)
    sample = frame.gather_every(max(1, len(frame) // SAMPLE)).rows()
    scale = len(frame) / len(sample)
    builder = best(lambda: package_builder(sample, other), other, 1).wall * scale
    json = best(lambda: write_trace(chrome, drawn, text), text)
    dicts = best(lambda: list_of_dicts(sample, other), other, 2).wall * scale
    what = f"encoder, {len(frame):,} slices with 3 arguments"
    yield Row(f"{what}: Perfetto", ours.seconds, "raw write", raw.seconds, 3.0)
    yield Row(f"{what}: Perfetto", ours.seconds, "StreamingTraceProtoBuilder", Amount(builder, "s"), 1 / 15)
    yield Row(f"{what}: JSON", json.seconds, "orjson of dicts", Amount(dicts, "s"), 1 / 5)


def rows(options: argparse.Namespace) -> Iterator[Row]:
    with tempfile.TemporaryDirectory() as folder:
        yield from speed(Path(folder), 20_000 if options.quick else 1_000_000)


if __name__ == "__main__":
    table.main(rows, table.parser(__doc__).parse_args())
