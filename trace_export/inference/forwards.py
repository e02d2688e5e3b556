"""The forwards of one training step, or why they are unknown."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from trace_export.inference.kinds import by_kind
from trace_export.inference.pieces import Piece
from trace_export.inference.repetition import by_repetition
from trace_export.inference.step import Rows, Step
from trace_export.inference.work import Timeline

SAME_KERNELS, SAME_STEMS = 0.8, 0.6
"""Likeness of pieces of one kind: of their kernels, or, if these vary (as with experts), of the kinds of their
kernels."""
MOST_LEFT = 0.05
"""Part of the calling thread's time between the first forward and the last backward that may belong to no pass."""
MOST_OF_ONE = 0.5
"""From this part of the usual time of a forward on, work that belongs to no pass may be a forward."""
MOST_OF_BACKWARD = 0.02
"""Part of the forwards' time that kernels of backwards may take."""


class StepPasses(NamedTuple):
    """The passes of a step. `refused`: why its forwards are not among them; "" where they are."""

    passes: list[Piece]
    refused: str


Candidate = tuple[list[Rows], list[Rows]]
"""Forwards and weight gradients."""


def passes_of(step: Step) -> StepPasses:
    """The passes of a step: its backwards, and one forward for each; without the forwards where that cannot be.

    The forwards are those of the first rule that gives as many as there are backwards and is believed: none may come
    too late for its backward, hardly any work of the calling thread may be left over between them, and hardly any
    kernel of theirs may be a backward's. After a rule that gives as many and is not believed, one that gives more, of
    which an evaluation would have to be left out, is not believed either.
    """
    refused: list[tuple[int, StepPasses]] = []
    for forwards, weights in _candidates(step):
        if len(forwards) > step.backwards and any(count == step.backwards for count, _ in refused):
            continue
        passes = _judged(step, forwards, weights)
        if not passes.refused:
            return passes
        refused.append((len(forwards), passes))
    refused.sort(key=lambda one: (one[0] != step.backwards, one[0] < step.backwards, not one[0]))
    return refused[0][1] if refused else _judged(step, [], [])


def _judged(step: Step, forwards: list[Rows], weights: list[Rows]) -> StepPasses:
    """The passes with these forwards, or why these are not believed."""
    certain = [piece for piece in step.pieces if piece.kind != "M"]
    if len(forwards) > step.backwards and step.ended:
        forwards = without_evaluation(step, forwards)
    if not forwards:
        return StepPasses(certain, "no forward")
    if len(forwards) != step.backwards:
        return StepPasses(certain, f"{len(forwards)} forwards for {step.backwards} backwards")
    forwards = trim(step, forwards)
    passes = [*certain, *(Piece("F", *rows) for rows in forwards), *(Piece("W", *rows) for rows in weights)]
    passes.sort(key=lambda piece: piece.begin)
    refused = doubts(step, forwards, weights, passes)
    return StepPasses(certain if refused else passes, refused)


def _candidates(step: Step) -> Iterator[Candidate]:
    for signature, least in ((step.timeline.name, SAME_KERNELS), (step.timeline.stem, SAME_STEMS)):
        forwards_and_weights = by_kind(step, signature, least)
        if forwards_and_weights is not None:
            yield forwards_and_weights
    repeated = by_repetition(step)
    if repeated is not None:
        yield repeated, []


def without_evaluation(step: Step, forwards: list[Rows]) -> list[Rows]:
    """As many forwards as there are backwards: forwards before them at the start of a step are an evaluation, if more
    forwards follow before the first backward."""
    surplus = len(forwards) - step.backwards
    before = sum(rows.begin < step.first_backward for rows in forwards)
    return sorted(forwards)[surplus:] if before > surplus else forwards


def doubts(step: Step, forwards: list[Rows], weights: list[Rows], passes: list[Piece]) -> str:
    """Why the forwards are not believed; "" where they are.

    Example: `a b A B c d C D e E` with forwards `a b`, `c d`, `e` is believed; with `c d`, `e`, … the first backward
    comes before its forward.
    """
    opened = 0
    for piece in passes:
        opened += (piece.kind == "F") - (piece.kind == "B")
        if opened < 0:
            return "a backward before its forward"
    timeline = step.timeline
    if step.backwards == 1 and not (step.ended or len(timeline.transfers) or len(timeline.waits)):
        return "nothing that separates forwards, in a step that the capture cuts"
    if _left_over(step, passes, min(rows.begin for rows in forwards)):
        return "work of the main thread that belongs to no pass"
    if _without_transfer(timeline, passes):
        return "forwards with no transfer between them"
    if sum(timeline.backward_time(*rows) for rows in forwards) > MOST_OF_BACKWARD * sum(map(step.time, forwards)):
        return "kernels of a backward in the forwards"
    if _may_be_weights(step, forwards, weights):
        return "weight gradients among the forwards"
    if timeline.engine_multiplies and not any(timeline.multiplies(*rows) for rows in forwards):
        return "no matrix product in the forwards"
    return ""


def _without_transfer(timeline: Timeline, passes: list[Piece]) -> bool:
    """Whether a forward follows another without a transfer, in a process that transfers anything.

    Example: `a b | a b . A B C D`, where `.` is a wait inside a forward, is not a row of three forwards.
    """
    pairs = [(p, after) for p, after in pairwise(passes) if p.kind == after.kind == "F"]
    ends, begins = [timeline.launch[p.end - 1] for p, _ in pairs], [timeline.launch[p.begin] for _, p in pairs]
    low, high = np.searchsorted(timeline.transfers, ends), np.searchsorted(timeline.transfers, begins)
    return bool(len(timeline.transfers) and (low == high).any())


def _left_over(step: Step, passes: list[Piece], begin: int) -> bool:
    """Whether too much work of the calling thread between the row `begin` and the last backward belongs to no pass, in
    all or in one go."""
    line, first, last = step.timeline, step.pieces[0].begin, step.last_backward
    free = line.main[first:last].copy()
    free[: begin - first] = False
    for piece in passes:
        free[piece.begin - first : piece.end - first] = False
    left = np.append(0, np.cumsum(np.where(free, line.end[first:last] - line.start[first:last], 0)))
    in_one_go = (left[min(rows.end, last) - first] - left[rows.begin - first] for rows in step.possible)
    return bool(left[-1] > MOST_LEFT * sum(map(step.time, step.possible)) or max(in_one_go) > MOST_OF_ONE * step.usual)


def _may_be_weights(step: Step, forwards: list[Rows], weights: list[Rows]) -> bool:
    """Whether a forward consists of products and sums alone, but not all do, or there are weight gradients beside them,
    or such a row also comes after the last backward."""
    timeline = step.timeline
    bare = [rows for rows in forwards if timeline.is_weight(*rows)]
    forms = {rows.of(timeline.stem).tobytes() for rows in bare}
    late = any(rows.of(timeline.stem).tobytes() in forms for rows in step.own if rows.begin > step.last_backward)
    return bool(bare) and (len(bare) < len(forwards) or bool(weights) or late)


def trim(step: Step, forwards: list[Rows]) -> list[Rows]:
    """The forwards without what does not belong to them.

    Off come counters of tokens at either end.

    Example: with counters `n`, `n a b`, `a b n` are two times `a b`.
    """
    timeline = step.timeline
    out = []
    for begin, end in forwards:
        while end - begin > 1 and timeline.counter[begin]:
            begin += 1
        while end - begin > 1 and timeline.counter[end - 1]:
            end -= 1
        out.append(Rows(begin, end))
    return out
