"""The loop of a watch: whenever the profiles have grown, the steps that are finished now are measured."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

import polars as pl

from trace_export.analysis.explanation import CAUSES
from trace_export.errors import TraceExportError
from trace_export.live.growth import Growth
from trace_export.live.step_figures import StepFigures, step_figures
from trace_export.live.window import FURTHER, LastSteps, Window
from trace_export.model import Note, empty
from trace_export.options import Drawing, drawing
from trace_export.run import Request, Run


@dataclass(frozen=True)
class Look:
    """What a job has done by now.

    `run`: its last steps, on aligned clocks, joined when they are first asked for; None where there is no whole step
    yet. `steps`: the figures of the steps that were finished since the look before. `problem` says why there is no run,
    or why what is shown is not the newest; "" where nothing is wrong. `notes`: what is to be known of the steps shown,
    and steps in a clock's offset; `failures`: of sources that cannot be read.
    """

    steps: tuple[StepFigures, ...] = ()
    problem: str = ""
    notes: tuple[Note, ...] = ()
    failures: tuple[TraceExportError, ...] = ()
    _shown: LastSteps | None = field(default=None, repr=False)
    _drawing: Drawing = field(default_factory=drawing, repr=False)
    """What is drawn of the run."""

    @property
    def run(self) -> Run | None:
        return None if self._shown is None else self._shown.run


class Watch:
    """A folder, watched: `look` after each change."""

    def __init__(self, wanted: Request, last: int, *, slowdown: bool) -> None:
        self._slowdown = slowdown
        self._growth = Growth(wanted.source, last + FURTHER)
        self._window = Window(wanted, self._growth, last)
        self._shown: Look | None = None
        self._missing = ""
        self._causes = empty(CAUSES)
        self._explained_steps = 0
        self._new_steps = 0

    def looks(self, ticks: Iterable[None]) -> Iterator[Look]:
        """A look for the beginning, and one for each tick before which something changed. Raises UsageError for
        impossible options."""
        for _ in ticks:
            grown = self._growth.advance()
            if grown:
                yield self._look()
            elif self._shown is None or (self._shown.failures, self._missing) != (
                self._growth.failures,
                self._problem(),
            ):
                yield self._unchanged()

    def _look(self) -> Look:
        window = self._window
        before = window.newest
        first = before is None
        try:
            new = window.advance()
        except TraceExportError as error:  # such as sizes that do not fit before the last rank is there
            return self._unchanged(str(error))
        if not window.steps:
            return self._unchanged("; ".join(filter(None, ["no step is finished on all ranks yet", window.behind])))
        causes = self._explained(len(new))
        figures = []
        for step in new:
            if step.whole and (not first or step in window.steps):
                since_ns = before.start_ns if before is not None and before.segment == step.segment else None
                lag_s = self._growth.lag_s
                figures.append(step_figures(step, since_ns, causes, lag_s, slowdown=self._slowdown))
            before = step
        warnings = tuple(note for note in window.notes if note.level == "warning")
        self._shown = Look(tuple(figures), window.behind, warnings, self._growth.failures, window.shown)
        return self._shown

    def _explained(self, new: int) -> pl.DataFrame:
        """The causes of the last steps; this many of them are `new`. They are worked out anew when as many steps have
        been finished as they are of: that takes longer than to read a step."""
        self._new_steps += new
        if self._new_steps >= self._explained_steps:
            shown = self._window.shown
            self._causes, self._explained_steps, self._new_steps = shown.run.explain().causes, len(shown.steps), 0
        return self._causes

    def _problem(self) -> str:
        return str(self._growth.missing) if self._growth.missing else ""

    def _unchanged(self, problem: str = "") -> Look:
        """What was shown, without new steps."""
        self._missing = self._problem()
        problem = problem or self._missing or self._window.behind
        before = self._shown or Look()
        self._shown = replace(before, steps=(), problem=problem, failures=self._growth.failures)
        return self._shown
