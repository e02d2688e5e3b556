"""The likeness of rows of kernels: forwards of one chunk launch the same row of kernels, or nearly."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from trace_export.inference.kernel_names import Codes

MOST_KINDS = 64
"""A stage has a kind of forward for each of its chunks. More kinds than this say that the names tell nothing."""


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
                (counts & other).total() / max(1, len(row), size) if _may_be(len(row), size, least) else 0.0
                for other, size in zip(first, sizes, strict=True)
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


def _may_be(a: int, b: int, least: float) -> bool:
    return min(a, b) >= least * max(a, b)


def occurrences(row: Codes, part: Codes) -> Iterator[int]:
    """Where `part` occurs in `row`: of `a b a b a` in `a b a b a b a` 0 and 2."""
    text, wanted, size = row.tobytes(), part.tobytes(), row.itemsize
    at = text.find(wanted)
    while at >= 0:
        if at % size == 0:
            yield at // size
        at = text.find(wanted, at + 1)
