"""`watch`: the looks at a job that runs, and the files that are kept of them."""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from trace_export.errors import OutputError, UsageError
from trace_export.live.look import Look, Watch
from trace_export.live.machine_files import append_lines, write_metrics
from trace_export.live.step_figures import StepFigures
from trace_export.live.window import LastSteps
from trace_export.run import Request
from trace_export.write import WriteOptions, planned
from trace_export.writers.outputs import Outputs

LOOK_S = 1.0
"""How often the folder is looked at. The system tells of changes only on disks of this machine, and job logs mostly lie
on others."""
MOST_LINES = 10_000
"""This many lines wait for room on the disk, the last ones."""


@dataclass(frozen=True)
class WatchOptions:
    """What to keep of a watched job: the `last` steps, with the metric S where `slowdown` asks for it; a line for each
    step in `jsonl`; metrics of the last step in `prometheus`; and every `every_s` seconds an export of the last steps,
    as `export` says, which also says what the page draws."""

    last: int = 5
    slowdown: bool = False
    jsonl: Path | None = None
    prometheus: Path | None = None
    every_s: float | None = None
    export: WriteOptions = field(default_factory=WriteOptions)
    force: bool = False


def watch(wanted: Request, options: WatchOptions, stop: threading.Event) -> Iterator[Look]:
    """The looks at a job, and the files that `options` ask for, until `stop` is set.

    A file that cannot be written is among the failures of the look. Raises UsageError for impossible options and for
    files that may not be replaced.
    """
    log_dir = wanted.source.log_dir
    files = [path for path in (options.jsonl, options.prometheus) if path is not None]
    exported = planned(options.export, log_dir) if options.every_s is not None else []
    if len({os.path.realpath(path) for path in (*files, *exported)}) < len(files) + len(set(exported)):
        raise UsageError(f"{files[0]}: two outputs cannot be the same file", "name another place for one of them")
    Outputs(force=options.force).check([*files, *exported])
    kept = KeptFiles(options)
    for look in Watch(wanted, options.last, slowdown=options.slowdown).looks(ticks(stop)):
        errors = kept.put(look)
        yield replace(look, failures=(*look.failures, *errors), _export=options.export)


def ticks(stop: threading.Event) -> Iterator[None]:
    """Yields at once, and then every `LOOK_S` seconds until `stop` is set."""
    yield None
    while not stop.wait(LOOK_S):
        yield None


class KeptFiles:
    """The files that are kept of a watched job. What cannot be written, as on a full disk, is tried again with the next
    look."""

    def __init__(self, options: WatchOptions) -> None:
        self._options = options
        self._totals = {"steps": 0, "blocks": 0}
        self._lines: deque[bytes] = deque(maxlen=MOST_LINES)
        self._last: StepFigures | None = None
        self._exported_s = -float("inf")

    def put(self, look: Look) -> list[OutputError]:
        """Writes what is due; the errors. Raises UsageError for files that may not be replaced."""
        if look._shown is None:
            return []
        outputs = Outputs(look._shown.inputs, force=self._options.force)
        self._totals["steps"] += len(look.steps)
        self._totals["blocks"] += sum(step.blocks for step in look.steps)
        self._lines += [step.json() for step in look.steps] if self._options.jsonl else []
        self._last = look.steps[-1] if look.steps else self._last
        errors = []
        for write in (self._append, self._replace, partial(self._export, look._shown)):
            try:
                write(outputs)
            except OutputError as error:
                errors.append(error)
        return errors

    def _append(self, outputs: Outputs) -> None:
        if self._options.jsonl and self._lines:
            append_lines(self._options.jsonl, self._lines, outputs)
            self._lines.clear()

    def _replace(self, outputs: Outputs) -> None:
        if self._options.prometheus and self._last is not None:
            write_metrics(self._options.prometheus, self._last, self._totals, outputs)
            self._last = None

    def _export(self, shown: LastSteps, outputs: Outputs) -> None:
        every_s = self._options.every_s
        if every_s is not None and time.monotonic() - self._exported_s >= every_s:
            self._exported_s = time.monotonic()
            shown.run._written(self._options.export, outputs)
