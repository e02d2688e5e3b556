"""The loop of a watch: whenever the profiles have grown, the last steps are interpreted, aligned and measured anew."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import polars as pl

from trace_export.clocks.apply import correct
from trace_export.errors import TraceExportError
from trace_export.live.changes import Ticks
from trace_export.live.growth import Growth
from trace_export.live.steady_clocks import steadied
from trace_export.live.step_figures import StepFigures, step_figures
from trace_export.model import STEP_KEY, Note, Profile
from trace_export.pipeline.interpret import interpret
from trace_export.selection import Numbers, Selection
from trace_export.workflow.requests import Request
from trace_export.workflow.run import Run, aligned

MORE = 1
"""Steps that are kept besides those shown: the one that is being written."""


@dataclass(frozen=True)
class Look:
    """What a job has done by now.

    `run`: its last steps, on aligned clocks; None where there is no whole step yet. `steps`: the figures of the steps
    that were finished since the look before. `problem` says why there is no run, or why what is shown is not the
    newest; "" where nothing is wrong. `notes`: what is to be known of the steps shown, and steps in a clock's offset;
    `failures`: of sources that cannot be read.
    """

    run: Run | None
    steps: tuple[StepFigures, ...] = ()
    problem: str = ""
    notes: tuple[Note, ...] = ()
    failures: tuple[TraceExportError, ...] = ()


class Watch:
    """A folder, watched: `look` after each change."""

    def __init__(self, wanted: Request, last: int, *, slowdown: bool) -> None:
        self._wanted = wanted
        self._slowdown = slowdown
        self._last = last
        self._growth = Growth(wanted.source, last + MORE)
        self._clocks: pl.DataFrame | None = None
        self._after_ns = -(2**63)
        self._shown: Look | None = None

    def looks(self, ticks: Ticks) -> Iterator[Look]:
        """A look for the beginning, and one after each change. Raises UsageError for impossible options."""
        for _ in ticks:
            grown = self._growth.advance()
            if grown:
                yield self._look()
            elif self._shown is None or self._shown.failures != self._growth.failures:
                yield self._unchanged()

    def _look(self) -> Look:
        try:
            run, notes = self._run(self._growth.profile())
        except TraceExportError as error:  # such as sizes that do not fit before the last rank is there
            return self._unchanged(str(error))
        if run is None:
            return self._unchanged("no step is finished on all ranks yet")
        steps = step_figures(run, self._after_ns, self._growth.lag_s, slowdown=self._slowdown)
        if steps:
            self._after_ns = steps[-1].start_ns
        warnings = tuple(note for note in run.notes if note.level == "warning")
        self._shown = Look(run, tuple(steps), notes=(*notes, *warnings), failures=self._growth.failures)
        return self._shown

    def _unchanged(self, problem: str = "") -> Look:
        """What was shown, without new steps."""
        problem = problem or (str(self._growth.missing) if self._growth.missing else "")
        before = self._shown or Look(None)
        self._shown = replace(before, steps=(), problem=problem, failures=self._growth.failures)
        return self._shown

    def _run(self, profile: Profile) -> tuple[Run | None, list[Note]]:
        """The last whole steps, and notes on clocks that stepped."""
        if profile.spans.is_empty():
            return None, []
        profile = interpret(profile, self._wanted.source.declared)
        read = Run(profile, self._wanted.source, self._growth.failures, _inputs=self._growth.inputs)
        run = aligned(read, self._wanted.clocks)
        clocks, notes = steadied(self._clocks, run.clocks)
        if clocks is not run.clocks and set(clocks["host"]) == set(profile.ranks["host"]):
            run = replace(run, _recorded=replace(correct(profile, clocks), clocks=clocks, steps=run.profile.steps))
        self._clocks = clocks
        whole = run.profile.steps.filter("whole").sort(STEP_KEY)["step"].drop_nulls().tail(self._last)
        if whole.is_empty():
            return None, notes
        return replace(run, _selection=Selection(steps=Numbers.of(whole))), notes
