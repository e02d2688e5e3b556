"""Hostile sizes: processor time and memory in proportion to the file, and figures or one sentence.

The system ends a run that goes beyond its bounds, which trace_export/docs/scale.md states.
"""

from __future__ import annotations

import json
import random
import subprocess
from pathlib import Path

import pytest

from tests.faults.random_sizes import DRAWS
from tests.faults.sizes import SIZES
from tests.support.limits import limited

MEMORY = 640 << 20
"""What every run may have (RLIMIT_DATA counts what is reserved: the stacks of threads, the pools of allocators, without
which the command does not start)."""
FILE_FACTOR = 20
"""And so many times the size of its files."""
SECONDS, SECONDS_PER_MB = 30, 3
"""Of processors."""


def drawn(folder: Path) -> subprocess.CompletedProcess[str]:
    """The command in its bounds on what lies in `folder`: it ends by itself, and in few words."""
    total = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    out, tables = folder.with_name("out"), list(folder.glob("spans.*"))
    source = tables or [folder, "--detail", "kernels"]
    result = limited(
        MEMORY + FILE_FACTOR * total, SECONDS + SECONDS_PER_MB * total / 1e6,
        "export", *source, "--out", out, "--format", "perfetto,chrome", "--jobs", 1, "--align", "none",
    )  # fmt: skip
    assert result.returncode in (0, 1, 3), f"ended by signal {-result.returncode}: {result.stderr[-500:]}"
    for words in ("internal error", "enough memory", "panicked", "data segment"):
        assert words not in result.stderr, result.stderr[-500:]
    assert len(result.stderr) < 10_000
    written = sum(path.stat().st_size for path in out.iterdir()) if out.exists() else 0
    assert written < MEMORY + FILE_FACTOR * total
    return result


@pytest.mark.parametrize("what", SIZES)
def test_a_hostile_size_takes_no_more_than_its_file_may(what: str, tmp_path: Path) -> None:
    folder, size = tmp_path / "logs", SIZES[what]
    folder.mkdir()
    size.make(folder)
    result = drawn(folder)
    if size.says:
        assert size.says in result.stderr
    else:
        assert result.returncode == 0, result.stderr[-500:]


def test_records_of_a_dynamic_graph_take_microseconds_each(tmp_path: Path) -> None:
    """With 0.1 ms for each line, so many would take 40 s."""
    lines = [
        json.dumps({"name": f"{kind}{n % 8}", "cat": "pipeline timeline", "ph": ph, "pid": 0, "tid": 1,
                    "ts": 1_700_000_000_000 + 20 * n + shift})
        for n in range(100_000) for kind, ph, shift in (("F", "B", 0), ("F", "E", 9), ("B", "B", 10), ("B", "E", 19))
    ]  # fmt: skip
    (tmp_path / "profile_record_tmp_file_for_rank_0").write_text("\n".join(lines))
    result = limited(2 << 30, 15, tmp_path, "--out", tmp_path / "out", "--format", "csv", "--jobs", 1)
    assert result.returncode == 0, result.stderr
    assert (tmp_path / "out" / "pipeline_profile.csv").read_bytes().count(b"\n") == 1 + len(lines) // 2


@pytest.mark.parametrize("kind", DRAWS)
def test_sizes_drawn_at_random_take_no_more_than_their_file_may(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    for seed in range(50 if request.config.getoption("--slow") else 1):
        folder = tmp_path / str(seed) / "logs"
        folder.mkdir(parents=True)
        DRAWS[kind](random.Random(f"{kind} {seed}"), folder)
        try:
            drawn(folder)
        except AssertionError as error:
            raise AssertionError(f"{kind}, seed {seed}") from error
