"""Hostile sizes: processor time and memory in proportion to the file, and figures or one sentence.

The system ends a run that goes beyond its bounds.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.sizes import SIZES
from tests.support.limits import limited

MEMORY = 640 << 20
"""What every run may have (RLIMIT_DATA counts what is reserved: the stacks of threads, the pools of allocators, without
which the command does not start)."""
FILE_FACTOR = 20
"""And so many times the size of its files."""
SECONDS, SECONDS_PER_MB = 30, 3
"""Of processors."""


@pytest.mark.parametrize("what", SIZES)
def test_a_hostile_size_takes_no_more_than_its_file_may(what: str, tmp_path: Path) -> None:
    folder, size = tmp_path / "logs", SIZES[what]
    folder.mkdir()
    size.make(folder)
    total = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    table = folder / "spans.parquet"
    source = [table] if table.exists() else [folder, "--detail", "kernels"]
    result = limited(
        MEMORY + FILE_FACTOR * total, SECONDS + SECONDS_PER_MB * total / 1e6,
        "export", *source, "--out", tmp_path / "out", "--format", "perfetto,chrome", "--jobs", 1, "--align", "none",
    )  # fmt: skip
    assert result.returncode in (0, 1, 3), f"ended by signal {-result.returncode}: {result.stderr[-500:]}"
    for words in ("internal error", "enough memory", "panicked", "data segment"):
        assert words not in result.stderr, result.stderr[-500:]
    assert len(result.stderr) < 10_000
    if size.says:
        assert size.says in result.stderr
        return
    assert result.returncode == 0, result.stderr[-500:]
    assert sum(path.stat().st_size for path in (tmp_path / "out").iterdir()) < MEMORY + FILE_FACTOR * total
