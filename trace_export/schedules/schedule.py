"""Pipeline schedules as data: which blocks each rank of a pipeline runs, in which order.

Letters: F forward, I gradient of the input, W gradient of the weights, B both at once (B = I + W). The orders are those
of the papers and frameworks named beside each generator; the text form of a block (`2F0`: stage 2, forward,
micro-batch 0) is that of torch.distributed.pipelining.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

import numpy as np
import polars as pl

from trace_export.errors import UsageError
from trace_export.model import INT, TEXT, Placement, Plan, Schema
from trace_export.schedules import orders
from trace_export.schedules.catalogue import CATALOGUE, TITLES, canonical
from trace_export.schedules.data_edges import data_edges
from trace_export.schedules.orders import Codes, Size
from trace_export.schedules.passes import FORWARDS, PAIRS, split_pairs
from trace_export.schedules.step_graph import StepGraph

Number = TypeVar("Number", int, pl.Expr, Codes)

MAX_STAGES = 4096
MAX_BLOCKS = 3_000_000
"""More than this is a typing error, not a pipeline: the deepest that was published has 64 stages (arXiv 2104.04473),
and no browser holds more blocks. This many take some 50 s and 2 GB to simulate and draw."""

OPS: Schema = {
    "stage": INT, "position": INT, "kind": TEXT, "microbatch": INT, "chunk": INT, "microbatch_b": INT, "chunk_b": INT,
    "full": pl.Boolean(), "phase": TEXT,
}  # fmt: skip
"""One block of an order: the `position`-th of the rank at `stage`; `kind` and the numbers as in model.SPANS. `full` is
true for a backward that also makes the weight gradient, false for one whose W is a block of its own, null for F and W.
`phase`: one of `orders.DUAL_PHASES` in DualPipe and DualPipeV, else warm-up, steady or cool-down."""

_KINDS = pl.DataFrame(
    {"code": range(5), "kind": ["F", "B", "B", "W", "FB"], "full": [None, True, False, None, True]},
    schema={"code": pl.Int64, "kind": pl.String, "full": pl.Boolean},
)


_LETTERS = np.array(["F", "B", "B", "W", "X"])
_FORWARD = np.array([True, False, False, False, True])
_BACKWARD = np.array([False, True, True, False, True])
"""By code of the kind."""


@dataclass(frozen=True)
class Schedule:
    """The order of all blocks of one step. `ops` has the columns of `OPS`, sorted by stage and position. `group` is the
    size of an interleaved schedule's groups where it is not the usual one."""

    name: str
    stages: int
    microbatches: int
    chunks: int
    placement: Placement
    ops: pl.DataFrame
    group: int | None = None

    @property
    def title(self) -> str:
        return TITLES[self.name]

    @property
    def plan(self) -> Plan:
        return Plan(self.name, self.stages, self.microbatches, self.chunks, self.group)

    @property
    def splits(self) -> bool:
        """Whether weight gradients are blocks of their own."""
        return bool(self.ops["full"].not_().any())

    @cached_property
    def graph(self) -> StepGraph:
        """What each row of `ops` waits for: the one before on its rank, and the blocks whose results it takes."""
        return block_graph(self, transfers=False)

    @cached_property
    def with_transfers(self) -> StepGraph:
        """The same with the transfer of each result to another rank as an operation, after the rows of `ops`."""
        return block_graph(self, transfers=True)

    def in_flight(self) -> pl.DataFrame:
        """stage, chunks: how many forwards of a chunk a rank holds at most before their backward, or where that is
        split their weight gradient, sets them free. A measure of the memory for activations."""
        kind = pl.col("kind")
        opens, frees = FORWARDS.cast(INT), ((kind == "W") | pl.col("full").fill_null(False)).cast(INT)
        held = opens.cum_sum() - frees.cum_sum().shift(1, fill_value=0)
        return self.ops.group_by("stage", maintain_order=True).agg(chunks=held.max())

    def text(self) -> str:
        """One line per rank, its blocks with commas, an overlapped pair as `(0F7;7B3)OVERLAP_F_B`."""
        stage, back = (
            virtual_stage(self.placement, self.stages, pl.col(c), pl.col("stage")) for c in ("chunk", "chunk_b")
        )
        letter = pl.when(pl.col("full").not_()).then(pl.lit("I")).otherwise("kind")
        pair = pl.format("({}F{};{}B{})OVERLAP_F_B", stage, "microbatch", back, "microbatch_b")
        single = pl.format("{}{}{}", stage, letter, "microbatch")
        named = self.ops.select("stage", op=pl.when(PAIRS).then(pair).otherwise(single))
        rows = named.group_by("stage", maintain_order=True).agg(pl.col("op").str.join(","))
        return "".join(f"{row}\n" for row in rows["op"])


def block_graph(schedule: Schedule, *, transfers: bool) -> StepGraph:
    """The graph of the blocks, which each rank runs strictly in order, and of the transfers where they are wanted."""
    stage = schedule.ops["stage"].to_numpy().astype(np.int64)
    linked = split_pairs(schedule.ops.with_row_index("op")).filter(pl.col("kind") != "W")
    rows, chunk, microbatch = (
        linked[c].fill_null(0).to_numpy().astype(np.int64) for c in ("op", "chunk", "microbatch")
    )
    onward = (linked["kind"] == "F").to_numpy()
    copy = [chunk] if schedule.placement == "both" else []
    place = virtual_stage(schedule.placement, schedule.stages, chunk, stage[rows])
    src, dst = (rows[end] for end in data_edges(onward, [*copy, microbatch], place))
    later = np.flatnonzero(np.diff(stage) == 0) + 1  # in which each block's own forward or backward comes first
    number = len(schedule.ops)
    if not transfers:
        return StepGraph.of_pairs(number, (np.concatenate([later, dst]), np.concatenate([later - 1, src])))
    away = stage[src] != stage[dst]
    moved = number + np.arange(int(away.sum()))
    waiting = np.concatenate([later, dst[~away], moved, dst[away]])
    needed = np.concatenate([later - 1, src[~away], src[away], moved])
    return StepGraph.of_pairs(number + len(moved), (waiting, needed))


def virtual_stage(placement: Placement, stages: int, chunk: Number, stage: Number) -> Number:
    """The global stage of a rank's model chunk, counted along the way of the data.

    loop: every chunk goes from rank 0 to the last. vee: every second one comes back (zigzag). both: chunk 1 is a second
    copy of the whole model that runs from the last rank to the first (DualPipe), so both directions count from 0.
    """
    if placement == "loop":
        return chunk * stages + stage
    back = (chunk % 2) * (stages - 1 - 2 * stage)
    return (chunk * stages if placement == "vee" else 0) + stage + back


def schedule(
    name: str, stages: int, microbatches: int, chunks: int | None = None, group: int | None = None
) -> Schedule:
    """The schedule called `name` (or an alias) on `stages` ranks with `microbatches` per step.

    `chunks` per rank: 2 where a schedule has several and None is given. `group`: micro-batches that go through one
    chunk before the next has its turn (interleaved only; `stages` by default). Raises UsageError when there is no such
    schedule, or the numbers do not fit it.
    """
    name = canonical(name)
    return of_plan(Plan(name, stages, microbatches, CATALOGUE[name].chunks if chunks is None else chunks, group))


def of_plan(plan: Plan) -> Schedule:
    """The schedule with these numbers. Raises UsageError when they do not fit it."""
    ops = blocks(plan, range(plan.stages))
    return Schedule(
        plan.name, plan.stages, plan.microbatches, plan.chunks, CATALOGUE[plan.name].placement, ops, plan.group
    )


def blocks(plan: Plan, stages: Sequence[int]) -> pl.DataFrame:
    """The rows of `OPS` of these `stages` only, in their order. Raises UsageError when the numbers do not fit."""
    check_sizes(plan)
    if not len(stages):
        return pl.DataFrame(schema=OPS)
    ranks = [_Blocks.of(plan, stage) for stage in stages]
    codes = np.concatenate([rank.codes for rank in ranks])
    kind, chunk, chunk_b = orders.parts(codes)
    pair = pl.col("code") == orders.PAIR
    return (
        pl.DataFrame(
            {
                "stage": np.repeat(np.array(stages, np.int64), [len(rank.codes) for rank in ranks]),
                "code": kind,
                "chunk": chunk,
                "chunk_b": chunk_b,
                "microbatch": np.concatenate([rank.microbatch for rank in ranks]),
                "microbatch_b": np.concatenate([rank.microbatch_b for rank in ranks]),
                "phase": pl.Series(orders.PHASES).gather(np.concatenate([rank.phase for rank in ranks])),
            }
        )
        .with_columns(microbatch_b=pl.when(pair).then("microbatch_b"), chunk_b=pl.when(pair).then("chunk_b"))
        .join(_KINDS, on="code", how="left", maintain_order="left")
        .with_columns(position=pl.int_range(pl.len()).over("stage"))
        .select(pl.col(name).cast(dtype) for name, dtype in OPS.items())
    )


def letters(plan: Plan, stage: int) -> str:
    """The blocks of a stage as a word of the letters F, B, W and X (an overlapped pair); "" where it has no such stage.
    Raises UsageError when the numbers do not fit the schedule."""
    check_sizes(plan)
    if not 0 <= stage < plan.stages:
        return ""
    return "".join(_LETTERS[_Blocks.of(plan, stage).codes % 8])


@dataclass(frozen=True)
class _Blocks:
    """The blocks of a rank, as arrays: code, micro-batch (a pair's is its forward's), that of a pair's backward, and
    the index of its phase in `orders.PHASES`."""

    codes: Codes
    microbatch: Codes
    microbatch_b: Codes
    phase: Codes

    @staticmethod
    def of(plan: Plan, stage: int) -> _Blocks:
        row = CATALOGUE[plan.name]
        group = plan.group or row.group(plan.stages, plan.microbatches)
        size = Size(plan.stages, plan.microbatches, plan.chunks, group)
        segments = row.order(size, stage)
        codes = np.concatenate([part for _, part in segments])
        phase = np.repeat([orders.PHASES.index(name) for name, _ in segments], [len(part) for _, part in segments])
        front, back = _numbers(size, codes, row.placement, last_weight_first=row.last_weight_first)
        microbatch = np.where(_FORWARD[codes % 8], front, back)
        kept = microbatch < plan.microbatches  # ZB-V's order has room for more
        return _Blocks(codes[kept], microbatch[kept], back[kept], phase[kept])


def _numbers(size: Size, codes: Codes, placement: Placement, *, last_weight_first: bool) -> tuple[Codes, Codes]:
    """The micro-batches of a rank's forward and backward parts: each chunk counts its F and its backwards from 0, and
    a W takes the number of its I."""
    kind, chunk, chunk_b = orders.parts(codes)
    front, back = _FORWARD[kind], _BACKWARD[kind]
    back_chunk = np.where(kind == orders.PAIR, chunk_b, chunk)
    microbatch, microbatch_b = np.zeros_like(codes), np.zeros_like(codes)
    offset = size.m // 2 if placement == "both" else 0
    for c in range(size.v):
        forwards, backwards = front & (chunk == c), back & (back_chunk == c)
        microbatch[forwards] = np.arange(forwards.sum()) + c * offset
        microbatch_b[backwards] = np.arange(backwards.sum()) + c * offset
        halves = microbatch_b[backwards & (kind == orders.INPUT)]
        weights = (kind == orders.WEIGHT) & (chunk == c)
        microbatch_b[weights] = np.roll(halves, 1) if last_weight_first else halves
    return microbatch, microbatch_b


def check_sizes(plan: Plan) -> None:
    """Raises UsageError when the numbers do not fit the schedule, or are too large to be those of a pipeline."""
    row, stages, microbatches, chunks = CATALOGUE[plan.name], plan.stages, plan.microbatches, plan.chunks
    for what, number in (("stages", stages), ("micro-batches", microbatches), ("chunks", chunks)):
        if number < 1:
            raise UsageError(f"{number} {what} are not a pipeline", "give at least 1")
    if stages > MAX_STAGES:
        raise UsageError(f"{stages} stages are too many", f"give at most {MAX_STAGES}")
    if stages * microbatches * chunks * 3 > MAX_BLOCKS:
        raise UsageError(
            f"{stages} stages with {microbatches} micro-batches are too many blocks",
            f"stages × micro-batches × chunks may be at most {MAX_BLOCKS // 3:,}",
        )
    if row.many_chunks and chunks < 2:
        raise UsageError(f"{row.title} needs at least 2 chunks per rank", "with one chunk it is 1f1b or zb-h1")
    if not row.many_chunks and chunks != row.chunks:
        each = "one chunk" if row.chunks == 1 else f"{row.chunks} chunks"
        raise UsageError(f"{row.title} has {each} per rank, not {chunks}", "leave the chunks out")
    if plan.group is not None and (plan.name != "interleaved" or plan.group < stages):
        raise UsageError(f"a group of {plan.group} does not fit {row.title} on {stages} stages", "leave the group out")
    if need := row.rule(stages, microbatches):
        raise UsageError(f"{row.title} on {stages} stages needs {need}; you gave {microbatches} micro-batches")
