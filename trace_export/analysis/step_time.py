"""Where the time of the steps went: slowdown by stragglers, critical path, causes, transfers."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from functools import cached_property

import polars as pl

from trace_export.analysis.causes import CAUSES, causes
from trace_export.analysis.critical_path import CriticalPath, critical_path
from trace_export.analysis.transfer_split import block_inputs, links, split_messages
from trace_export.analysis.what_if import TRUSTED, Slowdown, what_if
from trace_export.errors import NothingToExportError
from trace_export.model import STEP_KEY, Profile
from trace_export.pipeline.operations import Step
from trace_export.pipeline.step_operations import StepOperations


@dataclass(frozen=True)
class StepTime:
    """`slowdown` is None where `reason` says why not. `causes` as `causes.CAUSES`, `links` as
    `transfer_split.links`."""

    slowdown: Slowdown | None
    reason: str
    path: CriticalPath
    causes: pl.DataFrame
    links: pl.DataFrame
    _profile: Profile
    _operations: StepOperations

    @cached_property
    def inputs(self) -> pl.DataFrame:
        """The transfers that blocks waited for, as `transfer_split.INPUTS`."""
        return block_inputs(self._profile, self._operations)

    def known_slowdown(self, run: object) -> Slowdown:
        """`slowdown`; raises NothingToExportError, which names the run, where there is none."""
        if self.slowdown is None:
            what = f"{run}: how much stragglers cost cannot be said: {self.reason}"
            raise NothingToExportError(what, "give the profiles of all stages of a pipeline")
        return self.slowdown

    @property
    def unexplained(self) -> float | None:
        """The measured time of the steps by that of the replay, where the replay leaves out too much to be trusted."""
        found = self.slowdown
        return None if found is None or found.fidelity <= TRUSTED else found.fidelity

    @property
    def trusted_causes(self) -> pl.DataFrame:
        """`causes`; none of them where the replay leaves out too much of the time."""
        trusted = self.slowdown is not None and self.unexplained is None
        return self.causes if trusted else self.causes.clear()

    def of_steps(self, step_ns: float) -> StepTime:
        """The same, with gains as shares of the time `step_ns` from the start of a step to that of the next."""
        share = pl.col("gain_ns") / step_ns if step_ns > 0 else pl.col("gain")
        return replace(self, causes=self.causes.with_columns(gain=share))


def step_time(profile: Profile, operations: StepOperations, steps: Collection[Step] | None = None) -> StepTime:
    """Where the time of `steps` went (None: of all). `operations` are those of `profile`, which is aligned."""
    wanted = operations if steps is None else operations.of_steps(steps)
    usual, reason = wanted.usual, wanted.reason or ("" if wanted.alike else "there is no step with blocks")
    if usual is not None and not (usual.end_ns > usual.start_ns).any():
        usual, reason = None, "no block has a length"
    return StepTime(
        slowdown=None if usual is None else what_if(usual),
        reason=reason,
        path=critical_path(profile, wanted),
        causes=pl.DataFrame(schema=CAUSES) if usual is None else causes(usual, profile),
        links=links(profile, split_messages(profile.messages)),
        _profile=profile,
        _operations=wanted,
    )


def steps_of(spans: pl.DataFrame) -> set[Step]:
    """The steps (run, step) that have a span."""
    return set(spans.select(STEP_KEY).unique().rows())
