"""Paddle logs from the command line to the span table, against truth files, the generator and Paddle's own script."""

from __future__ import annotations

import csv
import gzip
import shutil
from collections import Counter
from pathlib import Path

import orjson
import polars as pl
import pytest

from samples.generators import paddle as generate_paddle
from tests.conftest import Cli
from tests.support.trace_processor import TraceProcessor

KEYS = ["rank", "step", "kind", "microbatch", "chunk", "start_ns", "end_ns"]
STATIC = [
    "1f1b_old_pp4_mb8", "1f1b_pir_pp4_mb8", "appended_runs", "default_only", "eager1f1b_pp4_mb8", "fthenb_pp4_mb4",
    "mixed_ranks", "multi_1x2", "multi_2x2_envlog_swapped", "multi_2x2_skew", "nasty", "nasty_bytes",
    "real_lines_oct2023", "subset_dev23", "tp2_pp2_dp2", "vpp_pir_pp4_mb8", "zbh1_pp4_mb8", "zbvpp_pp4_mb4",
    "dygraph_1f1b_pp4_mb8", "dygraph_vpp2_pp4_mb8",
]  # fmt: skip
ONE_IS_MISSING = ["empty_rank1", "missing_rank2"]
"""Runs in which one rank has no usable log: exit code 3, the others still come out."""
WELL_FORMED = [
    "fthenb_pp4_mb4",
    "1f1b_old_pp4_mb8",
    "1f1b_pir_pp4_mb8",
    "eager1f1b_pp4_mb8",
    "zbh1_pp4_mb8",
    "zbvpp_pp4_mb4",
]
"""Samples for which the reference script is right."""


def table(folder: Path) -> list[tuple[object, ...]]:
    """The rows of an exported CSV table, with micro-batch and chunk only where a kind gives them a meaning."""
    return sorted(map(comparable, rows_of(folder / "pipeline_profile.csv")), key=str)


def rows_of(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(path.read_text(encoding="utf-8").splitlines()))


def comparable(row: dict[str, str]) -> tuple[object, ...]:
    numbered = row["kind"] in ("F", "B", "W")
    microbatch, chunk = (row["microbatch"], row["chunk"]) if numbered else ("", "")
    start, end = (row.get(f"{x}_ns") or str(int(row[f"{x}_us"]) * 1000) for x in ("start", "end"))
    return int(row["rank"]), row["step"], row["kind"], microbatch, chunk, int(start), int(end)


def truth(sample: Path) -> list[tuple[object, ...]]:
    return sorted(map(comparable, rows_of(sample / "truth.csv")), key=str)


@pytest.mark.parametrize("name", STATIC + ONE_IS_MISSING)
def test_every_block_of_a_recorded_sample(name: str, shared: Path, run_cli: Cli, tmp_path: Path) -> None:
    sample = shared / "data" / "paddle" / name
    options = ["--devices", "0,1,2,3"] if name == "missing_rank2" else []
    result = run_cli("--log_dir", sample, "--out", tmp_path, "--format", "csv", "--align", "none", *options)
    assert result.returncode == (3 if name in ONE_IS_MISSING else 0), result.stderr
    rows = table(tmp_path)
    rejects = sample / "rejects.csv"
    refused = rows_of(rejects) if rejects.exists() else []
    optional = {(r["step"], r["microbatch"]) for r in refused if r["optional"] == "1"}
    extra = [row for row in Counter(rows) - Counter(truth(sample)) if (row[1], row[3]) not in optional]
    assert not extra
    assert not Counter(truth(sample)) - Counter(rows)


@pytest.mark.parametrize("name", WELL_FORMED)
def test_the_same_slices_as_paddles_own_script(name: str, shared: Path, run_cli: Cli, tmp_path: Path) -> None:
    sample = shared / "data" / "paddle" / name
    events = orjson.loads(gzip.decompress((sample / "golden" / "3.3.1" / "pipeline_profile.json.gz").read_bytes()))[
        "traceEvents"
    ]
    begins = [e for e in events if e["ph"] == "B" and e["tid"] != "Step"]
    ends = [e for e in events if e["ph"] == "E" and e["tid"] != "Step"]
    expected = Counter(
        (int(b["tid"].removeprefix("GPU")), b["cat"], int(b["name"].rpartition("_")[2]), round(b["ts"]), round(e["ts"]))
        for b, e in zip(begins, ends, strict=True)
        if b["ts"] > 0
    )
    run_cli("--log_dir", sample, "--out", tmp_path, "--format", "csv", "--align", "none")
    rows = rows_of(tmp_path / "pipeline_profile.csv")
    found = Counter(
        (int(r["rank"]), r["marker"], int(r["microbatch"] or 0), int(r["start_ns"]) // 1000, int(r["end_ns"]) // 1000)
        for r in rows
    )
    assert found == expected


@pytest.mark.parametrize(
    ("machines", "stages", "microbatches", "seed"),
    [(1, 2, 3, 5), (1, 4, 8, 6), (2, 4, 6, 7), (4, 8, 9, 8), (12, 12, 13, 9)],
)
def test_the_generators_truth_on_each_machines_clock(
    machines: int, stages: int, microbatches: int, seed: int, run_cli: Cli, tmp_path: Path
) -> None:
    errors = tuple(137 * m for m in range(machines))
    logs = tmp_path / "logs"
    logs.mkdir()
    blocks = generate_paddle.write(
        logs, stages=stages, microbatches=microbatches, machines=machines, clock_errors_us=errors, seed=seed
    )
    several = ["--multi_machine"] if machines > 1 else []
    result = run_cli("--log_dir", logs, *several, "--out", tmp_path, "--format", "parquet", "--align", "none")
    assert result.returncode == 0, result.stderr
    frame = pl.read_parquet(tmp_path / "pipeline_profile.parquet").with_columns(pl.col("microbatch").fill_null(0))
    expected = [
        (b.rank, b.step, b.kind, b.microbatch or 0, b.start_ns + 1000 * errors[b.rank // (stages // machines)], b.rank)
        for b in blocks
    ]
    assert sorted(frame.select("rank", "step", "kind", "microbatch", "start_ns", "stage").rows()) == sorted(expected)


def test_devices_are_local_worker_indexes(samples: Path, run_cli: Cli, tmp_path: Path) -> None:
    result = run_cli(
        "--devices",
        "1",
        "--log_dir",
        samples / "paddle" / "two_machines",
        "--multi_machine",
        "--out",
        tmp_path,
        "--format",
        "csv",
    )
    assert result.returncode == 0, result.stderr
    assert {row[0] for row in table(tmp_path)} == {1, 3}


def test_a_device_without_a_log_is_named_and_the_others_come_out(samples: Path, run_cli: Cli, tmp_path: Path) -> None:
    result = run_cli(
        "--devices", "0,1,9", "--log_dir", samples / "paddle" / "single", "--out", tmp_path, "--format", "csv"
    )
    assert result.returncode == 3
    assert "single: device 9 of machine0 has no profile here; it has those of devices 0-3" in result.stderr
    assert {row[0] for row in table(tmp_path)} == {0, 1}


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("cpu_run_no_records", "no pipeline record in this log"),
        ("launcher_files_2x2", "none of the 4 sources gave a block"),
        ("real_executor_zbh1", "all records have the time 0.000000"),
    ],
)
def test_logs_without_a_block_say_why(name: str, sentence: str, shared: Path, run_cli: Cli, tmp_path: Path) -> None:
    result = run_cli("--log_dir", shared / "data" / "paddle" / name, "--out", tmp_path)
    assert result.returncode == 1
    assert sentence in result.stderr
    assert not list(tmp_path.iterdir())


def test_dropped_records_are_counted_with_file_and_line(samples: Path, run_cli: Cli, tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    shutil.copytree(samples / "paddle" / "single", logs)
    lines = (logs / "workerlog.1").read_text().splitlines(keepends=True)
    broken = next(i for i, line in enumerate(lines) if "Profiler Info" in line)
    lines[broken] = lines[broken].replace("micro_batch_id = 0", "micro_batch_id = zero")
    (logs / "workerlog.1").write_text("".join(lines))
    result = run_cli("--log_dir", logs, "--out", tmp_path, "--format", "csv", "--json")
    note = next(n for n in orjson.loads(result.stdout)["notes"] if n["code"] == "records-malformed")
    assert note["count"] == 1
    assert note["where"] == f"{logs / 'workerlog.1'}:{broken + 1}"
    assert run_cli("--log_dir", logs, "--out", tmp_path, "--format", "csv", "--strict").returncode == 3


def test_the_environment_in_the_launchers_files_reaches_no_output(shared: Path, run_cli: Cli, tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    shutil.copytree(shared / "data" / "paddle" / "multi_2x2_envlog_swapped", logs)
    for path in logs.rglob("envlog.*"):
        path.write_text("AAA_TOKEN=planted-secret\n" + path.read_text())
    result = run_cli("--log_dir", logs, "--out", tmp_path / "out", "--format", "csv,perfetto,chrome", "--json")
    assert result.returncode == 0, result.stderr
    written = b"".join(p.read_bytes() for p in (tmp_path / "out").iterdir())
    assert b"planted-secret" not in written + result.stdout.encode() + result.stderr.encode()
    assert orjson.loads(result.stdout)["ranks"] == 4


@pytest.mark.parametrize("suffix", ["pftrace", "json", "pftrace.gz", "json.gz"])
def test_both_traces_hold_the_table(suffix: str, run_cli: Cli, samples: Path, tmp_path: Path) -> None:
    options = ["--gzip"] if suffix.endswith("gz") else []
    formats = "perfetto,chrome,parquet"
    result = run_cli(samples / "paddle" / "two_machines", "--out", tmp_path, "--format", formats, *options)
    assert result.returncode == 0, result.stderr
    frame = pl.read_parquet(tmp_path / "pipeline_profile.parquet")
    first = frame["start_ns"].min()
    names = ("kind", "microbatch", "chunk", "stage", "rank", "step", "host", "origin", "marker")
    key = "debug" if "pftrace" in suffix else "args"
    columns = ", ".join(f"extract_arg(arg_set_id, '{key}.{name}') {name}" for name in names)
    with TraceProcessor(tmp_path / f"pipeline_profile.{suffix}") as trace:
        assert trace.problems().is_empty()
        slices = trace.query(f"select ts, dur, name, {columns} from slice where category = 'block' order by ts, rank")
        flows = trace.query("select count(*) n from flow").item()
        tracks = trace.query("select count(distinct track_id) n from slice where category = 'block'").item()
    expected = frame.select(
        (pl.col("start_ns") - first).alias("ts"),
        (pl.col("end_ns") - pl.col("start_ns")).alias("dur"),
        pl.when(pl.col("kind") == "OPT")
        .then(pl.lit("Optimizer"))
        .otherwise(pl.concat_str("kind", "microbatch", ignore_nulls=True))
        .alias("name"),
        *names,
    ).sort("ts", "rank")
    assert slices.rows() == expected.rows()
    assert tracks == 4
    assert flows == 2 * 3 * 8 * 3  # forward and backward, hops, micro-batches, steps
