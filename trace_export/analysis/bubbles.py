"""How long the ranks of a pipeline stand idle in a step, and what they wait for.

Busy is the union of a rank's F, B, W and FB blocks; the optimizer and other work do not count. Two definitions of the
bubble, which papers and users mix up:

- **global**: (last end - first start over all ranks of the replica in the step) - busy. What the step costs.
- **own window**: (last end - first start on the rank itself) - busy. What the zero-bubble papers count; the skew at
  both ends of a rank's window is left out.

As a share they are sums over ranks: of a step over its ranks, of a run over its steps that count. The global bubble of
a rank is split by cause (`steps.idle.CAUSES`); the parts add up to it exactly.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property

import polars as pl

from trace_export.analysis.counted_steps import counted
from trace_export.memory import give_back
from trace_export.model import RANK_STEP_KEY, SEGMENT, STEP_KEY, STEPS, WORK_KINDS, Profile, conform
from trace_export.ordering import only, ordered, run_number
from trace_export.pipeline.evaluations import uninterrupted
from trace_export.pipeline.replicas import data_parallel
from trace_export.segments import with_window
from trace_export.steps.build import build
from trace_export.steps.graph import Graph
from trace_export.steps.idle import CAUSES, INNER, idle, idle_by_cause
from trace_export.steps.recorded import recorded

_TO_NEXT = pl.when(
    pl.col("step") + 1 == pl.col("step").shift(-1).over(SEGMENT),
    pl.col("start_ns") < pl.col("start_ns").shift(-1).over(SEGMENT),  # else a clock was set back
).then(pl.col("start_ns").shift(-1).over(SEGMENT) - pl.col("start_ns"))


class _Whole:
    """The tables of a whole run, whatever is shown of it."""

    def __init__(self, profile: Profile) -> None:
        self.profile = profile

    @cached_property
    def graph(self) -> Graph:
        graph = build(recorded(self.profile))
        give_back()
        return graph

    @cached_property
    def idle(self) -> pl.DataFrame:
        slices = idle(self.graph)
        give_back()
        return slices

    @cached_property
    def windows(self) -> pl.DataFrame:
        ranks = self.profile.ranks
        places = ranks.select("rank", "stage").join(data_parallel(ranks), on="rank", how="left")
        return _windows(self.profile.spans, self.profile.steps, places)

    @cached_property
    def ranks(self) -> pl.DataFrame:
        tail = _optimizer_tail(self.profile.spans, self.windows)
        gaps = idle_by_cause(self.graph)
        give_back()
        inner = [f"{cause}_ns" for cause in INNER]
        return (
            self.windows.join(tail, on=RANK_STEP_KEY, how="left", nulls_equal=True)
            .join(gaps, on=RANK_STEP_KEY, how="left", nulls_equal=True)
            .with_columns(pl.col(*inner, "optimizer_ns").fill_null(0))
            .with_columns(
                warm_up_ns=pl.col("first_ns") - pl.col("step_start_ns"),
                cool_down_ns=pl.col("step_end_ns") - pl.col("last_ns") - pl.col("optimizer_ns"),
            )
            .select(*self.windows.columns, *(f"{cause}_ns" for cause in CAUSES))
            .sort(*STEP_KEY, "rank")
        )

    @cached_property
    def steps(self) -> pl.DataFrame:
        return _steps(self.profile, self.windows)


class Bubbles:
    """The bubbles of all ranks and steps of a profile, or of a part of it: their figures are those of the whole. Each
    table is worked out once, when it is first asked for."""

    def __init__(self, profile: Profile) -> None:
        self.profile = profile
        self._whole = _Whole(profile)

    def of(self, part: Profile) -> Bubbles:
        """The bubbles of the steps and ranks that a part of the profile still has."""
        part_of = Bubbles(part)
        part_of._whole = self._whole
        return part_of

    def counting(self) -> Bubbles:
        """The same, but that the steps that are shown count, and no others: for a warm-up that is looked at alone."""
        steps = self.steps.filter("whole").select(*STEP_KEY, counts=True)
        marked = self.whole.steps.drop("counts").join(
            steps, on=STEP_KEY, how="left", nulls_equal=True, maintain_order="left"
        )
        table = conform(marked.with_columns(pl.col("counts").fill_null(value=False)), STEPS)
        return Bubbles(replace(self.whole, steps=table)).of(replace(self.profile, steps=table))

    @property
    def whole(self) -> Profile:
        """The whole profile."""
        return self._whole.profile

    @property
    def _shows_all(self) -> bool:
        return self.profile.spans is self.whole.spans

    @property
    def graph(self) -> Graph:
        """The measured graph of the whole profile. Needs `Profile.interpretation`."""
        return self._whole.graph

    @cached_property
    def ranks(self) -> pl.DataFrame:
        """A row per (run, step, rank) that has blocks, sorted so.

        Columns: those of `windows`, and a column per cause, `warm_up_ns` … `cool_down_ns`, whose sum is global_ns.
        """
        return self._of_shown(self._whole.ranks)

    @cached_property
    def windows(self) -> pl.DataFrame:
        """A row per (run, step, rank) that has blocks, sorted so; what `ranks` says without the causes.

        Columns: run, step, rank, stage, replica, whole and counts (`model.STEPS`), first_ns, last_ns (of
        the rank's blocks), step_start_ns, step_end_ns (of all ranks' of its replica), busy_ns, global_ns and own_ns
        (the two bubbles).
        """
        return self._of_shown(self._whole.windows)

    def _of_shown(self, ranks: pl.DataFrame) -> pl.DataFrame:
        """The rows of the ranks and steps that are shown, of a table of all."""
        if self._shows_all:
            return ranks
        shown = self.profile.spans.filter(pl.col("kind").is_in(WORK_KINDS)).select(RANK_STEP_KEY).unique()
        return ranks.join(shown, on=RANK_STEP_KEY, how="semi", nulls_equal=True, maintain_order="left")

    @cached_property
    def steps(self) -> pl.DataFrame:
        """run, window, step, start_ns, end_ns, ranks, whole, counts (`model.STEPS`), bubble, bubble_own, pipeline_ns,
        step_ns; sorted by (run, step).

        The bubbles are the shares (0 … 1) of the ranks' pipeline time in which they are idle, by the global and by the
        own-window definition. `pipeline_ns`: from the first start to the last end of a replica, the mean over the
        ranks. `step_ns` is the time from the start of the step to that of the step with the next number, as a training
        log counts it: with the optimizer and everything else between; null if that step is absent or in another window,
        or an evaluation lies between.
        """
        steps = self._whole.steps
        if self._shows_all:
            return steps
        shown = self.windows.select(STEP_KEY).unique()
        return steps.join(shown, on=STEP_KEY, how="semi", nulls_equal=True, maintain_order="left")

    @cached_property
    def bubble(self) -> float | None:
        """The bubble of the run: of its steps that count, where it has any; None where no block has a length."""
        windows = counted(self.windows)
        length = int((windows["step_end_ns"] - windows["step_start_ns"]).sum())
        return int(windows["global_ns"].sum()) / length if length else None

    @cached_property
    def bubble_own(self) -> float | None:
        """The same by the own-window definition."""
        windows = counted(self.windows)
        length = int((windows["last_ns"] - windows["first_ns"]).sum())
        return int(windows["own_ns"].sum()) / length if length else None

    @cached_property
    def step_ns(self) -> float | None:
        """The mean time from the start of a step that counts to that of the next; None where no two are in a row."""
        return _mean(counted(self.steps)["step_ns"])

    @cached_property
    def pipeline_ns(self) -> float | None:
        """The mean pipeline time of a step that counts; None without steps."""
        return _mean(counted(self.steps)["pipeline_ns"])

    @cached_property
    def waits(self) -> pl.DataFrame:
        """The transfers without a message whose time was guessed from the gap that they leave: src_rank, dst_rank,
        direction (F, B), length_ns."""
        graph = self.graph
        rows = (graph.guessed & (graph.length > 0)).nonzero()[0]
        names = pl.Series(graph.kinds, dtype=pl.String).str.slice(-1)
        return pl.DataFrame(
            {"src_rank": graph.src[rows], "dst_rank": graph.dst[rows], "direction": names[graph.kind[rows]]}
        ).with_columns(pl.col("src_rank", "dst_rank").cast(pl.Int32), length_ns=pl.Series(graph.length[rows]))

    @cached_property
    def slices(self) -> pl.DataFrame:
        """Every idle stretch of every rank as a slice, sorted by (rank, start_ns).

        Columns: rank, stage, run, step, start_ns, end_ns, name (the cause, and the stage that is waited for), cause (a
        value of `CAUSES`), waits_for (the rank whose block is missing, where it is known), category (`bubble`).
        """
        windows = self.windows
        shown = windows.select(RANK_STEP_KEY)
        between = self._whole.idle.join(shown, on=RANK_STEP_KEY, how="semi", nulls_equal=True, maintain_order="left")
        between = between.select(
            *RANK_STEP_KEY,
            "start_ns",
            "end_ns",
            pl.col("cause").cast(pl.String).replace_strict(CAUSES),
            "waits_for",
        )
        parts = [
            _slice(windows, "warm_up", "step_start_ns", "first_ns"), between, *_tail_slices(self.whole.spans, windows)
        ]  # fmt: skip
        slices = pl.concat(parts).filter(pl.col("end_ns") > pl.col("start_ns"))
        places = self.whole.ranks.select("rank", "stage")
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


def _steps(profile: Profile, windows: pl.DataFrame) -> pl.DataFrame:
    """The table `Bubbles.steps` of all steps."""
    own_window, length = pl.col("last_ns") - pl.col("first_ns"), pl.col("step_end_ns") - pl.col("step_start_ns")
    steps = (
        windows.group_by(STEP_KEY)
        .agg(
            start_ns=pl.col("step_start_ns").min(),
            end_ns=pl.col("step_end_ns").max(),
            ranks=pl.len(),
            whole=pl.col("whole").first(),
            counts=pl.col("counts").first(),
            bubble=pl.when(length.sum() > 0).then(pl.col("global_ns").sum() / length.sum()),
            bubble_own=pl.when(own_window.sum() > 0).then(pl.col("own_ns").sum() / own_window.sum()),
            pipeline_ns=length.mean().round().cast(pl.Int64),
        )
        .sort(STEP_KEY)
    )
    steps = with_window(steps, profile.spans).select(*SEGMENT, pl.exclude(SEGMENT)).with_columns(step_ns=_TO_NEXT)
    return steps.with_columns(uninterrupted(profile, "start_ns", "step_ns"))


def _mean(values: pl.Series) -> float | None:
    mean = values.mean()
    return float(mean) if isinstance(mean, float | int) else None


def _windows(spans: pl.DataFrame, steps: pl.DataFrame, places: pl.DataFrame) -> pl.DataFrame:
    """The table `Bubbles.windows`; `whole` and `counts` as `steps` (of schema `STEPS`) has them, else true."""
    columns = [*RANK_STEP_KEY, "start_ns", "end_ns"]
    work = ordered(only(spans.select("kind", *columns), pl.col("kind").is_in(WORK_KINDS)).select(columns), *columns)
    work = work.with_columns(run_number(*RANK_STEP_KEY))  # in this order each rank's step is a run of rows
    work = work.with_columns(before_ns=pl.col("end_ns").cum_max().shift(1).over("run_number"))
    gap = (pl.col("start_ns") - pl.col("before_ns")).clip(0)
    busy = pl.col("last_ns") - pl.col("first_ns") - pl.col("own_ns")
    replica = [*STEP_KEY, "replica"]
    return (
        work.lazy()
        .group_by("run_number")
        .agg(
            pl.col(RANK_STEP_KEY).first(), first_ns=pl.col("start_ns").min(), last_ns=pl.col("end_ns").max(),
            own_ns=gap.sum(),
        )
        .join(places.lazy(), on="rank", how="left")
        .with_columns(
            step_start_ns=pl.col("first_ns").min().over(replica), step_end_ns=pl.col("last_ns").max().over(replica)
        )
        .with_columns(busy_ns=busy)
        .with_columns(global_ns=pl.col("step_end_ns") - pl.col("step_start_ns") - pl.col("busy_ns"))
        .join(steps.lazy(), on=STEP_KEY, how="left", nulls_equal=True)
        .with_columns(pl.col("whole", "counts").fill_null(True))
        .select(
            *STEP_KEY, "rank", "stage", "replica", "whole", "counts", "first_ns", "last_ns", "step_start_ns",
            "step_end_ns", "busy_ns", "global_ns", "own_ns",
        )
        .sort(*STEP_KEY, "rank")
        .collect()
    )  # fmt: skip


def _tail(spans: pl.DataFrame, windows: pl.DataFrame) -> pl.DataFrame:
    """The parts of the optimizer's blocks between a rank's last block and the end of the step, as (rank, run, step,
    start_ns, end_ns, from_ns) without overlap: from_ns is the begin of the stretch before each."""
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
    """The time between a rank's last block and the end of the step, without the optimizer, which is drawn already."""
    tail = _tail(spans, windows)
    ended = tail.group_by(RANK_STEP_KEY).agg(pl.col("end_ns").max().alias("tail_ns"))
    rest = windows.join(ended, on=RANK_STEP_KEY, how="left", nulls_equal=True)
    return [
        _slice(tail, "cool_down", "from_ns", "start_ns"),
        _slice(rest, "cool_down", pl.coalesce("tail_ns", "last_ns"), "step_end_ns"),
    ]


def _slice(frame: pl.DataFrame, cause: str, start: str | pl.Expr, end: str | pl.Expr) -> pl.DataFrame:
    start = pl.col(start) if isinstance(start, str) else start
    end = pl.col(end) if isinstance(end, str) else end
    return frame.select(
        *RANK_STEP_KEY, start_ns=start, end_ns=end, cause=pl.lit(CAUSES[cause]), waits_for=pl.lit(None, pl.Int32)
    )
