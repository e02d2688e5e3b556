"""The time that profiling added to the steps of a run, compared with the other steps of the same job."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from trace_export.analysis.bubbles import Bubbles
from trace_export.analysis.train_log import StepTimes
from trace_export.answer import Sentence
from trace_export.errors import path_text
from trace_export.units import duration

OTHER = 3.0
"""A log beside the profiles whose steps are this many times shorter belongs to another job."""
VARY = 2.0
"""Up to this many deviations of the other steps, the added time may be chance."""
ALIKE, MUCH = 0.03, 0.1
"""Up to the first share that a profiled step takes more, it is as long as the others; from the second on, the bubble
without the profiler is estimated."""


def of_logs(measured: Bubbles, logs: Sequence[tuple[Path, StepTimes]]) -> Sentence | None:
    """`sentence` by the only log beside the profiles, with its name. If there are several, or its steps have quite
    another length, the sentence says that nothing is compared; None without a log."""
    names = [path_text(path.name) for path, _ in logs]
    if not logs or measured.step_ns is None:
        return None
    facts = {"logs": names}
    if len(logs) > 1:
        text = f"{', '.join(names[:2])}{', …' * (len(names) > 2)} beside the profiles state how long steps take."
        return Sentence("profiler-cost-unknown", facts, text, "choose the log of this job with --train-log")
    ratio = measured.step_ns / logs[0][1].step_ns
    if not 1 - ALIKE <= ratio <= OTHER:
        text = f"{names[0]} beside the profiles is not compared: its steps take {duration(logs[0][1].step_ns)}."
        return Sentence("profiler-cost-unknown", facts, text, "if it is of this job, name it with --train-log")
    cost = sentence(measured, logs[0][1])
    return replace(cost, facts=facts | cost.facts, text=f"By {names[0]} beside the profiles: {cost.text}")


def sentence(measured: Bubbles, log: StepTimes | None) -> Sentence:
    """The profiled steps beside those that the `log` states; None: the log states too few.

    `idle_bubble` and `work_bubble` are the bubble without the profiler where all that it adds is idle time, or none of
    it is. With a bubble B of a pipeline time P to which A is added they are (B P - A) / (P - A) and B P / (P - A).
    Neither is a bound: a profiler may lengthen the work of one stage, for which the others wait.
    """
    profiled, bubble, pipeline = measured.step_ns, measured.bubble, measured.pipeline_ns
    if log is None:
        return Sentence("profiler-cost-unknown", {}, "Too few lines of the log are about training alone.")
    if profiled is None:
        text = "The profile has no two steps in a row, so it is not compared with the log."
        return Sentence("profiler-cost-unknown", {}, text)
    added = profiled - log.step_ns
    facts = {
        "profiled_ns": profiled, "plain_ns": log.step_ns, "deviation_ns": log.deviation_ns, "lines": log.lines,
        "added": added / log.step_ns,
    }  # fmt: skip
    text = (
        f"The profiled steps take {duration(profiled)}, the others {duration(log.step_ns)} ± "
        f"{duration(log.deviation_ns)} (median of {log.lines} lines of {log.framework})"
    )
    share = facts["added"]
    if share < -ALIKE:
        return Sentence("profiler-cost", facts, f"{text}: they are shorter; is the log of this job?")
    if share <= ALIKE and 2 * len(measured.steps) > log.steps:
        return Sentence("profiler-cost", facts, f"{text}: as long, but these may be the lines of the profiled steps.")
    if share <= ALIKE:
        return Sentence("profiler-cost", facts, f"{text}: the profiler adds next to nothing.")
    if added <= VARY * log.deviation_ns:
        return Sentence("profiler-cost", facts, f"{text}: the profiler adds no more than steps vary.")
    text += f": the profiler adds {share:.0%}"
    if share <= MUCH or bubble is None or pipeline is None or pipeline <= added:
        return Sentence("profiler-cost", facts, f"{text}.")
    plain = pipeline - added
    idle, work = max((bubble * pipeline - added) / plain, 0.0), min(bubble * pipeline / plain, 1.0)
    facts |= {"idle_bubble": idle, "work_bubble": work}
    text += (
        f"; if all of that is idle time, the bubble without it is {idle:.0%}, if none of it is, {work:.0%} (estimates;"
        f" measured {bubble:.0%})."
    )
    return Sentence("profiler-cost", facts, text)
