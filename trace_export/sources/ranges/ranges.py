"""Select pipeline ranges from the annotations on CPU threads, independent of the profiler.

Used by the readers whose blocks are ranges around launches of GPU work (Nsight Systems, torch.profiler).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import polars as pl

from trace_export.model import TEXT
from trace_export.sources.ranges.dialects import Dialects
from trace_export.sources.ranges.rules import OWN, PIPELINING, PLAIN, STAGE
from trace_export.sources.shared.timestamps import LATEST_NS, NO_TIME_NS

COMMUNICATION = "communication"
"""The role that is added to those of dialects.NAMES: a call of NCCL."""

RANGE = {"row": pl.Int64(), "process": pl.Int64(), "thread": pl.Int64(), "start": pl.Int64(), "end": pl.Int64()}
"""The columns of a range as recorded; an open one ends before it starts. The order of the rows means nothing."""

CALL = {"group": pl.String(), "peer": pl.Int64(), "bytes": pl.Int64()}
"""What else may be known of a call of NCCL: its communicator, the rank of its peer in that, and its size."""

_HIDING = {PLAIN, OWN, PIPELINING}
"""Only where there are names of these dialects, some names may not count."""
_SAME_TIMES = ["thread", "text"]
"""What orders ranges of equal start and end."""


@dataclass(frozen=True)
class Ranges:
    """`frame`: id (the row's number), row, process (globalTid >> 24), thread, start, end in session time, the columns
    of dialects.NAMES and `CALL`, and `repaired`; sorted by process, start, the longer first, thread and text. A step
    that was open at the end of the capture ends where it starts; all other open ranges are only in `unclosed`, which
    has the same columns less the last. `transfers`: see dialects.TRANSFERS. `untimed`: how many ranges were left out
    for their invalid times."""

    frame: pl.DataFrame
    transfers: pl.DataFrame
    unclosed: pl.DataFrame
    untimed: int

    @staticmethod
    def none() -> Ranges:
        """No ranges."""
        return gather((), (), Dialects.of(()))

    @cached_property
    def stages(self) -> dict[int, list[int]]:
        """Process → the stages that its names call its own, in order."""
        own = self.of("block", "p2p", "boundary")
        stages = pl.concat([own.select("process", stage=pl.col(c)) for c in ("stage", "stage_b")]).drop_nulls()
        grouped = stages.group_by("process").agg(pl.col("stage").unique().sort())
        return dict(grouped.iter_rows())

    def knowing(self, stages: dict[int, list[int]], marked: frozenset[int]) -> Ranges:
        """Itself, where these properties are known already."""
        vars(self).update(stages=stages, marked=marked)
        return self

    def of(self, *roles: str) -> pl.DataFrame:
        return self.frame.filter(pl.col("role").is_in(roles))

    @cached_property
    def marked(self) -> frozenset[int]:
        """The processes with blocks."""
        return frozenset(self.of("block")["process"])


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
    frame = _without_weak_names(_with_one_kind_of_step(frame, dialects))
    height, frame = frame.height, frame.filter(_timed())
    untimed = height - frame.height
    opened = pl.col("end") < pl.col("start")
    unclosed = frame.filter(opened & (pl.col("role") != COMMUNICATION)).sort("process", "start", *_SAME_TIMES)
    last = pl.when(pl.col("role") == "step").then(pl.max_horizontal("start", "end")).otherwise("end")
    frame = _repaired(frame.with_columns(end=last).filter(~opened)).sort(
        "process", "start", "end", *_SAME_TIMES, descending=[False, False, True, False, False]
    )
    return Ranges(
        frame.with_row_index("id").cast({"id": pl.Int64}),
        parsed.transfers.unique(maintain_order=True),
        unclosed,
        untimed,
    )


def beside_passes(named: Sequence[pl.DataFrame], dialects: Dialects, *, only: bool) -> Ranges:
    """The `named` ranges of all processes, for steps and optimizers of passes that are found without names; with `only`
    those that do not depend on how a runtime names its passes: PyTorch's own and the user's."""
    ranges = gather(named, (), dialects, every=True)
    own = pl.col("dialect").is_in(["torch", "user"])
    return replace(ranges, frame=ranges.frame.filter(own)) if only else ranges


def _timed() -> pl.Expr:
    """Whether a range has times, or is open. A clock may be shifted, so that times are below 0."""
    start, end = pl.col("start"), pl.col("end")
    return (start > NO_TIME_NS) & (start <= end + 1) & (end < LATEST_NS)


def _trains() -> pl.Expr:
    """Whether the row's process does pipeline work: an optimizer alone does not make a pipeline."""
    block = (pl.col("role") == "block") & pl.col("kind").ne_missing("OPT")
    return block.any().over("process")


def _without_weak_names(frame: pl.DataFrame) -> pl.DataFrame:
    """Our own marks are the only names of blocks in processes that have them; plain names ("Forward") count only in
    processes without names of another dialect, and transfers of a stage (PP::fwd_send) only where torch's runtime names
    none (PP:0SEND_F3), inside which they may lie."""
    if not _HIDING & set(frame["dialect"].unique()):
        return frame
    block = pl.col("role") == "block"
    plain, own = (pl.col("dialect").eq_missing(pl.lit(dialect)) for dialect in (PLAIN, OWN))
    strong = (block & pl.col("kind").ne_missing("OPT") & ~plain).any().over("process")
    marked = (block & own).any().over("process")
    transfer, inner = pl.col("role") == "p2p", pl.col("dialect").eq_missing(pl.lit(STAGE))
    numbered = (transfer & pl.col("dialect").eq_missing(pl.lit(PIPELINING))).any().over("process")
    return frame.filter(~(block & ((plain & strong) | (~own & marked))), ~(transfer & inner & numbered))


def _with_one_kind_of_step(frame: pl.DataFrame, dialects: Dialects) -> pl.DataFrame:
    """Step ranges of one dialect in each process: the first in the order of the rules."""
    step = pl.col("role") == "step"
    if frame.filter(step)["dialect"].n_unique() <= 1:
        return frame
    order = {rule.dialect: i for i, rule in reversed(list(enumerate(dialects.rules)))}
    place = pl.when(step).then(pl.col("dialect").replace_strict(order, default=None, return_dtype=pl.Int32))
    return frame.filter(~step | (place == place.min().over("process")))


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
    following = frame.filter(pl.col("dialect").is_in([PIPELINING, "torch"])).select("row", following=ticks)
    return (
        frame.join(following, on="row", how="left")
        .with_columns(repaired=repaired.fill_null(False))
        .with_columns(end=pl.when("repaired").then(pl.coalesce("following", "end")).otherwise("end"))
        .drop("following")
    )
