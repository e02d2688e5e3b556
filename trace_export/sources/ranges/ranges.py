"""Select pipeline ranges from the annotations on CPU threads, independent of the profiler.

Used by the readers whose blocks are ranges around launches of GPU work (Nsight Systems, torch.profiler).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property

import polars as pl

from trace_export.model import TEXT, WORK_KINDS
from trace_export.sources.ranges.dialects import Dialects
from trace_export.sources.ranges.rules import DEEPSPEED, MINDSPEED, OWN, PIPELINING, PLAIN, STAGE, USER
from trace_export.sources.shared.timestamps import LATEST_NS, NO_TIME_NS

COMMUNICATION = "communication"
"""The role that is added to those of dialects.NAMES: a call of NCCL."""

RANGE = {"row": pl.Int64(), "process": pl.Int64(), "thread": pl.Int64(), "start": pl.Int64(), "end": pl.Int64()}
"""The columns of a range as recorded; an open one ends before it starts. The order of the rows means nothing."""

CALL = {"group": pl.String(), "peer": pl.Int64(), "bytes": pl.Int64()}
"""Further columns of a call of NCCL, null if unknown: its communicator, the rank of its peer in that, and its size."""

_HIDING = {PLAIN, OWN, PIPELINING}
"""Only where there are names of these dialects, some names may not count."""
_SAME_TIMES = ["thread", "text"]
"""The order of ranges of equal start and end."""


@dataclass(frozen=True)
class Ranges:
    """`frame`: id (the row's number), row, process (globalTid >> 24), thread, start, end in session time, the columns
    of dialects.NAMES and `CALL`, and `repaired`; sorted by process, start, the longer first, thread and text. A step or
    setup that was open at the end of the capture ends where it starts; all other open ranges are only in `unclosed`,
    which has the same columns less the last. `unused`: ranges with names of passes that do not count beside other names
    and share no time with what those name; the columns of `unclosed`. `transfers`: see dialects.TRANSFERS. `invalid`:
    the ranges that were left out for their times. `stages`: process → the stages that its names call its own, in order;
    `marked`: the processes with blocks. `unmatched`: the user's rules that match no name."""

    frame: pl.DataFrame
    transfers: pl.DataFrame
    unclosed: pl.DataFrame
    unused: pl.DataFrame
    invalid: pl.DataFrame
    stages: Mapping[int, list[int]]
    marked: frozenset[int]
    unmatched: tuple[str, ...] = ()

    @staticmethod
    @cache
    def none() -> Ranges:
        """No ranges."""
        return gather((), (), Dialects.of(()))

    @property
    def untimed(self) -> int:
        """How many ranges were left out for their times."""
        return self.invalid.height

    def with_frame(self, frame: pl.DataFrame) -> Ranges:
        """These ranges in place of those of its `frame`."""
        return replace(self, frame=frame, stages=_stages(frame), marked=_marked(frame))

    def of(self, *roles: str) -> pl.DataFrame:
        return self.frame.filter(pl.col("role").is_in(roles))

    @cached_property
    def partial(self) -> frozenset[int]:
        """The processes whose names may say only some of their passes: no forward, no backward, or none of the
        optimizer where the runtime does not name it."""
        names = {kind: pl.col("kind").is_in([kind, "FB"]).any() for kind in ("F", "B")}
        unnamed = (pl.col("dialect") == DEEPSPEED).any() & (pl.col("kind") != "OPT").all()
        kinds = self.of("block").drop_nulls("kind").group_by("process").agg(**names, unnamed=unnamed)
        return frozenset(kinds.filter(~(pl.col("F") & pl.col("B")) | pl.col("unnamed"))["process"])


def gather(
    named: Sequence[pl.DataFrame], calls: Sequence[pl.DataFrame], dialects: Dialects, *, every: bool = False
) -> Ranges:
    """The ranges that count, of the processes that have a block other than the optimizer's; with `every`, of all.

    `named` ranges, whose names `dialects` may know, and `calls` of NCCL: frames with the columns of `RANGE` and `text`,
    those of calls perhaps also with some of `CALL`.
    """
    whole = pl.concat([pl.DataFrame(schema={**RANGE, "text": TEXT}), *named])
    parsed = dialects.parse(whole["text"])
    frame = pl.concat(
        [
            whole.join(parsed.names, on="text", maintain_order="left"),
            pl.DataFrame(schema=CALL),
            *(c.with_columns(role=pl.lit(COMMUNICATION)) for c in calls),
        ],
        how="diagonal",
    ).filter(_trains() | every)
    frame, weak = _without_weak_names(_with_one_kind_of_step(frame, dialects))
    invalid, frame = frame.filter(~_timed()), frame.filter(_timed())
    opened = pl.col("end") < pl.col("start")
    unclosed = frame.filter(opened & (pl.col("role") != COMMUNICATION)).sort("process", "start", *_SAME_TIMES)
    around = pl.col("role").is_in(["step", "setup"])
    last = pl.when(around).then(pl.max_horizontal("start", "end")).otherwise("end")
    frame = _repaired(frame.with_columns(end=last).filter(~opened)).sort(
        "process", "start", "end", *_SAME_TIMES, descending=[False, False, True, False, False]
    )
    frame = frame.with_row_index("id").cast({"id": pl.Int64})
    unused = _apart(weak.filter(_timed() & ~opened), frame)
    transfers = parsed.transfers.unique(maintain_order=True)
    return Ranges(frame, transfers, unclosed, unused, invalid, _stages(frame), _marked(frame))


def other_ranges(named: Sequence[pl.DataFrame], dialects: Dialects, *, only: bool) -> Ranges:
    """The `named` ranges of all processes, for steps and optimizers of passes that are inferred; with `only`
    those that do not depend on how a runtime names its passes: PyTorch's own and the user's."""
    ranges = gather(named, (), dialects, every=True)
    counted = pl.col("dialect").is_in(["torch", "user"])
    return ranges.with_frame(ranges.frame.filter(counted)) if only else ranges


def _stages(frame: pl.DataFrame) -> dict[int, list[int]]:
    """Process → the stages that its names call its own, in order."""
    named = frame.filter(pl.col("role").is_in(["block", "p2p", "boundary"]))
    stages = pl.concat([named.select("process", stage=pl.col(c)) for c in ("stage", "stage_b")]).drop_nulls()
    return dict(stages.group_by("process").agg(pl.col("stage").unique().sort()).iter_rows())


def _marked(frame: pl.DataFrame) -> frozenset[int]:
    """The processes with blocks."""
    return frozenset(frame.filter(pl.col("role") == "block")["process"].unique())


def _timed() -> pl.Expr:
    """Whether a range has times, or is open. A clock may be shifted, so that times are below 0."""
    start, end = pl.col("start"), pl.col("end")
    return (start > NO_TIME_NS) & (start <= end + 1) & (end < LATEST_NS)


def _trains() -> pl.Expr:
    """Whether the row's process does pipeline work: an optimizer alone does not make a pipeline."""
    block = (pl.col("role") == "block") & pl.col("kind").ne_missing("OPT")
    return block.any().over("process")


def _without_weak_names(frame: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """The rows whose names count, and the blocks whose names do not.

    Names of several dialects complement each other: plain names ("Forward") count for those kinds of work that the
    process names in no other dialect, a fused pair being a forward and a backward. In processes with our marks only
    these and the user's names count as names of passes. MindSpeed calls some passes as Megatron does, and these are its
    names, too. Transfers of a stage (PP::fwd_send) count only where torch's runtime names none (PP:0SEND_F3), inside
    which they may lie.
    """
    if not _HIDING & set(frame["dialect"].unique()):
        return frame, frame.clear()
    block, kind = pl.col("role") == "block", pl.col("kind")
    plain, ours, user, mindspeed = (pl.col("dialect").eq_missing(pl.lit(d)) for d in (PLAIN, OWN, USER, MINDSPEED))
    its_own = plain & pl.col("text").str.contains("^(?:for|back)ward_step") & (block & mindspeed).any().over("process")
    frame = frame.with_columns(dialect=pl.when(its_own).then(pl.lit(MINDSPEED)).otherwise("dialect"))
    strong, named = block & ~plain, pl.lit(False)
    for one in (*WORK_KINDS, "OPT"):
        names = kind.is_in([one, "FB"]) if one in ("F", "B") else kind == one
        named |= (kind == one) & (strong & names).any().over("process")
    marked, updated = ((block & ours & of_kind).any().over("process") for of_kind in (pl.lit(True), kind == "OPT"))
    hidden = block & ((plain & named) | (~ours & ~user & marked & (kind.ne_missing("OPT") | updated)))
    transfer, inner = pl.col("role") == "p2p", pl.col("dialect").eq_missing(pl.lit(STAGE))
    numbered = (transfer & pl.col("dialect").eq_missing(pl.lit(PIPELINING))).any().over("process")
    frame = frame.with_columns(hidden=hidden.fill_null(False), inner=transfer & inner & numbered)
    counts = frame.filter(~pl.col("hidden") & ~pl.col("inner")).drop("hidden", "inner")
    return counts, frame.filter("hidden").drop("hidden", "inner")


def _apart(weak: pl.DataFrame, frame: pl.DataFrame) -> pl.DataFrame:
    """Those of the `weak` blocks that share no time with a block of their process in `frame`: they are other work."""
    if weak.is_empty():
        return weak
    blocks = frame.filter(pl.col("role") == "block").sort("start")
    begun = blocks.select("process", at="start", until=pl.col("end").cum_max().over("process"))
    begun_before = weak.sort("end").join_asof(begun, left_on="end", right_on="at", by="process", check_sortedness=False)
    apart = begun_before.filter((pl.col("until") < pl.col("start")).fill_null(True))
    return apart.select(weak.columns).sort("process", "start", *_SAME_TIMES)


def _with_one_kind_of_step(frame: pl.DataFrame, dialects: Dialects) -> pl.DataFrame:
    """Step ranges of one dialect in each process: the first in the order of the rules."""
    step = pl.col("role") == "step"
    if frame.filter(step)["dialect"].n_unique() <= 1:
        return frame
    order = {rule.dialect: i for i, rule in reversed(list(enumerate(dialects.rules)))}
    priority = pl.when(step).then(pl.col("dialect").replace_strict(order, default=None, return_dtype=pl.Int32))
    return frame.filter(~step | (priority == priority.min().over("process")))


def _repaired(frame: pl.DataFrame) -> pl.DataFrame:
    """Adds `repaired`, and gives the `PP:` ranges of a process whose ends cannot be true new ones.

    The runtime never nests its actions, so one `PP:` range inside another of the same thread proves that emit_nvtx
    closed them in the wrong order; their starts are right. Each then lasts until the next action, optimizer or step
    begins.
    """
    ours = pl.col("dialect") == PIPELINING
    if frame.filter(ours).is_empty():
        return frame.with_columns(repaired=pl.lit(False))
    frame = frame.sort("start", "end", *_SAME_TIMES, descending=[False, True, False, False])
    earlier = pl.col("end").cum_max().shift().over("process", "thread")
    inside = (pl.col("end") <= earlier) & (pl.col("start") < earlier)
    wrong = frame.filter(ours).filter(inside)["process"].unique().to_list()
    repaired = ours & pl.col("process").is_in(wrong)
    ticks = pl.col("start").shift(-1).over("process")
    following = frame.filter(pl.col("dialect").is_in([PIPELINING, "torch"])).select("process", "row", following=ticks)
    return (
        frame.join(following, on=["process", "row"], how="left")
        .with_columns(repaired=repaired.fill_null(False))
        .with_columns(end=pl.when("repaired").then(pl.coalesce("following", "end")).otherwise("end"))
        .drop("following")
    )
