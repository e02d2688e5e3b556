"""Pipeline schedules as data: which blocks each rank of a pipeline runs, in which order.

Letters: F forward, I gradient of the input, W gradient of the weights, B both at once (B = I + W). The orders are those
of the papers and frameworks named beside each generator; the text form of a block (`2F0`: stage 2, forward,
micro-batch 0) is that of torch.distributed.pipelining.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import polars as pl

from trace_export.errors import UsageError
from trace_export.model import INT, TEXT, Placement, Schema
from trace_export.schedules import orders
from trace_export.schedules.orders import Codes, Order, Segments, Size

Number = TypeVar("Number", int, pl.Expr, Codes)

MAX_BLOCKS = 10_000_000
"""More blocks than this are a typing error, not a pipeline."""

OPS: Schema = {
    "stage": INT, "position": INT, "kind": TEXT, "microbatch": INT, "chunk": INT, "microbatch_b": INT, "chunk_b": INT,
    "full": pl.Boolean(), "phase": TEXT,
}  # fmt: skip
"""One block of an order: the `position`-th of the rank at `stage`; `kind` and the numbers as in model.SPANS. `full` is
true for a backward that also makes the weight gradient, false for one whose W is a block of its own, null for F and W.
`phase`: warm-up, steady, cool-down; DualPipe and DualPipeV: warm-up, interleaved forward, 1b1w1f, overlap, 1b1overlap,
interleaved backward, cool-down."""

_KINDS = pl.DataFrame(
    {"code": range(5), "kind": ["F", "B", "B", "W", "FB"], "full": [None, True, False, None, True]},
    schema={"code": pl.Int64, "kind": pl.String, "full": pl.Boolean},
)


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
    def splits(self) -> bool:
        """Whether weight gradients are blocks of their own."""
        return bool(self.ops["full"].not_().any())

    def in_flight(self) -> pl.DataFrame:
        """stage, chunks: how many forwards of a chunk a rank holds at most before their backward, or where that is
        split their weight gradient, sets them free. A measure of the memory for activations."""
        kind = pl.col("kind")
        opens, frees = kind.is_in(["F", "FB"]).cast(INT), ((kind == "W") | pl.col("full").fill_null(False)).cast(INT)
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
        named = self.ops.select("stage", op=pl.when(pl.col("kind") == "FB").then(pair).otherwise(single))
        rows = named.group_by("stage", maintain_order=True).agg(pl.col("op").str.join(","))
        return "".join(f"{row}\n" for row in rows["op"])


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
    rule = _RULES[name]
    chunks = rule.chunks if chunks is None else chunks
    _check(rule, name, stages, microbatches, chunks, group)
    size = Size(stages, microbatches, chunks, group or rule.group(stages, microbatches))
    ops = _table(rule, size, [rule.order(size, r) for r in range(stages)])
    return Schedule(name, stages, microbatches, chunks, rule.placement, ops, group)


def schedule_placement(name: str) -> Placement:
    """Where the schedule of that canonical name puts its chunks."""
    return _RULES[name].placement


def canonical(name: str) -> str:
    """The key in `TITLES` that `name` means: a key, a title or an alias, whatever its case and dashes.

    Raises UsageError when there is none.
    """
    found = _ALIASES.get(_plain(name))
    if found is None:
        raise UsageError(f'there is no schedule "{name}"', f"choose one of {', '.join(TITLES)}")
    return found


def readable(name: str | None) -> str | None:
    """`name` as people read it (`1F1B`); one that is not known stays as it is."""
    plain = "".join(c for c in (name or "").lower() if c.isalnum())
    return TITLES[_ALIASES[plain]] if plain in _ALIASES else name


def _numbers(rule: _Rule, size: Size, codes: Codes) -> tuple[Codes, Codes]:
    """The micro-batches of a rank's forward and backward parts: each chunk counts its F and its backwards from 0, and
    a W takes the number of its I."""
    kind, chunk, chunk_b = orders.parts(codes)
    front, back = (
        np.isin(kind, (orders.FORWARD, orders.PAIR)),
        np.isin(kind, (orders.BACKWARD, orders.INPUT, orders.PAIR)),
    )
    back_chunk = np.where(kind == orders.PAIR, chunk_b, chunk)
    microbatch, microbatch_b = np.zeros_like(codes), np.zeros_like(codes)
    offset = size.m // 2 if rule.placement == "both" else 0
    for c in range(size.v):
        forwards, backwards = front & (chunk == c), back & (back_chunk == c)
        microbatch[forwards] = np.arange(forwards.sum()) + c * offset
        microbatch_b[backwards] = np.arange(backwards.sum()) + c * offset
        halves = microbatch_b[backwards & (kind == orders.INPUT)]
        # Paddle's ZBH1 makes the weight gradient of the last micro-batch first.
        microbatch_b[(kind == orders.WEIGHT) & (chunk == c)] = (
            np.roll(halves, 1) if rule.order is orders.zbh1_paddle else halves
        )
    return microbatch, microbatch_b


def _table(rule: _Rule, size: Size, ranks: list[Segments]) -> pl.DataFrame:
    """The rows of `OPS` for the orders of all `ranks`."""
    ranked = [np.concatenate([codes for _, codes in segments]) for segments in ranks]
    numbers = [_numbers(rule, size, codes) for codes in ranked]
    kind, chunk, chunk_b = orders.parts(np.concatenate(ranked))
    phases = [(phase, len(part)) for segments in ranks for phase, part in segments]
    pair, forward = pl.col("code") == orders.PAIR, pl.col("code").is_in([orders.FORWARD, orders.PAIR])
    return (
        pl.DataFrame(
            {
                "stage": np.repeat(np.arange(size.p), [len(order) for order in ranked]),
                "code": kind,
                "chunk": chunk,
                "chunk_b": chunk_b,
                "f": np.concatenate([f for f, _ in numbers]),
                "b": np.concatenate([b for _, b in numbers]),
            }
        )
        .with_columns(
            microbatch=pl.when(forward).then("f").otherwise("b"),
            microbatch_b=pl.when(pair).then("b"),
            chunk_b=pl.when(pair).then("chunk_b"),
            phase=pl.Series([phase for phase, _ in phases]).gather(
                np.repeat(np.arange(len(phases)), [n for _, n in phases])
            ),
        )
        .filter(pl.col("microbatch") < size.m)
        .join(_KINDS, on="code", how="left", maintain_order="left")
        .with_columns(position=pl.int_range(pl.len()).over("stage"))
        .select(pl.col(name).cast(dtype) for name, dtype in OPS.items())
    )


@dataclass(frozen=True)
class _Rule:
    """A schedule's generator and what it asks of the numbers."""

    order: Order
    chunks: int = 1
    placement: Placement = "loop"
    group: Callable[[int, int], int] = lambda p, m: p
    many_chunks: bool = False
    limit: Callable[[int, int], str] = lambda p, m: ""


def _rounds(p: int, m: int) -> int:
    """torch's group: the micro-batches divided into as many rounds as fit whole pipelines."""
    return m // max(1, m // p)


def _at_least(per_stage: int) -> Callable[[int, int], str]:
    """The limit of schedules that need every stage busy with `per_stage` micro-batches at once."""
    return lambda p, m: "" if m >= per_stage * p else f"at least {per_stage * p} micro-batches"


def _even(p: int, m: int) -> str:
    if p % 2:
        return "an even number of stages"
    return "" if m % 2 == 0 and m >= 2 * p else f"an even number of at least {2 * p} micro-batches"


def _whole_rounds(p: int, m: int) -> str:
    rounds = max(1, m // p)
    return f"a multiple of {rounds} micro-batches" if m % rounds else ""


def _once(p: int, m: int) -> str:
    return "" if m == p else f"exactly {p} micro-batches"


_RULES: dict[str, _Rule] = {
    "gpipe": _Rule(orders.gpipe),
    "1f1b": _Rule(orders.one_f_one_b(lambda s, r: s.p - r - 1)),
    "eager-1f1b": _Rule(orders.one_f_one_b(lambda s, r: 2 * (s.p - r - 1))),
    "interleaved": _Rule(orders.one_f_one_b(lambda s, r: 2 * (s.p - r - 1) + (s.v - 1) * s.g), 2, many_chunks=True),
    "interleaved-paddle": _Rule(
        orders.one_f_one_b(lambda s, r: s.m * s.v if s.m == s.p else 2 * (s.p - r - 1) + (s.v - 1) * s.g),
        2, many_chunks=True, limit=_at_least(1),
    ),
    "interleaved-split-paddle": _Rule(orders.vpp_split_paddle, 2, many_chunks=True, limit=_once),
    "zb-h1": _Rule(orders.zero_bubble(lambda s, r: s.p - r - 1, lambda s, r: r)),
    "zb-h2": _Rule(orders.zero_bubble(lambda s, r: 2 * (s.p - r - 1), lambda s, r: 2 * r)),
    "zbh1-paddle": _Rule(orders.zbh1_paddle, limit=_at_least(1)),
    "interleaved-zb1p": _Rule(
        orders.zero_bubble(lambda s, r: (s.v - 1) * s.g + s.p - 1 - r, lambda s, r: r),
        2, group=_rounds, many_chunks=True, limit=_whole_rounds,
    ),
    "zb-v": _Rule(orders.zb_v, 2, "vee"),
    "dualpipe": _Rule(orders.dualpipe, 2, "both", limit=_even),
    "dualpipev": _Rule(orders.dualpipev, 2, "vee", limit=_at_least(2)),
}  # fmt: skip

TITLES: dict[str, str] = {
    "gpipe": "GPipe", "1f1b": "1F1B", "eager-1f1b": "Eager 1F1B", "interleaved": "Interleaved 1F1B", "zb-h1": "ZB-H1",
    "zb-h2": "ZB-H2", "zb-v": "ZB-V", "dualpipe": "DualPipe", "dualpipev": "DualPipeV",
    "interleaved-zb1p": "Interleaved ZB1P", "zbh1-paddle": "ZBH1 (Paddle)",
    "interleaved-paddle": "Interleaved 1F1B (Paddle)",
    "interleaved-split-paddle": "Interleaved, split backward (Paddle)",
}  # fmt: skip
"""All schedules with the name that people read."""


def _plain(name: str) -> str:
    return "".join(c for c in name.lower() if c.isalnum())


_ALIASES: dict[str, str] = {_plain(text): name for name, title in TITLES.items() for text in (name, title)} | {
    "fthenb": "gpipe", "afab": "gpipe", "pipedreamflush": "1f1b", "eager": "eager-1f1b", "vpp": "interleaved",
    "megatron": "interleaved", "vpppaddle": "interleaved-paddle", "zb1p": "zb-h1", "zb2p": "zb-h2",
    "interleavedzerobubble": "interleaved-zb1p", "zbvzerobubble": "zb-v",
}  # fmt: skip


def _check(rule: _Rule, name: str, stages: int, microbatches: int, chunks: int, group: int | None) -> None:
    """Raises UsageError when the numbers do not fit the schedule."""
    title = TITLES[name]
    for what, number in (("stages", stages), ("micro-batches", microbatches), ("chunks", chunks)):
        if number < 1:
            raise UsageError(f"{number} {what} make no pipeline", "give at least 1")
    if stages * microbatches * chunks * 3 > MAX_BLOCKS:
        raise UsageError(
            f"{stages} stages with {microbatches} micro-batches are too many blocks", "give smaller numbers"
        )
    if rule.many_chunks and chunks < 2:
        raise UsageError(f"{title} needs at least 2 chunks per rank", "with one chunk it is 1f1b or zb-h1")
    if not rule.many_chunks and chunks != rule.chunks:
        each = "one chunk" if rule.chunks == 1 else f"{rule.chunks} chunks"
        raise UsageError(f"{title} has {each} per rank, not {chunks}", "leave the chunks out")
    if group is not None and (name != "interleaved" or group < stages):
        raise UsageError(f"a group of {group} does not fit {title} on {stages} stages", "leave the group out")
    if need := rule.limit(stages, microbatches):
        raise UsageError(f"{title} on {stages} stages needs {need}; you gave {microbatches} micro-batches")
