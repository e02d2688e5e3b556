"""What the page of a watched job shows: its state as JSON, the chart, and the trace of the steps shown."""

from __future__ import annotations

import secrets
import threading
from collections import deque
from dataclasses import asdict
from html import escape
from importlib.resources import files
from pathlib import Path
from string import Template

import orjson

from trace_export.errors import NothingToExportError
from trace_export.live.look import Look
from trace_export.live.step_figures import StepFigures
from trace_export.scratch import scratch_folder
from trace_export.viewer.live import Resource
from trace_export.workflow.run import Run
from trace_export.writers import mark

HISTORY = 100
"""Steps whose figures the page shows."""


class Board:
    """The newest look at a job, and the figures of the steps before. Threads of the server read it while the watch goes
    on."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._steps: deque[StepFigures] = deque(maxlen=HISTORY)
        self._look = Look(None)
        self._session = secrets.token_hex(4)
        self._charts = 0
        self._drawn = (-1, b"")
        self._drawing = threading.Lock()

    def put(self, look: Look) -> bytes:
        """Takes a look; returns the state of the page, one line."""
        self._charts += look.run is not None and look.run is not self._look.run
        self._look = look
        self._steps.extend(look.steps)
        return orjson.dumps(
            {
                "summary": self._summary(),
                "problem": "\n".join([look.problem, *map(str, look.failures)]).strip(),
                "notes": [f"{note.where + ': ' if note.where else ''}{note.text}" for note in look.notes],
                "steps": [asdict(step) for step in self._steps],
                "chart": f"{self._session}-{self._charts}" if look.run is not None else "",
            }
        )

    def _summary(self) -> str:
        if not self._steps:
            return "waiting for the first step that all ranks finish"
        last = self._steps[-1]
        return f"step {last.step}, read {last.lag_s:.1f} s after it was written"

    def resources(self) -> dict[str, Resource]:
        """What the server of the page has, by path."""
        return {
            "/": Resource("text/html; charset=utf-8", self.page),
            "/chart.svg": Resource("image/svg+xml", self.chart),
            "/trace.pftrace": Resource("application/octet-stream", self.trace),
        }

    def page(self) -> bytes:
        """The document."""
        text = files(__package__).joinpath("page.html").read_text(encoding="utf-8")
        return Template(text).substitute(mark=mark.HTML, title=escape(f"{self.name} – trace-export watch")).encode()

    def chart(self) -> bytes:
        """The picture of the last steps, drawn when somebody asks for it. Raises NothingToExportError."""
        with self._drawing:
            number, run = self._charts, self._run()
            if self._drawn[0] != number:
                self._drawn = number, run.plot().svg.encode()
            return self._drawn[1]

    def trace(self) -> bytes:
        """The last steps as a Perfetto trace. Raises NothingToExportError."""
        run = self._run()
        with scratch_folder() as folder:
            path = Path(folder, "steps.pftrace")
            run.write(path)
            return path.read_bytes()

    def _run(self) -> Run:
        if self._look.run is None:
            raise NothingToExportError("no step is finished on all ranks yet")
        return self._look.run
