"""The passes of a process, from the launches of its GPU work alone.

Threads tell backwards, transfers or waits cut what lies between them, repetition tells forwards from the rest, and
names of kernels tell the optimizer. Each rule has a file of its own; docs/unmarked.md explains them together.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from trace_export.inference.first_forwards import beginnings
from trace_export.inference.forwards import SAME_STEMS, StepPasses, passes_of
from trace_export.inference.kinds import MOST_KINDS, SURPLUS, likeness
from trace_export.inference.pieces import (
    Evidence,
    Piece,
    cuts_of,
    give_fills_to_backwards,
    join_weights,
    split,
    with_optimizers,
    without_truncated_end,
)
from trace_export.inference.repetition import split_weights
from trace_export.inference.step import Step
from trace_export.inference.threads import Threads
from trace_export.inference.work import Ints, Timeline, Work

MUCH_MORE = 1.5
"""This many times the launches of the usual forward are more than one."""


@dataclass(frozen=True)
class Passes:
    """The passes of a process in order, as rows of the timeline; and for each step whose forwards are unknown its
    number, how many backwards it has, and why. `evidence`: what cut the pieces."""

    timeline: Timeline
    passes: list[Piece]
    refused: list[Refusal]
    evidence: Evidence


class Refusal(NamedTuple):
    step: int
    backwards: int
    why: str

    def __str__(self) -> str:
        return f"{self.why} in step {self.step}"


def infer(work: Work, threads: Threads, optimizer: Ints | None, boundaries: Ints) -> Passes:
    """The passes of a process.

    `optimizer`: intervals (n × 2) of launch time in which the optimizer ran, if ranges say so (else None).
    `boundaries`: launch times at which steps begin, for a process whose optimizer is not found.
    """
    timeline = Timeline.of(work, *threads)
    cuts, (updates, exact) = cuts_of(timeline), _updates(timeline, optimizer)
    pieces, cut = split(timeline, cuts)
    pieces = join_weights(timeline, pieces, cut)
    pieces = with_optimizers(timeline, pieces, updates, exact=exact)
    pieces = without_truncated_end(give_fills_to_backwards(timeline, pieces))
    passes: list[Piece] = []
    refused = []
    steps = _steps(timeline, pieces, boundaries)
    last = len(steps) - 1
    ended = bool(steps) and steps[last][-1].kind == "OPT"
    results = [_step_passes(timeline, step, ended=n < last or ended) for n, step in enumerate(steps)]
    results = _with_known_beginnings(timeline, steps, results)
    for number in {0, last if not ended else 0} if results else ():
        if unlike_the_rest(timeline, results, number):
            results[number] = _refused(steps[number], "forwards unlike those of the other steps")
    for number, (step, one) in enumerate(zip(steps, results, strict=True)):
        passes += one.passes
        if one.refused:
            refused.append(Refusal(number, sum(piece.kind == "B" for piece in step), one.refused))
    return Passes(timeline, split_weights(timeline, passes), refused, cuts.evidence)


def _updates(timeline: Timeline, optimizer: Ints | None) -> tuple[Ints, bool]:
    """The rows of the optimizer, and whether ranges say so."""
    if optimizer is None or not len(optimizer):
        return np.flatnonzero(timeline.names.optimizer[timeline.name] & timeline.main), False
    begins = np.searchsorted(timeline.launch, optimizer[:, 0])
    ends = np.searchsorted(timeline.launch, optimizer[:, 1])
    rows = [np.arange(a, b) for a, b in zip(begins, ends, strict=True)]
    inside = np.unique(np.concatenate(rows))
    return inside[timeline.main[inside]], True


def _step_passes(timeline: Timeline, pieces: list[Piece], *, ended: bool) -> StepPasses:
    if not any(piece.kind in "BW" for piece in pieces):
        return StepPasses([piece for piece in pieces if piece.kind == "OPT"], "")
    return passes_of(Step(timeline, tuple(pieces), ended))


def _refused(pieces: list[Piece], why: str) -> StepPasses:
    return StepPasses([piece for piece in pieces if piece.kind != "M"], why)


def _with_known_beginnings(timeline: Timeline, steps: list[list[Piece]], results: list[StepPasses]) -> list[StepPasses]:
    """The results, with forwards from where they begin on (see first_forwards); a step is refused where nothing
    shows that of one."""
    begins = beginnings(timeline, [one.passes for one in results])
    if not begins and not len(timeline.transfers) and len(steps) > 1:
        return _without_long_ones(steps, results)
    out = []
    for pieces, one in zip(steps, results, strict=True):
        moved = [(piece, begins.get(piece.begin, piece.begin)) for piece in one.passes]
        if any(begin is None for _, begin in moved):
            out.append(_refused(pieces, "nothing shows where the first forward begins"))
        else:
            passes = [piece._replace(begin=begin) for piece, begin in moved if begin is not None]
            out.append(one._replace(passes=passes))
    return out


def _without_long_ones(steps: list[list[Piece]], results: list[StepPasses]) -> list[StepPasses]:
    """The results, but steps with a forward that launches much more than the usual one are refused: an evaluation
    may precede it. For steps of one forward, in a process that transfers nothing."""
    sizes = [piece.end - piece.begin for one in results for piece in one.passes if piece.kind == "F"]
    usual = float(np.median(sizes)) if sizes else 0
    return [
        _refused(pieces, "a forward that launches much more than the others")
        if any(piece.kind == "F" and piece.end - piece.begin > MUCH_MORE * usual for piece in one.passes)
        else one
        for pieces, one in zip(steps, results, strict=True)
    ]


def unlike_the_rest(timeline: Timeline, results: list[StepPasses], number: int) -> bool:
    """Whether a forward of the step `number` is like none of the others', or begins with more products than any of
    theirs, which are weight gradients: the capture may begin or end inside that step, and then forwards were seen too
    late, or what follows them too early, to be separated from what lies between them.

    Example: forwards `g g g a b` in the first step, where those of all others are `a b`.
    """
    forms = _forms(timeline, results[number : number + 1])
    rest = _forms(timeline, [*results[:number], *results[number + 1 :]])
    if not forms or not rest or len(rest) > MOST_KINDS:
        return False
    if max(forms.values()) >= max(rest.values()) + SURPLUS:
        return True
    stems = [np.frombuffer(form, timeline.stem.dtype) for form in rest]
    return any(
        all(likeness(np.frombuffer(form, timeline.stem.dtype), each) < SAME_STEMS for each in stems) for form in forms
    )


def _forms(timeline: Timeline, results: list[StepPasses]) -> dict[bytes, int]:
    """The kinds of the kernels of each forward, and with how many products and sums it begins."""
    forwards = [(p.begin, p.end) for one in results for p in one.passes if p.kind == "F"]
    return {timeline.stem[begin:end].tobytes(): timeline.leading(begin, end) for begin, end in forwards}


def _steps(timeline: Timeline, pieces: list[Piece], boundaries: Ints) -> list[list[Piece]]:
    """The pieces of each step: it ends with an optimizer, else where the next one is said to begin."""
    optimizer = any(piece.kind == "OPT" for piece in pieces)
    starts = np.searchsorted(boundaries, timeline.launch[[piece.begin for piece in pieces]], side="right").tolist()
    steps: list[list[Piece]] = []
    ended = True
    for piece, before, now in zip(pieces, [0, *starts], starts, strict=False):
        if ended or (not optimizer and now != before and steps):
            steps.append([])
        steps[-1].append(piece)
        ended = piece.kind == "OPT"
    return steps
