"""What `open` takes a file for, and what it shows first."""

import gzip
import tarfile
from pathlib import Path

import orjson
import pytest
from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace, TrackEvent

from tests.support.profiles import profile, span
from tests.writers.pictures.test_picture import run_of
from trace_export.chart.layout import lay_out
from trace_export.errors import SourceError
from trace_export.viewer.first_step import first_step, trace_in, track_to_pin
from trace_export.writers.traces import chrome, perfetto

WRITERS = {"a.pftrace": perfetto.writing, "a.json": chrome.writing}
RUN = lay_out(run_of("zb-h1", 2, 3, steps=2))


def first_of_packets(data: bytes) -> tuple[int, int]:
    """The earliest slice on the track of steps, as the perfetto package reads the trace."""
    packets = Trace.FromString(data).packet
    track = next(p.track_descriptor.uuid for p in packets if p.track_descriptor.name == "Steps")
    events = [(p.timestamp, p.track_event.type) for p in packets if p.track_event.track_uuid == track]
    start = min(at for at, kind in events if kind == TrackEvent.TYPE_SLICE_BEGIN)
    return start, min(at for at, kind in events if kind == TrackEvent.TYPE_SLICE_END and at > start)


def first_of_json(data: bytes) -> tuple[int, int]:
    """The earliest event that is a step; times are decimal microseconds."""
    steps = [event for event in orjson.loads(data)["traceEvents"] if event.get("cat") == "step"]
    first = min(steps, key=lambda event: event["ts"])
    return round(first["ts"] * 1000), round((first["ts"] + first["dur"]) * 1000)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("name", WRITERS)
def test_the_first_step_is_that_of_the_trace(name: str, packed: bool, tmp_path: Path) -> None:
    RUN.put(WRITERS[name](RUN, tmp_path / name, packed))
    data = (tmp_path / name).read_bytes()
    data = gzip.decompress(data) if packed else data
    assert first_step(tmp_path / name) == (first_of_packets if name == "a.pftrace" else first_of_json)(data)
    assert track_to_pin(tmp_path / name) == ""


@pytest.mark.parametrize("name", WRITERS)
def test_a_trace_without_steps_and_one_of_others_say_nothing(name: str, tmp_path: Path) -> None:
    chart = lay_out(profile([span(0, None, None, 0, 5, step=None)], {0: 0}))
    chart.put(WRITERS[name](chart, tmp_path / name, False))
    assert first_step(tmp_path / name) is None
    (tmp_path / "other.json").write_bytes(orjson.dumps({"traceEvents": []}))
    assert first_step(tmp_path / "other.json") is None


@pytest.mark.parametrize("name", WRITERS)
def test_a_cut_or_flipped_trace_is_no_error(name: str, tmp_path: Path) -> None:
    RUN.put(WRITERS[name](RUN, tmp_path / name, False))
    whole = (tmp_path / name).read_bytes()[:300]
    for at in range(1, len(whole)):
        (tmp_path / name).write_bytes(whole[:at])
        first_step(tmp_path / name)
        (tmp_path / name).write_bytes(whole[:at] + bytes([whole[at] ^ 0xFF]) + whole[at + 1 :])
        first_step(tmp_path / name)
        track_to_pin(tmp_path / name)


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
    assert first_step(tmp_path / "a.tar") is None
