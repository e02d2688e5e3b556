"""Every benchmark can be started, and the table says of each figure whether its aim is met."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.benchmarks.__main__ import names, rows_of
from tests.benchmarks.measure import ROOT, Amount, Cost, median, of_command
from tests.benchmarks.table import Row, from_json, markdown, to_json

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


@pytest.mark.parametrize(("value", "at_least", "met"), [(1.2, True, True), (0.8, True, False), (0.8, False, True)])
def test_an_amount_without_reference_is_compared_itself(value: float, at_least: bool, met: bool) -> None:
    assert Row("writing", Amount(value, "M/s"), aim=1.0, at_least=at_least).met is met


def test_what_has_no_aim_is_neither_met_nor_missed() -> None:
    assert Row("writing", Amount(1.0, "M/s")).met is None
    assert Row("peer", reference="HTA", aim=0.2, missing="it is not here").met is None


def test_what_was_not_measured_says_why() -> None:
    assert cells(Row("peer", reference="HTA", aim=0.2, missing="it is not here"))[1] == "not measured: it is not here"


def test_rows_survive_their_way_through_json() -> None:
    rows = [Row("a", Amount(1.0, "s", 2.0), "b", Amount(3.0, "s"), 4.0, at_least=True), Row("c", missing="why")]
    assert [from_json(to_json(row)) for row in rows] == rows


def test_the_median_is_taken_of_each_kind_of_cost() -> None:
    assert median([Cost(1, 9, 5), Cost(2, 8, 7), Cost(9, 1, 6)]) == Cost(2, 8, 6)


def test_a_command_that_fails_says_what_it_printed() -> None:
    with pytest.raises(RuntimeError, match=r"exit code 3: no such thing"):
        of_command([sys.executable, "-c", "import sys; print('no such thing'); sys.exit(3)"])


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
    assert len(table) >= 6
