"""Out of the house: a profile → its chart → the files in the formats that were asked for.

A trace that a browser could not hold is announced, or written as several files of whole steps each. What only some runs
draw is imported when they do.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import polars as pl

from trace_export.analysis.bubbles import bubble_slices, rank_bubbles, step_bubbles
from trace_export.chart.block_names import block_name, has_chunks
from trace_export.chart.chart import Chart
from trace_export.chart.colours import ColorBy
from trace_export.chart.layout import ChartOptions, lay_out
from trace_export.clocks import alignment_file
from trace_export.cut import cut
from trace_export.errors import UsageError
from trace_export.model import INT, SPANS, TEXT, Detail, Note, Profile, conform
from trace_export.pipeline import edges as dependencies
from trace_export.schedules.schedule import readable
from trace_export.selection import Numbers
from trace_export.writers import tables
from trace_export.writers.atomic import whole
from trace_export.writers.traces import chrome, perfetto

if TYPE_CHECKING:
    from trace_export.analysis.report import Report

FORMATS = {
    "perfetto": "pftrace",
    "chrome": "json",
    "svg": "svg",
    "png": "png",
    "html": "html",
    "parquet": "parquet",
    "csv": "csv",
}
"""Output format → file name extension."""
STEM = "pipeline_profile"
TRACES = {"perfetto": perfetto.write, "chrome": chrome.write}
TABLES = {"parquet": tables.write_parquet, "csv": tables.write_csv}
TRACKS = ("stage", "rank")
COLOR_BY: tuple[ColorBy, ...] = ("kind", "microbatch", "rank", "none")
MANY_RANKS = 64
"""Above this, the summary says which ranks stand for their stages."""
BROWSER_SLICES = 3_000_000
"""With arguments, more slices than a tab of a browser holds (2 GB at some 600 bytes a slice)."""

Progress = Callable[[str, int, int], None]
"""Called with what is being done, how much of it is done, and out of how much."""


def silent(what: str, done: int, total: int) -> None:
    """The progress of nobody who looks."""


@dataclass(frozen=True)
class WriteOptions:
    """What to write. `out` is a folder, or a file for a single format; None: the log_dir. `steps` are those that the
    user asked for; where it is None, a picture that cannot be zoomed shows the first ones only. More than `max_slices`
    in a trace make it several files. `beside` is another run to draw under this one, as `B`."""

    formats: tuple[str, ...] = ("perfetto", "chrome")
    out: Path | None = None
    gzip: bool = False
    tracks: str = "stage"
    color_by: str = "kind"
    bubbles: bool = False
    model: bool = False
    max_slices: int | None = None
    steps: Numbers | None = None
    beside: Profile | None = None


def draw(profile: Profile, options: WriteOptions, detail: Detail) -> Chart:
    """The chart of a profile: tracks, slices, arrows, counters; and what analysis and theory add to it."""
    added = []
    if options.bubbles:
        idle = bubble_slices(profile).filter(pl.col("rank") == pl.col("rank").min().over("stage"))
        added.append(idle.with_columns(track=pl.format("stage {} · idle", "stage")))
    if options.model:
        from trace_export.analysis.durations import model_of

        model = conform(model_of(profile), SPANS | {"stage": INT, "track": TEXT})
        added.append(model.with_columns(block_name(has_chunks(profile.spans))))
    if options.beside is not None:
        from trace_export.chart.comparison import beside

        added.append(beside(options.beside, profile, "B"))
    return lay_out(
        profile,
        ChartOptions(
            tracks="rank" if options.tracks == "rank" else "stage",
            detail=detail,
            color_by=next(choice for choice in COLOR_BY if choice == options.color_by),
            schedule=readable(profile.declared.schedule),
            edges=_arrows(profile),
            step_arguments=step_bubbles(profile).select("run", "step", (100 * pl.col("bubble")).alias("bubble %")),
            added=tuple(added),
        ),
    )


def _arrows(profile: Profile) -> pl.DataFrame:
    """The edges that can be drawn: no viewer has arrows that lead back in time."""
    edges = dependencies.block_edges(profile)
    return edges.filter(~dependencies.back_in_time(edges, profile.spans))


def write(
    profile: Profile, options: WriteOptions, log_dir: Path, detail: Detail = "spans", progress: Progress = silent
) -> list[Path]:
    """The files written, in each format one, or one for each range of steps; and `clock_alignment.json` where several
    hosts were aligned.

    Raises OutputError when a file cannot be written; those already written stay.
    """
    targets = output_paths(options, log_dir)
    parts = pieces(profile, options, detail) if set(TRACES) & set(targets) else []
    written: list[Path] = []

    def put(path: Path, write_to: Callable[[Path], None]) -> None:
        progress(f"writing {path.name}", len(written), len(targets))
        with whole(path) as temporary:
            write_to(temporary)
        written.append(path)

    for steps, piece in parts:
        chart = draw(piece, options, detail)
        for name in [name for name in targets if name in TRACES]:
            path = targets[name] if steps is None else _with_steps(targets[name], steps)
            put(path, partial(TRACES[name], chart, gzip=options.gzip))
    for name in [name for name in targets if name in TABLES]:
        put(targets[name], partial(TABLES[name], profile))
    pictures = [name for name in targets if name not in TRACES and name not in TABLES]
    if pictures:
        from trace_export.writers.pictures import picture

        chart, bubbles = draw(profile, options, "spans"), rank_bubbles(profile)
        for name in pictures:
            put(targets[name], partial(picture.write, chart, format=name, steps=options.steps, bubbles=bubbles))
    if profile.clocks.height > 1:
        put(written[0].parent / "clock_alignment.json", partial(alignment_file.write, profile))
    return written


def write_report(profile: Profile, result: Report, path: Path, steps: Numbers | None = None) -> None:
    """One self-contained HTML page: the chart, then the tables of its report. Raises OutputError."""
    from trace_export.writers.pictures import page, picture

    chart = draw(profile, WriteOptions(bubbles=True), "spans")
    shown = [page.Table(t.title, t.frame, t.note) for t in result.tables()]
    with whole(path) as temporary:
        picture.write_report(chart, temporary, shown, steps, bubbles=rank_bubbles(profile))


def pieces(profile: Profile, options: WriteOptions, detail: Detail) -> list[tuple[Numbers | None, Profile]]:
    """The profile whole, or as parts of whole steps with at most `options.max_slices` slices each.

    A step that alone has more is a part of its own. Device tasks are taken to be spread evenly over the steps.
    """
    most = options.max_slices
    if most is None or slices_drawn(profile, options, detail) <= most:
        return [(None, profile)]
    blocks = _drawn(profile, options).group_by("step").len().drop_nulls().sort("step")
    tasks = slices_drawn(profile, options, detail) - int(blocks["len"].sum())
    each = tasks // max(blocks.height, 1)
    ranges: list[tuple[int, int]] = []
    room = 0
    for step, count in blocks.iter_rows():
        if ranges and count + each <= room:
            ranges[-1] = (ranges[-1][0], step)
        else:
            ranges.append((step, step))
            room = most
        room -= count + each
    return [(part, cut(profile, part, None, None)) for part in (Numbers((r,)) for r in ranges)]


def slices_drawn(profile: Profile, options: WriteOptions, detail: Detail) -> int:
    """How many slices a trace of the profile has: blocks, and with a detail the device tasks of the ranks drawn."""
    drawn = _drawn(profile, options)
    if detail == "spans":
        return drawn.height
    ranks = set(drawn["rank"].unique())
    return drawn.height + sum(
        int(pl.scan_ipc(file.path).select(pl.len()).collect().item()) for file in profile.kernels if file.rank in ranks
    )


def _drawn(profile: Profile, options: WriteOptions) -> pl.DataFrame:
    """The blocks of the ranks that get a track."""
    return profile.spans.filter(pl.col("rank").is_in(drawn_ranks(profile, options.tracks)))


def drawn_ranks(profile: Profile, tracks: str) -> list[int]:
    """The ranks that get a track: all, or of each stage the first, one with blocks if there is any."""
    empty = ~pl.col("rank").is_in(profile.spans["rank"].unique().implode())
    ranks = profile.ranks.sort(empty, "stage", "rank")
    first = pl.col("stage").is_null() | pl.col("stage").is_first_distinct()
    return (ranks if tracks == "rank" else ranks.filter(first))["rank"].to_list()


def announce(profile: Profile, options: WriteOptions, detail: Detail) -> list[Note]:
    """Which of many ranks and arrows a trace will show, and a warning where it is larger than a browser holds."""
    if not set(TRACES) & set(options.formats):
        return []
    notes = []
    ranks = profile.ranks.join(profile.spans, on="rank", how="semi")
    if options.tracks == "stage" and ranks.height > MANY_RANKS:
        read = "" if detail == "spans" else ", and no others' device tasks were read"
        text = f"{ranks['stage'].n_unique()} of {ranks.height} ranks are drawn, the first of each stage{read}"
        notes.append(Note("ranks-not-drawn", "note", f"{text}; --tracks rank draws all"))
    edges = dependencies.block_edges(profile)
    if back := int(dependencies.back_in_time(edges, profile.spans).sum()):
        text = "of the ways from block to block lead back in time (clocks that disagree, or times of the host)"
        notes.append(Note("dependencies-back-in-time", "note", f"{back} of {edges.height} {text}; they have no arrow"))
    count = slices_drawn(profile, options, detail)
    if min(count, options.max_slices or count) > BROWSER_SLICES:
        text = f"{count} slices are more than a browser holds"
        notes.append(
            Note("too-many-slices", "warning", f"{text}; choose --steps, or split with --max-slices {BROWSER_SLICES}")
        )
    return notes


def _with_steps(path: Path, steps: Numbers) -> Path:
    """pipeline_profile.json.gz → pipeline_profile.steps2-4.json.gz"""
    stem, _, extension = path.name.partition(".")
    return path.with_name(f"{stem}.steps{steps}.{extension}")


def output_paths(options: WriteOptions, log_dir: Path) -> dict[str, Path]:
    """Format → the file it goes to. Raises UsageError for an unknown choice or one file for several formats."""
    choices = [("--format", f, tuple(FORMATS)) for f in options.formats]
    choices += [("--tracks", options.tracks, TRACKS), ("--color-by", options.color_by, COLOR_BY)]
    for option, value, known in choices:
        if value not in known:
            raise UsageError(f'{option} "{value}" is unknown', f"choose from {', '.join(known)}")
    out = options.out or log_dir
    suffixes = tuple(f".{ext}" for ext in FORMATS.values())
    if out.name.removesuffix(".gz").endswith(suffixes) and not out.is_dir():
        if len(options.formats) != 1:
            raise UsageError(
                f"--out {out} is one file, but --format names {len(options.formats)}", "give a folder, or one format"
            )
        return {options.formats[0]: out}
    zipped = {"perfetto", "chrome"} if options.gzip else set()
    return {f: out / f"{STEM}.{FORMATS[f]}{'.gz' if f in zipped else ''}" for f in options.formats}
