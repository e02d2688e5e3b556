"""How long the ranks of a pipeline stand idle in a step, and what they wait for.

Busy is the union of a rank's F, B, W and FB blocks; the optimizer and other work do not count. Two definitions of the
bubble, which papers and users mix up:

- **global**: (last end - first start over all ranks of the step) - busy. What the step costs.
- **own window**: (last end - first start on the rank itself) - busy. What the zero-bubble papers count; the skew at
  both ends of a rank's window is left out.

The global bubble of a rank is split by cause (`idle_causes.CAUSES`); the parts add up to it exactly.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property

import polars as pl

from trace_export.analysis.idle_causes import (
    CAUSES,
    INNER,
    ended_by,
    producers_of,
    receives_before,
    split_by_cause,
)
from trace_export.model import RANK_STEP_KEY, SEGMENT, STEP_KEY, WORK_KINDS, Profile
from trace_export.ordering import ordered
from trace_export.pipeline.evaluations import uninterrupted
from trace_export.pipeline.step_groups import step_groups
from trace_export.segments import with_window

_TO_NEXT = pl.when(pl.col("step") + 1 == pl.col("step").shift(-1).over(SEGMENT)).then(
    pl.col("start_ns").shift(-1).over(SEGMENT) - pl.col("start_ns")
)


class Bubbles:
    """The bubbles of all ranks and steps of a profile. Each table is worked out once, when it is first asked for."""

    def __init__(self, profile: Profile) -> None:
        self.profile = profile

    @cached_property
    def ranks(self) -> pl.DataFrame:
        """A row per (run, step, rank) that has blocks, sorted so.

        Columns: those of `windows`, and a column per cause, `warm_up_ns` … `cool_down_ns`, whose sum is global_ns.
        """
        tail = _optimizer_tail(self.profile.spans, self.windows)
        gaps = pl.concat([part.group_by(RANK_STEP_KEY).agg(pl.col(INNER).sum()) for part in self._causes])
        return (
            self.windows.join(tail, on=RANK_STEP_KEY, how="left", nulls_equal=True)
            .join(gaps, on=RANK_STEP_KEY, how="left", nulls_equal=True)
            .with_columns(pl.col(*INNER, "optimizer_ns").fill_null(0))
            .with_columns(
                warm_up_ns=pl.col("first_ns") - pl.col("step_start_ns"),
                cool_down_ns=pl.col("step_end_ns") - pl.col("last_ns") - pl.col("optimizer_ns"),
            )
            .select(*self.windows.columns, *(f"{cause}_ns" for cause in CAUSES))
            .sort(*STEP_KEY, "rank")
        )

    @cached_property
    def windows(self) -> pl.DataFrame:
        """A row per (run, step, rank) that has blocks, sorted so; what `ranks` says without the causes.

        Columns: run, step, rank, stage, whole (whether every rank has the whole step), first_ns, last_ns (of the rank's
        blocks), step_start_ns, step_end_ns (of all ranks'), busy_ns, global_ns and own_ns (the two bubbles).
        """
        return (
            self._busy[0]
            .lazy()
            .join(self.profile.ranks.lazy().select("rank", "stage"), on="rank", how="left")
            .select(
                *STEP_KEY, "rank", "stage", "whole", "first_ns", "last_ns", "step_start_ns", "step_end_ns", "busy_ns",
                "global_ns", "own_ns",
            )
            .sort(*STEP_KEY, "rank")
            .collect()
        )  # fmt: skip

    @cached_property
    def steps(self) -> pl.DataFrame:
        """run, window, step, start_ns, end_ns, ranks, whole, bubble, bubble_own, pipeline_ns, step_ns; sorted by (run,
        step).

        The bubbles are the shares (0 … 1) of `pipeline_ns`, from start_ns to end_ns, in which the ranks are idle, by
        the global and by the own-window definition. `step_ns` is the time from the start to that of the step with the
        next number, as a training log counts it: with the optimizer and what else lies between; null where that step is
        absent, in another window, or an evaluation lies between.
        """
        own_window = pl.col("last_ns") - pl.col("first_ns")
        length = pl.col("step_end_ns") - pl.col("step_start_ns")
        found = (
            self.windows.group_by(STEP_KEY)
            .agg(
                start_ns=pl.col("step_start_ns").first(),
                end_ns=pl.col("step_end_ns").first(),
                ranks=pl.len(),
                whole=pl.col("whole").first(),
                bubble=pl.when(length.sum() > 0).then(pl.col("global_ns").sum() / length.sum()),
                bubble_own=pl.when(own_window.sum() > 0).then(pl.col("own_ns").sum() / own_window.sum()),
            )
            .sort(STEP_KEY)
        )
        found = with_window(found, self.profile.spans).select(*SEGMENT, pl.exclude(SEGMENT))
        found = found.with_columns(pipeline_ns=pl.col("end_ns") - pl.col("start_ns"), step_ns=_TO_NEXT)
        return found.with_columns(uninterrupted(self.profile, "start_ns", "step_ns"))

    @cached_property
    def waits(self) -> pl.DataFrame:
        """The waits between blocks that ended with data from another rank which was made meanwhile: src_rank, dst_rank,
        direction (F, B), length_ns from the data's making to the start."""
        made, start = pl.col("made_ns"), pl.col("start_ns")
        parts = [
            ended_by(gaps, self.profile, self._producers)
            .filter(made > pl.col("idle_ns"), made <= start)
            .select(src_rank="producer", dst_rank="rank", direction="direction", length_ns=start - made)
            for gaps in self._gaps
        ]
        return pl.concat(parts)

    @cached_property
    def slices(self) -> pl.DataFrame:
        """Every idle stretch of every rank as a slice, sorted by (rank, start_ns).

        Columns: rank, stage, run, step, start_ns, end_ns, name (the cause, and the stage that is waited for), cause (a
        value of `CAUSES`), waits_for (the rank whose block is missing, where it is known), category (`bubble`).
        """
        windows, gaps = self.windows, pl.concat(self._causes)
        ends = pl.col("idle_ns") + pl.col("forward_ns") + pl.col("backward_ns")
        moving = pl.coalesce("moving_ns", ends)
        parts = [
            _slice(windows, "warm_up", "step_start_ns", "first_ns"),
            *(
                _slice(gaps.filter(pl.col("direction") == way), cause, "idle_ns", ends, waits_for=pl.col("producer"))
                for way, cause in (("F", "forward"), ("B", "backward"))
            ),
            _slice(gaps, "transfer", moving, moving + pl.col("transfer_ns"), waits_for=pl.col("producer")),
            _slice(gaps.filter(pl.col("late_ns") > 0), "late", ends, moving),
            _slice(gaps.filter(pl.col("late_ns") > 0), "late", moving + pl.col("transfer_ns"), "start_ns"),
            _slice(gaps.filter(pl.col("unknown_ns") > 0), "unknown", "idle_ns", "start_ns"),
            *_tail_slices(self.profile.spans, windows),
        ]
        slices = pl.concat(parts).filter(pl.col("end_ns") > pl.col("start_ns"))
        places = self.profile.ranks.select("rank", "stage")
        waited = pl.format("{} of stage {}", "cause", "of_stage")
        for_block = pl.col("cause").is_in([CAUSES["forward"], CAUSES["backward"]])
        return (
            slices.join(places, on="rank", how="left")
            .join(places.rename({"rank": "waits_for", "stage": "of_stage"}), on="waits_for", how="left")
            .with_columns(name=pl.when(for_block).then(waited).fill_null(pl.col("cause")))
            .select(
                "rank", "stage", *STEP_KEY, "start_ns", "end_ns", "name", "cause", "waits_for",
                category=pl.lit("bubble"),
            )
            .sort("rank", "start_ns")
        )  # fmt: skip

    def release(self) -> None:
        """Lets go of what is as large as the blocks, once `ranks` and `waits` have been made of it; `slices` and
        whatever else was not asked for yet works it out again."""
        for name in ("_busy", "_producers", "_causes"):
            self.__dict__.pop(name, None)

    @property
    def _gaps(self) -> list[pl.DataFrame]:
        return self._busy[1]

    @cached_property
    def _busy(self) -> tuple[pl.DataFrame, list[pl.DataFrame]]:
        """The `_windows` of all steps, and the `_gaps` of each group of them."""
        groups = [(_windows(work, self.profile.steps), _gaps(work)) for work in _busy_blocks(self.profile.spans)]
        return pl.concat([windows for windows, _ in groups]), [gaps for _, gaps in groups]

    @cached_property
    def _producers(self) -> pl.DataFrame:
        return producers_of(self.profile)

    @cached_property
    def _causes(self) -> list[pl.DataFrame]:
        """The gaps of each group of steps by cause, see `split_by_cause`."""
        usual = self.waits.group_by(producer="src_rank", rank="dst_rank").agg(
            usual_ns=pl.col("length_ns").median().round().cast(pl.Int64)
        )
        receives = receives_before(self._gaps, self.profile, self._producers)
        found = []
        for part in self._gaps:
            gaps = ended_by(part, self.profile, self._producers)
            gaps = gaps.join(usual, on=["producer", "rank"], how="left", maintain_order="left")
            gaps = split_by_cause(gaps.join(receives, on="row", how="left", maintain_order="left"), self.profile)
            found.append(
                gaps.select(*RANK_STEP_KEY, "idle_ns", "start_ns", "moving_ns", "producer", "direction", *INNER)
            )
        return found


def _busy_blocks(spans: pl.DataFrame) -> Iterator[pl.DataFrame]:
    """The blocks that count as busy, by groups of steps: row (in `spans`), rank, run, step, start_ns, end_ns, sorted by
    (rank, run, step, start), and before_ns, when all blocks before in the step have ended."""
    work = (
        spans.lazy()
        .with_row_index("row")
        .filter(pl.col("kind").is_in(WORK_KINDS))
        .select("row", *RANK_STEP_KEY, "start_ns", "end_ns")
        .collect()
    )
    for part in step_groups(work):
        rows = ordered(part, *RANK_STEP_KEY, "start_ns", "end_ns", "row")
        yield rows.with_columns(before_ns=pl.col("end_ns").cum_max().shift(1).over(RANK_STEP_KEY))


def _windows(work: pl.DataFrame, known: pl.DataFrame) -> pl.DataFrame:
    """run, step, rank, first_ns, last_ns, step_start_ns, step_end_ns, busy_ns, global_ns, own_ns, whole (as `known`,
    of schema `STEPS`, has it; else true)."""
    gap = (pl.col("start_ns") - pl.col("before_ns")).clip(0)
    ranks = (
        work.group_by(RANK_STEP_KEY)
        .agg(first_ns=pl.col("start_ns").min(), last_ns=pl.col("end_ns").max(), own_ns=gap.sum())
        .lazy()
    )
    steps = ranks.group_by(STEP_KEY).agg(step_start_ns=pl.col("first_ns").min(), step_end_ns=pl.col("last_ns").max())
    busy = pl.col("last_ns") - pl.col("first_ns") - pl.col("own_ns")
    return (
        ranks.join(steps, on=STEP_KEY, how="left", nulls_equal=True)
        .with_columns(busy_ns=busy)
        .with_columns(global_ns=pl.col("step_end_ns") - pl.col("step_start_ns") - pl.col("busy_ns"))
        .join(known.lazy(), on=STEP_KEY, how="left", nulls_equal=True)
        .with_columns(pl.col("whole").fill_null(True))
        .collect()
    )


def _gaps(work: pl.DataFrame) -> pl.DataFrame:
    """The idle stretches between blocks: the row of the block that ends each, and idle_ns, when the stretch begins."""
    return work.filter(pl.col("start_ns") > pl.col("before_ns")).select("row", idle_ns="before_ns")


def _tail(spans: pl.DataFrame, windows: pl.DataFrame) -> pl.DataFrame:
    """The optimizer's blocks as far as they lie between a rank's last block and the end of the step, as
    (rank, run, step, start_ns, end_ns, from_ns) without overlap: from_ns is where the stretch before each begins."""
    return (
        spans.filter(pl.col("kind") == "OPT")
        .select(*RANK_STEP_KEY, "start_ns", "end_ns")
        .join(windows.select(*RANK_STEP_KEY, "last_ns", "step_end_ns"), on=RANK_STEP_KEY, nulls_equal=True)
        .with_columns(
            start_ns=pl.max_horizontal("start_ns", "last_ns"), end_ns=pl.min_horizontal("end_ns", "step_end_ns")
        )
        .filter(pl.col("end_ns") > pl.col("start_ns"))
        .sort(*RANK_STEP_KEY, "start_ns")
        .with_columns(from_ns=pl.coalesce(pl.col("end_ns").cum_max().shift(1).over(RANK_STEP_KEY), "last_ns"))
        .with_columns(start_ns=pl.max_horizontal("start_ns", "from_ns"))
        .filter(pl.col("end_ns") > pl.col("start_ns"))
    )


def _optimizer_tail(spans: pl.DataFrame, windows: pl.DataFrame) -> pl.DataFrame:
    length = pl.col("end_ns") - pl.col("start_ns")
    return _tail(spans, windows).group_by(RANK_STEP_KEY).agg(optimizer_ns=length.sum())


def _tail_slices(spans: pl.DataFrame, windows: pl.DataFrame) -> list[pl.DataFrame]:
    """What lies between a rank's last block and the end of the step, without the optimizer: that is drawn already."""
    tail = _tail(spans, windows)
    ended = tail.group_by(RANK_STEP_KEY).agg(pl.col("end_ns").max().alias("tail_ns"))
    rest = windows.join(ended, on=RANK_STEP_KEY, how="left", nulls_equal=True)
    return [
        _slice(tail, "cool_down", "from_ns", "start_ns"),
        _slice(rest, "cool_down", pl.coalesce("tail_ns", "last_ns"), "step_end_ns"),
    ]


def _slice(
    frame: pl.DataFrame, cause: str, start: str | pl.Expr, end: str | pl.Expr, waits_for: pl.Expr | None = None
) -> pl.DataFrame:
    start = pl.col(start) if isinstance(start, str) else start
    end = pl.col(end) if isinstance(end, str) else end
    return frame.select(
        *RANK_STEP_KEY, start_ns=start, end_ns=end, cause=pl.lit(CAUSES[cause]),
        waits_for=pl.lit(None, pl.Int32) if waits_for is None else waits_for,
    )  # fmt: skip
