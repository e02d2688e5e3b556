"""Prints the table of all cases at the end of the tests: planted, said, true gain, said gain."""

from __future__ import annotations

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
        right = sum(row.endswith("right") for row in rows)
        for row in sorted(rows):
            terminalreporter.write_line(row)
        terminalreporter.write_line(f"{right} of {len(rows)} right")
