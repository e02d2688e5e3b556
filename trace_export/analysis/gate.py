"""Whether a run is worse than another by more than is allowed, and by more than its steps vary.

The mean over the steps of both runs is resampled (a bootstrap over steps), and the run fails where even the lower end
of the one-sided confidence interval of the change exceeds the limit. The interval is the expanded percentile interval
of Hesterberg (2015, "What Teachers Should Know About the Bootstrap"), because the plain one is too narrow for few
steps.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from math import sqrt
from typing import Literal

import numpy as np
import numpy.typing as npt
import polars as pl

from trace_export.analysis.run_figures import RunFigures
from trace_export.errors import UsageError

DRAWS = 10_000
CONFIDENCE = 0.99
LEAST_STEPS = 3
"""Fewer steps do not tell how much steps vary."""

Samples = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Gate:
    """The result: `on` is what was compared (step, pipeline, bubble, slowdown, stage:N), `limit` the change that is
    allowed. `change` is that of the mean over the steps, B / A - 1, of a bubble B - A; `at_least`: with 99 % confidence
    the change exceeds this; `steps`: the number of steps of A and B; `failed`: whether `at_least` exceeds the limit.
    """

    on: str
    limit: float
    change: float
    at_least: float
    steps: tuple[int, int]
    failed: bool
    names: tuple[str, str]

    @property
    def sentence(self) -> str:
        """The result in one sentence."""
        a, b = self.names
        unit = " points" if self.on == "bubble" else "%"
        change, sure, limit = (
            f"{abs(round(100 * share, 2)):.3g}{unit}" for share in (self.change, self.at_least, self.limit)
        )
        more = "more" if self.change >= 0 else "less"
        what = f"{_words(self.on)} of {b} is {change} {more} than of {a}"
        basis = f"{self.steps[0]} and {self.steps[1]} steps"
        if self.on == "pipeline":
            basis += "; too few of them have a step time"
        if self.failed:
            return f"{what}, with 99% confidence at least {sure}: above the limit of {limit} ({basis})."
        if self.change > self.limit:
            return f"{what}, above the limit of {limit}, but the steps vary too much to be sure ({basis})."
        return f"{what}: within the limit of {limit} ({basis})."


def _words(on: str) -> str:
    names = {
        "step": "The step time",
        "pipeline": "The pipeline time",
        "bubble": "The bubble",
        "slowdown": "The slowdown by stragglers",
    }
    return names.get(on) or f"The busy time of stage {on.partition(':')[2]}"


def differences(a: RunFigures, b: RunFigures) -> list[str]:
    """What makes two runs incomparable, as "schedule: 1F1B and ZB-H1"."""
    return [f"{what}: {a.traits[what]} and {b.traits[what]}" for what in a.traits if a.traits[what] != b.traits[what]]


def judge(a: RunFigures, b: RunFigures, limit: float, on: str = "step", names: tuple[str, str] = ("A", "B")) -> Gate:
    """Whether B is worse than A by more than `limit`, a share such as 0.03.

    `on`: step, bubble, slowdown or stage:N. Raises UsageError where the runs differ in their schedule or sizes, and
    where a run has too few whole steps that have the figure.
    """
    if unlike := differences(a, b):
        what = f"{names[0]} and {names[1]} are not comparable ({'; '.join(unlike)})"
        raise UsageError(what, "compare runs of one configuration", parameter="fail_above")
    first, second = (_values(run, on) for run in (a, b))
    if on == "step" and min(len(first), len(second)) < LEAST_STEPS:  # too few steps follow each other
        on = "pipeline"
        first, second = (_values(run, on) for run in (a, b))
    for values, name in zip((first, second), names, strict=True):
        if len(values) < LEAST_STEPS:
            what = f"{name} has {len(values)} whole steps with this figure ({on}), too few to know how much they vary"
            raise UsageError(what, f"record at least {LEAST_STEPS}", parameter="fail_above")
    kind: Literal["difference", "ratio"] = "difference" if on == "bubble" else "ratio"
    change = float(_change(first.mean(), second.mean(), kind))
    at_least = _lower_bound(first, second, kind)
    return Gate(on, limit, change, at_least, (len(first), len(second)), at_least > limit, names)


def _values(run: RunFigures, on: str) -> Samples:
    """The figure of each step that has it."""
    columns = {"step": "step_ns", "pipeline": "pipeline_ns", "bubble": "bubble", "slowdown": "slowdown"}
    if stage := re.fullmatch(r"stage:(\d{1,9})", on):
        column = run.stages.filter(pl.col("stage") == int(stage[1]))["busy_ns"]
    else:
        column = run.steps[columns[on]]
    return column.drop_nulls().cast(pl.Float64).drop_nans().to_numpy()


def _change(a: Samples, b: Samples, kind: Literal["difference", "ratio"]) -> Samples:
    return b - a if kind == "difference" else b / np.where(a == 0, np.nan, a) - 1


def _lower_bound(a: Samples, b: Samples, kind: Literal["difference", "ratio"]) -> float:
    """The value that the change exceeds with the confidence `CONFIDENCE`; the same for the same steps."""
    from scipy import special  # a quarter of the time that scipy.stats takes to load

    draw = np.random.default_rng(0)
    means = [values[draw.integers(0, len(values), (DRAWS, len(values)))].mean(axis=1) for values in (a, b)]
    least = min(len(a), len(b))
    wide = sqrt(least / (least - 1)) * special.stdtrit(len(a) + len(b) - 2, CONFIDENCE)
    return float(np.quantile(_change(means[0], means[1], kind), special.ndtr(-wide)))
