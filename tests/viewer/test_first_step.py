"""What `open` takes a file for, and where it sees the first step."""

from __future__ import annotations

import gzip
import tarfile
from pathlib import Path

import orjson
import pytest
from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import TrackEvent
from perfetto.trace_builder.proto_builder import TraceProtoBuilder

from trace_export.errors import SourceError
from trace_export.viewer.first_step import first_step, trace_format, trace_in

STEPS = [(5_000, 9_000), (1_000, 4_500)]  # the earlier one stands later in the file


def perfetto_trace(path: Path, steps: list[tuple[int, int]], *, defaults: bool = False) -> Path:
    """A trace with a stage track whose slices are earlier than the steps, by perfetto's own builder."""
    builder = TraceProtoBuilder()
    for uuid, name in ((2, "stage 0"), (7, "Steps")):
        packet = builder.add_packet()
        packet.track_descriptor.uuid, packet.track_descriptor.name = uuid, name
    if defaults:
        packet = builder.add_packet()
        packet.trusted_packet_sequence_id, packet.sequence_flags = 9, 1
        packet.trace_packet_defaults.track_event_defaults.track_uuid = 7
    for uuid, spans in ((2, [(10, 20), (30, 40)]), (7, steps)):
        for start, end in spans:
            for at, kind in ((start, TrackEvent.TYPE_SLICE_BEGIN), (end, TrackEvent.TYPE_SLICE_END)):
                packet = builder.add_packet()
                packet.timestamp, packet.trusted_packet_sequence_id = at, 9 if uuid == 7 else 3
                packet.track_event.type = kind
                if not (defaults and uuid == 7):
                    packet.track_event.track_uuid = uuid
    path.write_bytes(builder.serialize())
    return path


def chrome_trace(path: Path, steps: list[tuple[int, int]]) -> Path:
    events = [{"ph": "X", "name": "F0", "ts": 0, "dur": 2.5, "pid": 1, "tid": 3, "args": {"step": 0}}]
    events += [
        {
            "ph": "X",
            "name": f"step {n}",
            "ts": start / 1000,
            "dur": (end - start) / 1000,
            "pid": 1,
            "tid": 2,
            "args": {"run": 0},
        }
        for n, (start, end) in enumerate(steps)
    ]
    path.write_bytes(orjson.dumps({"traceEvents": events}))
    return path


def packed(path: Path) -> Path:
    target = path.with_name(path.name + ".gz")
    target.write_bytes(gzip.compress(path.read_bytes()))
    return target


@pytest.mark.parametrize("defaults", [False, True])
def test_first_step_of_a_perfetto_trace(tmp_path: Path, defaults: bool) -> None:
    path = perfetto_trace(tmp_path / "a.pftrace", STEPS, defaults=defaults)
    assert trace_format(path) == trace_format(packed(path)) == "perfetto"
    assert first_step(path) == first_step(packed(path)) == (1_000, 4_500)


def test_first_step_of_a_chrome_trace(tmp_path: Path) -> None:
    path = chrome_trace(tmp_path / "a.json", STEPS)
    assert trace_format(path) == trace_format(packed(path)) == "chrome"
    assert first_step(path) == first_step(packed(path)) == (1_000, 4_500)


def test_a_trace_without_steps_has_no_first(tmp_path: Path) -> None:
    assert first_step(perfetto_trace(tmp_path / "a.pftrace", [])) is None
    assert first_step(chrome_trace(tmp_path / "a.json", [])) is None


@pytest.mark.parametrize("name", ["a.pftrace", "a.json"])
def test_a_cut_or_flipped_trace_is_no_error(tmp_path: Path, name: str) -> None:
    make = perfetto_trace if name == "a.pftrace" else chrome_trace
    whole = make(tmp_path / name, STEPS).read_bytes()
    cut = tmp_path / f"cut-{name}"
    for size in range(1, len(whole)):
        cut.write_bytes(whole[:size])
        assert first_step(cut) in (None, (1_000, 4_500), (5_000, 9_000), (1_000, 9_000))
    for at in range(1, len(whole)):
        cut.write_bytes(whole[:at] + bytes([whole[at] ^ 0xFF]) + whole[at + 1 :])
        first_step(cut)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"", "is empty"),
        (b"<svg/>", "is a page or a picture; a web browser opens it"),
        (b"\x89PNG\r\n", "is a picture"),
        (b"PAR1", "is a table"),
        (b"SQLite format 3\0", "is a profile"),
        (b"rank,start", "is not a trace; open shows"),
        (gzip.compress(b"<html>", mtime=0), "is a page"),
        (gzip.compress(b"\n" * 1000, mtime=0)[:12], "is damaged"),
        (b"\x1f\x8bnot gzip at all", "is damaged"),
    ],
)
def test_other_files_are_named(tmp_path: Path, content: bytes, sentence: str) -> None:
    path = tmp_path / "file.bin"
    path.write_bytes(content)
    with pytest.raises(SourceError, match=sentence):
        first_step(path)


def test_folders_and_missing_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="is a folder; name the trace file"):
        first_step(tmp_path)
    with pytest.raises(SourceError, match=r"cannot be read \(No such file"):
        first_step(tmp_path / "nothing.pftrace")


def test_the_only_trace_of_a_folder(tmp_path: Path) -> None:
    assert trace_in(tmp_path) == tmp_path
    (tmp_path / "a.pftrace").touch()
    (tmp_path / "a.json").touch()
    assert trace_in(tmp_path) == tmp_path / "a.pftrace"
    assert trace_in(tmp_path / "a.json") == tmp_path / "a.json"
    (tmp_path / "b.pftrace.gz").touch()
    assert trace_in(tmp_path) == tmp_path  # whoever wants one has to say which


def test_archives_of_traces_are_traces(tmp_path: Path) -> None:
    (tmp_path / "trace.json").write_text("{}")
    with tarfile.open(tmp_path / "a.tar", "w", format=tarfile.USTAR_FORMAT) as tar:
        tar.add(tmp_path / "trace.json", "trace.json")
    assert trace_format(tmp_path / "a.tar") == "archive"
    assert first_step(tmp_path / "a.tar") is None
