"""`watch`: the looks at a job that runs, and the files that are kept of them."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from trace_export.errors import UsageError
from trace_export.live.changes import ticks
from trace_export.live.look import Look, Watch
from trace_export.live.machine_files import append_lines, write_metrics
from trace_export.workflow import render
from trace_export.workflow.render import WriteOptions
from trace_export.workflow.requests import Request
from trace_export.workflow.run import drawn
from trace_export.writers.outputs import Outputs


@dataclass(frozen=True)
class WatchOptions:
    """What to keep of a watched job: the `last` steps, with the metric S where `slowdown` asks for it; a line for each
    step in `jsonl`; metrics of the last step in `prometheus`; and every `every_s` seconds an export of the last steps,
    as `export` says."""

    last: int = 5
    slowdown: bool = False
    jsonl: Path | None = None
    prometheus: Path | None = None
    every_s: float | None = None
    export: WriteOptions = field(default_factory=WriteOptions)
    force: bool = False


def watch(wanted: Request, options: WatchOptions, stop: threading.Event) -> Iterator[Look]:
    """The looks at a job, and the files that `options` ask for, until `stop` is set.

    Raises UsageError for impossible options and for files that may not be replaced, OutputError.
    """
    log_dir = wanted.source.log_dir
    files = [path for path in (options.jsonl, options.prometheus) if path is not None]
    exported = render.planned(options.export, log_dir) if options.every_s is not None else []
    if len({os.path.realpath(path) for path in (*files, *exported)}) < len(files) + len(set(exported)):
        raise UsageError(f"{files[0]}: two outputs cannot be the same file", "name another place for one of them")
    Outputs(force=options.force).check([*files, *exported])
    totals = {"steps": 0, "blocks": 0}
    last_export_s = -float("inf")
    for look in Watch(wanted, options.last, slowdown=options.slowdown).looks(ticks(log_dir, stop)):
        if look.run is not None:
            outputs = Outputs(look.run._inputs, force=options.force)
            if look.steps:
                totals = {
                    "steps": totals["steps"] + len(look.steps),
                    "blocks": totals["blocks"] + sum(step.blocks for step in look.steps),
                }
                if options.jsonl:
                    append_lines(options.jsonl, look.steps, outputs)
                if options.prometheus:
                    write_metrics(options.prometheus, look.steps[-1], totals, outputs)
            if options.every_s is not None and time.monotonic() - last_export_s >= options.every_s:
                last_export_s = time.monotonic()
                drawn(look.run, options.export, outputs)
        yield look
