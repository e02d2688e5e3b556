"""Infers the blocks of a rank without markers from the types of its kernels.

Some kernel types occur only in a forward, others only in a backward or in the optimizer; such a kernel has that class
as its `vote`. Consecutive kernels of one class, without a point-to-point operator between them, form a block; kernels
without a class (matrix products, casts) belong to the block around or before them. Blocks have the origin `inferred`.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import polars as pl

from trace_export.model import INT, SPANS, TIME, conform, empty
from trace_export.schedules.passes import BACKWARDS, FORWARDS
from trace_export.sources.ascend.marker_blocks import OPTIMIZER
from trace_export.sources.shared.timestamps import is_far
from trace_export.stream_order import possible_ends

Times = npt.NDArray[np.int64]

_VOTES = (
    ("OPT", OPTIMIZER),
    ("B", "Grad|Backprop"),
    ("F", "FlashAttention|RmsNorm|LayerNorm|SwiGlu|Swiglu|Gelu|Silu|RotaryPositionEmbedding|RotaryMul"),
)
"""Vote → a part of the type's name; the first that fits. Matrix products and element-wise kernels run everywhere."""

SEGMENT = ["step", "segment"]
"""The kernels between two point-to-point operators of one step."""

LEAST = 2
"""Fewer runs than this of F or of B are no pipeline: a data-parallel step has one of each."""

MIXED_RUNS = 3
"""This many backward runs in one segment are parts of one block: two overlapped passes, or a backward that recomputes
every layer before its gradient. A plain backward is one run, and two where only its last layer is recomputed."""

LONG = 1.5
"""For a last stage whose backward recomputes layer by layer: a forward run longer than this many usual ones (a layer
each, 1) is a whole forward (2 layers or more). Half way between the two."""

PARTIAL = 0.75
"""For a backward that recomputes some layers: a forward run shorter than this part of a whole forward (1), right before
a backward, is a recomputation."""

TWICE = 1.8
"""For a last stage whose backward recomputes everything first: the forward and the recomputation are one run, ideally
twice as long as the backward after it; without recomputation they are as long as each other."""


def spans(kernels: pl.DataFrame, of_transfers: pl.Series, of_collectives: pl.Series, rank: int) -> pl.DataFrame:
    """Blocks as in model.SPANS from kernels (`WORKED`) and the starts of point-to-point operators and collectives.

    Returns no spans below two forwards and two backwards.
    """
    voting = _voting(kernels)
    if voting.is_empty():
        return empty(SPANS)
    stream = voting["stream"].mode().sort()[0]
    on_main = pl.col("stream").eq_missing(pl.lit(stream, TIME))
    main, voting = kernels.filter(on_main).sort("start_ns"), voting.filter(on_main).sort("start_ns")
    transfers, collectives = np.unique(of_transfers.to_numpy()), np.unique(of_collectives.to_numpy())
    segment = np.searchsorted(transfers, voting["start_ns"].to_numpy(), side="right")
    blocks = _blocks(_runs(voting.with_columns(segment=segment)), voting, has_segments=len(transfers) > 0)
    if min(blocks["kind"].is_in([kind, "FB"]).to_numpy().sum() for kind in ("F", "B")) < LEAST:
        return empty(SPANS)
    start, end = _bounds(blocks, main, transfers, collectives)
    return conform(
        blocks.with_columns(start_ns=start, end_ns=end, rank=pl.lit(rank, INT), origin=pl.lit("inferred")), SPANS
    )


def in_steps(spans: pl.DataFrame, steps: pl.DataFrame) -> pl.DataFrame:
    """The inferred blocks with the step of the host (`marker_blocks.STEPS`) in which each begins on the device, where
    no kernel has a step, and each step has as many forwards as backwards then: where the device runs on after the host
    has gone on to the next step, they would be of the wrong one."""
    if steps.is_empty() or spans.is_empty() or spans["step"].count():
        return spans
    begun = steps.select("start_ns", "step").sort("start_ns")
    placed = spans.drop("step").sort("start_ns").join_asof(begun, on="start_ns")
    counts = placed.group_by("step").agg(forwards=FORWARDS.sum(), backwards=BACKWARDS.sum())
    is_whole = pl.col("step").is_not_null() & (pl.col("forwards") == pl.col("backwards")) & (pl.col("forwards") > 0)
    return conform(placed, SPANS) if counts.select(is_whole.all()).item() else spans


def why(kernels: pl.DataFrame) -> str:
    """Why `spans` finds nothing in the compute kernels (`WORKED`)."""
    if kernels.is_empty():
        return "no kernels of the device are recorded"
    if _voting(kernels).is_empty():
        return f"its {kernels.height} kernels have no type that only forwards or only backwards have"
    return f"its kernels show fewer than {LEAST} forwards or fewer than {LEAST} backwards"


def possible(kernels: pl.DataFrame) -> tuple[pl.DataFrame, int, int]:
    """The `kernels` (`WORKED`) whose times can be, with ends that their streams allow (see stream_order); how many were
    cut; and how many were left out. They were launched in the order of their starts: nothing else says when."""
    height, kernels = kernels.height, kernels.filter(~is_far(pl.col("start_ns")))
    stream, start, end = (kernels[c].fill_null(-1).to_numpy() for c in ("stream", "start_ns", "end_ns"))
    ends, _ = possible_ends(stream, np.argsort(np.argsort(start, kind="stable")), start, end)
    return kernels.with_columns(end_ns=pl.Series(ends)), int(np.count_nonzero(ends != end)), height - kernels.height


def optimizer(voting: pl.DataFrame, blocks: pl.DataFrame, rank: int) -> pl.DataFrame:
    """The optimizer blocks as in model.SPANS beside the marked `blocks`: all `voting` kernels (start_ns, end_ns), whose
    names are an OPTIMIZER's, between two of them are one, of the step of the block before. Those inside a marked
    optimizer are its."""
    before = blocks.select("start_ns", "step", marked=pl.when(pl.col("kind") == "OPT").then("end_ns"))
    placed = voting.sort("start_ns").join_asof(before.sort("start_ns").with_row_index("gap"), on="start_ns")
    unmarked = placed.filter(pl.col("marked").is_null() | (pl.col("start_ns") >= pl.col("marked")))
    runs = unmarked.group_by("gap", maintain_order=True).agg(
        pl.col("step").first(), pl.col("start_ns").min(), pl.col("end_ns").max()
    )
    return conform(runs.with_columns(kind=pl.lit("OPT"), rank=pl.lit(rank, INT), origin=pl.lit("inferred")), SPANS)


def _voting(kernels: pl.DataFrame) -> pl.DataFrame:
    """The kernels that have a class, with it as `vote`."""
    texts = kernels.select("text").unique()
    vote = pl.coalesce(pl.when(pl.col("text").str.contains(fits)).then(pl.lit(kind)) for kind, fits in _VOTES)
    return kernels.join(texts.with_columns(vote=vote).drop_nulls(), on="text", maintain_order="left")


def _runs(voting: pl.DataFrame) -> pl.DataFrame:
    """Runs of equal votes within one segment: vote, step, segment, first (row of `voting`), n, start_ns, end_ns."""
    change = pl.any_horizontal(pl.col(c).ne_missing(pl.col(c).shift(1)) for c in ("vote", "segment", "step"))
    numbered = voting.with_row_index("first").with_columns(run=change.cum_sum())
    return numbered.group_by("run", maintain_order=True).agg(
        pl.col("vote", "step", "segment", "first", "start_ns").first(), pl.col("end_ns").max(), n=pl.len()
    )


def _blocks(runs: pl.DataFrame, voting: pl.DataFrame, *, has_segments: bool) -> pl.DataFrame:
    """Runs → blocks: kind, step, segment, start_ns, end_ns of the voting kernels."""
    many = (pl.col("vote") == "B").sum().over(SEGMENT) >= MIXED_RUNS
    runs = runs.with_columns(mixed=(many & pl.col("vote").is_in(["F", "B"])) if has_segments else pl.lit(False))
    plain = runs.filter(~pl.col("mixed"))
    whole = "FB" if (plain["vote"] == "B").any() else "B"
    blocks = [_mixed(runs.filter("mixed"), voting, whole), _plain(plain, voting)]
    return pl.concat(b.select("kind", *SEGMENT, "start_ns", "end_ns") for b in blocks).sort("start_ns")


def _mixed(runs: pl.DataFrame, voting: pl.DataFrame, kind: str) -> pl.DataFrame:
    """Segments in which forward and backward runs alternate → blocks of `kind`: FB where two passes overlap, B where a
    backward recomputes layer by layer.

    A forward run much longer than the usual one is a whole forward beside them. Right before a recomputing backward it
    ends with the recomputation of that one's first layer.

    Example of kind B: the letters are votes, the numbers kernels. The usual forward run has 2, so the last 2 of the 9
    recompute:

        runs      F2 B2 F2 B2   F9      B2 F2 B2
        blocks    B------------ F7- B--------------
    """
    long = (pl.col("vote") == "F") & (pl.col("n") > LONG * pl.col("usual"))
    runs = runs.with_columns(usual=pl.col("n").filter(pl.col("vote") == "F").median().over(SEGMENT))
    runs = runs.with_columns(long=long, follows=long.shift(1).over(SEGMENT).fill_null(False))
    shared = pl.col("long") & (pl.col("vote").shift(-1).over(SEGMENT) == "B") & pl.lit(kind == "B")
    runs = runs.with_columns(keep=pl.col("n") - pl.when(shared).then("usual").otherwise(0).cast(INT))
    split = (runs["first"] + runs["keep"]).clip(0, len(voting) - 1)
    runs = runs.with_columns(
        end_ns=voting["end_ns"].gather(runs["first"] + runs["keep"] - 1),
        rest=pl.when(shared).then(voting["start_ns"].gather(split)),
        part=(pl.col("long") | pl.col("follows")).cum_sum(),
    ).with_columns(pl.coalesce(pl.col("rest").shift(1).over(SEGMENT), "start_ns").alias("start_ns"))
    return runs.group_by(*SEGMENT, "part", maintain_order=True).agg(
        pl.col("start_ns").first(),
        pl.col("end_ns").last(),
        kind=pl.when(pl.col("long").first()).then(pl.lit("F")).otherwise(pl.lit(kind)),
    )


def _plain(runs: pl.DataFrame, voting: pl.DataFrame) -> pl.DataFrame:
    """Runs that are blocks of their own, with the forwards that a backward recomputes made part of it.

    Such a forward run comes right before the backward, no operator between. It is a recomputation if it is shorter than
    a whole forward, or if every backward has one although there are enough forwards without (a stage whose backwards
    wait for a message, so a forward of its own would be followed by an operator). On the last stage a forward and the
    recomputation after it are one run, twice as long as the backward.

    Example, where the forwards that are followed by an operator (`|`) have 6 kernels:

        runs      F6 | F2 B6 | F12 B6 |
        blocks    F-   B----   F6- B----
    """
    same_segment = pl.col("segment").shift(-1) == pl.col("segment")
    joined = ((pl.col("vote") == "F") & (pl.col("vote").shift(-1) == "B") & same_segment).fill_null(False)
    runs = runs.with_columns(joined=joined, n_next=pl.col("n").shift(-1))
    alone = runs.filter((pl.col("vote") == "F") & ~pl.col("joined"))
    backwards = runs.filter(pl.col("vote") == "B").height
    usual = alone["n"].median()
    always = runs["joined"].sum() == backwards and alone.height >= backwards > 0
    short = pl.col("n") < PARTIAL * (usual if isinstance(usual, float) else 0.0)
    runs = runs.with_columns(recomputes=pl.col("joined") & (pl.lit(always) | short))
    both = pl.col("joined") & ~pl.col("recomputes") & (pl.col("n") >= TWICE * pl.col("n_next"))
    middle = (runs["first"] + (runs["n"] + 1) // 2).clip(0, len(voting) - 1)
    runs = runs.with_columns(
        end_ns=pl.when(both).then(voting["end_ns"].gather(middle - 1)).otherwise("end_ns"),
        rest=pl.when(both).then(voting["start_ns"].gather(middle)),
    ).with_columns(pl.coalesce(pl.col("rest").shift(1), "start_ns").alias("start_ns"))
    goes_on = pl.col("recomputes") & (pl.col("vote").shift(1) == "B") & same_segment.shift(1)
    new = ~(pl.col("recomputes").shift(1) | goes_on).fill_null(False)
    return (
        runs.with_columns(block=new.cum_sum())
        .group_by("block", maintain_order=True)
        .agg(pl.col("step", "segment", "start_ns").first(), pl.col("end_ns").last(), kind=pl.col("vote").last())
    )


def _bounds(blocks: pl.DataFrame, main: pl.DataFrame, transfers: Times, collectives: Times) -> tuple[Times, Times]:
    """(start, end) of the blocks with the other kernels of the stream around them.

    Kernels between two blocks, with no operator between, go to the earlier one: on the last stage these are the head
    and the loss, which follow the forward. A backward ends before the next collective: gradients are reduced there.
    """
    core_start, core_end = blocks["start_ns"].to_numpy(), blocks["end_ns"].to_numpy()
    is_opt, is_forward = (blocks["kind"] == "OPT").to_numpy(), (blocks["kind"] == "F").to_numpy()
    starts, ends = main["start_ns"].to_numpy(), np.maximum.accumulate(main["end_ns"].to_numpy())
    forever = np.iinfo(np.int64).max
    following = np.append(core_start[1:], forever)
    until = np.minimum(following, _next(transfers, core_end))
    until = np.where(is_forward, until, np.minimum(until, _next(collectives, core_end)))
    last = np.searchsorted(starts, until, side="left") - 1
    end = np.where(is_opt, core_end, np.maximum(core_end, np.where(last >= 0, ends[last], core_end)))
    end = np.where(end > following, core_end, end)
    before = np.append(0, transfers)[np.searchsorted(transfers, core_start, side="right")]
    since = np.maximum(np.append(0, end[:-1]), before)
    first = np.clip(np.searchsorted(starts, since, side="left"), 0, len(starts) - 1)
    start = np.where(is_opt, core_start, np.minimum(core_start, starts[first]))
    return start, end


def _next(times: Times, after: Times) -> Times:
    padded = np.append(times, np.iinfo(np.int64).max)
    return padded[np.searchsorted(times, after, side="left")]
