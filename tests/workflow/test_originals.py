"""The archive of a run: its traces on the clock of its chart."""

from __future__ import annotations

import csv
import tarfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import polars as pl
import pytest

import trace_export
from samples.generators import torch_pftrace
from tests.support.command import command
from tests.support.profiles import two_stages
from tests.support.torch_traces import one_block
from tests.support.trace_processor import TraceProcessor
from trace_export.errors import UsageError
from trace_export.model import CLOCKS, conform
from trace_export.sources.kineto.original import original
from trace_export.workflow import originals

SAMPLES = Path(__file__).parent.parent.parent / "samples"
KINETO = SAMPLES / "kineto" / "two_hosts"


def members(path: Path) -> dict[str, bytes]:
    with tarfile.open(path) as tar:
        return {entry.name: tar.extractfile(entry).read() for entry in tar.getmembers()}  # type: ignore[union-attr]


def entries(content: dict[str, bytes]) -> dict[str, Any]:
    files = orjson.loads(content["perfetto_manifest.json"])["perfetto_manifest"]["files"]
    return {entry["path"]: entry for entry in files}


@pytest.fixture(scope="module")
def run() -> trace_export.Run:
    return trace_export.load(KINETO).align()


def test_every_trace_is_moved_to_the_true_time_within_the_stated_error(run: trace_export.Run, tmp_path: Path) -> None:
    """The clock of the second host is 2.7 ms ahead. The first kernel of each forward begins with its block."""
    run.write(tmp_path / "a.tar")
    content = members(tmp_path / "a.tar")
    files = entries(content)
    bound = run.clocks["bound_ns"].max()
    assert isinstance(bound, float)
    with (KINETO / "truth.csv").open(encoding="utf-8") as file:
        truth = [row for row in csv.DictReader(file) if row["kind"] == "F"]
    for rank in range(4):
        events = orjson.loads(content[f"rank{rank}.json"])["traceEvents"]
        begins = [e["ts"] for e in events if e.get("cat") == "kernel" and e["name"] == "f_kernel_0"]
        offset = files[f"rank{rank}.json"]["clocks"]["offset_ns"]
        shown = sorted(round(ts * 1000) + offset for ts in begins)
        expected = sorted(int(row["true_start_ns"]) for row in truth if int(row["rank"]) == rank)
        assert len(shown) == len(expected) > 0
        assert max(abs(a - b) for a, b in zip(shown, expected, strict=True)) <= bound
    assert [files[f"rank{rank}.json"]["machine"]["name"] for rank in (0, 3)] == ["rank 0 on node0", "rank 3 on node1"]


def test_a_trace_processor_reads_all_its_files(run: trace_export.Run, tmp_path: Path) -> None:
    """An old one, which does not know the manifest and takes it for a trace without events."""
    run.write(tmp_path / "a.tar")
    run.write(tmp_path / "chart.pftrace")
    with TraceProcessor(tmp_path / "a.tar") as archive, TraceProcessor(tmp_path / "chart.pftrace") as chart:
        files = archive.query("select trace_type as kind, count(*) as n from __intrinsic_trace_file group by 1")
        assert {row["kind"]: row["n"] for row in files.to_dicts()} == {"tar": 1, "proto": 1, "json": 4 + 1}
        events = [orjson.loads(c)["traceEvents"] for name, c in members(tmp_path / "a.tar").items() if "rank" in name]
        kernels = sum(event["name"] == "f_kernel_0" for of_rank in events for event in of_rank)
        assert archive.query("select count(*) as n from slice where name = 'f_kernel_0'").item() == kernels > 0
        steps = "select count(*) as n from slice where name glob 'step *'"
        assert archive.query(steps).item() == chart.query(steps).item() > 0


def test_a_second_run_replaces_its_own_archive_only(run: trace_export.Run, tmp_path: Path) -> None:
    out = tmp_path / "a.tar"
    assert run.write(out) == [out] == run.write(out)
    with tarfile.open(out, "w") as tar:
        tar.add(KINETO / "truth.csv")
    with pytest.raises(UsageError, match="not known to be an output"):
        run.write(out)


def test_only_the_ranks_that_are_drawn_are_in_it(run: trace_export.Run, tmp_path: Path) -> None:
    run.select(stages=[1, 2]).write(tmp_path / "a.tar")
    assert [name for name in members(tmp_path / "a.tar") if name.endswith(".json")][1:] == ["rank1.json", "rank2.json"]


def test_a_perfetto_trace_of_torch_has_a_clock(tmp_path: Path) -> None:
    trace = one_block()
    packets = original(torch_pftrace.write(trace, tmp_path / "a.pftrace"))
    assert (packets.extension, packets.clock, packets.zero_ns) == ("pftrace", "BOOTTIME", 0)
    trace.write(tmp_path / "a.pt.trace.json")
    plain = original(tmp_path / "a.pt.trace.json")
    assert (plain.extension, plain.clock, plain.zero_ns) == ("json", None, trace.base_ns)


def test_drift_is_corrected_in_the_middle_and_stated_for_the_ends() -> None:
    profile = two_stages()
    length = 20_000_000
    spans = profile.spans.with_columns(start_ns=pl.lit(10**15), end_ns=pl.lit(10**15 + length))
    hosts = profile.ranks["host"].unique()
    clocks = conform(pl.DataFrame({"host": hosts}).with_columns(offset_ns=0, drift=1e-4, reference_ns=10**15), CLOCKS)
    drifting = replace(profile, spans=spans, clocks=clocks)
    assert originals.drift_left_ns(drifting, "stage") == length / 2 * 1e-4
    assert originals._correction(drifting, [0]) == pytest.approx(length / 2 * 1e-4, abs=1)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["nsys", "--log_dir", str(SAMPLES / "nsys" / "two_hosts")], "these are Nsight Systems SQLite exports"),
        (["compare", str(KINETO), str(KINETO), "--steps-b", "1"], "holds the traces of one run"),
        (["simulate", "--schedule", "1f1b", "--stages", "2", "--microbatches", "2"], "was not read from profiles"),
    ],
)
def test_what_has_no_traces_for_it_is_refused_before_anything_is_written(
    arguments: list[str], sentence: str, tmp_path: Path
) -> None:
    result = command(*arguments, "--format", "perfetto-archive,svg", "--out", tmp_path)
    assert result.returncode == 2
    assert sentence in " ".join(result.stderr.split())
    assert list(tmp_path.iterdir()) == []
