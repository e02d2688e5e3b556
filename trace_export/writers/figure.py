"""What a picture of the chart shows, before any ink: its rows, its steps, and the blocks with their labels.

`svg` draws it still, `page` draws it to be zoomed. Only the pipeline's own rows are in it (stages, models, bubbles);
device tasks and counters belong to the trace viewer.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass

import polars as pl

from trace_export.chart.chart import Chart, Track
from trace_export.errors import NothingToExportError

NAMES = {
    "F": "forward",
    "B": "backward",
    "W": "weight gradient",
    "FB": "forward + backward, overlapped",
    "OPT": "optimizer",
    "": "other work",
}
"""The kinds of block in the order of the legend; "" is a block without kind."""

_OPTIONAL = {"kind": pl.String, "microbatch": pl.Int32, "microbatch_b": pl.Int32, "chunk": pl.Int32,
             "stage": pl.Int32, "run": pl.Int32, "step": pl.Int32}  # fmt: skip


@dataclass(frozen=True)
class Bubbles:
    """The idle share of each stage in each step. `shares` has run, step, stage and share (0 … 1); `definition` is a
    phrase that completes "bubble: " so that no reader has to guess which of the two bubbles it is."""

    shares: pl.DataFrame
    definition: str


@dataclass(frozen=True)
class Row:
    """A line of the picture: a track of the chart with all its lanes. `stage` is null where it mixes several."""

    name: str
    lanes: int
    stage: int | None


@dataclass(frozen=True)
class Figure:
    """`blocks`: row, lane, run, step, kind ("" for none), chunk, label, name, start_ns, end_ns, then the arguments of
    the chart's slices; sorted by (row, lane, start_ns). `steps`: run, step, start_ns, end_ns, name, sorted by start.
    """

    title: str
    rows: tuple[Row, ...]
    steps: pl.DataFrame
    blocks: pl.DataFrame
    chunks: int
    bubbles: Bubbles | None

    @property
    def remarks(self) -> list[str]:
        """What the picture shows but the data do not say."""
        guessed = {"labels": "The numbers in some blocks", "origin": "The times of some blocks"}
        return [
            f"{what} are inferred, not recorded."
            for column, what in guessed.items()
            if column in self.blocks.columns and (self.blocks[column] == "inferred").any()
        ]

    def share(self, run: int | None, step: int | None, stage: int | None) -> float | None:
        """The bubble of a stage in a step, where it is known; without a run, of the only run."""
        if self.bubbles is None or stage is None:
            return None
        asked = {"run": run, "step": step, "stage": stage}
        found = self.bubbles.shares.filter(pl.col(key) == value for key, value in asked.items() if value is not None)
        return found["share"].first() if len(found) else None  # type: ignore[return-value]

    @property
    def kinds(self) -> list[str]:
        """The kinds that occur, in the order of the legend."""
        present = set(self.blocks["kind"].unique())
        return [kind for kind in NAMES if kind in present]


def figure(chart: Chart, steps: Container[int] | None = None, bubbles: Bubbles | None = None) -> Figure:
    """The picture of `chart`, of the `steps` only where some are given.

    Raises NothingToExportError when no block is left.
    """
    tracks = _row_tracks(chart)
    places = pl.DataFrame(
        [(track.id, row, track.lane) for row, lanes in enumerate(tracks) for track in lanes],
        schema={"track": pl.UInt32, "row": pl.UInt32, "lane": pl.UInt32},
        orient="row",
    )
    slices = chart.main.slices
    missing = [pl.lit(None, dtype).alias(name) for name, dtype in _OPTIONAL.items() if name not in slices.columns]
    blocks = slices.with_columns(missing).filter(pl.col("category").ne_missing("step")).join(places, on="track")
    if steps is not None:
        wanted = [step for step in blocks["step"].drop_nulls().unique() if step in steps]
        blocks = blocks.filter(pl.col("step").is_in(wanted))
    if blocks.is_empty():
        raise NothingToExportError("no block to draw", "widen --steps")
    blocks = blocks.select(
        "row", "lane", "start_ns", "end_ns", "name", pl.col("kind").fill_null(""), _label(),
        pl.exclude("track", "row", "lane", "start_ns", "end_ns", "name", "kind", "category", "seed", "flow_out", "flow_in"),
    ).sort("row", "lane", "start_ns", "end_ns", maintain_order=True)  # fmt: skip
    chunks = (blocks["chunk"].max() or 0) + 1  # type: ignore[operator]
    return Figure(chart.title, _rows(tracks, blocks), _steps(blocks), blocks, chunks, bubbles)


def _row_tracks(chart: Chart) -> list[list[Track]]:
    """The tracks that hold blocks, one list of lanes per line that is seen, in the chart's order."""
    tracks = {track.id: track for track in chart.main.tracks}

    def place(track: Track) -> tuple[int, ...]:
        return () if track.parent is None else (*place(tracks[track.parent]), track.order)

    lines: dict[tuple[tuple[int, ...], str], list[Track]] = {}
    for number in sorted(chart.main.slices.filter(pl.col("category").ne_missing("step"))["track"].unique()):
        track = tracks[number]
        lines.setdefault((place(track), track.name), []).append(track)
    return [lines[key] for key in sorted(lines)]


def _rows(tracks: list[list[Track]], blocks: pl.DataFrame) -> tuple[Row, ...]:
    stages = dict(
        blocks.group_by("row")
        .agg(pl.when(pl.col("stage").n_unique() == 1).then(pl.col("stage").first()))
        .iter_rows()
    )
    return tuple(
        Row(lanes[0].name, max(track.lane for track in lanes) + 1, stages.get(row)) for row, lanes in enumerate(tracks)
    )


def _label() -> pl.Expr:
    """What stands in a block: the micro-batch's number, as in the papers; the name where there is none."""
    forward = pl.col("microbatch").cast(pl.String)
    pair = pl.concat_str(forward, pl.lit("+"), pl.col("microbatch_b").cast(pl.String))
    plain = pl.when(pl.col("kind").is_in(["F", "B", "W"])).then(forward)
    return plain.when(pl.col("kind") == "FB").then(pair).otherwise("name").fill_null("").alias("label")


def _steps(blocks: pl.DataFrame) -> pl.DataFrame:
    several_runs = blocks["run"].n_unique() > 1
    words = [pl.format("run {} ·", pl.col("run"))] if several_runs else []
    name = pl.concat_str([*words, pl.format("step {}", pl.col("step"))], separator=" ", ignore_nulls=True)
    return (
        blocks.group_by("run", "step")
        .agg(pl.col("start_ns").min(), pl.col("end_ns").max())
        .sort("start_ns", "run", "step")
        .with_columns(name=pl.when(pl.col("step").is_null()).then(pl.lit("outside of any step")).otherwise(name))
    )
