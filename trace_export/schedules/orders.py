"""The order of blocks on one rank, schedule by schedule, as arrays of codes; `schedule` gives them their micro-batches.

A code is the block's kind, its chunk, and for an overlapped pair the chunk of the backward (`block`, `parts`). The
notation is that of the papers: p ranks (this one is r), m micro-batches, v chunks per rank, groups of g.
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


WARM_UP, STEADY, COOL_DOWN = "warm-up", "steady", "cool-down"
INTERLEAVED_FORWARD, ONE_B_ONE_W_ONE_F, OVERLAP = "interleaved forward", "1b1w1f", "overlap"
ONE_B_ONE_OVERLAP, INTERLEAVED_BACKWARD = "1b1overlap", "interleaved backward"
DUAL_PHASES = (
    WARM_UP, INTERLEAVED_FORWARD, ONE_B_ONE_W_ONE_F, OVERLAP, ONE_B_ONE_OVERLAP, INTERLEAVED_BACKWARD, COOL_DOWN,
)  # fmt: skip
"""The phases of DualPipe and DualPipeV in their order, by msprof-analyze's names; all other schedules have `WARM_UP`,
`STEADY` and `COOL_DOWN`."""

PHASES = (STEADY, *DUAL_PHASES)

Count = Callable[[Size, int], int]
"""(size, rank) → a number of blocks."""
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
    """The columns side by side, read row by row; a negative entry is empty."""
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


def following(s: Size, r: int) -> int:
    """The ranks after this one: 1F1B's warm-up forwards (arXiv 2104.04473)."""
    return s.p - r - 1


def preceding(s: Size, r: int) -> int:
    """The ranks before this one: how far ZB-H1's weight gradients lag (arXiv 2401.10241)."""
    return r


def twice_following(s: Size, r: int) -> int:
    """The warm-up forwards of ZB-H2 (arXiv 2401.10241) and of Paddle's Eager1F1B."""
    return 2 * (s.p - r - 1)


def twice_preceding(s: Size, r: int) -> int:
    """How far ZB-H2's weight gradients lag (arXiv 2401.10241)."""
    return 2 * r


def interleaved_warm_up(s: Size, r: int) -> int:
    """The warm-up forwards of interleaved 1F1B (Megatron-LM, core/pipeline_parallel/schedules.py)."""
    return 2 * (s.p - r - 1) + (s.v - 1) * s.g


def interleaved_paddle_warm_up(s: Size, r: int) -> int:
    """Paddle's VPP runs all forwards first in a step of as many micro-batches as stages (pipeline_vpp.py)."""
    return s.m * s.v if s.m == s.p else interleaved_warm_up(s, r)


def interleaved_zb1p_warm_up(s: Size, r: int) -> int:
    """The warm-up forwards of torch's ScheduleInterleavedZeroBubble."""
    return (s.v - 1) * s.g + s.p - 1 - r


def gpipe(s: Size, r: int) -> Segments:
    """GPipe, arXiv 1811.06965; Paddle's FThenB."""
    return [(WARM_UP, _times(s.m, block(FORWARD))), (COOL_DOWN, _times(s.m, block(BACKWARD)))]


def one_f_one_b(warm_up: Count) -> Order:
    """`warm_up` forwards, then forward and backward in turn. PipeDream-Flush, arXiv 2104.04473; VPP: Megatron-LM."""

    def order(s: Size, r: int) -> Segments:
        forward, backward = block(FORWARD, _turns(s)), block(BACKWARD, _turns(s, descending=True))
        total = s.m * s.v
        lead_in = min(warm_up(s, r), total)
        steady = _rows(forward[lead_in:], backward[: total - lead_in])
        return [(WARM_UP, forward[:lead_in]), (STEADY, steady), (COOL_DOWN, backward[total - lead_in :])]

    return order


def zero_bubble(warm_up: Count, lag: Count) -> Order:
    """`warm_up` forwards, then F, I and a W `lag` behind. arXiv 2401.10241; torch's ScheduleInterleavedZeroBubble."""

    def order(s: Size, r: int) -> Segments:
        forward, turns = block(FORWARD, _turns(s)), _turns(s, descending=True)
        total = s.m * s.v
        first, behind = min(warm_up(s, r), total), min(lag(s, r), total)
        columns = [_shifted(forward, first, total), block(INPUT, turns), _shifted(block(WEIGHT, turns), -behind, total)]
        split = total - first
        return [
            (WARM_UP, forward[:first]),
            (STEADY, _rows(*(c[:split] for c in columns))),
            (
                COOL_DOWN,
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
        (WARM_UP, np.concatenate([_times(2 * (s.p - r) - 1, f0), _times(r, f1, f0)])),
        (STEADY, _times(s.p - r, f1, i1, w1)),
        (STEADY, np.concatenate([_times(left, f0, i0, w0, f1, i1, w1), _times(catch_up - left, i0, w0, f1, i1, w1)])),
        (COOL_DOWN, np.concatenate([_times(r, i0, i1), _times(s.p - r, i0, w0), _times(r, w1), _times(r, w0)])),
    ]


def zbh1_paddle(s: Size, r: int) -> Segments:
    """What Paddle calls ZBH1: most backwards stay whole (its pipeline_zero_bubble pass)."""
    f, b, i, w = (block(k) for k in (FORWARD, BACKWARD, INPUT, WEIGHT))
    last = _times(1, i, w) if r else _times(1, b)
    return [
        (WARM_UP, _times(s.p - r, f)),
        (STEADY, np.concatenate([_times(r, i, f), _times(s.m - s.p, b, f)])),
        (COOL_DOWN, np.concatenate([_times(s.p - r - 1, b), last, _times(r, w)])),
    ]


def vpp_split_paddle(s: Size, r: int) -> Segments:
    """Paddle's VPP with split_backward: all forwards, all input gradients, all weight gradients."""
    back = _turns(s, descending=True)
    return [
        (WARM_UP, block(FORWARD, _turns(s))),
        (COOL_DOWN, np.concatenate([block(INPUT, back), block(WEIGHT, back)])),
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
        (WARM_UP, _times(2 * (half - k - 1), f0)),
        (INTERLEAVED_FORWARD, _times(k + 1, f0, f1)),
        (ONE_B_ONE_W_ONE_F, _times(half - k - 1, i1, w, f1)),
        (OVERLAP, overlap),
        (ONE_B_ONE_OVERLAP, _times(half - k - 1, b1, f1_b0)),
        (INTERLEAVED_BACKWARD, alternating),
        (COOL_DOWN, np.concatenate([_times(half - k - 1, w, i0), _times(k + 1, w)])),
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
    """DualPipe cut in half: both ends of the model lie on rank 0 (deepseek-ai/DualPipe, dualpipev.py)."""
    return _dual(s, r, s.p, s.m, first=0)


def dualpipe(s: Size, r: int) -> Segments:
    """Micro-batches from both ends of the pipeline at once (arXiv 2412.19437; deepseek-ai/DualPipe, dualpipe.py)."""
    return _dual(s, r, s.p // 2, s.m // 2, first=int(r >= s.p // 2))
