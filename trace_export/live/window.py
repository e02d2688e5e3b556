"""The last steps of a job that runs, each interpreted and measured once.

Stages, schedule and clocks are facts of the whole run: they are found from the steps that are kept, and again after
every `FIT_STEPS` or `ONE_CLOCK_STEPS` steps. A step that is finished meanwhile is interpreted by itself, with what is
known of the run.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

import polars as pl

from trace_export.analysis.bubbles import Bubbles
from trace_export.clocks.apply import correct_profile
from trace_export.errors import TraceExportError
from trace_export.live.growth import Growth
from trace_export.live.steady_clocks import steadied
from trace_export.model import MESSAGES, SEGMENT, SPAN_ID, STEP_KEY, Note, Profile, concat, conform
from trace_export.pipeline import message_passes
from trace_export.pipeline.interpret import conclude, interpret, interpret_further
from trace_export.run import Request, Run, with_whole_steps
from trace_export.selection import TIMES, Numbers, Selection, select

FIT_STEPS = 20
"""After this many steps stages, schedule and clocks are found anew; clocks of several hosts with each of the first."""
ONE_CLOCK_STEPS = 50
"""The same where there is one clock, so that nothing drifts."""
FAR_STEPS = 2
"""A rank that is this many steps behind is named."""
FURTHER = 1
"""Steps that are kept besides those shown: the one that is being written."""


@dataclass(frozen=True, eq=False)
class Step:
    """One step on aligned clocks. `whole`: all ranks have all its blocks."""

    run: int | None
    number: int
    whole: bool
    profile: Profile = field(repr=False)

    @property
    def start_ns(self) -> int:
        return int(self.profile.spans["start_ns"].min())  # type: ignore[arg-type]

    @property
    def segment(self) -> tuple[int | None, ...]:
        """Its run and window."""
        return self.profile.spans.select(SEGMENT).row(0)

    @property
    def middle_ns(self) -> int:
        """A time that no later step begins before, if it is not moved far when the clocks are fitted anew."""
        return (self.start_ns + int(self.profile.spans["end_ns"].max())) // 2  # type: ignore[arg-type]

    @cached_property
    def bubbles(self) -> Bubbles:
        return Bubbles(self.profile)


@dataclass(frozen=True, eq=False)
class LastSteps:
    """The last whole steps of a job, and the `notes` of the run and of them. `run` joins them where it is asked for."""

    steps: tuple[Step, ...]
    notes: tuple[Note, ...]
    wanted: Request = field(repr=False)
    inputs: tuple[Path, ...] = field(repr=False)
    failures: tuple[TraceExportError, ...]

    @cached_property
    def run(self) -> Run:
        numbers = Numbers.of(step.number for step in self.steps)
        profile = joined(self.steps, self.notes)
        return Run(
            profile, self.wanted.source, self.failures, Selection(steps=numbers), "aligned", _inputs=self.inputs
        )  # fmt: skip


class Window:
    """The last `last` whole steps of what `growth` holds, as `steps`; `notes` of the run and its steps. `newest`: the
    newest step that was found, whole or not. `behind` says that a newer run has fewer ranks, or which ranks are several
    steps behind the others."""

    def __init__(self, wanted: Request, growth: Growth, last: int) -> None:
        self.steps: tuple[Step, ...] = ()
        self.notes: tuple[Note, ...] = ()
        self.behind = ""
        self._wanted = wanted
        self._growth = growth
        self._last = last
        self._known: Profile | None = None
        self._clocks: pl.DataFrame | None = None
        self.newest: Step | None = None
        self._found = 0
        self._further_steps = 0

    def advance(self) -> list[Step]:
        """Takes what was read; the steps that are new, in their order. Raises TraceExportError where the profiles do
        not fit together, as before the last rank is there."""
        finished = self._further()
        if finished is None:
            finished = self._anew()
        new = [step for step in finished if self.newest is None or step.start_ns > self.newest.middle_ns]
        self._found += len(new)
        self.newest = max([*new, *([self.newest] if self.newest else [])], key=lambda step: step.start_ns, default=None)
        return new

    @property
    def shown(self) -> LastSteps:
        """The steps as they are now."""
        inputs = self._growth.inputs + self._wanted.clocks.inputs
        return LastSteps(self.steps, self.notes, self._wanted, inputs, self._growth.failures)

    def _further(self) -> list[Step] | None:
        """The steps that were finished since, by what is known of the run; None where that does not hold any more."""
        reference, newest = self._known, self.newest
        if reference is None or newest is None or newest.run is None or not self._growth.is_followed:
            return None
        fitted = (reference.clocks["status"] == "fitted").any()
        begins = fitted and self._found < FIT_STEPS
        enough = FIT_STEPS if fitted else ONE_CLOCK_STEPS
        if begins or self._further_steps >= enough or len(self.steps) < self._last:
            return None
        profile = self._growth.profile((newest.run, newest.number))
        if set(profile.ranks["rank"]) != set(reference.ranks["rank"]) or not (profile.spans["run"] == newest.run).all():
            return None
        profile = self._finished(profile, newest.number)
        if profile.spans.is_empty():
            return []
        profile = correct_profile(interpret_further(profile, reference), reference.clocks)
        profile = with_whole_steps(replace(profile, clocks=reference.clocks), self._wanted.source, one_clock=True)
        finished = _steps(profile)
        self._further_steps += len(finished)
        self._keep([*self.steps, *finished], [*self.notes, *(n for n in profile.notes if n.code != "no-whole-step")])
        return finished

    def _anew(self) -> list[Step]:
        """Interprets and aligns all that is kept, and gives its steps."""
        profile = self._growth.profile()
        self.behind = ""
        if self._growth.is_followed:
            profile = self._finished(profile)
        self.behind = _newer(profile.runs) or self.behind
        if profile.spans.is_empty():
            return []
        profile = interpret(profile, self._wanted.source.declared)
        run = Run(profile, self._wanted.source)._aligned(self._wanted.clocks)
        clocks, notes = steadied(self._clocks, run.clocks)
        steady = run.profile
        if clocks is not run.clocks and set(clocks["host"]) == set(profile.ranks["host"]):
            steady = replace(correct_profile(profile, clocks), clocks=clocks, steps=steady.steps, notes=steady.notes)
        self._known = steady
        self._clocks, self._further_steps = clocks, 0
        steps = _unchanged(_steps(steady), self.steps)
        self._keep(steps, [*notes, *steady.notes])
        return steps

    def _keep(self, steps: Iterable[Step], notes: Iterable[Note]) -> None:
        self.steps = tuple(step for step in steps if step.whole)[-self._last :]
        self.notes = tuple(dict.fromkeys(notes))

    def _finished(self, profile: Profile, before: int = -1) -> Profile:
        """The steps that all ranks have finished: after which a rank has another one, or its optimizer. `before`: the
        last step that a rank without blocks has finished."""
        spans = profile.spans
        last = pl.col("step") == pl.col("step").max().over("rank")
        ends = (
            spans.filter(last)
            .group_by("rank")
            .agg(done=pl.col("step").first() - 1 + (pl.col("kind") == "OPT").any().cast(pl.Int32))
        )
        done = profile.ranks.select("rank").join(ends, on="rank", how="left")
        done = done.with_columns(pl.col("done").fill_null(before))
        least = done["done"].min()
        self.behind = _behind(done)
        return replace(profile, spans=spans.filter(pl.col("step") <= least))


def _behind(done: pl.DataFrame) -> str:
    """What is said of ranks that are several steps behind. `done`: the last step that each `rank` has finished."""
    slow = done.filter(pl.col("done") <= pl.col("done").max() - FAR_STEPS)
    if slow.is_empty():
        return ""
    last = int(done["done"].max())  # type: ignore[arg-type]
    ranks = Numbers.of(slow["rank"]).named("rank")
    first = int(slow["done"].min()) + 1  # type: ignore[arg-type]
    return f"waiting for {ranks}: step {first} is not finished there, and others have finished step {last}"


def _newer(runs: pl.DataFrame) -> str:
    """What is said of a run that is newer than the one that is read (`RUNS`)."""
    ordered = runs.sort("run")
    if ordered.is_empty() or ordered["read"][-1]:
        return ""
    number, ranks = ordered.select("run", "ranks").row(-1)
    shown = ordered.filter("read")["run"].to_list()[-1]
    has = f"{ranks} rank{'s' * (ranks > 1)}"
    return f"run {number} is newer, and has {has} so far; run {shown}, which has more, is shown"


def joined(steps: Iterable[Step], notes: Iterable[Note]) -> Profile:
    """The profile of several steps; their blocks are numbered through."""
    parts, first = [], 0
    for step in steps:
        spans = step.profile.spans
        numbers = pl.int_range(first, first + spans.height, dtype=SPAN_ID, eager=True).alias("id")
        parts.append(replace(step.profile, spans=spans.with_columns(numbers)))
        first += spans.height
    last = parts[-1]
    whole = replace(
        concat(parts), hosts=last.hosts, ranks=last.ranks, members=last.members, clocks=last.clocks,
        declared=last.declared, notes=tuple(notes),
    )  # fmt: skip
    unlinked = whole.messages.with_columns(pl.lit(None).alias(c) for c in ("src_pass", "dst_pass", "ready_ns"))
    whole = replace(whole, messages=conform(unlinked, MESSAGES))
    events = {name: getattr(whole, name).unique(maintain_order=True) for name in TIMES}  # steps overlap in time
    return message_passes.link(conclude(replace(whole, **events), last.interpreted.recognition))


def _steps(profile: Profile) -> list[Step]:
    """The steps of a profile whose completeness was checked, by time."""
    ordered = []
    for run, number, whole in profile.steps.drop_nulls("step").sort(STEP_KEY).select(*STEP_KEY, "whole").iter_rows():
        part = select(replace(profile, window_ns=None), Selection(steps=Numbers(((number, number),))))
        steps = profile.steps.filter(pl.col("run").eq_missing(run), pl.col("step") == number)
        part = replace(part, spans=part.spans.filter(pl.col("run").eq_missing(run)), steps=steps, window_ns=None)
        ordered.append(Step(run, number, whole, part))
    return sorted(ordered, key=lambda step: step.start_ns)


def _unchanged(steps: list[Step], before: tuple[Step, ...]) -> list[Step]:
    """`steps`, those that are as they were before as the same objects: what was drawn of them still holds."""
    earlier = {(step.run, step.number): step for step in before}
    return [
        old if (old := earlier.get((step.run, step.number))) is not None and _is_same(old, step) else step
        for step in steps
    ]  # fmt: skip


def _is_same(old: Step, new: Step) -> bool:
    if old.whole != new.whole:
        return False
    facts = [c for c in old.profile.spans.columns if c != "id"]
    same_blocks = old.profile.spans.select(facts).equals(new.profile.spans.select(facts))
    return same_blocks and old.profile.ranks.equals(new.profile.ranks) and old.profile.clocks.equals(new.profile.clocks)
