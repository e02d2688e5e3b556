"""The graph of a step of which every operation was recorded, by the rules of the straggler study (arXiv 2505.05713).

The order of the operations in one replica and step, the reference, stands for all: `waits` says what each waits for.
Transfers belong to blocks by their order: the k-th send of a direction to its k-th block, the k-th receive to the k-th
block, or the one after where the first block has none to receive.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from trace_export.schedules.operation_types import (
    AG,
    BR,
    BS,
    CLIP,
    EMB,
    FR,
    FS,
    GC,
    LN,
    OPT,
    RS,
    SEP,
    B,
    F,
)  # fmt: skip
from trace_export.schedules.step_graph import Ints, StepGraph, Waits

Seconds = npt.NDArray[np.float32]
NEAR = np.float32(5e-5)
"""A send may end so many seconds before the first block does and still belong to it: time stamps of different streams
are rounded (the study's 50 µs)."""


class IncompleteOperationsError(ValueError):
    """Operations that the rules need are missing; the text completes "the operations …"."""


@dataclass
class Reference:
    """The operations of one replica in one step, by number: `types`, `sequence`, `stage`, `place` (the chunk's number
    in the model, 0 … of blocks), `chunk`, `start` and `end`."""

    types: list[str]
    sequence: Ints
    stage: Ints
    chunk: Ints
    start: Seconds
    end: Seconds
    by_type: dict[tuple[str, int], list[int]] = field(init=False)

    def __post_init__(self) -> None:
        order = sorted(range(len(self.types)), key=self.by_start)
        self.by_type = {}
        for i in order:
            self.by_type.setdefault((self.types[i], int(self.stage[i])), []).append(i)

    def by_start(self, i: int) -> tuple[float, int, str]:
        return float(self.start[i]), int(self.sequence[i]), self.types[i]

    def on(self, stage: int, *types: str) -> list[int]:
        """The operations of these types on a stage, by start."""
        found = [i for name in types for i in self.by_type.get((name, stage), [])]
        return sorted(found, key=self.by_start) if len(types) > 1 else found

    @property
    def stages(self) -> int:
        return int(self.stage.max()) + 1


def graph_of(lane: Reference) -> StepGraph:
    """The graph of the reference.

    Raises IncompleteOperationsError where a stage lacks operations that others have, or a transfer lacks its block or
    its other side.
    """
    _check(lane)
    waits = Waits()
    stages = range(lane.stages)
    pairs: dict[tuple[bool, int, int], list[int]] = {}
    alone: list[int] = []
    for stage in stages:
        compute = lane.on(stage, F, B)
        waits.chain(compute)
        for forward in (True, False):
            alone += _transfers(lane, waits, stage, pairs, forward=forward)
        _first_backward(lane, waits, compute, stage)
    if any(len(pair) != 2 for pair in pairs.values()):
        raise IncompleteOperationsError("hold a transfer of which one side is missing")
    groups = [sorted(pair) for pair in pairs.values()] + [[i] for i in alone]
    synced = [False] * len(groups)
    for stage in stages:
        _tail(lane, waits, stage)
        shared = lane.on(stage, AG) + lane.on(stage, RS) + lane.on(stage, SEP)
        groups += [[i] for i in shared]
        synced += [True] * len(shared)
    for name, together in ((EMB, False), (CLIP, True)):
        members = [i for stage in stages for i in lane.on(stage, name)]
        if members:
            groups.append(members)
            synced.append(together)
    return waits.graph(len(lane.types), groups, synced)


def _check(lane: Reference) -> None:
    """Raises IncompleteOperationsError where a stage lacks what all stages, or the first and the last, have."""
    every = set(range(lane.stages))
    for name in (F, B, GC, LN, CLIP, OPT, SEP, EMB):
        there = {stage for stage in every if lane.on(stage, name)}
        lacking = ({0, lane.stages - 1} if name == EMB else every) - there
        if lacking and (there or name in (F, B)):
            raise IncompleteOperationsError(f"of stage {min(lacking)} lack {name}{', which others have' * bool(there)}")


def _transfers(
    lane: Reference, waits: Waits, stage: int, pairs: dict[tuple[bool, int, int], list[int]], *, forward: bool
) -> list[int]:
    """Adds what the sends and receives of one direction wait for, and what waits for them; those that meet a transfer
    of the next stage go to `pairs`. The others are returned: they end by themselves."""
    blocks = lane.on(stage, F if forward else B)
    places = lane.stages * (int(lane.chunk.max()) + 1) - 1
    start, end = (places, 0) if forward else (0, places)
    sends, receives = _with_blocks(lane, stage, blocks, forward=forward)
    alone = []
    for found, is_send in ((sends, True), (receives, False)):
        edge = start if is_send else end
        moves = {i: int(lane.chunk[i]) * lane.stages + stage != edge for i in blocks}
        real = []
        skipped = len(blocks) - len(found) if found and not is_send else 0
        for i, k in zip(found, range(skipped, len(blocks)), strict=False):
            block = blocks[k]
            if is_send:
                waits.add(i, block)
            else:
                waits.add(block, i)
                if k:
                    waits.add(i, blocks[k - 1])
            if moves[block]:
                real.append(i)
        if len(real) != sum(moves.values()):
            what = f"{len(real)} of {sum(moves.values())} {'forward' if forward else 'backward'}"
            raise IncompleteOperationsError(f"of stage {stage} hold {what} {'sends' if is_send else 'receives'}")
        everything = lane.on(stage, (FS if forward else BS) if is_send else (FR if forward else BR))
        waits.chain(everything)
        paired = set(real)
        alone += [i for i in everything if i not in paired]
        sender = stage if is_send else (stage - (1 if forward else -1)) % lane.stages
        for n, i in enumerate(real):
            pairs.setdefault((forward, sender, n), []).append(i)
    return alone


def _with_blocks(lane: Reference, stage: int, blocks: list[int], *, forward: bool) -> tuple[list[int], list[int]]:
    """The sends and the receives of a direction that belong to a block: not those that end before any block has, or
    start after all have started."""
    if not blocks:
        return [], []
    first_end = min(lane.end[i] for i in blocks) - NEAR
    last_start = max(lane.start[i] for i in blocks) + NEAR
    sends = [i for i in lane.on(stage, FS if forward else BS) if lane.end[i] >= first_end]
    receives = [i for i in lane.on(stage, FR if forward else BR) if lane.start[i] <= last_start]
    at_the_edge = stage in (0, lane.stages - 1)
    for found in (sends, receives):
        missing = len(blocks) - len(found)
        if missing and not (at_the_edge and (not found or missing == 1)):
            what = "forward" if forward else "backward"
            raise IncompleteOperationsError(
                f"of stage {stage} hold {len(found)} {what} transfers for {len(blocks)} {what} blocks"
            )
    return sends, receives


def _first_backward(lane: Reference, waits: Waits, compute: list[int], stage: int) -> None:
    """The first transfers of gradients are issued with the block before the last forward of the warm-up."""
    first = next((n for n, i in enumerate(compute) if lane.types[i] == B), 0)
    if first >= 2:
        for name in (BR, BS):
            for i in lane.on(stage, name)[:1]:
                waits.add(i, compute[first - 2])


def _tail(lane: Reference, waits: Waits, stage: int) -> None:
    """The end of a step: garbage collection, gradient reductions, clipping, optimizer; and the parameters' gathering,
    which the next forwards need. What was not recorded is left out of the chain."""
    blocks = lane.on(stage, F, B)
    gathers, scatters = lane.on(stage, AG), lane.on(stage, RS)
    waits.chain(lane.on(stage, AG, RS))
    latest: dict[int, int] = {}
    for i in gathers:
        latest[int(lane.chunk[i])] = i
    for chunk, gather in latest.items():
        forwards = [i for i in lane.on(stage, F) if lane.chunk[i] == chunk]
        if forwards:
            waits.add(min(forwards, key=lambda i: lane.start[i]), gather)
    overlapped = bool(lane.on(stage, SEP))
    last = max(blocks, key=lambda i: lane.end[i])
    before = [last]
    for i in lane.on(stage, GC):
        waits.add(i, last)
        before = [i]
    if overlapped and scatters:
        earliest: dict[int, int] = {}
        for i in scatters:
            earliest.setdefault(int(lane.chunk[i]), i)
        for chunk, scatter in earliest.items():
            backwards = [i for i in lane.on(stage, B) if lane.chunk[i] == chunk]
            if backwards:
                waits.add(scatter, max(backwards, key=lambda i: lane.end[i]))
        before.append(scatters[-1])
    reductions = lane.on(stage, SEP) if overlapped else scatters
    tail = [*lane.on(stage, LN), *lane.on(stage, EMB), *reductions, *lane.on(stage, CLIP), *lane.on(stage, OPT)]
    if tail:
        waits.add(tail[0], *before)
        waits.chain(tail)
