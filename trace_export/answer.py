"""What an answer consists of, wherever it is shown: sentences, and tables to be read."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import polars as pl

SHOWN = 12
"""Rows of a long table on a terminal, besides those that are flagged."""


@dataclass(frozen=True)
class Sentence:
    """A statement: its `code` is the same in every version, `facts` are the numbers, `text` says them; `next`: what to
    do about it, where there is something."""

    code: str
    facts: dict[str, Any]
    text: str
    next: str = ""

    def on(self, inputs: str) -> Sentence:
        """The same, whose next step names what was read (`inputs`, as words of a command) instead of DIR."""
        return replace(self, next=re.sub(r"\bDIR\b", lambda _: inputs, self.next))


@dataclass(frozen=True)
class Place:
    """Where a row of a table is in the chart: a stage, a step (run, step), or both."""

    stage: int | None = None
    step: tuple[int | None, int | None] | None = None


@dataclass(frozen=True)
class ReportTable:
    """A table to be read, with times in ms and shares in %; `note` says what they mean, or where `frame` is empty, why.

    `flagged`: the numbers of rows that are worth a look, with their place in the chart; every output shows them.
    `details`: columns that are left out if there is little room. `left_out`: the number of further rows in the full
    report. `bars`: begin and end of the bar of each row, as shares of the whole.
    """

    title: str
    frame: pl.DataFrame
    note: str = ""
    flagged: Mapping[int, Place] = field(default_factory=dict)
    details: tuple[str, ...] = ()
    left_out: int = 0
    bars: Sequence[tuple[float, float]] = ()

    def part(self, rows: Sequence[int]) -> ReportTable:
        """The table with some of its rows."""
        flagged = {new: self.flagged[old] for new, old in enumerate(rows) if old in self.flagged}
        left_out = self.left_out + self.frame.height - len(rows)
        return replace(self, frame=self.frame[list(rows)], flagged=flagged, left_out=left_out)

    def leading(self, count: int = SHOWN) -> list[int]:
        """The numbers of the first `count` rows and of those that are flagged."""
        return [row for row in range(self.frame.height) if row < count or row in self.flagged]
