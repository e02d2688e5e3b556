"""Lays a profile out as a chart: the tracks, their order and their slices.

PP chart · 1F1B · PP=4    the root of all, so that the Perfetto UI opens it by itself
 ├ Steps                  one slice per (run, step)
 ├ critical path          if wanted, its parts
 ├ stage 0 · rank 0       the blocks of the stage's first rank; under it, if wanted, those of its other ranks
 ├ stage 0 (…)            overlays below the stage: a model, bubbles, another run
 ├ stages busy            a counter
 ├ Activations in flight  a counter per stage
 ├ Counters               those of the source
 └ Ranks                  with a detail, per rank: its communication and its streams
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from trace_export.chart import device_tracks, step_tracks
from trace_export.chart.block_names import block_name, has_chunks
from trace_export.chart.builder import ROOT, Builder
from trace_export.chart.chart import Chart
from trace_export.chart.colours import NO_SEED, seed, task_seed
from trace_export.chart.critical_path import PathOverlay, add_path, marked
from trace_export.chart.descriptions import attributes, first_view, rank_text, root_text, title
from trace_export.chart.in_flight import add_in_flight
from trace_export.chart.size import drawn_ranks
from trace_export.choices import ColorBy, Detail, Tracks
from trace_export.model import Profile
from trace_export.ordering import ordered

__all__ = ["Chart", "ChartOptions", "Overlay", "lay_out"]

ROOM = 64
STEPS, STAGES, COUNTERS, RANKS = 0, ROOM, 1 << 24, 1 << 25
"""Where the children of the root stand. The k-th stage drawn has the ROOM places from STAGES + ROOM · k."""

ARGUMENTS = (
    "kind", "microbatch", "chunk", "microbatch_b", "chunk_b", "stage", "rank", "step", "run", "host", "origin",
    "marker", "phase", "labels",
)  # fmt: skip


@dataclass(frozen=True)
class Overlay:
    """Slices on tracks of their own, each below the track of its stage; those of stages that are not drawn are left
    out, or with `complete` below all others.

    `slices`: stage, start_ns, end_ns, name, and perhaps category, kind, microbatch, rank and seed, as in `chart.SLICES`
    and `model.SPANS`; all further columns are arguments. `track`: the name of the tracks, in which {} is the stage, and
    {rank} the rank of its slices.
    """

    track: str
    slices: pl.DataFrame
    complete: bool = False


@dataclass(frozen=True)
class ChartOptions:
    """What is drawn, and what other packages found out that the chart shows.

    `tracks`: one rank per stage, or all; `detail`: what lies below the ranks; `color_by`: what colours mean;
    `runs`: the names of this run and of the `other` one that is drawn under it;
    `clocks`: host → how its clock was corrected; `device_tasks`: reads those of `Profile.kernels` as they are drawn.
    `edges` (as from `pipeline.edges.drawable_edges`) become arrows if both blocks are drawn. `step_arguments` has the
    keys run and step; its other columns become arguments of the steps. `for_picture`: without steps, counters and
    arrows, which pictures do not show.
    """

    tracks: Tracks = "stage"
    detail: Detail = "spans"
    color_by: ColorBy = "kind"
    runs: tuple[str, str] | None = None
    other: Profile | None = None
    clocks: Mapping[str, str] = field(default_factory=dict)
    device_tasks: device_tracks.TaskBatches = device_tracks.no_tasks
    edges: pl.DataFrame | None = None
    step_arguments: pl.DataFrame | None = None
    overlays: tuple[Overlay, ...] = ()
    path: PathOverlay | None = None
    for_picture: bool = False


def lay_out(profile: Profile, options: ChartOptions | None = None) -> Chart:
    """The chart of `profile`; without options the blocks of one rank per stage, coloured by kind."""
    options = options or ChartOptions()
    builder = Builder()
    spans = profile.blocks.drop_nulls(["rank", "start_ns", "end_ns"])
    ranks = _ranks(profile, spans, options)
    drawn = [r for r in ranks if r["first"] or options.tracks == "rank"]
    blocks = _blocks(spans, ranks, options.color_by, builder.texts)
    if options.path is not None:
        blocks = marked(blocks, options.path)
    tracks = _add_tracks(builder, drawn, f" ({options.runs[0]})" if options.runs else "")
    edges = None if options.for_picture else options.edges
    _add_blocks(builder, _without_lone_run(profile, blocks), tracks, edges)
    if profile.evaluations.height:
        blocks = blocks.filter(pl.col("id") < profile.blocks["id"][profile.spans.height])
    if not options.for_picture:
        step_tracks.add_steps(builder, blocks, options.step_arguments, STEPS)
    if options.path is not None:
        add_path(builder, options.path, STEPS + 1)
    stage_tracks = {r["stage"]: tracks[r["rank"]] for r in drawn if r["stage"] is not None and r["first"]}
    overlays = [replace(each, slices=_without_lone_run(profile, each.slices)) for each in options.overlays]
    _add_overlays(builder, overlays, stage_tracks, options.color_by)
    if not options.for_picture:
        _add_counters(builder, profile, blocks, drawn)
    detailed = drawn if options.detail != "spans" else []
    on_devices = device_tracks.add_ranks(builder, profile, detailed, RANKS, options.device_tasks)
    starts = (
        builder.first_ns(),
        device_tracks.first_task_ns(profile, [r["rank"] for r in detailed], options.device_tasks),
    )
    origin = min((s for s in starts if s is not None), default=0)
    name = title(profile, options.runs, options.other)
    main, final = builder.part(name, root_text(profile, origin, options.clocks))
    on_devices = {rank: replace(each, group=final[each.group]) for rank, each in on_devices.items()}
    colour = task_seed() if options.color_by == "kind" else NO_SEED
    more = partial(
        device_tracks.tasks, profile, on_devices, options.device_tasks, first_id=len(main.tracks) + 1, seed=colour
    )
    facts = first_view(main, origin) | attributes(profile, origin, options.clocks)
    return Chart(name, origin, main, facts, more)


def _blocks(spans: pl.DataFrame, ranks: list[dict[str, Any]], color_by: ColorBy, texts: pl.Categorical) -> pl.DataFrame:
    """The spans with all that their slices carry, and their id. They come by `ranks`, as their tracks do, so that none
    need be moved once it has all its columns; their texts are of the type `texts`."""
    places = pl.DataFrame(ranks, {"rank": pl.Int32, "host": texts, "stage": pl.Int32}).with_row_index("place")
    columns = [name for name in ARGUMENTS if name not in places.columns]
    placed = (
        spans.select("id", "rank", "start_ns", "end_ns", *columns)
        .with_columns(pl.col(pl.String).cast(texts))
        .join(places, on="rank", how="left", maintain_order="left")
    )
    blocks = ordered(placed.with_columns(pl.col("place").fill_null(len(ranks))), "place")
    return blocks.select(
        "id", "start_ns", "end_ns",
        block_name(has_chunks(spans)).cast(texts),
        pl.lit("block", texts).alias("category"),
        seed(color_by).cast(texts),
        *ARGUMENTS,
    )  # fmt: skip


def _without_lone_run(profile: Profile, slices: pl.DataFrame) -> pl.DataFrame:
    """Without the number of the run where there is only one."""
    return slices.drop("run", strict=False) if profile.spans["run"].drop_nulls().n_unique() < 2 else slices


def _ranks(profile: Profile, spans: pl.DataFrame, options: ChartOptions) -> list[dict[str, Any]]:
    """The rows of `ranks` that have something to draw, by stage, with `first` (stands for its stage) and `text`."""
    present = set(spans["rank"].unique())
    if options.detail != "spans":
        present |= {file.rank for file in profile.kernels}
    ranks = (
        profile.ranks.filter(pl.col("rank").is_in(list(present)))
        .sort("stage", "rank", nulls_last=True)
        .with_columns(first=pl.col("rank").is_in(drawn_ranks(profile, "stage")))
    )
    return [{**rank, "text": rank_text(rank, options.clocks)} for rank in ranks.iter_rows(named=True)]


def _called(rank: Mapping[str, Any]) -> str:
    """What a rank's track is called."""
    return f"rank {rank['rank']}" if rank["stage"] is None else f"stage {rank['stage']} · rank {rank['rank']}"


def _add_tracks(builder: Builder, ranks: list[dict[str, Any]], run: str) -> dict[int, int]:
    """A track per rank, those of a stage's other ranks below its first one's; rank → track."""
    tracks: dict[int, int] = {}
    top = ROOT
    order = STAGES
    for rank in ranks:
        number = rank["rank"]
        name = _called(rank) + run
        if rank["first"]:
            top = tracks[number] = builder.track(name, order, description=rank["text"])
            order += ROOM
        else:
            track = builder.track(f"rank {number}", len(tracks), top, description=rank["text"], flat=name)
            tracks[number] = track
    return tracks


def _add_blocks(builder: Builder, blocks: pl.DataFrame, tracks: dict[int, int], edges: pl.DataFrame | None) -> None:
    """The blocks of the ranks in `tracks`, with the arrows between them."""
    shown = blocks.filter(pl.col("rank").is_in(list(tracks)))
    if edges is not None and not edges.is_empty():
        drawn, *ends = (ids.to_numpy() for ids in (shown["id"], edges["src"], edges["dst"]))
        row = np.full(max(int(ids.max(initial=0)) for ids in (drawn, *ends)) + 1, -1)
        row[drawn] = np.arange(len(drawn))
        src, dst = (row[ids] for ids in ends)
        both = (src >= 0) & (dst >= 0)
        flows = (_flows(rows[both], shown.height).alias(name) for rows, name in ((src, "flow_out"), (dst, "flow_in")))
        shown = shown.with_columns(flows)
    builder.slices(shown.drop("id"), pl.col("rank").replace_strict(tracks, return_dtype=pl.UInt32))


def _flows(rows: NDArray[np.int64], height: int) -> pl.Series:
    """For each of `height` rows the numbers (from 1) of the arrows that begin or end there, null where none does. The
    k-th arrow is at row `rows[k]`."""
    columns: list[pl.Series] = []
    arrows = np.arange(len(rows))
    while not columns or len(arrows):  # the first arrow of each row, then the second …
        numbers = np.zeros(height, np.uint64)
        numbers[rows[arrows[::-1]]] = arrows[::-1] + 1  # of several the last that is written stays, the first arrow
        columns.append(pl.Series(str(len(columns)), numbers))
        arrows = arrows[numbers[rows[arrows]] != arrows + 1]
    numbered = pl.DataFrame(columns).select(pl.when(pl.all() > 0).then(pl.all()))
    lists = pl.concat_list(pl.all()).list.drop_nulls() if len(columns) > 1 else pl.concat_list(pl.all())
    return numbered.select(pl.when(pl.col("0").is_not_null()).then(lists)).to_series()


def _add_counters(builder: Builder, profile: Profile, blocks: pl.DataFrame, drawn: list[dict[str, Any]]) -> None:
    """What is busy and in flight on each stage, and the counters of the profile."""
    firsts = [r["rank"] for r in drawn if r["first"]]
    of_firsts = blocks.filter(pl.col("rank").is_in(firsts))
    step_tracks.add_stages_busy(builder, of_firsts, COUNTERS)
    if profile.interpretation is not None:
        passes = profile.passes().filter(pl.col("rank").is_in(firsts))
        add_in_flight(builder, passes, profile.interpretation.placement, COUNTERS + 1)
    step_tracks.add_counters(builder, profile.counters, {r["rank"]: _called(r) for r in drawn}, COUNTERS + 2)


def _add_overlays(
    builder: Builder, overlays: Sequence[Overlay], stage_tracks: dict[int, int], color_by: ColorBy
) -> None:
    """The overlays, on tracks right below their stage's own one (`stage_tracks`: stage → track)."""
    order = {stage: STAGES + ROOM * number + 1 for number, stage in enumerate(stage_tracks)}
    columns = {"stage": pl.Int32, "kind": pl.String, "microbatch": pl.Int32, "rank": pl.Int32, "seed": pl.String}
    for overlay in overlays:
        slices = pl.concat([pl.DataFrame(schema=columns), overlay.slices], how="diagonal_relaxed")
        coloured = slices.with_columns(pl.coalesce("seed", seed(color_by)))
        further = coloured["stage"].drop_nulls().unique().sort().to_list() if overlay.complete else []
        for stage in further:
            order.setdefault(stage, STAGES + ROOM * len(order) + 1)
        for (stage,), group in coloured.group_by("stage", maintain_order=True):
            if stage in order:
                name = overlay.track.format(stage, rank=group["rank"].first())
                builder.slices(group, builder.track(name, order[stage]))
                order[stage] += 1
