"""Renderer-independent layout of a picture: its rows, its steps, and the blocks with their labels.

`svg` draws it as a still picture, `page` as an interactive one. It has only the rows of the pipeline (stages, models,
bubbles); device tasks and counters are for the trace viewer.
"""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from trace_export.chart.chart import SLICES, Chart, Track
from trace_export.chart.colours import shade
from trace_export.errors import NothingToExportError
from trace_export.selection import Numbers

NAMES = {
    "F": "forward",
    "B": "backward",
    "W": "weight gradient",
    "FB": "forward + backward, overlapped",
    "OPT": "optimizer",
    "": "other work",
}
"""The kinds of block in the order of the legend; "" is a block without kind."""

BUBBLE = (
    "bubble: share of the step, from its first block to its last over all ranks, in which this rank runs no forward, "
    "backward or weight block (global bubble)"
)

_OPTIONAL = {
    "kind": pl.String, "microbatch": pl.Int32, "microbatch_b": pl.Int32, "chunk": pl.Int32, "rank": pl.Int32,
    "stage": pl.Int32, "run": pl.Int32, "step": pl.Int32, "cause": pl.String, "of_run": pl.String,
}  # fmt: skip


@dataclass(frozen=True)
class Row:
    """A line of the picture: a track of the chart with all its lanes. `rank` and `stage` are None on a model's row;
    `of_run` names the run where it is not that of the chart."""

    name: str
    lanes: int
    rank: int | None
    stage: int | None = None
    of_run: str | None = None


@dataclass(frozen=True)
class Figure:
    """`blocks`: row, lane, start_ns, end_ns, name, label, fill (a hex colour), kind (a key of `NAMES`, or what idle
    time is due to), then the arguments of the chart's slices; sorted by (row, lane, start_ns). `steps`: run, step,
    start_ns, end_ns, name, by start; last what is of no step.
    """

    title: str
    rows: tuple[Row, ...]
    steps: pl.DataFrame
    blocks: pl.DataFrame
    chunks: int
    bubbles: pl.DataFrame | None

    @property
    def remarks(self) -> list[str]:
        """Remarks below the picture: the meaning of the numbers, and what was inferred."""
        guessed = {"labels": "The numbers in some blocks", "origin": "The times of some blocks"}
        remarks = [BUBBLE] if self.bubbles is not None else []
        return remarks + [
            f"{what} are inferred, not recorded."
            for column, what in guessed.items()
            if column in self.blocks.columns and (self.blocks[column] == "inferred").any()
        ]

    def shares(self, run: int | None, step: int | None) -> list[float | None]:
        """Each row's bubble in a step, where it is known. A chart without runs is one of a single run."""
        if self.bubbles is None:
            return [None] * len(self.rows)
        same_run = pl.lit(True) if run is None else pl.col("run") == run
        length = pl.col("step_end_ns") - pl.col("step_start_ns")
        of_step = self.bubbles.filter(same_run, pl.col("step").eq_missing(step), length > 0)
        if "of_run" not in of_step.columns:
            of_step = of_step.with_columns(of_run=pl.lit(None, pl.String))
        shares = of_step.select("of_run", "rank", pl.col("global_ns") / length).iter_rows()
        found = {(of_run, rank): share for of_run, rank, share in shares}
        return [found.get((row.of_run, row.rank)) if row.rank is not None else None for row in self.rows]

    @property
    def lane_height(self) -> float:
        """In pixels; smaller with many rows, to bound the height of the picture."""
        count = len(self.rows)
        return 24.0 if count <= 16 else 18.0 if count <= 32 else 13.0 if count <= 512 else max(13.0 * 512 / count, 2.0)

    @property
    def gap(self) -> float:
        """Pixels between rows."""
        return min(2.0, 0.2 * self.lane_height)

    @property
    def names_every(self) -> int:
        """Which rows have their name written: each one where there is room."""
        return max(1, round(12 / self.lane_height))

    @property
    def legend(self) -> list[tuple[str, str]]:
        """The fills that have a meaning, with their labels."""
        present = self.blocks["kind"].unique().sort()
        chunks = self.blocks["chunk"].fill_null(0).unique().sort() if self.chunks > 1 else ()
        return [
            *((shade(kind, 0, 1), words) for kind, words in NAMES.items() if kind in present),
            *((shade("F", chunk, self.chunks), f"chunk {chunk}") for chunk in chunks),
            *((shade(cause, 0, 1), f"idle: {cause}") for cause in present if cause not in NAMES),
        ]


def figure(chart: Chart, steps: Numbers | None = None, bubbles: pl.DataFrame | None = None) -> Figure:
    """The picture of `chart`, of the `steps` only where some are given.

    `bubbles`, of which each row's bubble is taken: run, step, rank, step_start_ns, step_end_ns, global_ns (the rank's
    idle time between the two), and whole, which is false for steps that are marked as incomplete.
    Raises NothingToExportError when no block is left.
    """
    tracks = _row_tracks(chart)
    slices = _slices(chart, tracks)
    if steps is not None:
        wanted = [step for step in slices["step"].drop_nulls().unique() if step in steps]
        slices = slices.filter(pl.col("step").is_in(wanted))
    if slices.is_empty():
        raise NothingToExportError("no block to draw", "widen --steps")
    chunks = 1 + int(slices.select(pl.col("chunk").max().fill_null(0)).item())
    blocks = slices.with_columns(label=_label(), fill=_fill(slices, chunks))
    first = ["row", "lane", "start_ns", "end_ns", "name", "label", "fill", "kind"]
    facts = [name for name in blocks.columns if name not in (*first, *SLICES)]
    blocks = blocks.select(*first, *facts).sort("row", "lane", "start_ns", "end_ns", maintain_order=True)
    return Figure(chart.title, _rows(tracks, slices), _marked(_steps(blocks), bubbles), blocks, chunks, bubbles)


def _slices(chart: Chart, tracks: list[list[Track]]) -> pl.DataFrame:
    """The slices on `tracks` with their row and lane, and with all the columns that a picture looks at."""
    places = pl.DataFrame(
        [(track.id, row, track.lane) for row, lanes in enumerate(tracks) for track in lanes],
        schema={"track": pl.UInt32, "row": pl.UInt32, "lane": pl.UInt32},
        orient="row",
    )
    slices = chart.main.slices
    missing = [pl.lit(None, dtype).alias(name) for name, dtype in _OPTIONAL.items() if name not in slices.columns]
    slices = slices.with_columns(missing).join(places, on="track")
    block = pl.col("category") == "block"
    kind = pl.coalesce("kind", pl.when(block).then(pl.lit("")).otherwise(pl.coalesce("cause", "name")))
    if slices.filter(block)["run"].drop_nulls().is_empty():  # one run only, whatever added slices say of it
        slices = slices.with_columns(run=pl.lit(None, pl.Int32))
    return slices.with_columns(kind=kind)


def _row_tracks(chart: Chart) -> list[list[Track]]:
    """The tracks of blocks, one list of lanes per line that is seen, in the chart's order. What lies in groups below
    the root is detail of the ranks, not of the pipeline."""
    tracks = {track.id: track for track in chart.main.tracks}

    def path(track: Track) -> list[Track]:
        return [] if track.parent is None else [*path(tracks[track.parent]), track]

    lines: dict[tuple[tuple[int, ...], str], list[Track]] = {}
    for number in sorted(chart.main.slices.filter(pl.col("category").ne_missing("step"))["track"].unique()):
        line = path(tracks[number])
        if all(track.kind == "slices" for track in line):
            place = tuple(track.order for track in line)
            lines.setdefault((place, tracks[number].name), []).append(tracks[number])
    return [lines[key] for key in sorted(lines)]


def _rows(tracks: list[list[Track]], slices: pl.DataFrame) -> tuple[Row, ...]:
    measured = slices.filter(pl.col("category") == "block")
    found = measured.group_by("row").agg(pl.col("rank", "stage", "of_run").first())
    places = {row: (rank, stage, of_run) for row, rank, stage, of_run in found.iter_rows()}
    return tuple(
        Row(
            lanes[0].flat or lanes[0].name, max(track.lane for track in lanes) + 1, *places.get(row, (None, None, None))
        )
        for row, lanes in enumerate(tracks)
    )


def _label() -> pl.Expr:
    """The text in a block: the number of the micro-batch, as in the papers; the name where there is none."""
    forward = pl.col("microbatch").cast(pl.String)
    pair = pl.concat_str(forward, pl.lit("+"), pl.col("microbatch_b").cast(pl.String))
    plain = pl.when(pl.col("kind").is_in(["F", "B", "W"])).then(forward)
    return plain.when(pl.col("kind") == "FB").then(pair).otherwise(pl.col("name")).fill_null("")


def _fill(blocks: pl.DataFrame, chunks: int) -> pl.Series:
    """The colour of each block, by its kind and its chunk (none: the first)."""
    keys = blocks.select("kind", pl.col("chunk").fill_null(0))
    different = keys.unique()
    fills = [shade(kind, chunk, chunks) for kind, chunk in different.iter_rows()]
    coloured = different.with_columns(fill=pl.Series(fills, dtype=pl.String))
    return keys.join(coloured, on=["kind", "chunk"], maintain_order="left")["fill"]


def _steps(blocks: pl.DataFrame) -> pl.DataFrame:
    several_runs = blocks["run"].n_unique() > 1
    words = [pl.format("run {} ·", pl.col("run"))] if several_runs else []
    name = pl.concat_str([*words, pl.format("step {}", pl.col("step"))], separator=" ", ignore_nulls=True)
    return (
        blocks.group_by("run", "step")
        .agg(pl.col("start_ns").min(), pl.col("end_ns").max())
        .sort(pl.col("step").is_null(), "start_ns", "run", "step")
        .with_columns(name=pl.when(pl.col("step").is_null()).then(pl.lit("outside of any step")).otherwise(name))
    )


def _marked(steps: pl.DataFrame, bubbles: pl.DataFrame | None) -> pl.DataFrame:
    """`steps` whose names say where a step is not whole. A chart without runs is one of a single run."""
    if bubbles is None or bubbles["whole"].all():
        return steps
    part = bubbles.filter(~pl.col("whole")).select("run", "step", mark=pl.lit(" (incomplete)")).unique()
    on = ["step"] if steps["run"].null_count() else ["run", "step"]
    marks = steps.join(part.unique(on), on=on, how="left", nulls_equal=True, maintain_order="left")["mark"]
    return steps.with_columns(pl.col("name") + marks.fill_null(""))
