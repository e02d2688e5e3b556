"""The length of a job's steps by its training log: the lines of Megatron-LM, DeepSpeed and others.

A line states the mean over the steps since the line before, or the time of all of them. What a step of the job takes is
the median of the lines that are about training alone: not the first two after each start, which have compilation and
warm-up, and none since whose predecessor an evaluation, a checkpoint, or the start or the export of a profile was
logged, that lies between the start and the end of a profile, that skips iterations, or that has another batch size than
most.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from statistics import median, mode
from typing import NamedTuple

from trace_export.errors import SourceError
from trace_export.files import is_file

LOGS, MOST_BYTES, MANY = (".log", ".out", ".txt"), 16 << 20, 8
"""Files beside the profiles that may be the log of the training: their names, their size, and how many at most."""
LEAST = 5
"""The median of at least this many lines of a log is believed."""
WARM_UP = 2
"""Lines after a start that are left out; some versions print one after the first iteration without a new timer."""
LONGEST = 4096
"""At most this many characters of a line are looked at."""
DEVIATION = 1.4826
"""The standard deviation of normal values by their median absolute deviation."""


class _Form(NamedTuple):
    """A kind of line: `pattern` has the groups time, total or stamp, and perhaps step, epoch and steps of an epoch.
    `time` is a mean over the steps since the line before, `total` their sum, in `unit` nanoseconds; `stamp` is when the
    line was written. Lines without a step are those of one step each."""

    name: str
    pattern: re.Pattern[str]
    unit: float


_S, _MS = 1e9, 1e6
_TIME, _STAMP = r"(?P<time>\d+(?:\.\d+)?(?:e[+-]?\d+)?)(?!\.?\d)", r"(?P<stamp>\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3})"
FORMS = (
    _Form("Megatron-LM", re.compile(
        rf"iteration:?\s+(?P<step>\d+)(?:/\s*\d+)? \|.*?elapsed time per iteration \(ms\):\s*{_TIME}"), _MS),
    _Form("NeMo", re.compile(rf"iteration (?P<step>\d+)/\d+ .*?train_step_timing in s: {_TIME}"), _S),
    _Form("DeepSpeed", re.compile(rf"\bsteps: (?P<step>\d+) loss: .*?iter time \(s\): {_TIME}"), _S),
    _Form("DeepSpeed", re.compile(rf"{_STAMP}.*?/global_step=(?P<step>\d+), RunningAvgSamplesPerSec"), _S),
    _Form("torchtitan", re.compile(
        rf"{_STAMP} .*?(?<!validate )step:\s*(?P<step>\d+)\s+loss:.*?tps:"), _S),
    _Form("MindFormers", re.compile(
        r"Epoch:\[\s*(?P<epoch>\d+)/\s*\d+\], step:\[\s*(?P<step>\d+)/\s*(?P<steps>\d+)\]"
        r".*?per_step_time: (?P<time>\d+)ms"), _MS),
    _Form("PaddleNLP", re.compile(
        r"global_step: (?P<step>\d+).*?interval_runtime: (?P<total>\d+(?:\.\d+)?)"), _S),
    _Form("Colossal-AI", re.compile(rf"\[(?P<step>\d+)/\d+\].*?Step time: {_TIME}s"), _S),
    _Form("Megatron-Bridge", re.compile(rf"Step Time : {_TIME}s GPU utilization:"), _S),
)  # fmt: skip
"""The kinds of lines, as the frameworks print them; of several in a log the first one counts."""
_COLOUR = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]")
_ELSE = re.compile(
    r"validat|evaluat|\bsav(?:ing|ed)\b.*(?:checkpoint|ckpt|model|weights|state)|(?:checkpoint|ckpt).*\bsaved?\b"
    r"|save_checkpoint|generat(?:ing|ed):? |nsys|capture range|profil(?:er|ing) ",
    re.IGNORECASE,
)
"""Log lines of other work that takes time: evaluations, checkpoints, a profiler that starts, stops or exports."""
_BEGIN = re.compile(r"capture range started|profiling (?:has )?started|start nsys profiling", re.IGNORECASE)
_END = re.compile(r"capture range ended|profiling (?:has )?stopped|end nsys profiling|generating '", re.IGNORECASE)
"""Between these all steps are profiled."""
_SKIPPED = re.compile(r"number of (?:skipped|nan) iterations:\s*[1-9]")
_BATCH = re.compile(r"global[_ ]batch[_ ]size:\s*(\d+)")


@dataclass(frozen=True)
class StepTimes:
    """What a step takes by a log, in nanoseconds: the median of its clean `lines`, and their deviation as that of
    normal values. `framework` is whose lines they are; `stated` is how many lines state a time, `steps` how many steps
    the log covers."""

    framework: str
    step_ns: float
    deviation_ns: float
    lines: int
    stated: int
    steps: int


class _Line(NamedTuple):
    """A line that states a time; `clean`: it is about training alone."""

    step: int
    step_ns: float | None
    batch: str
    clean: bool


def step_times(path: Path) -> StepTimes | None:
    """The time of a step by the log `path`; None where too few of its lines are about training alone.

    Raises SourceError when it cannot be read, or no line states the time of a step.
    """
    try:
        with path.open("rb") as log:
            wide = log.read(2) in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
        with path.open(encoding="utf-16" if wide else "utf-8", errors="replace") as log:
            text = [_COLOUR.sub("", line[:LONGEST]) for line in log]
    except OSError as error:
        raise SourceError(
            path, f"cannot be read: {error.strerror}", "name the log that the training printed"
        ) from error
    form = next((form for form in FORMS if any(map(form.pattern.search, text))), None)
    if form is None:
        names = ", ".join(dict.fromkeys(form.name for form in FORMS))
        raise SourceError(
            path, "has no line that states the time of a step", f"name a log of {names}, at a rank that prints them"
        )
    lines = list(_lines(text, form))
    usual = mode(line.batch for line in lines)
    clean = [line.step_ns for line in lines if line.clean and line.step_ns and line.batch == usual]
    if len(clean) < LEAST:
        return None
    middle = median(clean)
    deviation = DEVIATION * median(abs(value - middle) for value in clean)
    steps = max(line.step for line in lines) - min(line.step for line in lines) + 1
    return StepTimes(form.name, middle, deviation, len(clean), len(lines), steps)


def logs_in(folder: Path, inputs: Collection[Path]) -> list[tuple[Path, StepTimes]]:
    """The logs directly in a folder that state enough times, by their names, without the `inputs`, whose names are
    those of profiles. If there are many files none is opened: they are not logs of one training."""
    try:
        files = [path for path in sorted(folder.iterdir()) if path.suffix in LOGS and path not in inputs]
        files = [path for path in files if is_file(path) and path.stat().st_size <= MOST_BYTES]
    except OSError:
        return []
    logs = []
    for path in files if len(files) <= MANY else ():
        try:
            if (times := step_times(path)) is not None:
                logs.append((path, times))
        except SourceError:  # another file of that name
            continue
    return logs


def _lines(text: list[str], form: _Form) -> Iterator[_Line]:
    """The lines that state a time, in order; if several ranks print a step, its first line."""
    before: tuple[int, datetime | None] | None = None
    since_start, disturbed, profiled = 0, False, False
    for line in text:
        match = form.pattern.search(line)
        if match is None:
            profiled = bool(_BEGIN.search(line)) or (profiled and not _END.search(line))
            disturbed = disturbed or profiled or bool(_ELSE.search(line))
            continue
        groups = match.groupdict()
        step = int(groups["step"]) if "step" in groups else before[0] + 1 if before else 1
        if "epoch" in groups:
            step += (int(groups["epoch"]) - 1) * int(groups["steps"])
        if before is not None and step == before[0]:
            continue
        if before is not None and step < before[0]:
            before, since_start = None, 0
        at = _at(groups["stamp"]) if "stamp" in groups else None
        advanced = step - before[0] if before is not None else None
        yield _Line(
            step,
            _step_ns(groups, advanced, before[1] if before else None, at, form.unit),
            batch.group(1) if (batch := _BATCH.search(line)) else "",
            since_start >= WARM_UP and not disturbed and not _SKIPPED.search(line),
        )
        before, since_start, disturbed = (step, at), since_start + 1, profiled


def _at(stamp: str) -> datetime | None:
    try:
        return datetime.fromisoformat(stamp.replace(",", "."))
    except ValueError:  # no date of a calendar
        return None


def _step_ns(
    groups: dict[str, str], advanced: int | None, last: datetime | None, at: datetime | None, unit: float
) -> float | None:
    """The time of one of the `advanced` steps since the line before."""
    if "time" in groups:
        return float(groups["time"]) * unit
    if advanced is None:
        return None
    if "total" in groups:
        return float(groups["total"]) * unit / advanced
    return (at - last).total_seconds() * unit / advanced if at is not None and last is not None else None
