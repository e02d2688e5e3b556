"""Cuts the launches of a process into pieces: calls of the autograd engine, and what lies between transfers.

Examples are written as rows of launches in order: a small letter is a kernel of the calling thread, a capital one of
the engine's, `+` a sum of the calling thread, `1` its fill, `.` any other call of it, `|` a transfer.
"""

from __future__ import annotations

import re
from itertools import groupby
from typing import Literal, NamedTuple

import numpy as np

from trace_export.inference.kernel_names import Bools
from trace_export.inference.work import Ints, Timeline

MOST_SUMS = 12
"""Sums that the calling thread launches at most between two calls of one weight gradient."""

Evidence = Literal["transfers", "waits"]


class Cuts(NamedTuple):
    """Moments between two passes, sorted, and what shows them."""

    evidence: Evidence
    at: Ints


class Piece(NamedTuple):
    """Rows [begin, end) of a timeline. `kind`: M what the calling thread launched in one go; B one call of the engine;
    W several calls with only sums between them; F and OPT once these are found among the M."""

    kind: Literal["M", "F", "B", "W", "OPT"]
    begin: int
    end: int


def cuts_of(timeline: Timeline) -> Cuts:
    """The cuts between passes: every two of a stage have a transfer between them, unless the thread changes there too.
    NCCL's sends and receives are launched by the calling thread; without any, activations go through the host, and its
    waits show them."""
    return Cuts("transfers", timeline.transfers) if len(timeline.transfers) else Cuts("waits", timeline.waits)


def split(timeline: Timeline, cuts: Cuts) -> tuple[list[Piece], set[int]]:
    """The pieces of a timeline, and the rows at which one begins after a cut.

    A piece begins where the thread changes, after a cut, and where the calling thread asked something of the device
    between two launches of the engine: while a backward runs it asks for nothing, so these are two calls of the engine.

    Example: `a b A B . C D c | d` is M `a b`, B `A B`, B `C D`, M `c`, M `d`.
    """
    if not len(timeline.launch):
        return [], set()
    engine = ~timeline.main
    called = _between(_during(timeline.calls, timeline.launch, engine), timeline.launch) & engine[1:] & engine[:-1]
    cut = _between(cuts.at, timeline.launch)
    begins = np.flatnonzero(np.append(True, called | cut | (engine[1:] != engine[:-1])))
    ends = np.append(begins[1:], len(engine))
    kinds = np.where(engine[begins], "B", "M")
    pieces = [Piece(*row) for row in zip(kinds.tolist(), begins.tolist(), ends.tolist(), strict=True)]
    return pieces, {0, *(np.flatnonzero(cut) + 1).tolist()}


def _during(moments: Ints, launches: Ints, engine: Bools) -> Ints:
    """Those of the moments, sorted, that lie between two launches of the engine with none of another thread between:
    of a backward, where the calling thread mostly asks for nothing."""
    begins = np.flatnonzero(np.append(engine[0], engine[1:] & ~engine[:-1]))
    ends = np.flatnonzero(np.append(engine[:-1] & ~engine[1:], engine[-1]))
    low, high = (np.searchsorted(moments, launches[rows], side="right") for rows in (begins, ends))
    inside = [moments[a:b] for a, b in zip(low.tolist(), high.tolist(), strict=True) if a < b]
    return np.concatenate([moments[:0], *inside])


def _between(moments: Ints, launches: Ints) -> Bools:
    """For each launch but the first whether a moment lies after the one before it and not after itself."""
    cut = np.zeros(len(launches) + 1, bool)
    cut[np.searchsorted(launches, moments)] = True
    return cut[1:-1]


def join_weights(timeline: Timeline, pieces: list[Piece], cut: set[int]) -> list[Piece]:
    """The pieces, with the weight gradients of torch.distributed.pipelining joined (`stage_backward_weight`): sums,
    then calls of the engine and more sums, with no transfer between them.

    Example: `+ A B + C + | c` is W `+ A B + C +`, M `c`; without sums before it `A B . C` stays two B.
    """
    sums = np.append(0, np.cumsum(timeline.sum))

    def only_sums(piece: Piece) -> bool:
        size = piece.end - piece.begin
        return size <= MOST_SUMS and bool(sums[piece.end] - sums[piece.begin] == size)

    out: list[Piece] = []
    at, rest = 0, list(pieces)
    while at < len(rest):
        piece, after = rest[at], rest[at + 1] if at + 1 < len(rest) else None
        at += 1
        leads = piece.kind == "M" and after is not None and after.kind == "B" and after.begin not in cut
        if not (leads and only_sums(piece)):
            out.append(piece)
            continue
        end = piece.end
        while at < len(rest) and rest[at].begin not in cut and (rest[at].kind == "B" or only_sums(rest[at])):
            end = rest[at].end
            at += 1
        if at < len(rest) and rest[at].begin not in cut:  # the last sums, before something else of the calling thread
            last = rest[at]
            head = int(np.argmin(np.append(timeline.sum[last.begin : last.end], False)))
            end += head
            rest[at] = Piece("M", end, last.end)
        out.append(Piece("W", piece.begin, end))
    return [piece for piece in out if piece.begin < piece.end]


def give_fills_to_backwards(timeline: Timeline, pieces: list[Piece]) -> list[Piece]:
    """The pieces, with the fill right before a backward as its first row: the last stage's backward begins with the
    gradient of the loss, ones that the calling thread fills in.

    Example: `a b 1 A B` is M `a b`, B `1 A B`.
    """
    out: list[Piece] = []
    for piece in pieces:
        before = out[-1] if out else None
        if piece.kind == "B" and before and before.kind == "M" and timeline.fill[before.end - 1]:
            out[-1] = before._replace(end=before.end - 1)
            piece = piece._replace(begin=before.end - 1)
        out.append(piece)
    return [piece for piece in out if piece.begin < piece.end]


def without_truncated_end(pieces: list[Piece]) -> list[Piece]:
    """The pieces, without a backward at their very end that launches fewer kernels than every other: the capture ends
    inside it.

    Example: of `a A B | b C D | c E` the `E` is left out.
    """
    others = [piece.end - piece.begin for piece in pieces[:-1] if piece.kind == "B"]
    cut = bool(others) and pieces[-1].kind == "B" and pieces[-1].end - pieces[-1].begin < min(others)
    return pieces[:-1] if cut else pieces


ONE_EACH = re.compile("O?(BO)*B?")


def with_optimizers(timeline: Timeline, pieces: list[Piece], updates: Ints, *, exact: bool) -> list[Piece]:
    """The pieces, with an OPT from the first to the last of its kernels in each row of pieces between two backwards.

    `updates`: the rows of the optimizer, which its range shows (`exact`) or their names. With names the fills before
    the first one belong to it: the first step makes the optimizer's state. Names that occur after more than half of
    the backwards, but not once after each, are no sign of an optimizer.

    Example: `A B a 1 u b u c` with updates `u` is B `A B`, M `a`, OPT `1 u b u`, M `c`.
    """
    out: list[Piece] = []
    optimizers = 0
    for on_main, group in groupby(pieces, key=lambda piece: piece.kind == "M"):
        row = list(group)
        update = _update(timeline, row[0].begin, row[-1].end, updates, exact=exact) if on_main else None
        if update is None:
            out += row
            continue
        optimizers += 1
        out += [p for p in (piece._replace(end=min(piece.end, update.begin)) for piece in row) if p.begin < p.end]
        out.append(update)
        out += [p for p in (piece._replace(begin=max(piece.begin, update.end)) for piece in row) if p.begin < p.end]
    backwards = sum(piece.kind in "BW" for piece in pieces)
    if exact or optimizers <= 1 or optimizers * 2 <= backwards:
        return out
    order = "".join(piece.kind[0] for piece in out if piece.kind in ("B", "OPT"))
    return out if ONE_EACH.fullmatch(order) else pieces


def _update(timeline: Timeline, begin: int, end: int, updates: Ints, *, exact: bool) -> Piece | None:
    """The optimizer among the rows [begin, end)."""
    first, last = (int(n) for n in np.searchsorted(updates, (begin, end)))
    if first == last:
        return None
    start = int(updates[first])
    while not exact and start > begin and timeline.fill[start - 1]:
        start -= 1
    return Piece("OPT", start, int(updates[last - 1]) + 1)
