"""What a schedule takes: its blocks' times from their durations and dependencies.

Each rank runs its blocks strictly in order; a block starts when its rank is free and its inputs are there, those of
other ranks after a transfer. Not in the model: senders that block, links that are shared, kernels slowed by
communication, jitter.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl

from trace_export.errors import UsageError
from trace_export.model import HOSTS, RANKS, SPANS, Declared, Profile, conform
from trace_export.schedules.schedule import Schedule
from trace_export.schedules.step_graph import CircleError, StepGraph
from trace_export.units import LIMIT_NS

Times = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Costs:
    """Durations of one block, in any one unit: `forward`; `backward`, which is the gradient of the input where the
    weight's is a block of its own; `weight`; the transfer of one block's result to another rank; an overlapped pair
    takes `overlap` times its forward and whole backward one after the other."""

    forward: float
    backward: float
    weight: float = 0
    transfer: float = 0
    overlap: float = 1.0


def default_costs(schedule: Schedule) -> Costs:
    """Ten milliseconds for a forward, and the same for each of the two halves of its backward."""
    ms = 1_000_000
    return Costs(10 * ms, 10 * ms if schedule.splits else 20 * ms, 10 * ms)


def durations(schedule: Schedule, costs: Costs) -> Times:
    """The duration of each row of `schedule.ops`."""
    whole = costs.backward + (costs.weight if schedule.splits else 0)
    kind = pl.col("kind")
    return (
        schedule.ops.select(
            pl.when(kind == "F").then(costs.forward)
            .when(kind == "W").then(costs.weight)
            .when(kind == "FB").then(costs.overlap * (costs.forward + whole))
            .when("full").then(whole)
            .otherwise(costs.backward)
        )
        .to_series().to_numpy().astype(np.float64)
    )  # fmt: skip


def start_and_end(schedule: Schedule, durations: Times, transfer: float | Times = 0) -> tuple[Times, Times]:
    """Start and end of each row of `schedule.ops`, from 0, in the unit of `durations`; exact for whole numbers.

    `durations` has a row per block; a second axis holds cases that are run at once, and start and end have it too.
    `transfer`: how long results from another rank are on their way, for all blocks or for each. Raises UsageError when
    the ranks wait for each other for ever.
    """
    graph, length = schedule.graph, durations
    if np.any(transfer):
        graph = schedule.with_transfers
        length = np.concatenate([durations, _on_the_way(graph, durations, transfer)])
    try:
        start, end = graph.start_and_end(length)
    except CircleError as circle:
        text = _deadlock(schedule, circle.operation)
        raise UsageError(text, "make the micro-batches a multiple of the stages") from None
    return start[: len(durations)], end[: len(durations)]


def _on_the_way(graph: StepGraph, durations: Times, transfer: float | Times) -> Times:
    """The lengths of the transfers, which are the last operations of `graph`."""
    waiting, needed = graph.pairs
    moved = needed >= len(durations)
    receiver = np.empty(len(graph) - len(durations), np.int64)
    receiver[needed[moved] - len(durations)] = waiting[moved]
    length = np.broadcast_to(np.asarray(transfer, np.float64), len(durations))[receiver]
    return np.repeat(length, durations[0].size).reshape(len(receiver), *durations.shape[1:])


def _deadlock(schedule: Schedule, first: int) -> str:
    op = schedule.ops[first].row(0, named=True)
    block = f"{op['kind']}{op['microbatch']} of chunk {op['chunk']}"
    return (
        f"{schedule.title} with {schedule.stages} stages, {schedule.chunks} chunks and {schedule.microbatches}"
        f" micro-batches never ends: stage {op['stage']} waits for ever to run {block}"
    )


def simulate(schedule: Schedule, costs: Costs) -> Profile:
    """The theoretical run of one step as a profile, rank = stage, from time 0; costs are nanoseconds.

    The origin of its spans is `model`. Raises UsageError when the order cannot run, or takes longer than 64 bits hold.
    """
    start, end = start_and_end(schedule, np.round(durations(schedule, costs)), round(costs.transfer))
    if end.max() >= LIMIT_NS:
        raise UsageError("the simulated step takes longer than 146 years", "times are nanoseconds")
    return as_profile(schedule, start, end)


def as_profile(schedule: Schedule, start: Times, end: Times) -> Profile:
    """`schedule` with its blocks' times in nanoseconds as a profile, whose spans have their row in `ops` for an id."""
    spans = schedule.ops.with_row_index("id").with_columns(
        rank=pl.col("stage"), run=0, step=0, origin=pl.lit("model"),
        start_ns=pl.Series(np.round(start).astype(np.int64)), end_ns=pl.Series(np.round(end).astype(np.int64)),
    )  # fmt: skip
    place = {"host": "model", "dp": 0, "tp": 0, "replica": 0, "source": "simulate", "kind": "model"}
    ranks = pl.DataFrame([{"rank": s, "device": s, "stage": s} | place for s in range(schedule.stages)]).with_columns(
        rank_origin=pl.lit("user-specified"), stage_origin=pl.lit("user-specified")
    )
    return Profile(
        hosts=conform(pl.DataFrame({"host": ["model"], "machine": [0], "label": ["model"]}), HOSTS),
        ranks=conform(ranks, RANKS),
        spans=conform(spans, SPANS),
        declared=Declared(
            schedule=schedule.title,
            microbatches=schedule.microbatches,
            chunks=schedule.chunks,
            placement=None if schedule.placement == "both" else schedule.placement,
            pp=schedule.stages,
        ),
    )
