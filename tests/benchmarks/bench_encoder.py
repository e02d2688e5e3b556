"""How fast traces are written, beside the usual ways, in one run.

    python tests/benchmarks/bench_encoder.py            # 1 M slices
    python tests/benchmarks/bench_encoder.py --large    # and the memory that 10 M slices take

Slices lie in memory as columns, on 16 tracks, with 50 names (categorical, as device tasks have them) and three
whole-number arguments.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import orjson
import polars as pl
from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import TrackEvent
from perfetto.trace_builder.proto_builder import StreamingTraceProtoBuilder

from trace_export.chart.chart import Chart, Part, Track
from trace_export.writers.traces import chrome, perfetto

TRACKS = 16
ARGUMENTS = ["microbatch", "rank", "bytes"]
TARGETS = {"perfetto": 15.0, "raw": 3.0, "orjson": 5.0, "bytes": 70.0, "extra MB": 100.0}


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


def best(run: Callable[[], object], path: Path, rounds: int = 5) -> float:
    """The fastest round's time in seconds to write a new file at `path`."""
    times = []
    for _ in range(rounds):
        path.unlink(missing_ok=True)
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return min(times)


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


def line(what: str, value: float, text: str, target: float, *, at_most: bool = False) -> None:
    good = value <= target if at_most else value >= target
    print(f"{what:34} {text:44} {'ok' if good else 'MISSED'}")


def speed(folder: Path, rows: int) -> None:
    frame = slices(rows)
    drawn = chart(frame)
    trace, text, other = folder / "a.pftrace", folder / "a.json", folder / "other"
    ours = best(lambda: perfetto.write(drawn, trace), trace)
    data = trace.read_bytes()
    raw = best(lambda: other.write_bytes(data), other)
    sample = frame.gather_every(len(frame) // 50_000).rows()
    scale = len(frame) / len(sample)
    builder = best(lambda: package_builder(sample, other), other, 1) * scale
    print(f"{len(frame):,} slices with three arguments, {len(frame) / ours / 1e6:.1f} M/s Perfetto, ", end="")
    json = best(lambda: chrome.write(drawn, text), text)
    print(f"{len(frame) / json / 1e6:.1f} M/s JSON")
    dicts = best(lambda: list_of_dicts(sample, other), other, 2) * scale
    line(
        "StreamingTraceProtoBuilder / ours",
        builder / ours,
        f"{builder / ours:.1f} × (target ≥ 15)",
        TARGETS["perfetto"],
    )
    line("ours / raw write", ours / raw, f"{ours / raw:.2f} × (target ≤ 3)", TARGETS["raw"], at_most=True)
    each = len(data) / len(frame)
    line("bytes per slice", each, f"{each:.1f} (target ≤ 70)", TARGETS["bytes"], at_most=True)
    line("orjson of dicts / our JSON", dicts / json, f"{dicts / json:.1f} × (target ≥ 5)", TARGETS["orjson"])
    print(f"{'JSON bytes per slice':34} {text.stat().st_size / len(frame):.1f}")


def memory(folder: Path, rows: int) -> None:
    """The peak above what the columns take, for each format."""
    drawn = chart(slices(rows))
    for writer, name in ((perfetto, "a.pftrace"), (chrome, "a.json")):
        Path("/proc/self/clear_refs").write_text("5")  # forgets the peak so far
        before = resident("VmRSS")
        writer.write(drawn, folder / name)
        extra = (resident("VmHWM") - before) / 1024
        line(
            f"extra memory, {rows:,} as {name[2:]}",
            extra,
            f"{extra:.0f} MB (target ≤ 100)",
            TARGETS["extra MB"],
            at_most=True,
        )
        (folder / name).unlink()


def resident(key: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(text.split()[1]) for text in lines if text.startswith(key))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--large", action="store_true", help="also the memory of 10 M slices (writes 2 GB)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        speed(Path(folder), 1_000_000)
        if options.large:
            memory(Path(folder), 10_000_000)


if __name__ == "__main__":
    sys.exit(main())
