"""Every benchmark can be started, and the table says of each figure whether its aim is met."""

from __future__ import annotations

import subprocess
import sys

from tests.benchmarks.__main__ import names, rows_of
from tests.benchmarks.measure import ROOT, Amount
from tests.benchmarks.table import Row, markdown

IMPORT_ALL = """
import importlib, sys
for name in sys.argv[1:]:
    assert importlib.import_module(f"tests.benchmarks.bench_{name}").rows
"""


def cells(row: Row) -> list[str]:
    return [cell.strip() for cell in markdown([row]).splitlines()[2].strip("| ").split("|")]


def test_a_ratio_is_compared_with_its_aim() -> None:
    row = Row("reading", Amount(3.0, "s", 4.0), "scan", Amount(1.5, "s", 1.0), 2.0)
    assert cells(row) == ["reading", "3 s (4 CPU)", "scan 1.5 s (1 CPU)", "2 × (4 × CPU)", "≤ 2 ×", "yes"]
    missed = Row("reading", Amount(3.1, "s"), "scan", Amount(1.5, "s"), 2.0)
    assert cells(missed)[3:] == ["2.07 ×", "≤ 2 ×", "**no**"]


def test_a_benchmark_that_fails_gives_a_row() -> None:
    (row,) = rows_of("that_does_not_exist", quick=True)
    assert "No module named tests.benchmarks.bench_that_does_not_exist" in row.missing


def test_every_benchmark_has_rows() -> None:
    subprocess.run([sys.executable, "-c", IMPORT_ALL, *names()], cwd=ROOT, check=True)


def test_the_table_of_a_benchmark() -> None:
    command = [sys.executable, "-m", "tests.benchmarks", "instrument", "--quick"]
    done = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    assert "very small inputs" in done.stdout
    table = [line for line in done.stdout.splitlines() if line.startswith("|")]
    assert table[0] == "| work | ours | reference | ratio | aim | met |"
    assert all("µs" in line and line.count("|") == 7 for line in table[2:])
    assert len(table) >= 5
