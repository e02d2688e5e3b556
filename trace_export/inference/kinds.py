"""Finds forwards by their kinds: between transfers each piece is one pass, and a stage has few kinds of forward. Those
of one chunk launch the same row of kernels, or nearly."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from trace_export.inference.kernel_names import Codes
from trace_export.inference.step import SHORT, Rows, Step
from trace_export.inference.work import Timeline

MOST_KINDS = 64
"""A stage has a kind of forward for each of its chunks. More kinds than this say that the names tell nothing."""
HEAD = 3
"""This many kernels show the beginning of a forward."""
SURPLUS = 2
"""This many more products in a row than any forward begins with are weight gradients."""


def by_kind(step: Step, signature: Codes, least: float) -> tuple[list[Rows], list[Rows]] | None:
    """The forwards of a step and the weight gradients of the calling thread; None for too many kinds of piece.

    Pieces are of one kind if `signature` of their kernels is as alike as `least`. Kinds seen before the first backward
    are forwards, but for one that is seen once (initialisation). A kind seen only later is weight gradients, if it
    consists of products and sums.

    Example: with two backwards, `a b | a b | A B | g g | C D | g g` is forwards `a b`, `a b`, weights `g g`, `g g`.
    """
    pieces = split_weights_from_forwards(step, [rows for rows in step.own if rows.begin < rows.end])
    live = [rows for rows in pieces if step.time(rows) >= SHORT * step.usual]
    kind_of_piece = kinds([rows.of(signature) for rows in live], least)
    if kind_of_piece is None:
        return None
    of_kind = list(zip(live, kind_of_piece, strict=True))
    early = {kind for rows, kind in of_kind if rows.begin < step.first_backward}
    timeline = step.timeline
    forwards: list[tuple[Rows, int]] = []
    weights: list[Rows] = []
    for rows, kind in of_kind:
        if kind in early and rows.begin < step.last_backward:
            forwards.append((rows, kind))
        elif rows.begin > step.first_backward and timeline.multiplies(*rows) and timeline.is_weight(*rows):
            weights.append(rows)
    return _repeated(forwards, step.backwards), weights


def _repeated(forwards: list[tuple[Rows, int]], wanted: int) -> list[Rows]:
    """Without kinds that come once, as long as there are more than wanted."""
    for kind, count in sorted(Counter(kind for _, kind in forwards).items(), key=lambda item: item[1]):
        if count == 1 and len(forwards) > wanted:
            forwards = [forward for forward in forwards if forward[1] != kind]
    return [rows for rows, _ in forwards]


def split_weights_from_forwards(step: Step, pieces: list[Rows]) -> list[Rows]:
    """The pieces, with weight gradients cut off the forward that follows them: the first stage of a zero-bubble
    schedule sends nothing between the two.

    Example: forwards begin `e g n`; then `A B | g g g e g n` is `g g g`, `e g n`, for it begins with two products more
    than any forward does, and goes on as one.
    """
    timeline = step.timeline
    early = [
        Rows(min(timeline.after_counters(rows.begin), rows.end), rows.end)
        for rows in pieces
        if rows.begin < step.first_backward and step.time(rows) >= SHORT * step.usual
    ]
    most = max((timeline.leading(*rows) for rows in early), default=0)
    heads = {head(timeline, begin, end) for begin, end in early}
    out: list[Rows] = []
    for rows in pieces:
        count = timeline.leading(*rows) if rows.begin > step.first_backward else 0
        cut = None
        if count >= most + SURPLUS and count < rows.end - rows.begin:
            cuts = range(rows.begin + count, rows.begin + count - most - 1, -1)
            cut = next((at for at in cuts if head(timeline, at, rows.end) in heads), None)
        out += [rows] if cut is None else [Rows(rows.begin, cut), Rows(cut, rows.end)]
    return out


def head(timeline: Timeline, begin: int, end: int) -> bytes:
    """The kinds of the first kernels of a forward, or of all if they are few."""
    return timeline.stem[begin : min(begin + HEAD, end)].tobytes()


def likeness(a: Codes, b: Codes) -> float:
    """The share of kernels that two rows have in common: `a a b c` and `a b b` share a and b, 2 of 4."""
    common = Counter(a.tolist()) & Counter(b.tolist())
    return common.total() / max(1, len(a), len(b))


def kinds(rows: Sequence[Codes], least: float) -> list[int] | None:
    """A number for each row: rows of one number are as alike as `least` to its first. None for too many kinds."""
    first: list[Counter[int]] = []
    sizes: list[int] = []
    kind_of: dict[bytes, int] = {}
    out = []
    for row in rows:
        key = row.tobytes()
        if key not in kind_of:
            counts = Counter(row.tolist())
            shares = [
                (counts & other).total() / longer if min(len(row), size) >= least * longer else 0.0
                for other, size in zip(first, sizes, strict=True)
                for longer in [max(1, len(row), size)]
            ]
            best = max(range(len(shares)), key=shares.__getitem__, default=-1)
            if best < 0 or shares[best] < least:
                best = len(first)
                first.append(counts)
                sizes.append(len(row))
                if best >= MOST_KINDS:
                    return None
            kind_of[key] = best
        out.append(kind_of[key])
    return out


def occurrences(row: Codes, part: Codes) -> Iterator[int]:
    """Where `part` occurs in `row`: of `a b a b a` in `a b a b a b a` 0 and 2."""
    text, wanted, size = row.tobytes(), part.tobytes(), row.itemsize
    at = text.find(wanted)
    while at >= 0:
        if at % size == 0:
            yield at // size
        at = text.find(wanted, at + 1)
