"""Renderer-independent layout of a picture: its rows, its steps, and the blocks with their labels.

`svg` draws it as a still picture, `page` as an interactive one. It has only the rows of the pipeline (stages, models,
bubbles); device tasks and counters are for the trace viewer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import polars as pl
from polars import selectors

from trace_export.chart.block_names import KIND_LABELS
from trace_export.chart.chart import SLICES, Chart, Track
from trace_export.chart.colours import DIFFERENT, shade
from trace_export.chart.critical_path import TRACK
from trace_export.errors import NothingToExportError, UsageError
from trace_export.selection import Numbers
from trace_export.writers.pictures.panels import key, lengths, marked, ranged, shares, steps_of
from trace_export.writers.pictures.style import FigureStyle

BUBBLE = (
    "bubble: the share of the pipeline time in which the rank runs no forward, backward or weight block; the pipeline "
    "time of a step is from the first block of a replica to the end of its last of these, without the optimizer"
)

OTHER_RUN = "other run"
"""In place of the fill, in a legend: what lies behind the rows of another run."""
NOTABLE = 0.1
"""A block of another run whose length differs by more is marked."""

HOST_TIMES = "The times of blocks are those of the host, which issued their work, not of the device."
NO_PATH = "A step has no critical path if no step after it was recorded."
PAIR = "7+13: the forward of micro-batch 7, overlapped with the backward of micro-batch 13"

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
    """`panels`: run, step, start_ns, end_ns, name, length (what the heading says of it, null: the time that is drawn),
    shares (the bubble of each row, null where it is unknown), by start; last what is of no step. `blocks`: panel, row,
    lane, start_ns, end_ns, name, label, fill (a hex colour), kind (a key of `KIND_LABELS`, or what idle time is due
    to), longer (of a block of another run 1 or -1, where it is longer or shorter than the same block of the first one
    by more than `NOTABLE`, else 0), then the arguments of the chart's slices; sorted by (row, lane, start_ns).
    `has_shares`: whether bubbles were measured.
    """

    title: str
    rows: tuple[Row, ...]
    panels: pl.DataFrame
    blocks: pl.DataFrame
    chunks: int
    has_shares: bool
    style: FigureStyle = FigureStyle()

    def only(self, panel: int) -> Figure:
        """The figure of one of its panels."""
        blocks = self.blocks.filter(pl.col("panel") == panel).with_columns(panel=pl.lit(0, pl.UInt32))
        return replace(self, panels=self.panels[[panel]], blocks=blocks)

    def with_pauses(self, steps: pl.DataFrame) -> Figure:
        """The figure whose panels last to the next step, as a training log counts, where `steps` (run, step, step_ns)
        says how long that is."""
        on = key(self.panels)
        lengths = steps.select(*on, "step_ns").unique(on, keep="none")
        joined = self.panels.join(lengths, on=on, how="left", nulls_equal=True, maintain_order="left")
        end = pl.max_horizontal("end_ns", pl.col("start_ns") + pl.col("step_ns"))
        return replace(self, panels=joined.with_columns(end_ns=end).drop("step_ns"))

    @property
    def remarks(self) -> list[str]:
        """Remarks below the picture: the meaning of the numbers, and what was inferred."""

        def some(column: str, value: str) -> bool:
            return column in self.blocks.columns and bool((self.blocks[column] == value).any())

        remarks = {
            BUBBLE: self.has_shares,
            PAIR: some("kind", "FB"),
            "Micro-batches are numbered from 1 here, and from 0 in the data.": self.style.first_microbatch,
            "The numbers in some blocks are inferred, not recorded.": some("labels", "inferred"),
            "The times of some blocks are inferred, not recorded.": some("origin", "inferred"),
            HOST_TIMES: some("origin", "host"),
            NO_PATH: self._lacks_path,
        }
        return [remark for remark, holds in remarks.items() if holds]

    @property
    def _lacks_path(self) -> bool:
        """Whether the critical path is drawn, but not in every step."""
        rows = [number for number, row in enumerate(self.rows) if row.name == TRACK]
        drawn = self.blocks.filter(pl.col("row").is_in(rows))["panel"].n_unique()
        return bool(rows) and drawn < self.panels["step"].count()

    @property
    def hatched(self) -> bool:
        """Whether a still picture hatches idle time."""
        return self.style.theme == "grayscale"

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
        """The fills that have a meaning, with their labels; none where the style leaves them out."""
        if self.style.legend == "none":
            return []
        present = self.blocks["kind"].unique().sort()
        later = self.blocks["chunk"].unique().drop_nulls().sort().to_list()[1:] if self.chunks > 1 else []
        kinds = [kind for kind in KIND_LABELS if kind in present]
        theme = self.style.theme
        return [
            *((shade(kind, 0, 1, theme), KIND_LABELS[kind]) for kind in kinds),
            *(
                (shade(kinds[0], chunk, self.chunks, theme), f"{KIND_LABELS[kinds[0]]} of chunk {chunk}")
                for chunk in later
            ),
            *((shade(cause, 0, 1, theme), f"idle: {cause}") for cause in present if cause not in KIND_LABELS),
            *((OTHER_RUN, name) for name in dict.fromkeys(row.of_run for row in self.rows) if name is not None),
            *(
                (DIFFERENT[way], f"{word} than in the first run by more than {NOTABLE:.0%}")
                for way, word in ((1, "longer"), (-1, "shorter"))
                if (self.blocks["longer"] == way).any()
            ),
        ]


def figure(
    chart: Chart,
    steps: Numbers | None = None,
    bubbles: pl.DataFrame | None = None,
    style: FigureStyle = FigureStyle(),
    zero_ns: int | None = None,
) -> Figure:
    """The picture of `chart`, of the `steps` only where some are given.

    `bubbles`: the bubble of each row: run, step, rank, step_start_ns, step_end_ns, global_ns (the rank's
    idle time between the two), and whole, which is false for steps that are marked as incomplete. A picture of a
    `style.range` has no bubbles: they are those of whole steps. `zero_ns`: the time from which that range
    counts; None: the first block drawn.
    Raises NothingToExportError when no block is left.
    """
    if bubbles is not None and "of_run" not in bubbles.columns:
        bubbles = bubbles.with_columns(of_run=pl.lit(None, pl.String))
    tracks = _row_tracks(chart)
    slices = _slices(chart, tracks)
    if steps is not None:
        wanted = [step for step in slices["step"].drop_nulls().unique() if step in steps]
        slices = slices.filter(pl.col("step").is_in(wanted))
    rows = _rows(tracks, slices)
    if style.width_mm is not None:
        rows = _shortened(rows)
    if style.range is not None:
        slices, panels = ranged(slices, style.range, zero_ns)
        bubbles = None
    else:
        panels = marked(steps_of(slices), bubbles)
    if slices.is_empty():
        raise NothingToExportError("no block to draw", "widen `figure.range`" if style.range else "widen `steps`")
    owners = [(row.of_run, row.rank) for row in rows]
    panels = panels.with_columns(
        shares=shares(panels, owners, bubbles), length=lengths(panels, _drawn(bubbles, owners))
    )
    chunks = 1 + int(slices.select(pl.col("chunk").max().fill_null(0)).item())
    blocks = slices.with_columns(
        _panel(slices, panels, style), label=_label(style), fill=_fill(slices, chunks, style), longer=_longer(slices)
    )
    first = ["panel", "row", "lane", "start_ns", "end_ns", "name", "label", "fill", "kind", "longer"]
    facts = [name for name in blocks.columns if name not in (*first, *SLICES)]
    blocks = blocks.select(*first, *facts).sort("row", "lane", "start_ns", "end_ns", maintain_order=True)
    title = chart.title if style.title is None else style.title
    return Figure(title, rows, panels, blocks, chunks, bubbles is not None, style)


def _drawn(bubbles: pl.DataFrame | None, owners: Sequence[tuple[str | None, int | None]]) -> pl.DataFrame | None:
    """The bubbles of the rows that are drawn; all where no row is that of a rank."""
    ranks = [rank for _, rank in owners if rank is not None]
    return bubbles.filter(pl.col("rank").is_in(ranks)) if bubbles is not None and ranks else bubbles


def one_below_another(figures: Sequence[tuple[str, Figure]], title: str) -> Figure:
    """One picture of several, each of a single panel, named as given; all on one scale of time. Their rows are those of
    the same numbers, under the names of the first. In the data one picture follows the other, so that a page that
    shows a part of the time shows one of them.

    Raises UsageError where they have different numbers of rows.
    """
    (_, first), *others = figures
    if any(len(other.rows) != len(first.rows) for _, other in others):
        raise UsageError("pictures of different numbers of rows have no common rows", "draw each by itself")
    panels, blocks, start = [], [], 0
    for number, (name, figure) in enumerate(figures):
        panel = figure.panels.head(1)
        shift = start - int(panel["start_ns"].item())
        times = pl.col("start_ns", "end_ns") + shift
        panels.append(panel.with_columns(times, run=pl.lit(number, pl.Int32), name=pl.lit(name)))
        blocks.append(figure.blocks.with_columns(times, panel=pl.lit(number, pl.UInt32)))
        start += int((panel["end_ns"] - panel["start_ns"]).item())
    rows = tuple(
        replace(row, lanes=max(figure.rows[at].lanes for _, figure in figures)) for at, row in enumerate(first.rows)
    )
    return replace(
        first,
        title=title if first.style.title is None else first.style.title,
        rows=rows,
        panels=pl.concat(panels),
        blocks=pl.concat(blocks, how="diagonal_relaxed").sort("row", "lane", "start_ns", maintain_order=True),
        chunks=max(figure.chunks for _, figure in figures),
        has_shares=all(figure.has_shares for _, figure in figures),
    )


def _slices(chart: Chart, tracks: list[list[Track]]) -> pl.DataFrame:
    """The slices on `tracks` with their row and lane, and with all the columns that a picture looks at."""
    lines = pl.DataFrame(
        [(track.id, row, track.lane) for row, lanes in enumerate(tracks) for track in lanes],
        schema={"track": pl.UInt32, "row": pl.UInt32, "lane": pl.UInt32},
        orient="row",
    )
    slices = chart.main.slices.with_columns(selectors.categorical().cast(pl.String))
    missing = [pl.lit(None, dtype).alias(name) for name, dtype in _OPTIONAL.items() if name not in slices.columns]
    slices = slices.with_columns(missing).join(lines, on="track")
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
            order = tuple(track.order for track in line)
            lines.setdefault((order, tracks[number].name), []).append(tracks[number])
    return [lines[key] for key in sorted(lines)]


def _rows(tracks: list[list[Track]], slices: pl.DataFrame) -> tuple[Row, ...]:
    measured = slices.filter(pl.col("category") == "block")
    firsts = measured.group_by("row").agg(pl.col("rank", "stage", "of_run").first())
    of_rows = {row: (rank, stage, of_run) for row, rank, stage, of_run in firsts.iter_rows()}
    return tuple(
        Row(
            lanes[0].flat or lanes[0].name,
            max(track.lane for track in lanes) + 1,
            *of_rows.get(row, (None, None, None)),
        )
        for row, lanes in enumerate(tracks)
    )


def _shortened(rows: tuple[Row, ...]) -> tuple[Row, ...]:
    """`rows` without what their names have after the stage, where the stage alone names each."""
    names = [row.name.partition(" · ")[0] for row in rows]
    if len({*names}) < len(names):
        return rows
    return tuple(replace(row, name=name) for row, name in zip(rows, names, strict=True))


def _panel(slices: pl.DataFrame, panels: pl.DataFrame, style: FigureStyle) -> pl.Series:
    """The number of the panel of each slice."""
    if style.range is not None:
        return pl.repeat(0, slices.height, dtype=pl.UInt32, eager=True).alias("panel")
    numbered = panels.select("run", "step").with_row_index("panel")
    keys = slices.select("run", "step")
    return keys.join(numbered, on=["run", "step"], how="left", nulls_equal=True, maintain_order="left")["panel"]


def _label(style: FigureStyle) -> pl.Expr:
    """The text in a block: the number of the micro-batch, as in the papers; the name where there is none."""
    forward, backward = (
        (pl.col(name) + style.first_microbatch).cast(pl.String) for name in ("microbatch", "microbatch_b")
    )
    letter, after = (pl.col("kind"), pl.lit("B")) if style.lettered else (pl.lit(""), pl.lit(""))
    plain = pl.when(pl.col("kind").is_in(["F", "B", "W"])).then(pl.concat_str(letter, forward))
    pair = pl.concat_str(pl.lit("F" if style.lettered else ""), forward, pl.lit("+"), after, backward)
    other = pl.when(pl.col("kind") == "OPT").then(pl.lit("OPT")).otherwise(pl.col("name"))
    return plain.when(pl.col("kind") == "FB").then(pair).otherwise(other).fill_null("")


SAME_BLOCK = ["run", "step", "stage", "kind", "microbatch", "microbatch_b", "chunk"]


def _longer(slices: pl.DataFrame) -> pl.Series:
    """Whether a block of another run is longer (1) or shorter (-1) than the same block of the first, by a share that is
    notable; 0 where it is not, or has no such block."""
    length = (pl.col("end_ns") - pl.col("start_ns")).alias("length")
    first = (
        slices.filter(pl.col("category") == "block", pl.col("of_run").is_null()).group_by(SAME_BLOCK).agg(length.mean())
    )
    change = slices.select(*SAME_BLOCK, "of_run", own=length).join(
        first, on=SAME_BLOCK, how="left", nulls_equal=True, maintain_order="left"
    )
    share = (
        pl.when(pl.col("of_run").is_not_null()).then(pl.col("own") / pl.col("length") - 1).fill_nan(None).fill_null(0.0)
    )
    return change.select(
        longer=pl.when(share > NOTABLE).then(1).when(share < -NOTABLE).then(-1).otherwise(0).cast(pl.Int8)
    )["longer"]


def _fill(blocks: pl.DataFrame, chunks: int, style: FigureStyle) -> pl.Series:
    """The colour of each block, by its kind and its chunk (none: the first)."""
    keys = blocks.select("kind", pl.col("chunk").fill_null(0))
    different = keys.unique()
    fills = [shade(kind, chunk, chunks, style.theme) for kind, chunk in different.iter_rows()]
    coloured = different.with_columns(fill=pl.Series(fills, dtype=pl.String))
    return keys.join(coloured, on=["kind", "chunk"], maintain_order="left")["fill"]
