"""What is said of clocks, from a few rows by hand."""

from typing import Any

import polars as pl
import pytest

from trace_export.analysis.clock_words import clock_method, clocks_line, conditions
from trace_export.model import CLOCKS, conform

FITTED = {
    "status": "fitted", "evidence": "p2p", "reference_host": "a", "offset_ns": 0, "sd_ns": 500.0, "bound_ns": 9000.0,
}  # fmt: skip
WALL = {"status": "wall", "offset_ns": 0}
SET = [{"from_ns": 1, "offset_ns": 2, "drift": 0.0, "reference_ns": 0}]


@pytest.mark.parametrize(
    ("rows", "line"),
    [
        ([FITTED], "one host, nothing to align"),
        (
            [FITTED, {**FITTED, "offset_ns": -3_200_000, "sd_ns": 525.0}],
            "2 hosts aligned by p2p, worst ±525 ns (1 sd), each off by at most 9 µs unless a clock was set;"
            " farthest off is b, -3.2 ms against a",
        ),
        (
            [{**FITTED, "status": "confirmed"}, {**FITTED, "status": "confirmed"}],
            "2 hosts aligned by p2p, which agrees with the wall clocks, worst ±500 ns (1 sd), each off by at most 9 µs"
            " unless a clock was set",
        ),
        (
            [FITTED, {**FITTED, "offset_ns": 1000, "steps": SET}, WALL],
            "2 hosts aligned by p2p, worst ±500 ns (1 sd), each off by at most 9 µs unless a clock was set;"
            " farthest off is b, +1 µs against a;"
            " c on its wall clock; the correction of b changes once",
        ),
        (
            [{**FITTED, "offset_ns": -600}, {**FITTED, "offset_ns": 400}],  # the reference drifts
            "2 hosts aligned by p2p, worst ±500 ns (1 sd), each off by at most 9 µs unless a clock was set;"
            " farthest off is b, +1 µs against a",
        ),
        (
            [{**FITTED, "component": 1}, {**FITTED, "component": 2, "reference_host": "b"}],
            "2 hosts aligned by p2p, worst ±500 ns (1 sd), each off by at most 9 µs unless a clock was set; 2 groups of"
            " hosts that nothing connects, each on its own time axis",
        ),
        (
            [{"status": "none"}, {"status": "none", "user_offset_ns": 3000, "offset_ns": -3000}],
            "2 hosts, as recorded; moved by you: b +3 µs",
        ),
    ],
)  # fmt: skip
def test_one_line_for_all_clocks(rows: list[dict[str, Any]], line: str) -> None:
    table = pl.DataFrame(
        [{"host": host, "offset_ns": 0, **row} for host, row in zip("abc", rows, strict=False)],
        infer_schema_length=None,
    )
    assert clocks_line(conform(table, CLOCKS).with_columns(label="host")) == line


@pytest.mark.parametrize(
    ("row", "words"),
    [
        (FITTED, "p2p, against a"),
        ({**FITTED, "user_offset_ns": -5000, "steps": SET}, "user offset -5 µs, p2p, against a, set 1 ×"),
        ({**FITTED, "reference_host": None, "component": 2}, "p2p, nothing connects its group of hosts to the others"),
        ({**FITTED, "status": "confirmed"}, "wall, confirmed by p2p"),
        ({**WALL, "reference_host": "a"}, "wall"),
        ({"status": "none", "reference_host": "a"}, "as recorded"),
        ({"status": "single-host"}, "the only host, nothing to align"),
    ],
)
def test_how_a_clock_was_corrected(row: dict[str, Any], words: str) -> None:
    """A host has a reference beside its method only where it was fitted against that."""
    assert clock_method({**dict.fromkeys(CLOCKS), **row}) == words


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([FITTED, FITTED], ", unless one was set in between"),
        (
            [FITTED, {**FITTED, "steps": SET, "unseen_step_ns": 100.0}],
            ", but not around 1 ns, when the correction of b changes, unless one was set in between",
        ),
        (
            [{**FITTED, "unseen_step_ns": 100.0}, {**FITTED, "steps": SET * 5, "unseen_step_ns": 100.0}],
            ", but not around the times when the correction of b changes",
        ),
    ],
)
def test_when_clocks_agree_less(rows: list[dict[str, Any]], words: str) -> None:
    """The notes say from when to when; the error that is stated does not hold there."""
    table = pl.DataFrame([{"host": host, **row} for host, row in zip("ab", rows, strict=True)])
    assert conditions(conform(table, CLOCKS)) == words
