"""What other programs read of a watched job: a line of JSON for each step, and metrics for Prometheus."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from pathlib import Path

from trace_export.errors import OutputError
from trace_export.live.step_figures import StepFigures
from trace_export.writers import mark
from trace_export.writers.outputs import Outputs

PREFIX = "trace_export"
METRICS = {
    "step_seconds": ("time from the start of the step before to that of this one", "since_previous_ns", 1e-9),
    "pipeline_seconds": ("time from the first block of the step to the last one of its pipeline", "pipeline_ns", 1e-9),
    "bubble_ratio": ("idle share of the pipeline time, global definition", "bubble", 1),
    "bubble_own_ratio": ("idle share of the ranks' own windows", "bubble_own", 1),
    "slowest_stage": ("stage that is busy for longest", "slowest_stage", 1),
    "slowest_rank": ("rank that is busy for longest", "slowest_rank", 1),
    "slowdown_ratio": ("how many times longer the step was than without stragglers (S)", "slowdown", 1),
    "cause_gain_seconds": ("how much shorter a step would be without what costs it most", "cause_gain_ns", 1e-9),
    "worst_link_ratio": ("transfer time of the slowest link by that of its peers", "worst_link_ratio", 1),
    "clock_error_seconds": ("largest standard deviation of a host's clock", "clock_error_ns", 1e-9),
    "lag_seconds": ("time from the last change on the disk to the reading of it", "lag_s", 1),
    "last_step": ("number of the last step that all ranks have finished", "step", 1),
    "last_step_start_timestamp_seconds": ("Unix time of the start of the last step", "start_ns", 1e-9),
}
"""Name of the metric → what it is, the figure, and the factor to its unit. All are gauges of the last step."""


def append_lines(path: Path, lines: Sequence[bytes], outputs: Outputs) -> None:
    """Appends the lines, all or none. Raises UsageError for an input or a file of somebody else, OutputError."""
    outputs.check([path])
    try:
        with path.open("ab", buffering=0) as file:
            size = file.seek(0, os.SEEK_END)
            content = b"".join(line + b"\n" for line in lines)
            try:
                if file.write(content) < len(content):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            except OSError:
                file.truncate(size)
                raise
    except OSError as error:
        raise OutputError(path, f"cannot be written: {error.strerror}", "name another place") from error


def write_metrics(path: Path, last: StepFigures, totals: dict[str, int], outputs: Outputs) -> None:
    """Replaces the file of metrics, in the text format of Prometheus' textfile collector
    (https://prometheus.io/docs/instrumenting/exposition_formats/). `totals`: counters since the start of the watch.
    Raises UsageError for a file of somebody else, OutputError."""
    lines = [mark.METRICS.rstrip()]
    for name, (meaning, figure, factor) in METRICS.items():
        if (value := getattr(last, figure)) is not None:
            lines += _metric(name, meaning, "gauge", value * factor)
    for name, value in totals.items():
        lines += _metric(f"{name}_total", f"{name} read since the start of the watch", "counter", value)
    with outputs.file(path) as temporary:
        temporary.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _metric(name: str, meaning: str, kind: str, value: float) -> list[str]:
    full = f"{PREFIX}_{name}"
    return [f"# HELP {full} {meaning}", f"# TYPE {full} {kind}", f"{full} {value:.9g}"]
