"""Prints the table of all cases at the end of the tests, and of each cause how many are right."""

from __future__ import annotations

from itertools import groupby

import pytest


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    rows = [
        dict(report.user_properties)["verdict"]
        for reports in terminalreporter.stats.values()
        for report in reports
        if getattr(report, "when", None) == "call" and "verdict" in dict(report.user_properties)
    ]
    if rows:
        terminalreporter.section("verdicts")
        rows.sort()
        for row in rows:
            terminalreporter.write_line(row)
        for cause, cases in groupby(rows, key=lambda row: row.partition(" (")[0]):
            terminalreporter.write_line(f"| {cause} | {_right(list(cases))} |")
        terminalreporter.write_line(_right(rows))


def _right(rows: list[str]) -> str:
    return f"{sum(row.endswith('right') for row in rows)} of {len(rows)} right"
