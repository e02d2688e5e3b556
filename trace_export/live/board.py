"""What the page of a watched job shows: its state as JSON, a picture of each step, and the trace of them all."""

from __future__ import annotations

import secrets
import threading
from collections import deque
from dataclasses import asdict, dataclass
from functools import cached_property
from html import escape
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any

import orjson

from trace_export.analysis.explanation import explain
from trace_export.draw import Content
from trace_export.errors import NothingToExportError
from trace_export.live.look import Look
from trace_export.live.step_figures import StepFigures
from trace_export.live.window import Step
from trace_export.options import Drawing
from trace_export.plot import Plot, plot
from trace_export.scratch import scratch_folder
from trace_export.selection import Numbers, Selection
from trace_export.viewer.server import Resource
from trace_export.write import WriteOptions
from trace_export.writers import mark
from trace_export.writers.outputs import Outputs
from trace_export.writers.pictures.style import FigureStyle

HISTORY = 100
"""Steps whose figures the page shows."""
ROOM = 0.7
"""The share of the plot that the longest step fills at least: with a shorter one all are drawn anew."""
FOLLOWED_S = 120
"""Steps that were written longer ago than this were there before the page."""
NO_STEP = "no step is finished on all ranks yet"


@dataclass(eq=False)
class _Panel:
    """The picture of a step, named by a `number`, drawn when somebody asks for it on a scale of time."""

    number: int
    step: Step
    drawing: Drawing
    drawn: tuple[int, bytes] = (0, b"")

    @cached_property
    def plot(self) -> Plot:
        explanation = explain(self.step.bubbles.graph) if self.drawing["critical_path"] else None
        part = Selection(steps=Numbers.of([self.step.number]))
        return plot(Content(self.step.bubbles, part, explanation=explanation), self.drawing, FigureStyle(title=""))

    @cached_property
    def length_ns(self) -> int:
        """With the optimizer, as it is drawn."""
        return int(self.step.profile.spans["end_ns"].max()) - self.step.start_ns  # type: ignore[arg-type]

    def svg(self, span_ns: int) -> bytes:
        if self.drawn[0] != span_ns:
            self.drawn = span_ns, self.plot.panel(span_ns).encode()
        return self.drawn[1]


class Board:
    """The newest look at a job, and the figures of the steps before. Threads of the server read it while the watch goes
    on. A step is drawn once, unless its times are corrected or a longer one needs another scale."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._steps: deque[dict[str, Any]] = deque(maxlen=HISTORY)
        self._look = Look()
        self._session = secrets.token_hex(4)
        self._count = 0
        self._panels: tuple[_Panel, ...] = ()
        self._span_ns = 0
        self._drawing = threading.Lock()

    def put(self, look: Look) -> bytes:
        """Takes a look; returns the state of the page, one line."""
        self._look = look
        self._steps.extend(map(_shown, look.steps))
        shown = look._shown.steps if look._shown else ()
        self._panels = tuple(self._panel(step) for step in shown)
        longest = max((panel.length_ns for panel in self._panels), default=0)
        if not ROOM * self._span_ns <= longest <= self._span_ns:
            self._span_ns = longest
        return orjson.dumps(
            {
                "summary": self._summary(),
                "problem": "\n".join([look.problem, *map(str, look.failures)]).strip(),
                "notes": [f"{note.where + ': ' if note.where else ''}{note.text}" for note in look.notes],
                "steps": list(self._steps),
                "charts": [self._name(panel) for panel in self._panels],
            }
        )

    def _panel(self, step: Step) -> _Panel:
        drawn = next((panel for panel in self._panels if panel.step is step), None)
        if drawn is None:
            self._count += 1
            drawn = _Panel(self._count, step, self._look._drawing)
        return drawn

    def _name(self, panel: _Panel) -> str:
        return f"{self._session}-{panel.number}-{self._span_ns}"

    def _summary(self) -> str:
        if not self._steps:
            return "waiting for the first step that all ranks finish"
        last = self._steps[-1]
        lag_s: float = last["lag_s"]
        if lag_s < FOLLOWED_S:
            return f"step {last['step']}, read {lag_s:.1f} s after it was written"
        return f"step {last['step']}, in files that were {lag_s / 60:.0f} min old when they were read"

    def resources(self) -> dict[str, Resource]:
        """What the server of the page has, by path."""
        return {
            "/": Resource("text/html; charset=utf-8", lambda _: self.page()),
            "/chart.svg": Resource("image/svg+xml", self.chart),
            "/legend.json": Resource("application/json", lambda _: self.legend()),
            "/trace.pftrace": Resource("application/octet-stream", lambda _: self.trace()),
        }

    def page(self) -> bytes:
        """The document."""
        text = files(__package__).joinpath("page.html").read_text(encoding="utf-8")
        return Template(text).substitute(mark=mark.HTML, title=escape(f"{self.name} – trace-export watch")).encode()

    def chart(self, name: str) -> bytes:
        """The picture of one step, by its name in `charts` of the state. Raises NothingToExportError where it is not
        shown any more."""
        with self._drawing:
            for panel in self._panels:
                if self._name(panel) == name:
                    return panel.svg(self._span_ns)
        raise NothingToExportError("this step is not shown any more")

    def legend(self) -> bytes:
        """The colours in the pictures with what they mean, and what is said below them. Raises NothingToExportError."""
        with self._drawing:
            if not self._panels:
                raise NothingToExportError(NO_STEP)
            shown = self._panels[-1].plot
            return orjson.dumps({"colours": shown.legend, "remarks": shown.remarks})

    def trace(self) -> bytes:
        """The last steps as a Perfetto trace. Raises NothingToExportError."""
        if (run := self._look.run) is None:
            raise NothingToExportError(NO_STEP)
        with scratch_folder() as folder, Outputs() as outputs:
            path = Path(folder, "steps.pftrace")
            run._written(WriteOptions(formats=("perfetto",), out=path, drawing=self._look._drawing), outputs)
            return path.read_bytes()


def _shown(step: StepFigures) -> dict[str, Any]:
    """The figures of a step that the page has; those of its cause are in the sentence."""
    return {name: value for name, value in asdict(step).items() if not name.startswith("cause_")}
