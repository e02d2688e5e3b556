"""The schedule of a run, recognised in two stages that share one list of candidates.

`exact_plan` needs no numbers: it compares the words of a step (its kinds of block, in order) with those of each
candidate. It gives blocks a micro-batch that have none (`labels`). `recognise` compares numbered blocks: exact orders
are equal, else the distance is the share of blocks that are missing, superfluous or displaced.

Stages, chunks and micro-batches are numbers that a file may have wrong, so an order is generated for the stages that
have blocks only, and only where it is not far longer than what was recorded (`borne_out`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

import polars as pl

from trace_export.errors import UsageError
from trace_export.model import STEP_KEY, Certainty, Declared, Note, Plan, Profile, Recognition
from trace_export.pipeline.block_order import CHUNKS, expected_order, sequences, without_pieces, without_weights
from trace_export.pipeline.data_way import Way, way_of_messages
from trace_export.pipeline.order_distance import distances_to
from trace_export.pipeline.stages import DEEPEST
from trace_export.pipeline.steps import in_fullest
from trace_export.schedules.catalogue import CATALOGUE, TITLES
from trace_export.schedules.schedule import check_sizes
from trace_export.schedules.words import profile_blocks, word

LIKELY = ((0.02, 2), (0.1, 5))
"""An order that is not exact is named when its distance is below the first number, and the runner-up's above the second
number times that; one of the pairs suffices. If 1 to 20 % of the blocks of a step are dropped or exchanged, 46 to 67 %
of the steps get a name, all rightly; of steps of a schedule that is not among the candidates 0 to 2.5 % do (2 to 8
stages)."""

MOST_TIMES = 16
SMALL = 30_000
"""An order may have this many times the recorded blocks of a step (a sixteenth of a step is still recognised), or any
number below the second limit, which costs nothing."""

MOST_CHUNKS_TRIED = 64
GPIPE = "gpipe"
RUNS_COMPARED = 32
"""This many runs are looked at, the newest: a log may hold thousands of restarts."""
SIMPLEST = ("1f1b", "gpipe", "interleaved", "interleaved-paddle", "interleaved-zb1p", "interleaved-split-paddle")
"""The simplest and most frequent schedules: of several that fit a word exactly, the first is believed."""


def candidates(stages: int, forwards: int, chunks: int | None, group: int | None = None) -> Iterator[Plan]:
    """Every schedule in which a rank runs this many forwards, the simplest and most frequent first.

    If the number of `chunks` is unknown (None), each number that divides the forwards. `group`: the size of an
    interleaved schedule's groups, if it is not the usual one.
    """
    for name in (*SIMPLEST, *(name for name in CATALOGUE if name not in SIMPLEST)):
        row = CATALOGUE[name]
        for count in _chunk_counts(name, stages, forwards, chunks):
            microbatches = forwards if row.placement == "both" else forwards // count
            if row.only_when_short and microbatches != stages:
                continue
            plan = Plan(name, stages, microbatches, count, group if name == "interleaved" else None)
            if allowed(plan):
                yield plan


def _chunk_counts(name: str, stages: int, forwards: int, chunks: int | None) -> list[int]:
    row = CATALOGUE[name]
    if not row.many_chunks:
        return [row.chunks] if chunks in (None, row.chunks) and forwards % row.chunks == 0 else []
    if chunks is not None:
        return [chunks]
    most = min(forwards // stages, MOST_CHUNKS_TRIED) if stages > 1 else 0
    return [count for count in range(2, most + 1) if forwards % count == 0]


def allowed(plan: Plan) -> bool:
    """Whether the schedule's rules allow these numbers."""
    try:
        check_sizes(plan)
    except UsageError:
        return False
    return True


def borne_out(plan: Plan, present: int, recorded: int) -> bool:
    """Whether `recorded` blocks of a step on `present` stages can belong to a plan of this size."""
    each = 3 * plan.microbatches * (1 if CATALOGUE[plan.name].placement == "both" else plan.chunks)
    short = present * each <= max(SMALL, MOST_TIMES * recorded)
    return short and plan.stages <= DEEPEST * present and plan.chunks <= CHUNKS


class Numbering(NamedTuple):
    """`exact`: the blocks come in the plan's order; else only the order of each kind is the plan's. `weights`: this
    holds for weight gradients, too; else the plan has only forwards and backwards."""

    plan: Plan
    exact: bool
    weights: bool = True

    def has(self, seen: Mapping[int, str]) -> bool:
        """Whether the words that were `seen` (stage → word of a whole step) are exactly those of the plan."""
        return self.exact and all(word(self.plan, stage) == measured for stage, measured in seen.items())


def exact_plan(
    seen: Mapping[int, str], stages: int, *, more: bool, deeper: bool = False, vee: bool = False, way: Way | None = None
) -> Numbering | None:
    """The plan under which every stage's word is exactly `seen` (stage → word of a whole step); else, where weight
    gradients are blocks, the plan that fits without them: they may have come out merged, or as backwards where a stage
    has no input gradient; else the plan whose numbering fits. Both are marked as not exact; None when there is none.

    `more`: there may be more than `stages`, which leading forwards say that fall by one from stage to stage. With
    `deeper`, and of one stage alone, that is believed before several chunks on two stages, which may have the same
    words. `vee`: the chunks are known to lie in a V. `way` is that of the data, where it is known: in a line they go
    through one chunk, in a loop through several if an order of several fits.

    Example: F F B F B B and F B F B F B on two stages are 1F1B with three micro-batches, exactly. With a W after each
    B of the second stage alone they fit none exactly, and ZB-H1 without weight gradients.
    """
    forwards = {len(word) - len(word.replace("F", "")) for word in seen.values()}
    if len(forwards) != 1 or any("X" in word for word in seen.values()):
        return None
    count = forwards.pop()
    plans = list(candidates(stages, count, None))
    depths = {stage + word.find("B") for stage, word in seen.items()}
    if more and len(depths) == 1 and (depth := depths.pop()) > stages:
        longer = filter(allowed, [Plan("1f1b", depth, count)])
        plans = [*longer, *plans] if deeper or len(seen) == 1 else [*plans, *longer]
    if vee:
        plans = [plan for plan in plans if CATALOGUE[plan.name].placement == "vee"]
    if way == "line":
        plans = [plan for plan in plans if plan.chunks == 1 or CATALOGUE[plan.name].placement != "loop"]
    if way == "loop":
        plans.sort(key=lambda plan: plan.name == GPIPE)  # the only one whose words an order of several chunks has, too
    for numbering in (Numbering(plan, exact=True) for plan in plans):
        if numbering.has(seen):
            return numbering
    if any("W" in measured for measured in seen.values()):
        for plan in filter(splits_backward, plans):
            if all(
                _without_weights(word(plan, stage)) == _without_weights(measured) for stage, measured in seen.items()
            ):
                return Numbering(plan, exact=False, weights=False)
    for plan in plans:
        if all(_same_warm_up(word(plan, stage), measured) for stage, measured in seen.items()):
            return Numbering(plan, exact=False)
    return None


def splits_backward(plan: Plan) -> bool:
    """Whether weight gradients are blocks of their own in a plan."""
    first = CATALOGUE[plan.name].splits_from
    return first is not None and plan.stages >= first


def _without_weights(word: str) -> str:
    return word.replace("W", "")


def _same_warm_up(expected: str, measured: str) -> bool:
    """Equal counts, and as many forwards before the first backward, or one more (Megatron's
    overlap_moe_expert_parallel_comm)."""
    warm_up, wanted = measured.find("B"), expected.find("B")
    return warm_up - wanted in (0, 1) and sorted(measured) == sorted(expected)


@dataclass(frozen=True)
class _Numbers:
    """p stages, m forwards per chunk and rank, v chunks, g forwards of chunk 0 before the first of chunk 1."""

    p: int
    m: int
    v: int
    g: int
    weights: bool


def recognise(passes: pl.DataFrame, declared: Declared) -> Recognition:
    """The schedule of the fullest step of `passes` (`PASSES`), beside what is `declared` of the run; of several runs
    that of each, if it is the same.

    Where the micro-batch is null, the order of occurrence stands for it. A run without a backward (evaluation) or of a
    single stage has no schedule, and an unknown number of stages no order.
    """
    if declared.deeper:
        return Recognition()
    runs = passes["run"].unique().sort()
    if len(runs) > 1:
        each = [recognise(passes.filter(pl.col("run").eq_missing(run)), declared) for run in runs[-RUNS_COMPARED:]]
        names = tuple(dict.fromkeys(one.plan.name for one in each if one.certainty == "exact" and one.plan))
        if len(names) > 1:
            return Recognition(of_runs=names)
    step = without_pieces(sequences(passes.filter(in_fullest(passes, 1))))
    kinds = dict(step.group_by("kind").len().iter_rows())
    if "B" not in kinds or "F" not in kinds:
        return Recognition()
    closest = _closest(step, declared)
    if closest.certainty != "exact" and 0 < kinds.get("W", 0) < kinds["B"]:
        # Some runs record the weight gradients of a part of the step only.
        other = _closest(without_weights(step), declared)
        if other.certainty == "exact" and other.plan is not None and CATALOGUE[other.plan.name].splits_from:
            return other
    return closest


def _closest(step: pl.DataFrame, declared: Declared) -> Recognition:
    """The candidate whose order is closest to that of the step, of those with the declared number of stages, and with
    chunks in a V where these are declared."""
    numbers = _numbers(step, declared.pp)
    if numbers.p == 1:
        return Recognition()
    present = tuple(step["stage"].unique().sort())
    plans = {plan.name: plan for plan in _comparable(numbers) if borne_out(plan, len(present), len(step))}
    if declared.placement == "vee":
        plans = {name: plan for name, plan in plans.items() if CATALOGUE[name].placement == "vee"}
    if not plans:
        return Recognition()
    expected = {name: expected_order(profile_blocks(plan, present), numbers.weights) for name, plan in plans.items()}
    distances = distances_to(expected, step)
    best, *others = sorted(distances, key=lambda name: (*distances[name], list(TITLES).index(name)))
    differs, distance = distances[best]
    twins = tuple(n for n in others if distances[n] == distances[best])
    runner_up = next(((n, distances[n][1]) for n in others if n not in twins), None)
    further = runner_up[1] if runner_up else 1.0
    likely = any(distance < most and further >= times * distance for most, times in LIKELY)
    return Recognition(
        plan=plans[best],
        certainty=_exactness(len(present), twins) if not differs else "likely" if likely else "unknown",
        distance=distance,
        runner_up=runner_up,
        twins=(*twins, *(() if numbers.weights else _twins(best))),
        weights=numbers.weights,
    )


def _exactness(stages: int, twins: tuple[str, ...]) -> Certainty:
    """How sure an order is that fits all blocks of this many stages, if those of the `twins` fit them, too.

    Example: the first of two stages runs F F B B with two micro-batches under GPipe and under 1F1B, which is unknown
    where it alone was read; the last one runs F F B B or F B F B, which with the first one is exact.
    """
    if stages > 1 and not twins:
        return "exact"
    return "likely" if stages > 1 or not twins else "unknown"


def with_chunks_in_doubt(recognition: Recognition, profile: Profile) -> Recognition:
    """`recognition`; GPipe gets as a twin the interleaved order that has the same words: if the source numbers no
    block, a pass of each micro-batch through several chunks fits, too, unless the messages show the way.

    Example: eight forwards and then eight backwards on each of four stages are also two chunks of four micro-batches.
    """
    plan = recognition.plan
    if plan is None or plan.name != GPIPE or recognition.certainty != "exact":
        return recognition
    rounds, rest = divmod(plan.microbatches, plan.stages)
    recorded = (profile.spans["labels"] != "inferred").fill_null(True).all()
    if recorded or rest or rounds < 2 or way_of_messages(profile, plan.stages) is not None:
        return recognition
    return replace(recognition, certainty="likely", twins=(*recognition.twins, "interleaved"))


def _comparable(numbers: _Numbers) -> Iterator[Plan]:
    """The candidates that fit the numbers; with recorded weight gradients those that split the backward, without them
    all but those that would be the same as another."""
    group = numbers.g if numbers.g > numbers.p else None
    for plan in candidates(numbers.p, numbers.m * numbers.v, numbers.v, group):
        if splits_backward(plan) if numbers.weights else CATALOGUE[plan.name].same_without_weights is None:
            yield plan


def _twins(name: str) -> tuple[str, ...]:
    """The schedules that cannot be distinguished from it without recorded weight gradients."""
    return tuple(n for n, row in CATALOGUE.items() if row.same_without_weights == name and not row.variant)


def declare(profile: Profile, recognition: Recognition) -> Profile:
    """`profile` that declares the schedule of `recognition`, where it declares none and the order is certain
    enough."""
    plan = recognition.named
    if recognition.of_runs:
        names = ", ".join(TITLES[name] for name in recognition.of_runs)
        text = f"the runs follow different schedules ({names}); choose one with --run"
        profile = profile.with_notes([Note("schedules-differ", "warning", text)])
    if profile.declared.schedule is not None or plan is None:
        return profile
    row = CATALOGUE[plan.name]
    numbers = Declared(
        schedule=row.title,
        microbatches=plan.microbatches,
        chunks=plan.chunks,
        placement=None if row.placement == "both" else row.placement,
    )
    differing = f"{recognition.distance:.1%}" if recognition.distance >= 0.001 else "less than 0.1%"
    how = "exactly" if recognition.certainty == "exact" else f"except for {differing} of the blocks"
    if recognition.certainty == "likely" and not recognition.distance:
        how = "in all that was read"
    twins = (
        f" (or {', '.join(TITLES[n] for n in recognition.twins)}, indistinguishable here)" if recognition.twins else ""
    )
    note = Note("schedule-recognised", "detail", f"the order of the blocks is {how} that of {row.title}{twins}")
    return replace(profile, declared=profile.declared.or_else(numbers)).with_notes([note])


def _numbers(step: pl.DataFrame, declared: int | None) -> _Numbers:
    forwards = step.filter(pl.col("kind") == "F")
    counts = forwards.group_by("rank", "chunk").len()["len"].to_numpy()
    second = forwards.filter(pl.col("chunk") == 1).group_by("rank").agg(second_begins=pl.col("position").min())
    before = (
        forwards.filter(pl.col("chunk") == 0)
        .join(second, on="rank")
        .filter(pl.col("position") < pl.col("second_begins"))
        .group_by("rank").len()["len"].to_numpy()
    )  # fmt: skip
    return _Numbers(
        p=max(int(step["stage"].to_numpy().max()) + 1, declared or 0),
        m=int(counts.max()) if len(counts) else 0,
        v=int(forwards["chunk"].to_numpy().max()) + 1 if len(forwards) else 1,
        g=int(before.min()) if len(before) else 0,
        weights=bool((step["kind"] == "W").any()),
    )


def with_microbatches(plan: Plan, forwards: int) -> Plan | None:
    """The plan for a step of this many forwards per chunk and rank; None where that is too few for the schedule."""
    both = CATALOGUE[plan.name].placement == "both"
    other = replace(plan, microbatches=2 * forwards if both else forwards)
    return other if allowed(other) else None


def of_steps(plan: Plan, orders: pl.DataFrame) -> Plan | None:
    """The plan for the steps in `orders` (`block_order.sequences`): this plan if one of them has its number of
    micro-batches, else with the number of the fullest step; None if that is too small for the schedule."""
    forwards = (
        orders.filter(pl.col("kind") == "F")
        .group_by(*STEP_KEY, "rank", "chunk")
        .agg(pl.col("microbatch").n_unique())
        .group_by(STEP_KEY)
        .agg(pl.col("microbatch").max())["microbatch"]
    )
    plans = [with_microbatches(plan, count) for count in forwards.unique().sort(descending=True)]
    return plan if plan in plans else next(iter(plans), None)
