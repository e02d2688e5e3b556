"""The operations of a run's steps, whatever its source recorded."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

import polars as pl

from trace_export.model import RANK_STEP_KEY, STEP_KEY, WORK_KINDS, Profile
from trace_export.pipeline.block_operations import Lanes, block_operations
from trace_export.pipeline.operation_rules import IncompleteOperationsError
from trace_export.pipeline.operations import Operations, Step
from trace_export.pipeline.recorded_operations import lacks_transfers, not_recorded, recorded_operations
from trace_export.pipeline.stages import depth

OTHER_ORDER = "its blocks or their order are not those of most steps"

CIRCLE = "its blocks wait for each other in a circle, so that their order, their numbers or the clocks must be wrong"


@dataclass(frozen=True)
class StepOperations:
    """`alike`: groups of steps with the same operations in every pipeline, the largest first; `odd`: steps whose
    pipelines differ, all of whose ranks count as one pipeline. `reason`: why the slowdown of the first group does not
    describe the run, "" where it does."""

    alike: list[Operations]
    odd: list[Operations]
    reason: str = ""

    @property
    def all(self) -> list[Operations]:
        return [*self.alike, *self.odd]

    @property
    def usual(self) -> Operations | None:
        """The largest group, with what was left out; None where a comparison with ideal steps would mislead."""
        if self.reason or not self.alike:
            return None
        first, *others = self.alike
        left = [(*step, OTHER_ORDER) for part in (*others, *self.odd) for step in part.steps]
        return replace(first, left_out=(*first.left_out, *left))

    def of_steps(self, wanted: Collection[Step]) -> StepOperations:
        """Only the steps (run, step) of `wanted`."""
        parts = ([part for one in kind if (part := one.of_steps(wanted)).steps] for kind in (self.alike, self.odd))
        alike, odd = parts
        return replace(self, alike=sorted(alike, key=lambda one: -len(one.steps)), odd=odd)


def step_operations(profile: Profile) -> StepOperations:
    """The operations of all steps that have blocks. Needs an interpreted profile, on aligned clocks."""
    if not profile.declared.every_operation:
        return _from_blocks(profile)
    if lacks_transfers(profile):
        parts = _from_blocks(profile)
        missing = not_recorded(profile)
        return replace(parts, alike=[replace(one, missing=missing) for one in parts.alike])
    try:
        found = recorded_operations(profile)
    except IncompleteOperationsError as error:
        return replace(_from_blocks(profile), reason=f"the operations {error}")
    if isinstance(found, Operations) and found.graph.is_acyclic:
        return StepOperations([found], [])
    return replace(_from_blocks(profile), reason=found if isinstance(found, str) else CIRCLE)


def _from_blocks(profile: Profile) -> StepOperations:
    work = profile.spans.lazy().filter(pl.col("kind").is_in(WORK_KINDS)).select(*RANK_STEP_KEY, "start_ns").collect()
    steps = work.group_by(STEP_KEY).agg(at=pl.col("start_ns").min()).sort("at", *STEP_KEY).select(STEP_KEY)
    ranks = _one_of_each(profile, work)
    if ranks.is_empty():
        return StepOperations([], [], "no rank has a stage and blocks")
    stages = ranks["stage"].unique().sort().to_list()
    numbers = ranks["replica"].unique().sort().to_list()
    complete = ranks.height == len(stages) * len(numbers)
    if not complete:
        return StepOperations([], _as_one(profile, ranks, steps), "stages of some pipelines were not read")
    lanes = Lanes(_dense(ranks, stages, numbers), stages, _names(ranks, numbers))
    alike, odd = block_operations(profile, lanes, steps)
    reason = "" if alike else "the blocks of a step differ between its pipelines"
    if alike and alike[0].circular:
        reason = CIRCLE
    missing = next((number for number, stage in enumerate(stages) if stage != number), len(stages))
    if missing < depth(profile.ranks, profile.declared):
        reason = f"stage {missing} was not read"
    return StepOperations(alike, _as_one(profile, ranks, steps[odd]) if len(odd) else [], reason)


def _one_of_each(profile: Profile, work: pl.DataFrame) -> pl.DataFrame:
    """The ranks with blocks, with their stage, replica and dp; of tensor- and context-parallel peers the first."""
    ranks = profile.ranks.join(work.select("rank").unique(), on="rank", how="semi").drop_nulls(["stage", "replica"])
    peer = pl.col("tp").fill_null(0).cast(pl.Int64) * (1 << 32) + pl.col("cp").fill_null(0)
    return ranks.filter(peer == peer.min().over("dp", "stage")).select("rank", "stage", "replica", "dp").sort("rank")


def _dense(ranks: pl.DataFrame, stages: list[int], replicas: list[int]) -> pl.DataFrame:
    return ranks.select(
        "rank",
        stage=pl.col("stage").replace_strict(stages, range(len(stages)), return_dtype=pl.Int64),
        replica=pl.col("replica").replace_strict(replicas, range(len(replicas)), return_dtype=pl.Int64),
    )


def _names(ranks: pl.DataFrame, replicas: list[int]) -> list[int]:
    """The data-parallel number of each replica, where it is known and distinguishes them; else its own."""
    known = dict(ranks.select("replica", "dp").unique("replica").iter_rows())
    names = [known[number] for number in replicas]
    return names if None not in names and len(set(names)) == len(names) else replicas


def _as_one(profile: Profile, ranks: pl.DataFrame, steps: pl.DataFrame) -> list[Operations]:
    """The operations of `steps`, with each rank in place of a stage."""
    places = ranks.select("rank", stage=pl.int_range(pl.len(), dtype=pl.Int64), replica=pl.lit(0, pl.Int64))
    return block_operations(profile, Lanes(places, ranks["stage"].to_list(), [0]), steps)[0]
