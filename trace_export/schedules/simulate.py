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
from trace_export.schedules.schedule import Schedule, virtual_stage
from trace_export.units import LIMIT_NS

Times = npt.NDArray[np.float64]
Rows = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Costs:
    """Durations of one block, in any one unit: `forward`; `backward`, which is the gradient of the input where the
    weight's is a block of its own; `weight`; the transfer of one block's result to another rank; an overlapped pair
    takes `overlap` times its forward and whole backward one after the other."""

    forward: float
    backward: float
    weight: float = 0
    transfer: float = 0
    overlap: float = 1


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


def start_and_end(schedule: Schedule, durations: Times, transfer: float = 0) -> tuple[Times, Times]:
    """Start and end of each row of `schedule.ops`, from 0, in the unit of `durations`; exact for whole numbers.

    `durations` has a row per block; a second axis holds cases that are run at once, and start and end have it too.
    All ranks whose next block is ready run it, round by round: O(blocks per rank) rounds over arrays of ranks. Raises
    UsageError when the ranks wait for each other for ever.
    """
    inputs, away = _inputs(schedule)
    counts = schedule.ops.group_by("stage", maintain_order=True).len()["len"].to_numpy()
    limit = np.cumsum(counts)
    at = limit - counts
    # One more entry for "no input", which is there from the start.
    done = np.zeros(len(durations) + 1, np.bool_)
    done[-1] = True
    lasts = durations.reshape(len(durations), -1)
    start, end = np.zeros_like(lasts), np.zeros((len(lasts) + 1, lasts.shape[1]))
    free, lag = np.zeros((schedule.stages, lasts.shape[1])), (away * transfer)[..., None]
    while len(active := np.flatnonzero(at < limit)):
        ready = done[inputs[at[active]]].all(axis=1)
        if not ready.any():
            raise UsageError(_deadlock(schedule, at[active]), "make the micro-batches a multiple of the stages")
        rank = active[ready]
        block = at[rank]
        arrival = (end[inputs[block]] + lag[block]).max(axis=1)
        start[block] = np.maximum(free[rank], arrival)
        end[block] = free[rank] = start[block] + lasts[block]
        done[block] = True
        at[rank] += 1
    return start.reshape(durations.shape), end[:-1].reshape(durations.shape)


def _inputs(schedule: Schedule) -> tuple[Rows, npt.NDArray[np.bool_]]:
    """For each row the rows of its up to three inputs (-1: none), and whether each is made on another rank."""
    ops = schedule.ops
    kind = ops["kind"].to_numpy()
    stage = ops["stage"].to_numpy().astype(np.int64)
    pair, weight = kind == "FB", kind == "W"
    forward, back = (kind == "F") | pair, (kind == "B") | pair
    chunk, microbatch = (ops[c].to_numpy().astype(np.int64) for c in ("chunk", "microbatch"))
    chunk_b = np.where(pair, ops["chunk_b"].fill_null(0).to_numpy(), chunk).astype(np.int64)
    microbatch_b = np.where(pair, ops["microbatch_b"].fill_null(0).to_numpy(), microbatch).astype(np.int64)
    both = schedule.placement == "both"
    last = schedule.stages * (1 if both else schedule.chunks) - 1
    place = virtual_stage(schedule.placement, schedule.stages, chunk, stage)
    place_b = virtual_stage(schedule.placement, schedule.stages, chunk_b, stage)
    # Where each (copy of the model, micro-batch, virtual stage) has its forward and its backward; the edges stay empty.
    made = np.full((2, 2, schedule.microbatches, last + 3), -1, np.int64)
    rows = np.arange(len(ops))
    copy, copy_b = (chunk, chunk_b) if both else (np.zeros_like(chunk), np.zeros_like(chunk))
    made[0, copy[forward], microbatch[forward], place[forward] + 1] = rows[forward]
    made[1, copy_b[back], microbatch_b[back], place_b[back] + 1] = rows[back]
    before = np.where(forward, made[0, copy, microbatch, place], -1)
    after = np.where(back, made[1, copy_b, microbatch_b, place_b + 2], -1)
    own_forward = np.where(back, made[0, copy_b, microbatch_b, place_b + 1], -1)
    own_back = np.where(weight, made[1, copy, microbatch, place + 1], -1)
    inputs = np.stack([before, after, np.where(weight, own_back, own_forward)], axis=1)
    return inputs, (inputs >= 0) & (stage[inputs] != stage[:, None])


def _deadlock(schedule: Schedule, heads: Rows) -> str:
    op = schedule.ops[int(heads[0])].row(0, named=True)
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
