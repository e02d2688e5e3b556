"""Every file that the writers make carries the mark, and no other file does."""

import gzip
import os
import random
from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest
from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as pb

from tests.support.charts import write_trace
from tests.support.profiles import two_stages
from trace_export.chart.layout import ChartOptions, lay_out
from trace_export.clocks import alignment_file
from trace_export.writers import mark, tables
from trace_export.writers.mark import is_marked
from trace_export.writers.pictures import picture
from trace_export.writers.pictures.page import Contents
from trace_export.writers.traces import chrome, perfetto

PROFILE = two_stages()
CHART = lay_out(PROFILE, ChartOptions())

WRITERS: dict[str, Callable[[Path], None]] = {
    "a.pftrace": lambda path: write_trace(perfetto, CHART, path),
    "a.pftrace.gz": lambda path: write_trace(perfetto, CHART, path, gzip=True),
    "a.json": lambda path: write_trace(chrome, CHART, path),
    "a.json.gz": lambda path: write_trace(chrome, CHART, path, gzip=True),
    "a.svg": lambda path: picture.write(CHART, path, "svg"),
    "a.png": lambda path: picture.write(CHART, path, "png"),
    "a.pdf": lambda path: picture.write(CHART, path, "pdf"),
    "a.html": lambda path: picture.write(CHART, path, "html"),
    "report.html": lambda path: picture.write(CHART, path, "html", contents=Contents()),
    "a.parquet": lambda path: tables.write_parquet(PROFILE, path),
    "a.csv": lambda path: tables.write_csv(PROFILE, path),
    "clock_alignment.json": lambda path: alignment_file.write(PROFILE, path),
}


@pytest.mark.parametrize("name", WRITERS)
def test_what_is_written_carries_the_mark(name: str, tmp_path: Path) -> None:
    """In its content, whatever it is called; not before the mark was written: a CSV is plain text, any begin of which
    may be somebody's."""
    path, other = tmp_path / name, tmp_path / "notes.csv"
    if path.suffix == ".png":
        pytest.importorskip("vl_convert")
    WRITERS[name](path)
    assert is_marked(path)
    path.rename(other)
    assert is_marked(other)
    path.write_text("mine")
    assert not is_marked(path)
    for size in (20, 1, 0):
        os.truncate(other, size)
        assert not is_marked(other), size


def without(path: Path, *passages: bytes) -> bytes:
    """The file's content less the passages, each found once."""
    content = path.read_bytes()
    for passage in passages:
        assert content.count(passage) == 1
        content = content.replace(passage, b"")
    return content


def test_the_mark_is_all_that_is_added(tmp_path: Path) -> None:
    """Of each text format, and of PNG."""
    for name in ("a.json", "a.svg", "a.html", "a.png"):
        WRITERS[name](tmp_path / name)
    assert without(tmp_path / "a.svg", b"<!-- generator: trace-export -->").startswith(b"<svg ")
    assert without(tmp_path / "a.html", b'<meta name="generator" content="trace-export">').startswith(
        b"<!doctype html>"
    )
    assert (tmp_path / "a.json").read_bytes().count(b'"generator":"trace-export",') == 2  # metadata and otherData
    png = without(tmp_path / "a.png", mark.png_chunk())
    assert png[12:16] == b"IHDR" and png[37:41] in (b"IDAT", b"sRGB", b"pHYs", b"gAMA")


def test_perfetto_calls_it_an_attribute_of_the_trace(tmp_path: Path) -> None:
    WRITERS["a.pftrace"](tmp_path / "a.pftrace")
    first = pb.Trace.FromString((tmp_path / "a.pftrace").read_bytes()).packet[0]
    assert first.SerializeToString().startswith(b"\xf2\x07")  # unknown to the protos of this version, so kept as it is
    assert mark.GENERATOR.encode() in first.SerializeToString()


def test_tables_are_read_as_before(tmp_path: Path) -> None:
    """By any reader: the quotation of a name is no part of it, and metadata are no column."""
    for name in ("a.csv", "a.parquet"):
        WRITERS[name](tmp_path / name)
    expected = tables.span_table(PROFILE)
    assert pl.read_parquet(tmp_path / "a.parquet").equals(expected)
    assert pl.read_csv(tmp_path / "a.csv", schema=expected.schema).equals(expected)
    assert pl.scan_csv(tmp_path / "a.csv").collect_schema().names() == list(tables.COLUMNS)
    assert pl.read_parquet_metadata(tmp_path / "a.parquet")["generator"] == "trace-export"


def test_tables_that_others_saved_are_theirs(tmp_path: Path) -> None:
    """The same rows, written again by a user who has changed them, say."""
    for name in ("a.csv", "a.parquet"):
        WRITERS[name](tmp_path / name)
    pl.read_csv(tmp_path / "a.csv").write_csv(tmp_path / "a.csv")
    pl.read_csv(tmp_path / "a.csv").write_csv(tmp_path / "quoted.csv", quote_style="always")
    pl.read_parquet(tmp_path / "a.parquet").write_parquet(tmp_path / "a.parquet")
    assert not any(is_marked(tmp_path / name) for name in ("a.csv", "quoted.csv", "a.parquet"))


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{}",
        b'{"generator":"trace-export"}',
        b'{"traceEvents":[{"name":"generator trace-export"}]}',
        b'{\n  "t0_ns": 0,\n  "hosts": {}\n}\n',
        b"<svg></svg>",
        b"<svg><path/><!-- generator: trace-export -->",
        b'<html><meta name="generator" content="trace-export">',
        b"rank,host,device,stage,step,kind,microbatch\n",
        b'"rank","host","device","stage","step","kind","microbatch"\n',
        b"\x89PNG\r\n\x1a\n" + bytes(25) + b"\0\0\0\x0dtEXtSoftware\0gimp",
        b"SQLite format 3\0" + bytes(100),
        b"PAR1",
        b"PAR1" + bytes(1000) + b"PAR1",
        b"\x1f\x8b",
        b"\x1f\x8b" + random.Random(1).randbytes(100),
        gzip.compress(b"{}", mtime=0),
        gzip.compress(gzip.compress(b'"rank",host,device,stage,step,kind,', mtime=0), mtime=0),
        b"\x0a\xff\xff\xff\xff\xff",
    ],
)
def test_files_of_others_carry_no_mark(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(content)
    assert not is_marked(tmp_path / "a")


def test_what_is_no_file_carries_no_mark_and_nobody_waits_for_it(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("nowhere")
    (tmp_path / "circle").symlink_to("circle")
    names = ("pipe", "link", "circle", ".", "absent", "absent/below")
    assert not any(is_marked(tmp_path / name) for name in names)
    assert not is_marked(Path("/dev/zero"))


@pytest.mark.parametrize("head", [b"PAR1", b"{", b"\x1f\x8b\x08" + bytes(7), b"<svg "])
def test_of_a_file_of_a_terabyte_only_the_ends_are_read(head: bytes, tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(head)
    os.truncate(path, 1 << 40)
    assert not is_marked(path)
