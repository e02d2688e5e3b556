"""An archive of traces: what Perfetto's reference of the manifest and its reader of tar archives ask for."""

from __future__ import annotations

import gzip
import tarfile
from pathlib import Path
from typing import Any

import orjson
import pytest
from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as pb

from tests.support.profiles import two_stages
from trace_export.chart.layout import ChartOptions, lay_out
from trace_export.errors import SourceError
from trace_export.writers.traces import archive
from trace_export.writers.traces.archive import Member

CHART = lay_out(two_stages(), ChartOptions(from_epoch=True))
CLOCKS = ("REALTIME", "REALTIME_COARSE", "MONOTONIC", "MONOTONIC_COARSE", "MONOTONIC_RAW", "BOOTTIME")


def written(folder: Path, *contents: bytes) -> tuple[Path, list[Member]]:
    members = []
    for rank, content in enumerate(contents):
        source = folder / f"source{rank}"
        source.write_bytes(content)
        members.append(Member(f"rank{rank}.json", source, f"rank {rank} on a", 10 * rank - 5))
    archive.write(CHART, folder / "a.tar", members)
    return folder / "a.tar", members


def manifest(path: Path) -> dict[str, Any]:
    with tarfile.open(path) as tar:
        file = tar.extractfile(tar.getmembers()[0])
        assert file is not None
        content: dict[str, Any] = orjson.loads(file.read())
    assert list(content) == ["perfetto_manifest"]  # the file is recognized by these first characters
    return content["perfetto_manifest"]


def test_the_traces_are_there_unpacked_in_plain_headers(tmp_path: Path) -> None:
    path, members = written(tmp_path, b"x" * 700, gzip.compress(b"y" * 1024), b"")
    with tarfile.open(path) as tar:
        contents = {entry.name: tar.extractfile(entry).read() for entry in tar.getmembers()}  # type: ignore[union-attr]
    expected = dict(zip((member.name for member in members), (b"x" * 700, b"y" * 1024, b""), strict=True))
    assert list(contents) == ["perfetto_manifest.json", archive.CHART, *expected]
    assert {name: contents[name] for name in expected} == expected
    raw, at = path.read_bytes(), 0
    assert len(raw) % 512 == 0 and raw.endswith(bytes(1024))
    for content in contents.values():  # no header of another kind (PAX, GNU) stands between
        assert raw[at + 257 : at + 263] == b"ustar\0" and raw[at + 156 : at + 157] == b"0"
        at += 512 + (len(content) + 511) // 512 * 512


def test_times_of_the_chart_count_from_the_epoch(tmp_path: Path) -> None:
    path, _ = written(tmp_path)
    with tarfile.open(path) as tar:
        chart = pb.Trace.FromString(tar.extractfile(archive.CHART).read())  # type: ignore[union-attr]
    starts = [p.timestamp for p in chart.packet if p.track_event.type == pb.TrackEvent.TYPE_SLICE_BEGIN]
    assert min(starts) == two_stages().spans["start_ns"].min()


def test_the_manifest_follows_its_reference(tmp_path: Path) -> None:
    """https://perfetto.dev/docs/reference/perfetto-manifest"""
    source = tmp_path / "source"
    source.write_bytes(b"z")
    members = [
        Member("rank0.json", source, "rank 0 on a", 7),
        Member("rank1.pftrace", source, "rank 1 on b", -3, clock="BOOTTIME"),
    ]
    archive.write(CHART, tmp_path / "a.tar", members)
    found = manifest(tmp_path / "a.tar")
    assert found["version"] == 1
    assert found["trace_time"]["clock"] in CLOCKS
    assert all(isinstance(value, (str, int)) for value in found["attributes"].values())
    with tarfile.open(tmp_path / "a.tar") as tar:
        assert [entry["path"] for entry in found["files"]] == tar.getnames()[1:]
    chart, plain, packets = found["files"]
    assert chart == {"path": archive.CHART}
    reference = {"file": archive.CHART, "clock": found["trace_time"]["clock"]}
    assert plain["clocks"] == {"sync_to": reference, "offset_ns": 7}  # no clock: it has none
    assert packets["clocks"] == {"clock": "BOOTTIME", "sync_to": reference, "offset_ns": -3}
    assert plain["machine"] != packets["machine"]


def test_a_trace_that_the_header_cannot_describe_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive, "_LARGEST", 100_000)
    with pytest.raises(SourceError, match="source0: is larger than 8 GiB"):
        written(tmp_path, b"x" * 100_001)


def test_a_trace_that_is_gone_is_said(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"gone: cannot be read \(No such file"):
        archive.write(CHART, tmp_path / "a.tar", [Member("rank0.json", tmp_path / "gone", "rank 0", 0)])
