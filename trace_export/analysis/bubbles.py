"""How long the ranks of a pipeline stand idle in a step, and what they wait for.

Busy is the union of a rank's F, B, W and FB blocks; the optimizer and other work do not count. Two definitions of the
bubble, which papers and users mix up:

- **global**: (last end - first start over all ranks of the step) - busy. What the step costs.
- **own window**: (last end - first start on the rank itself) - busy. What the zero-bubble papers count; the skew at
  both ends of a rank's window is left out.

The global bubble of a rank is split by cause (`CAUSES`); the parts add up to it exactly.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property

import numpy as np
import polars as pl

from trace_export.model import RANK_STEP_KEY, STEP_KEY, TIME, WORD, WORK_KINDS, Profile
from trace_export.pipeline.step_groups import step_groups
from trace_export.schedules.schedule import virtual_stage

CAUSES = {
    "warm_up": "warm-up",
    "forward": "waiting for forward",
    "backward": "waiting for backward",
    "transfer": "exposed transfer",
    "late": "late start",
    "unknown": "unknown cause",
    "optimizer": "optimizer tail",
    "cool_down": "cool-down",
}
"""What idle time is due to, by the stem of its column (`warm_up_ns`):

warm-up: before the rank's first block; cool-down: after its last; optimizer tail: the part of that in which its
optimizer runs; waiting for forward, for backward: the block of another rank on which the next one depends, and which
passes on activations or gradients, has not ended yet; exposed transfer: it has, and nothing runs until the data are
here; late start: nothing is missing, but the block does not start (host, scheduler, data loader); unknown: the block
before was not read, or has no number."""

INNER = ["forward_ns", "backward_ns", "transfer_ns", "late_ns", "unknown_ns"]
"""The columns of the causes between a rank's blocks."""

_NEXT = pl.col("step").shift(-1).over("run")
_TO_NEXT = pl.when(pl.col("step") + 1 == _NEXT).then(pl.col("start_ns").shift(-1).over("run") - pl.col("start_ns"))


class Bubbles:
    """The bubbles of all ranks and steps of a profile. Each table is worked out once, when it is first asked for."""

    def __init__(self, profile: Profile) -> None:
        self.profile = profile

    @cached_property
    def ranks(self) -> pl.DataFrame:
        """A row per (run, step, rank) that has blocks, sorted so.

        Columns: run, step, rank, stage, whole (whether every rank has the whole step), first_ns, last_ns (of the rank's
        blocks), step_start_ns, step_end_ns (of all ranks'), busy_ns, global_ns and own_ns (the two bubbles), and a
        column per cause, `warm_up_ns` … `cool_down_ns`, whose sum is global_ns.
        """
        tail = _optimizer_tail(self.profile.spans, self._windows)
        gaps = pl.concat([part.group_by(RANK_STEP_KEY).agg(pl.col(INNER).sum()) for part in self._causes])
        return (
            self._windows.join(tail, on=RANK_STEP_KEY, how="left", nulls_equal=True)
            .join(gaps, on=RANK_STEP_KEY, how="left", nulls_equal=True)
            .with_columns(pl.col(*INNER, "optimizer_ns").fill_null(0))
            .with_columns(
                warm_up_ns=pl.col("first_ns") - pl.col("step_start_ns"),
                cool_down_ns=pl.col("step_end_ns") - pl.col("last_ns") - pl.col("optimizer_ns"),
            )
            .join(self.profile.ranks.select("rank", "stage"), on="rank", how="left")
            .select(
                *STEP_KEY, "rank", "stage", "whole", "first_ns", "last_ns", "step_start_ns", "step_end_ns", "busy_ns",
                "global_ns", "own_ns", *(f"{cause}_ns" for cause in CAUSES),
            )
            .sort(*STEP_KEY, "rank")
        )  # fmt: skip

    @cached_property
    def steps(self) -> pl.DataFrame:
        """run, step, start_ns, end_ns, ranks, whole, bubble, bubble_own, pipeline_ns, step_ns; sorted by (run, step).

        The bubbles are the shares (0 … 1) of `pipeline_ns`, from start_ns to end_ns, in which the ranks are idle, by
        the global and by the own-window definition. `step_ns` is the time from the start to that of the step with the
        next number, as a training log counts it: with the optimizer and what else lies between; null where that step is
        absent.
        """
        own_window = pl.col("last_ns") - pl.col("first_ns")
        length = pl.col("step_end_ns") - pl.col("step_start_ns")
        return (
            self._windows.group_by(STEP_KEY)
            .agg(
                start_ns=pl.col("step_start_ns").first(),
                end_ns=pl.col("step_end_ns").first(),
                ranks=pl.len(),
                whole=pl.col("whole").first(),
                bubble=pl.when(length.sum() > 0).then(pl.col("global_ns").sum() / length.sum()),
                bubble_own=pl.when(own_window.sum() > 0).then(pl.col("own_ns").sum() / own_window.sum()),
            )
            .sort(STEP_KEY)
            .with_columns(pipeline_ns=pl.col("end_ns") - pl.col("start_ns"), step_ns=_TO_NEXT)
        )

    @cached_property
    def waits(self) -> pl.DataFrame:
        """The waits between blocks that ended with data from another rank which was made meanwhile: src_rank, dst_rank,
        direction (F, B), length_ns from the data's making to the start."""
        made, start = pl.col("made_ns"), pl.col("start_ns")
        parts = [
            _ended(gaps, self.profile, self._producers)
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
        windows, gaps = self._windows, pl.concat(self._causes)
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

    @cached_property
    def _windows(self) -> pl.DataFrame:
        return self._busy[0]

    @property
    def _gaps(self) -> list[pl.DataFrame]:
        return self._busy[1]

    @cached_property
    def _busy(self) -> tuple[pl.DataFrame, list[pl.DataFrame]]:
        """`_windows` of all steps, and the `_gaps` of each group of them."""
        groups = [(_windows(work, self.profile.steps), _gaps(work)) for work in _busy_blocks(self.profile.spans)]
        return pl.concat([windows for windows, _ in groups]), [gaps for _, gaps in groups]

    @cached_property
    def _producers(self) -> pl.DataFrame:
        return _producers(self.profile)

    @cached_property
    def _causes(self) -> list[pl.DataFrame]:
        """The gaps of each group of steps by cause, see `_split`."""
        usual = self.waits.group_by(producer="src_rank", rank="dst_rank").agg(
            usual_ns=pl.col("length_ns").median().round().cast(pl.Int64)
        )
        receives = _receives(self._gaps, self.profile, self._producers)
        found = []
        for part in self._gaps:
            gaps = _ended(part, self.profile, self._producers)
            gaps = gaps.join(usual, on=["producer", "rank"], how="left", maintain_order="left")
            gaps = _split(gaps.join(receives, on="row", how="left", maintain_order="left"), self.profile)
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
        ordered = part.sort(*RANK_STEP_KEY, "start_ns", "end_ns", "row")
        yield ordered.with_columns(before_ns=pl.col("end_ns").cum_max().shift(1).over(RANK_STEP_KEY))


def _windows(work: pl.DataFrame, known: pl.DataFrame) -> pl.DataFrame:
    """run, step, rank, first_ns, last_ns, step_start_ns, step_end_ns, busy_ns, global_ns, own_ns, whole (as `known`,
    of schema `STEPS`, has it; else true)."""
    gap = (pl.col("start_ns") - pl.col("before_ns")).clip(0)
    ranks = work.group_by(RANK_STEP_KEY).agg(
        first_ns=pl.col("start_ns").min(), last_ns=pl.col("end_ns").max(), own_ns=gap.sum()
    )
    steps = ranks.group_by(STEP_KEY).agg(step_start_ns=pl.col("first_ns").min(), step_end_ns=pl.col("last_ns").max())
    busy = pl.col("last_ns") - pl.col("first_ns") - pl.col("own_ns")
    return (
        ranks.join(steps, on=STEP_KEY, how="left", nulls_equal=True)
        .with_columns(busy_ns=busy)
        .with_columns(global_ns=pl.col("step_end_ns") - pl.col("step_start_ns") - pl.col("busy_ns"))
        .join(known, on=STEP_KEY, how="left", nulls_equal=True)
        .with_columns(pl.col("whole").fill_null(True))
    )


def _gaps(work: pl.DataFrame) -> pl.DataFrame:
    """The idle stretches between blocks: the row of the block that ends each, and idle_ns, when the stretch begins."""
    return work.filter(pl.col("start_ns") > pl.col("before_ns")).select("row", idle_ns="before_ns")


def _ended(gaps: pl.DataFrame, profile: Profile, producers: pl.DataFrame) -> pl.DataFrame:
    """`gaps` with the block that ends each, and when its input was made, and where."""
    columns = [*RANK_STEP_KEY, "kind", "microbatch", "chunk", "chunk_b", "start_ns"]
    return pl.concat([gaps, profile.spans.select(columns)[gaps["row"]], producers[gaps["row"]]], how="horizontal")


def _split(gaps: pl.DataFrame, profile: Profile) -> pl.DataFrame:
    """`gaps` with forward_ns, backward_ns, transfer_ns, late_ns, unknown_ns, whose sum is the gap, and moving_ns, when
    the transfer begins, where that is recorded.

    They have usual_ns, how long a transfer on the link usually takes once data were made, and the receive of
    `_receives`.
    """
    idle, start, made = pl.col("idle_ns"), pl.col("start_ns"), pl.col("made_ns")
    known = made.is_not_null()
    gaps = pl.concat([gaps.filter(known).with_columns(lacks=False), _lacks(gaps.filter(~known), profile)])
    unknown = pl.when("lacks").then(start - idle).otherwise(0)
    waiting = pl.when(known).then((pl.min_horizontal(start, made) - idle).clip(0)).otherwise(0)
    # Data that were made before the rank fell idle are here when their receive ends; where that is not recorded, when
    # a transfer on this link usually ends.
    here = pl.when(made > idle).then(start).otherwise(made + pl.col("usual_ns").fill_null(0))
    estimated = pl.min_horizontal(start, here) - pl.max_horizontal(idle, made)
    recorded = pl.min_horizontal(start, "recv_end_ns") - pl.max_horizontal(idle, "recv_start_ns")
    is_recorded = pl.col("recv_end_ns").is_not_null() & (recorded > 0)
    transfer = pl.when(is_recorded).then(recorded).when(known).then(estimated.clip(0)).otherwise(0)
    return gaps.with_columns(
        unknown_ns=unknown,
        forward_ns=pl.when(pl.col("direction") == "F").then(waiting).otherwise(0),
        backward_ns=pl.when(pl.col("direction") == "B").then(waiting).otherwise(0),
        transfer_ns=transfer,
        moving_ns=pl.when(is_recorded).then(pl.max_horizontal(idle, "recv_start_ns")),
    ).with_columns(late_ns=start - idle - pl.sum_horizontal("unknown_ns", "forward_ns", "backward_ns", "transfer_ns"))


def _receives(parts: list[pl.DataFrame], profile: Profile, producers: pl.DataFrame) -> pl.DataFrame:
    """row, recv_start_ns, recv_end_ns: for the gaps of all `parts` the last receive, begun before the gap ends, of such
    data as the block needs, in whatever step it began; not of gaps before which the data were not made."""
    if profile.messages.is_empty():
        return pl.DataFrame(schema={"row": pl.UInt32(), "recv_start_ns": TIME, "recv_end_ns": TIME})
    of = ["rank", "producer", "direction", "microbatch", "chunk"]
    numbers = {name: pl.col(name).fill_null(0) for name in ("microbatch", "chunk")}
    chunk = pl.when(pl.col("direction") == "B").then(pl.coalesce("chunk_b", "chunk")).otherwise("chunk")
    wanted = pl.concat([
        _ended(gaps, profile, producers)
        .filter(pl.col("made_ns") <= pl.col("idle_ns"))
        .select("row", *of[:-1], "start_ns", chunk=chunk)
        .with_columns(**numbers)
        for gaps in parts
    ])  # fmt: skip
    receives = profile.messages.select(
        "direction", "recv_start_ns", "recv_end_ns", rank="dst_rank", producer="src_rank", **numbers
    ).join(wanted, on=of, how="semi")  # fmt: skip
    found = wanted.sort("start_ns").join_asof(
        receives.sort("recv_start_ns"),
        left_on="start_ns", right_on="recv_start_ns", by=of, check_sortedness=False,
    )  # fmt: skip
    return found.select("row", "recv_start_ns", "recv_end_ns").drop_nulls("recv_start_ns")


def _producers(profile: Profile) -> pl.DataFrame:
    """made_ns, producer, direction for each row of `spans`: when the last of the block's inputs from another rank was
    made, and where; null where it has none."""
    edges = profile.edge_rows()
    rank, end = profile.spans["rank"].to_numpy(), profile.spans["end_ns"].to_numpy()
    maker, onward = np.full(len(rank), -1, np.int64), np.zeros(len(rank), np.bool_)
    for direction in ("F", "B"):
        chosen = edges.filter(pl.col("direction") == direction)
        src, dst = chosen["src"].to_numpy(), chosen["dst"].to_numpy()
        later = (rank[src] != rank[dst]) & ((maker[dst] < 0) | (end[src] > end[maker[dst]]))
        maker[dst[later]] = src[later]
        onward[dst[later]] = direction == "F"
    known = pl.Series(maker >= 0)
    return pl.select(
        made_ns=pl.when(known).then(pl.Series(end[maker])),
        producer=pl.when(known).then(pl.Series(rank[maker])),
        direction=pl.when(known).then(pl.when(pl.Series(onward)).then(pl.lit("F")).otherwise(pl.lit("B"))).cast(WORD),
    )


def _lacks(gaps: pl.DataFrame, profile: Profile) -> pl.DataFrame:
    """`gaps` with `lacks`: whether the block, of which no producer is known, must have one on another rank."""
    placement = profile.interpreted.placement
    stages, chunks = (
        frame[c].drop_nulls().to_numpy() for frame, c in ((profile.ranks, "stage"), (profile.spans, "chunk"))
    )
    count = max(int(stages.max()) + 1 if len(stages) else 1, profile.declared.pp or 1)  # the last may not be read
    count += bool(profile.declared.deeper)
    last = count * (int(chunks.max()) + 1 if len(chunks) and placement != "both" else 1) - 1
    stage = pl.col("stage").fill_null(0)
    at = virtual_stage(placement, count, pl.col("chunk").fill_null(0), stage)
    at_b = virtual_stage(placement, count, pl.coalesce("chunk_b", "chunk").fill_null(0), stage)
    # A V turns round on one rank: its next chunk there needs nobody else.
    alone = pl.lit(count == 1)
    turn, turn_b = (at % count == 0, (at_b + 1) % count == 0) if placement == "vee" else (alone, alone)
    forward = pl.col("kind").is_in(["F", "FB"]) & (at > 0) & ~turn
    back = pl.col("kind").is_in(["B", "FB"]) & (at_b < last) & ~turn_b
    placed = gaps.join(profile.ranks.select("rank", "stage"), on="rank", how="left", maintain_order="left")
    return placed.with_columns(lacks=forward | back).drop("stage")


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
