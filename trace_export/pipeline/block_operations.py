"""The operations of a run whose source recorded blocks, and perhaps messages: what their order and labels say of what
waits for what.

Blocks of a rank run one after the other; a block waits for its input, which the transfer of `transfer_operations`
brings; the optimizers wait for the whole step where they always did.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import polars as pl

from trace_export.model import STEP_KEY, WORK_KINDS, Profile
from trace_export.ordering import ordered, repeated, stretches
from trace_export.pipeline.collective_operations import Collectives, collective_parts, collectives, no_collectives
from trace_export.pipeline.operation_matrix import distinct, matrices, sequence_numbers
from trace_export.pipeline.operations import Operations, Part, Step, groups_of, numbers_of
from trace_export.pipeline.transfer_operations import Edge, block_edges, transfers
from trace_export.schedules.operation_types import OPT, TAIL, TYPE_OF_KIND
from trace_export.schedules.step_graph import Ints, Waits

KINDS = (*WORK_KINDS, "OPT")


@dataclass(frozen=True)
class Lanes:
    """The pipelines whose operations are compared: `places` has rank, stage (dense), replica (dense). `stages`: the
    stage of each dense number; `replicas`: the name of each dense number."""

    places: pl.DataFrame
    stages: list[int]
    replicas: list[int]


def block_operations(profile: Profile, lanes: Lanes, steps: pl.DataFrame) -> tuple[list[Operations], Ints]:
    """The operations of `steps` (run, step, in order), a group of steps for each kind, the most frequent first; and the
    places in `steps` of those whose pipelines differ."""
    rows = _rows(profile, lanes, steps)
    if rows.is_empty():
        return [], np.zeros(0, np.int64)
    shared = collective_parts(profile, lanes.places, rows)
    columns = ("stage", "kind", "chunk", "microbatch", "nth", "position", "replica", "at", "start_ns", "end_ns", "row")
    stage, kind, chunk, microbatch, nth, position, replica, at, start, end, row = (
        rows[c].to_numpy().astype(np.int64, copy=False) for c in columns
    )
    key = np.zeros(len(rows), np.int64)
    for part in (stage, position, kind, chunk, microbatch, nth):
        key = distinct(key * (int(part.max()) + 1) + part)[1].astype(np.int64)
    kinds, odd = matrices(key, replica, at)
    named = steps.select(STEP_KEY).rows()
    found = []
    for one in kinds:
        first = one.row[:, 0, 0]
        blocks = Blocks(
            types=[TYPE_OF_KIND[KINDS[k]] for k in kind[first].tolist()], stage=stage[first], chunk=chunk[first],
            microbatch=microbatch[first], position=position[first], sequence=nth[first], start=start[one.row],
            end=end[one.row], span=row[one.row],
        )  # fmt: skip
        reduced = collectives(shared, blocks, one.steps)
        found.append(_acyclic(profile, lanes, blocks, [named[n] for n in one.steps.tolist()], reduced))
    return found, odd


@dataclass(frozen=True)
class Blocks:
    """Like `Operations`, of the blocks only; `position`: the place in the order of the rank."""

    types: list[str]
    stage: Ints
    chunk: Ints
    microbatch: Ints
    position: Ints
    sequence: Ints
    start: Ints
    end: Ints
    span: Ints

    @property
    def part(self) -> Part:
        numbers = {"chunk": self.chunk - 1, "microbatch": self.microbatch - 1, "sequence": self.sequence}
        return Part(self.types, self.stage, self.start, self.end, numbers)

    def streams(self) -> list[list[int]]:
        """The blocks of each stage in their order, without optimizers."""
        order = np.lexsort((self.position, self.stage)).tolist()
        streams: list[list[int]] = [[] for _ in range(int(self.stage.max()) + 1)]
        for i in order:
            if self.types[i] != OPT:
                streams[int(self.stage[i])].append(i)
        return streams


def _rows(profile: Profile, lanes: Lanes, steps: pl.DataFrame) -> pl.DataFrame:
    """A row per block: row (in `spans`), stage, replica, kind (its place in `KINDS`), chunk, microbatch, nth (among
    those with the same numbers), position (in the rank's order), at (the step), start_ns, end_ns."""
    kind = pl.col("kind").replace_strict({name: n for n, name in enumerate(KINDS)}, return_dtype=pl.Int64)
    number = [pl.col(c).fill_null(-1) + 1 for c in ("chunk", "microbatch")]
    times = ["start_ns", "end_ns"]
    blocks = (
        profile.spans.lazy().with_row_index("row").filter(pl.col("kind").is_in(KINDS))
        .select("row", "rank", *STEP_KEY, kind.alias("kind"), *number, *times).collect()
    )  # fmt: skip
    parts = (
        stretches(blocks, "rank", *STEP_KEY)
        .join(lanes.places, on="rank", how="left", maintain_order="left")
        .join(steps.select(STEP_KEY).with_row_index("at"), on=STEP_KEY, how="left", nulls_equal=True,
              maintain_order="left")
    )  # fmt: skip
    inside = parts.select(pl.col("stage").is_not_null() & pl.col("at").is_not_null()).to_series()
    if not inside.all():
        blocks, parts = blocks.filter(repeated(inside, parts["len"])), parts.filter(inside)
    places = (repeated(parts[name], parts["len"]) for name in ("stage", "replica", "at"))
    placed = ordered(blocks.drop(STEP_KEY).with_columns(places), "at", "rank", *times, "row")
    lane = placed.select(pl.struct("at", "rank").rle_id().cast(pl.Int64)).to_series().to_numpy()
    same = lane
    for name in ("kind", "chunk", "microbatch"):
        part = placed[name].to_numpy()
        same = distinct(same * (int(part.max(initial=0)) + 1) + part)[1].astype(np.int64)
    return placed.with_columns(position=pl.Series(sequence_numbers(lane)), nth=pl.Series(sequence_numbers(same)))


def _acyclic(profile: Profile, lanes: Lanes, blocks: Blocks, steps: list[Step], shared: Collectives) -> Operations:
    """The operations of `blocks`; where these wait for each other in a circle, without what points back in time."""
    edges = block_edges(profile, blocks)
    made = _operations(profile, lanes, blocks, steps, edges, shared)
    if made.graph.is_acyclic:
        return made
    start = blocks.start[:, 0, 0]
    onward = [edge for edge in edges if start[edge.producer] < start[edge.consumer]]
    return replace(_operations(profile, lanes, blocks, steps, onward, no_collectives(blocks)), circular=True)


def _operations(
    profile: Profile, lanes: Lanes, blocks: Blocks, steps: list[Step], edges: list[Edge], shared: Collectives
) -> Operations:
    streams = blocks.streams()
    moved = transfers(profile, blocks, streams, edges)
    waits = Waits()
    for stream in streams:
        waits.chain(stream)
    for block, needed in moved.direct:
        waits.add(block, needed)
    parts = [blocks.part, moved.part]
    moved.connect(waits, len(blocks.types))
    first = len(blocks.part) + len(moved.part)
    reduced = shared.connect(waits, first, blocks, streams)
    parts.append(shared.part)
    tail, synced_tail = ([], False) if shared.joins_all(first, reduced, len(streams)) else _tail(blocks, streams)
    parts.append(_wait_for_optimizer(tail, blocks, streams, waits, parts, reduced, synced=synced_tail))
    groups, synced = groups_of(parts)
    types = [name for part in parts for name in part.types]
    start, end = (np.concatenate([getattr(part, side) for part in parts]) for side in ("start_ns", "end_ns"))
    origin = blocks.start.min(axis=(0, 1))
    for times in (start, end):  # in place: they are large
        times -= origin
    span = np.full((len(types), *blocks.span.shape[1:]), -1)
    span[: len(blocks.types)] = blocks.span
    places = lanes.places.sort("replica", "stage")["rank"].to_numpy().astype(np.int64)
    return Operations(
        types=types, stage=np.concatenate([part.stage for part in parts]),
        chunk=numbers_of(parts, "chunk"), microbatch=numbers_of(parts, "microbatch"), peer=numbers_of(parts, "peer"),
        sequence=numbers_of(parts, "sequence", 0), start_ns=start, end_ns=end, origin_ns=origin,
        span=span, ranks=places.reshape(len(lanes.replicas), len(lanes.stages)),
        replicas=lanes.replicas, steps=steps, graph=waits.graph(len(types), groups, synced),
        loss_stages=_loss_stages(profile, len(lanes.stages)), level=moved.level, without=shared.without,
    )  # fmt: skip


def _wait_for_optimizer(
    tail: list[int], blocks: Blocks, streams: list[list[int]], waits: Waits, parts: list[Part],
    reduced: dict[int, list[int]], *, synced: bool,
) -> Part:  # fmt: skip
    """The wait of the optimizer blocks `tail` for those of all other ranks, of their replica where it is not `synced`.

    Adds what the optimizers wait for: the last block of their rank, the collectives `reduced`, and each other.
    """
    ends = [end for part in parts for end in part.end_ns]
    begun = np.empty((len(tail), *blocks.end.shape[1:]), np.int64)
    for i in (i for i, name in enumerate(blocks.types) if name == OPT):
        needed = [*streams[int(blocks.stage[i])][-1:], *reduced.get(i, [])]
        if i in tail:
            n = tail.index(i)
            begun[n] = np.maximum.reduce([ends[other] for other in needed])
            waits.add(len(ends) + n, *needed)
            needed = [len(ends) + n]
        waits.add(i, *needed)
    together = [list(range(len(tail)))] if tail else []
    return Part(
        [TAIL] * len(tail), blocks.stage[tail], begun, blocks.start[tail], {}, together, [synced] * len(together)
    )


def _tail(blocks: Blocks, streams: list[list[int]]) -> tuple[list[int], bool]:
    """The first optimizer block of each stage, where in every step all of them start after the blocks of all ranks, or
    of all ranks of their replica; and whether it is all ranks."""
    optimizers = [i for i, name in enumerate(blocks.types) if name == OPT]
    work = [i for stream in streams for i in stream]
    if not optimizers or not work or any(not stream for stream in streams):
        return [], False
    first: dict[int, int] = {}
    for i in sorted(optimizers, key=lambda i: int(blocks.position[i])):
        first.setdefault(int(blocks.stage[i]), i)
    found = list(first.values())
    start, last = blocks.start[found].min(axis=0), blocks.end[work].max(axis=0)  # replica × step
    if (start.min(axis=0) >= last.max(axis=0)).all():
        return found, True
    return (found, False) if (start >= last).all() else ([], False)


def _loss_stages(profile: Profile, stages: int) -> tuple[int, ...]:
    placement = profile.interpreted.placement
    return {"loop": (stages - 1,), "vee": (0,), "both": (0, stages - 1)}[placement]
