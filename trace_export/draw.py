"""Renders a profile as a chart and writes the files in the requested formats.

A trace that a browser could not hold is announced, or written as several files of whole steps each. What only some runs
draw is imported when they do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import polars as pl

from trace_export.analysis import cause_words
from trace_export.analysis.bubbles import Bubbles
from trace_export.analysis.clock_words import clock_texts
from trace_export.chart.block_names import block_name, has_chunks
from trace_export.chart.chart import Chart, Part, Put
from trace_export.chart.colours import idle_seed
from trace_export.chart.critical_path import PathOverlay
from trace_export.chart.layout import ChartOptions, Overlay, lay_out
from trace_export.chart.size import pieces, slices_drawn
from trace_export.choices import Detail, Format, Table
from trace_export.clocks import alignment_file
from trace_export.clocks.apply import task_batches
from trace_export.model import INT, SPANS, STEP_KEY, Note, Profile, conform
from trace_export.options import Drawing, drawing
from trace_export.pipeline.edges import drawable_edges
from trace_export.pipeline.replicas import data_parallel
from trace_export.progress import Progress, silent
from trace_export.schedules.catalogue import TITLES, readable
from trace_export.selection import Numbers
from trace_export.sources.shared.timestamps import UNTIMED
from trace_export.writers import formats
from trace_export.writers.atomic import blamed
from trace_export.writers.formats import BY_NAME
from trace_export.writers.outputs import Outputs
from trace_export.writers.paths import alignment_path, output_paths, with_steps, with_table
from trace_export.writers.pictures.style import FigureStyle
from trace_export.writers.tables import write_frame

if TYPE_CHECKING:
    from trace_export.analysis.compare import Comparison
    from trace_export.analysis.explanation import Explanation
    from trace_export.analysis.report import Report
    from trace_export.analysis.slowdown import Slowdown
    from trace_export.writers.pictures.page import Contents

HEAT = (1.0, 1.5)
"""The slowdowns of the least and the fullest colour of a heat map, as in the straggler study."""
MANY_RANKS = 64
"""Above this, the summary says which ranks stand for their stages."""
BROWSER_SLICES = 3_000_000
"""With arguments, more slices than a tab of a browser holds (2 GB at some 600 bytes a slice)."""


@dataclass(frozen=True)
class WriteOptions:
    """What to write. `out` is a folder, or a file for a single format; None: the log_dir. `steps` are those that the
    user asked for; where it is None, a picture that cannot be zoomed shows the first ones only. `zero_ns`: the time
    from which the range of `figure` counts; None: the first block drawn. More than `max_slices` in a trace make it
    several files. `tables`: which of them a table format writes. `path` and `frames` are what `critical_path` and
    `tables` ask for, once the run has been read. `beside` is another run to draw under this one, `names` are those of
    both, and `comparison` is how they differ, which an HTML page shows. `figure` is how pictures look."""

    formats: tuple[Format, ...] = ("perfetto", "chrome")
    out: Path | None = None
    gzip: bool = False
    drawing: Drawing = field(default_factory=drawing)
    tables: tuple[Table, ...] = ("blocks",)
    max_slices: int | None = None
    steps: Numbers | None = None
    zero_ns: int | None = None
    beside: Profile | None = None
    explanation: Explanation | None = None
    frames: Mapping[str, pl.DataFrame] = field(default_factory=dict)
    names: tuple[str, str] = ("A", "B")
    comparison: Comparison | None = None
    figure: FigureStyle = FigureStyle()

    @property
    def inputs(self) -> tuple[Path, ...]:
        """The files that the options name."""
        return (self.figure.font,) if self.figure.font is not None else ()


def planned(options: WriteOptions, log_dir: Path) -> list[Path]:
    """The files that `write` may write, as far as they are known before the profiles are read.

    Raises UsageError for one file for several formats, and for a format that needs what is not installed.
    """
    for name in options.formats:
        BY_NAME[name].ensure_installed()
    alignment = alignment_path(options.out, log_dir)
    further = [with_table(path, name) for path in _table_paths(options, log_dir) for name in options.tables]
    return [*_paths(options, log_dir).values(), *further, *([alignment] if alignment else [])]


def _table_paths(options: WriteOptions, log_dir: Path) -> list[Path]:
    return [path for name, path in _paths(options, log_dir).items() if BY_NAME[name].kind == "table"]


def _paths(options: WriteOptions, log_dir: Path) -> dict[Format, Path]:
    return output_paths(options.formats, options.out, log_dir, gzip=options.gzip)


def draw(
    profile: Profile,
    measured: Bubbles,
    options: WriteOptions,
    detail: Detail,
    *,
    for_picture: bool = False,
) -> Chart:
    """The chart of a profile, whose bubbles were `measured`: tracks, slices, arrows, counters; and what analysis and
    theory add to it. `for_picture` as in `ChartOptions`."""
    return lay_out(
        profile,
        ChartOptions(
            tracks=options.drawing["tracks"],
            detail=detail,
            color_by=options.drawing["color_by"],
            schedule=readable(profile.declared.schedule),
            runs=options.names if options.beside is not None else None,
            clocks=clock_texts(profile),
            device_tasks=partial(task_batches, profile),
            edges=None if for_picture else drawable_edges(profile)[0],
            for_picture=for_picture,
            step_arguments=_step_arguments(measured.steps),
            overlays=tuple(_overlays(profile, measured, options)),
            path=None if options.explanation is None else _drawn_path(profile, options.explanation),
        ),
    )


def _overlays(profile: Profile, measured: Bubbles, options: WriteOptions) -> Iterator[Overlay]:
    if options.drawing["bubbles"]:
        first_of_stage = pl.col("rank") == pl.col("rank").min().over("stage")
        idle = measured.slices.filter(first_of_stage).with_columns(idle_seed(options.drawing["color_by"]))
        yield Overlay("stage {} · idle", idle)
    if options.drawing["model"] and (plan := profile.interpreted.recognition.named) is not None:
        from trace_export.analysis.theory import modelled_blocks

        model = conform(modelled_blocks(profile), SPANS | {"stage": INT}).drop("id")
        named = model.with_columns(block_name(has_chunks(profile.spans)))
        yield Overlay(f"stage {{}} ({TITLES[plan.name]}, model)", named)
    if options.beside is not None:
        from trace_export.chart.comparison import beside

        yield beside(options.beside, options.names[1])


def _drawn_path(profile: Profile, found: Explanation) -> PathOverlay:
    """The path of the steps that the profile has blocks of."""
    from trace_export.analysis.transfer_split import block_inputs

    parts = found.path.parts.join(profile.spans, on=STEP_KEY, how="semi", nulls_equal=True, maintain_order="left")
    return PathOverlay(parts, found.path.slack.select("id", "slack_ns"), block_inputs(found._graph.recorded))


def _step_arguments(steps: pl.DataFrame) -> pl.DataFrame:
    """What each of the `steps` (`Bubbles.steps`) says of itself: its times and its bubble, and where some are not
    whole, that it is not."""
    marks = [] if steps["whole"].all() else [pl.when(~pl.col("whole")).then(pl.lit("no")).alias("whole")]
    ms = [(pl.col(f"{what}_ns") / 1e6).alias(f"{what} ms") for what in ("step", "pipeline")]
    return steps.select("run", "step", *ms, (100 * pl.col("bubble")).alias("bubble %"), *marks)


def write(
    profile: Profile,
    measured: Bubbles,
    options: WriteOptions,
    log_dir: Path,
    outputs: Outputs,
    detail: Detail = "spans",
    progress: Progress = silent,
) -> None:
    """Writes one file in each format, or one for each range of steps; and `clock_alignment.json` where several hosts
    were aligned, unless `out` names one file.

    Raises UsageError before anything is written if a file may not be replaced, OutputError if a file cannot be
    written.
    """
    paths_by_name = _paths(options, log_dir)
    files = {k: {n: p for n, p in paths_by_name.items() if BY_NAME[n].kind == k} for k in get_args(formats.Kind)}
    parts = pieces(profile, options.drawing["tracks"], detail, options.max_slices) if files["trace"] else []
    alignment = alignment_path(options.out, log_dir) if profile.clocks.height > 1 else None
    paths = [with_steps(path, steps) for path in files["trace"].values() for steps, _ in parts]
    paths += [with_table(path, table) for path in files["table"].values() for table in options.tables]
    paths += [*files["picture"].values(), *([alignment] if alignment else [])]
    outputs.check(paths)
    tables, beside = profile, options.beside
    if options.beside is not None:
        from trace_export.chart.comparison import paired

        profile, other = paired(profile, options.beside)
        options, parts = replace(options, beside=other), [(steps, profile) for steps, _ in parts[:1]]
    done = count()

    def put(path: Path, write_to: Callable[[Path], None]) -> None:
        progress(f"writing {path.name}", next(done), len(paths))
        with outputs.file(path) as temporary:
            write_to(temporary)

    for steps, piece in parts:
        if traces := {name: with_steps(path, steps) for name, path in files["trace"].items()}:
            chart = draw(piece, measured if piece is profile else measured.of(piece), options, detail)
            for path in traces.values():
                progress(f"writing {path.name}", next(done), len(paths))
            chart.put(*(_trace(chart, name, path, options, outputs) for name, path in traces.items()))
    for name, path in files["table"].items():
        if "blocks" in options.tables:
            put(path, partial(BY_NAME[name].load(), tables, beside=beside))
        for table, frame in options.frames.items():
            put(with_table(path, table), partial(write_frame, frame))
    if files["picture"]:
        chart, bubbles = draw(profile, measured, options, "spans"), _bubbles(measured, options)
        for name, path in files["picture"].items():
            writer = BY_NAME[name].load()
            if options.comparison is not None:
                writer = partial(writer, contents=_contents(options.comparison))
            shown = {"steps": options.steps, "style": options.figure, "zero_ns": options.zero_ns}
            put(path, partial(writer, chart, format=name, bubbles=bubbles, **shown))
    if alignment:
        put(alignment, partial(alignment_file.write, profile))


@contextmanager
def _trace(chart: Chart, name: Format, path: Path, options: WriteOptions, outputs: Outputs) -> Iterator[Put]:
    """A function that appends a part of `chart` to the file at `path`. Raises OutputError."""
    with outputs.file(path) as temporary, BY_NAME[name].load()(chart, temporary, gzip=options.gzip) as put:

        def put_here(part: Part) -> None:
            with blamed(path):  # not the other file that is open
                put(part)

        yield put_here


def _contents(comparison: Comparison) -> Contents:
    """What an HTML page says of two runs besides their chart."""
    from trace_export.writers.pictures.page import Contents

    a, b = comparison.names
    return Contents(
        f"Comparison: {a} and {b}", f"{b} is drawn below {a}", comparison.verdict, tables=comparison.tables()
    )


def _bubbles(measured: Bubbles, options: WriteOptions) -> pl.DataFrame:
    """The bubbles of all ranks that pictures show, those of another run with its name in `of_run`."""
    own = measured.windows.with_columns(of_run=pl.lit(None, pl.String))
    if options.beside is None:
        return own
    return pl.concat([own, Bubbles(options.beside).windows.with_columns(of_run=pl.lit(options.names[1]))])


def write_report(
    measured: Bubbles,
    result: Report,
    name: str,
    path: Path,
    outputs: Outputs,
    steps: Numbers | None = None,
    overview: str = "",
) -> None:
    """One self-contained HTML page on the run called `name`: the answer, the chart, the tables of its report.
    `overview`: the name of the page of all ranks beside it.

    Raises OutputError, UsageError.
    """
    from trace_export.writers.pictures import picture
    from trace_export.writers.pictures.page import Contents, Focus

    cause = next(result.causes.filter("sentence").iter_rows(named=True), None)
    shown = measured if cause is None else measured.of(_around(measured.profile, cause))
    chart = draw(shown.profile, shown, WriteOptions(drawing=drawing(bubbles=True)), "spans")
    focus = Focus(result.steps.select(STEP_KEY).row(result.explained))
    if cause is not None and cause["ranks"]:
        drawn = frozenset(cause["ranks"]) & set(shown.profile.spans["rank"])
        focus = replace(focus, ranks=drawn, words=f"the first cause: {cause_words.where(cause)}")
    if cause is not None and cause["code"] == "long-pause":
        focus = replace(focus, pause=True, words=f"the first cause: {cause_words.name(cause)}")
    tables = {table.title: table for table in result.tables()}
    beside = [tables.pop(title) for title in ("What a step is made of", "Causes") if title in tables]
    with outputs.file(path) as temporary:
        contents = Contents(
            f"Pipeline report: {name}", result.heading, result.verdict, beside, list(tables.values()), True, overview,
            focus,
        )  # fmt: skip
        picture.write_page(chart, temporary, contents, steps, shown.ranks, result.steps)


def _around(profile: Profile, cause: Mapping[str, Any]) -> Profile:
    """The profile with one rank of each stage: those of the cause, and the others of the replica in which it lies."""
    if not cause["ranks"] or profile.ranks["stage"].null_count():
        return profile
    ends = [rank for rank in (cause["src_rank"], cause["dst_rank"]) if rank is not None] or cause["ranks"]
    ranks = profile.ranks.select("rank", "stage").join(data_parallel(profile.ranks), on="rank")
    ranks = ranks.join(profile.spans.select("rank").unique(), on="rank", how="semi")
    replica = ranks.filter(pl.col("rank") == ends[0])["replica"]
    far = pl.col("replica").ne_missing(replica[0]) if len(replica) else pl.lit(False)
    near = ranks.sort(far, ~pl.col("rank").is_in(ends), "rank").unique("stage", keep="first")
    kept = {name: getattr(profile, name).join(near, on="rank", how="semi", maintain_order="left")
            for name in ("spans", "ranks", "evaluations")}  # fmt: skip
    return replace(profile, **kept)


def write_heat_map(found: Slowdown, result: Report, name: str, path: Path, outputs: Outputs) -> None:
    """The slowdown of each rank of the run called `name` as a picture, stages down, replicas across; of ranks at one
    place the largest. `result` has the sentences below it.

    Raises OutputError, UsageError.
    """
    from trace_export.writers.pictures import picture
    from trace_export.writers.pictures.heat_map import HeatTable

    ranks = found.parts.filter(pl.col("part") == "rank")
    cells = ranks.group_by("stage", "replica").agg(pl.col("slowdown").max())
    grid = cells.sort("replica").pivot("replica", index="stage", values="slowdown").sort("stage")
    sentences = [sentence.text for sentence in result.verdict if sentence.code != "certainty"]
    table = HeatTable(
        f"Slowdown by rank: {name}", [str(stage) for stage in grid["stage"]], grid.columns[1:],
        [list(row[1:]) for row in grid.iter_rows()], HEAT, "stage", "replica", sentences,
    )  # fmt: skip
    with outputs.file(path) as temporary:
        picture.write_heat_map(table, temporary, "svg" if path.suffix == ".svg" else "png")


def announce(profile: Profile, options: WriteOptions, detail: Detail) -> list[Note]:
    """Which of many ranks and arrows a trace will show, and a warning where it is larger than a browser holds."""
    notes: list[Note] = []
    if not any(BY_NAME[name].kind == "trace" for name in options.formats):
        return notes
    parts = profile.steps.filter(~pl.col("whole")).join(profile.spans, on=STEP_KEY, how="semi", nulls_equal=True)
    if options.drawing["model"] and len(parts):
        numbers = Numbers.of(parts["step"].drop_nulls())
        text = f"--model draws whole steps; these are not whole, or cut by --time: step {numbers}"
        notes.append(Note("model-not-drawn", "note", text))
    if untimed := sum(file.untimed for file in profile.kernels):
        notes.append(Note("times-unusable", "warning", f"device tasks {UNTIMED}", count=untimed))
    ranks = profile.ranks.join(profile.spans, on="rank", how="semi")
    if options.drawing["tracks"] == "stage" and ranks.height > MANY_RANKS:
        read = "" if detail == "spans" else "; device tasks of the others were not read"
        text = f"{ranks['stage'].n_unique()} of {ranks.height} ranks are drawn, the first of each stage{read}"
        notes.append(Note("ranks-not-drawn", "note", f"{text}; --tracks rank draws all"))
    edges, back = drawable_edges(profile)
    if back:
        text = "dependencies point backwards in time (clock error, or CPU times) and are drawn without an arrow"
        notes.append(Note("dependencies-back-in-time", "note", f"{back} of {edges.height + back} {text}"))
    count = slices_drawn(profile, options.drawing["tracks"], detail)
    if min(count, options.max_slices or count) > BROWSER_SLICES:
        text = f"{count} slices are more than a browser can hold"
        notes.append(
            Note("too-many-slices", "warning", f"{text}; choose --steps, or split with --max-slices {BROWSER_SLICES}")
        )
    return notes
