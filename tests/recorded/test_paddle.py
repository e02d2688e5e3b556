"""Paddle: recorded and nasty logs against their truth files, and what Paddle's own script makes of them."""

import gzip
from collections import Counter
from pathlib import Path

import orjson
import pytest

from tests.conftest import Cli
from tests.sources.paddle.test_reader import comparable, rows_of, table

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


def truth(sample: Path) -> list[tuple[object, ...]]:
    return sorted(map(comparable, rows_of(sample / "truth.csv")), key=str)


@pytest.mark.parametrize("name", STATIC + ONE_IS_MISSING)
def test_every_block_of_a_recorded_sample(name: str, recorded: Path, run_cli: Cli, tmp_path: Path) -> None:
    sample = recorded / "paddle" / name
    options = ["--devices", "0,1,2,3"] if name == "missing_rank2" else []
    result = run_cli(
        "--log_dir", sample, "--out", tmp_path, "--format", "csv", "--align", "none", "--run", "all", *options
    )
    assert result.returncode == (3 if name in ONE_IS_MISSING else 0), result.stderr
    rows = table(tmp_path)
    rejects = sample / "rejects.csv"
    refused = rows_of(rejects) if rejects.exists() else []
    optional = {(r["step"], r["microbatch"]) for r in refused if r["optional"] == "1"}
    extra = [row for row in Counter(rows) - Counter(truth(sample)) if (row[1], row[3]) not in optional]
    assert not extra
    assert not Counter(truth(sample)) - Counter(rows)


@pytest.mark.parametrize("name", WELL_FORMED)
def test_the_same_slices_as_paddles_own_script(name: str, recorded: Path, run_cli: Cli, tmp_path: Path) -> None:
    sample = recorded / "paddle" / name
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
    result = Counter(
        (int(r["rank"]), r["marker"], int(r["microbatch"] or 0), int(r["start_ns"]) // 1000, int(r["end_ns"]) // 1000)
        for r in rows
    )
    assert result == expected


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("cpu_run_no_records", "no pipeline record in this log"),
        ("launcher_files_2x2", "none of the 4 sources gave a block"),
        ("real_executor_zbh1", "all records have the time 0.000000"),
    ],
)
def test_logs_without_a_block_say_why(name: str, sentence: str, recorded: Path, run_cli: Cli, tmp_path: Path) -> None:
    result = run_cli("--log_dir", recorded / "paddle" / name, "--out", tmp_path)
    assert result.returncode == 1
    assert sentence in result.stderr
    assert not list(tmp_path.iterdir())
