"""The order of blocks on one rank, schedule by schedule, as arrays of codes; `schedules` gives them their numbers.

A code is the block's kind, its chunk, and for an overlapped pair the chunk of the backward (`block`, `parts`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Codes = npt.NDArray[np.int64]
Segments = list[tuple[str, Codes]]
"""The parts of an order with the name of their phase."""

FORWARD, BACKWARD, INPUT, WEIGHT, PAIR = range(5)
"""Kinds: BACKWARD makes both gradients, INPUT and WEIGHT are its halves, PAIR is a FORWARD with a BACKWARD."""


@dataclass(frozen=True)
class Size:
    """p ranks, m micro-batches, v chunks per rank, g micro-batches per group."""

    p: int
    m: int
    v: int
    g: int


Lag = Callable[[Size, int], int]
Order = Callable[[Size, int], Segments]
"""(size, rank) → the rank's blocks."""


def block(kind: int, chunk: int | Codes = 0, chunk_b: int = 0) -> Codes:
    return np.asarray(kind + 8 * (np.asarray(chunk, np.int64) + (chunk_b << 24)), np.int64)


def parts(codes: Codes) -> tuple[Codes, Codes, Codes]:
    """kind, chunk, chunk_b of `codes`."""
    return codes % 8, (codes >> 3) & 0xFFFFFF, codes >> 27


def _times(count: int, *ops: Codes) -> Codes:
    return np.tile(np.array(ops, np.int64), max(count, 0))


def _rows(*columns: Codes) -> Codes:
    """The columns side by side, read row by row; a negative entry is no block."""
    flat = np.stack(columns, axis=1).ravel()
    return flat[flat >= 0]


def _shifted(ops: Codes, by: int, length: int) -> Codes:
    """`length` entries of `ops` from index `by` on (`by` may be negative), -1 where there are none."""
    index = np.arange(by, by + length)
    inside = (index >= 0) & (index < len(ops))
    return np.where(inside, ops[np.clip(index, 0, len(ops) - 1)], -1)


def _turns(size: Size, descending: bool = False) -> Codes:
    """The chunk of the k-th forward (`descending`: backward): groups of g micro-batches, each through all chunks."""
    chunks = np.arange(size.v)[:: -1 if descending else 1]
    return np.concatenate([np.repeat(chunks, min(size.g, size.m - s)) for s in range(0, size.m, size.g)])


def gpipe(s: Size, r: int) -> Segments:
    """GPipe, arXiv 1811.06965; Paddle's FThenB."""
    return [("warm-up", _times(s.m, block(FORWARD))), ("cool-down", _times(s.m, block(BACKWARD)))]


def one_f_one_b(lead: Lag) -> Order:
    """`lead` forwards, then forward and backward in turn. PipeDream-Flush, arXiv 2104.04473; VPP: Megatron-LM."""

    def order(s: Size, r: int) -> Segments:
        forward, backward = block(FORWARD, _turns(s)), block(BACKWARD, _turns(s, descending=True))
        total = s.m * s.v
        lead_in = min(lead(s, r), total)
        steady = _rows(forward[lead_in:], backward[: total - lead_in])
        return [("warm-up", forward[:lead_in]), ("steady", steady), ("cool-down", backward[total - lead_in :])]

    return order


def zero_bubble(lead: Lag, lag: Lag) -> Order:
    """`lead` forwards, then F, I and a W `lag` behind. arXiv 2401.10241; torch's ScheduleInterleavedZeroBubble."""

    def order(s: Size, r: int) -> Segments:
        forward, turns = block(FORWARD, _turns(s)), _turns(s, descending=True)
        total = s.m * s.v
        first, behind = min(lead(s, r), total), min(lag(s, r), total)
        columns = [_shifted(forward, first, total), block(INPUT, turns), _shifted(block(WEIGHT, turns), -behind, total)]
        split = total - first
        return [
            ("warm-up", forward[:first]),
            ("steady", _rows(*(c[:split] for c in columns))),
            (
                "cool-down",
                np.concatenate([_rows(*(c[split:] for c in columns)), block(WEIGHT, turns[total - behind :])]),
            ),
        ]

    return order


def zb_v(s: Size, r: int) -> Segments:
    """ZB-V, arXiv 2405.15362; torch ScheduleZBVZeroBubble. Blocks of micro-batches >= m are left out afterwards."""
    f0, f1, i0, i1, w0, w1 = (block(k, c) for k in (FORWARD, INPUT, WEIGHT) for c in (0, 1))
    n = max(2 * s.p - 1, s.m)
    left, catch_up = n - 2 * s.p + r + 1, n - s.p
    return [
        ("warm-up", np.concatenate([_times(2 * (s.p - r) - 1, f0), _times(r, f1, f0)])),
        ("steady", _times(s.p - r, f1, i1, w1)),
        ("steady", np.concatenate([_times(left, f0, i0, w0, f1, i1, w1), _times(catch_up - left, i0, w0, f1, i1, w1)])),
        ("cool-down", np.concatenate([_times(r, i0, i1), _times(s.p - r, i0, w0), _times(r, w1), _times(r, w0)])),
    ]


def zbh1_paddle(s: Size, r: int) -> Segments:
    """What Paddle calls ZBH1: most backwards stay whole (its pipeline_zero_bubble pass)."""
    f, b, i, w = (block(k) for k in (FORWARD, BACKWARD, INPUT, WEIGHT))
    last = _times(1, i, w) if r else _times(1, b)
    return [
        ("warm-up", _times(s.p - r, f)),
        ("steady", np.concatenate([_times(r, i, f), _times(s.m - s.p, b, f)])),
        ("cool-down", np.concatenate([_times(s.p - r - 1, b), last, _times(r, w)])),
    ]


def vpp_split_paddle(s: Size, r: int) -> Segments:
    """Paddle's VPP with split_backward: all forwards, all input gradients, all weight gradients."""
    back = _turns(s, descending=True)
    return [
        ("warm-up", block(FORWARD, _turns(s))),
        ("cool-down", np.concatenate([block(INPUT, back), block(WEIGHT, back)])),
    ]


def _dual(s: Size, r: int, half: int, per_direction: int, first: int) -> Segments:
    """The eight phases that DualPipe and DualPipeV share (deepseek-ai/DualPipe); `first` is the chunk that starts.

    `half` ranks lie between the pipeline's end and its turning point, where F and B cannot overlap the first time.
    """
    k, last = (r if r < half else 2 * half - 1 - r), 1 - first
    (f0, f1), (b0, b1), (i0, i1) = ((block(kind, first), block(kind, last)) for kind in (FORWARD, BACKWARD, INPUT))
    w = block(WEIGHT)
    f0_b1, f1_b0 = block(PAIR, first, last), block(PAIR, last, first)
    overlap = _times(per_direction - 2 * half + k + 1, f0_b1, f1_b0)
    if k == half - 1:
        overlap = np.concatenate([_times(1, f0, b1), overlap[1:]])
    alternating = np.where(np.arange(2 * (k + 1)) <= k, _times(k + 1, b1, b0), _times(k + 1, i1, i0))
    segments = [
        ("warm-up", _times(2 * (half - k - 1), f0)),
        ("interleaved forward", _times(k + 1, f0, f1)),
        ("1b1w1f", _times(half - k - 1, i1, w, f1)),
        ("overlap", overlap),
        ("1b1overlap", _times(half - k - 1, b1, f1_b0)),
        ("interleaved backward", alternating),
        ("cool-down", np.concatenate([_times(half - k - 1, w, i0), _times(k + 1, w)])),
    ]
    return _queued(segments)


def _queued(segments: Segments) -> Segments:
    """Weight gradients leave one queue per rank in the order in which their I blocks ran, whatever the chunk."""
    codes = np.concatenate([c for _, c in segments])
    queue = codes[codes % 8 == INPUT] - INPUT + WEIGHT
    codes[codes % 8 == WEIGHT] = queue
    ends = np.cumsum([len(c) for _, c in segments])
    return [(phase, codes[end - len(c) : end]) for (phase, c), end in zip(segments, ends, strict=True)]


def dualpipev(s: Size, r: int) -> Segments:
    return _dual(s, r, s.p, s.m, first=0)


def dualpipe(s: Size, r: int) -> Segments:
    return _dual(s, r, s.p // 2, s.m // 2, first=int(r >= s.p // 2))
