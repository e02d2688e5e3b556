"""Writes the files of a run in the formats that were asked for.

A trace that a browser could not hold is announced, or written as several files of whole steps each. What only some runs
write is imported when they do.
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

from trace_export import arguments
from trace_export.analysis.bubbles import Bubbles
from trace_export.chart.chart import Chart, Part, Put
from trace_export.chart.size import pieces, slices_drawn
from trace_export.choices import Table
from trace_export.clocks import alignment_file
from trace_export.draw import Content, Other, draw, path_parts
from trace_export.errors import UsageError
from trace_export.files import is_folder
from trace_export.model import STEP_KEY, Note, Profile
from trace_export.options import Drawing, Figure, Option, drawing, filled, options_of, part
from trace_export.pipeline.edges import drawable_edges
from trace_export.pipeline.replicas import data_parallel
from trace_export.progress import Progress, silent
from trace_export.selection import Numbers
from trace_export.sources.shared.timestamps import UNTIMED
from trace_export.writers import formats
from trace_export.writers.atomic import blamed
from trace_export.writers.formats import BY_NAME, OUTPUT_FORMATS
from trace_export.writers.outputs import Outputs
from trace_export.writers.paths import alignment_path, output_paths, with_steps, with_table
from trace_export.writers.pictures.style import FigureStyle
from trace_export.writers.tables import write_frame

if TYPE_CHECKING:
    from trace_export.analysis.compare import Comparison
    from trace_export.analysis.report import Report
    from trace_export.analysis.slowdown import Slowdown
    from trace_export.writers.pictures.page import Contents

DEFAULT_FORMATS: tuple[str, ...] = ("perfetto", "chrome")
MANY_RANKS = 64
"""Above this, the summary says which ranks stand for their stages."""
BROWSER_SLICES = 3_000_000
"""With arguments, more slices than a tab of a browser holds (2 GB at some 600 bytes a slice)."""


@dataclass(frozen=True)
class WriteOptions:
    """What to write. `out` is a folder, or a file for a single format; None: the log_dir. More than `max_slices` in a
    trace make it several files. `tables`: which of them a table format writes. `figure` is how pictures look."""

    formats: tuple[str, ...] = DEFAULT_FORMATS
    out: Path | None = None
    gzip: bool = False
    drawing: Drawing = field(default_factory=drawing)
    tables: tuple[Table, ...] = ("blocks",)
    max_slices: int | None = None
    figure: FigureStyle = FigureStyle()


def write_options(path: object, formats: object, values: Mapping[str, Any]) -> WriteOptions:
    """What the checked values of options ask to write. Raises UsageError."""
    out = arguments.path_or_none(path, "path")
    names = _formats_of(out) if formats is None else arguments.choices(formats, "formats", tuple(BY_NAME))
    packed = formats is None and out is not None and out.name.endswith(".gz")
    return filled(
        WriteOptions,
        values,
        formats=names,
        out=out,
        gzip=values.get("gzip", False) or packed,
        tables=_tables(values.get("tables", ("blocks",)), names),
        figure=figure_style(values.get("figure")),
        drawing=drawing(**part(values, Drawing)),
    )


def figure_style(value: object) -> FigureStyle:
    """How pictures look, each word and number checked."""
    style: FigureStyle = arguments.instance(
        FigureStyle() if value is None else value, "figure", FigureStyle, "of the type FigureStyle"
    )
    rows: dict[str, Option] = {option.name.removeprefix("figure."): option for option in options_of(Figure).values()}
    values: dict[str, Any] = {name: row.check(getattr(style, name), row.name) for name, row in rows.items()}
    return replace(style, **values)


def _tables(tables: tuple[Table, ...], formats: tuple[str, ...]) -> tuple[Table, ...]:
    if tables != ("blocks",) and "parquet" not in formats:
        raise UsageError("further tables are Parquet files", "add the format parquet", parameter="tables")
    if tables != ("blocks",) and "csv" in formats:
        raise UsageError("further tables are Parquet files", "leave out the format csv", parameter="tables")
    return tables


def _formats_of(out: Path | None) -> tuple[str, ...]:
    """The format that the name of the output tells; the usual ones where it is a folder, perhaps still to be made."""
    if out is None or not out.suffix or is_folder(out):
        return DEFAULT_FORMATS
    extension = out.name.removesuffix(".gz").rpartition(".")[2]
    names = tuple(output_format.name for output_format in OUTPUT_FORMATS if output_format.extension == extension)
    if not names:
        extensions = ", ".join(f".{output_format.extension}" for output_format in OUTPUT_FORMATS)
        what = f"{out} is neither a folder nor a file whose name tells a format ({extensions})"
        raise UsageError(what, "name the formats", parameter="path")
    return names


def planned(options: WriteOptions, log_dir: Path) -> list[Path]:
    """The files that `write_files` may write, as far as they are known before the profiles are read.

    Raises UsageError for one file for several formats, and for a format that needs what is not installed.
    """
    for name in options.formats:
        BY_NAME[name].ensure_installed()
    alignment = alignment_path(options.out, log_dir)
    paths = output_paths(options.formats, options.out, log_dir, gzip=options.gzip)
    tables = [with_table(paths[name], table) for name in _of_kind("table", options) for table in options.tables]
    return [*paths.values(), *tables, *([alignment] if alignment else [])]


def _of_kind(kind: formats.Kind, options: WriteOptions) -> list[str]:
    return [name for name in options.formats if BY_NAME[name].kind == kind]


def write_files(
    content: Content, options: WriteOptions, log_dir: Path, outputs: Outputs, progress: Progress = silent
) -> None:
    """Writes one file in each format, or one for each range of steps; and `clock_alignment.json` where several hosts
    were aligned, unless `out` names one file.

    Raises UsageError before anything is written if a file may not be replaced, OutputError if a file cannot be
    written.
    """
    profile = content.profile
    path_of = output_paths(options.formats, options.out, log_dir, gzip=options.gzip)
    traces, tables, pictures = (_of_kind(kind, options) for kind in get_args(formats.Kind))
    parts = pieces(profile, options.drawing["tracks"], content.detail, options.max_slices) if traces else []
    alignment = alignment_path(options.out, log_dir) if profile.clocks.height > 1 else None
    paths = [with_steps(path_of[name], steps) for name in traces for steps, _ in parts]
    paths += [with_table(path_of[name], table) for name in tables for table in options.tables]
    paths += [*(path_of[name] for name in pictures), *([alignment] if alignment else [])]
    outputs.check(paths)
    drawn = content
    if content.other is not None:
        drawn = _with_other(content, content.other, options.drawing)
        parts = [(steps, drawn.profile) for steps, _ in parts[:1]]
    done = count()

    def put(path: Path, write_to: Callable[[Path], None]) -> None:
        progress(f"writing {path.name}", next(done), len(paths))
        with outputs.file(path) as temporary:
            write_to(temporary)

    for steps, piece in parts:
        chart = draw(replace(drawn, measured=drawn.measured.of(piece)), options.drawing)
        files = {name: with_steps(path_of[name], steps) for name in traces}
        for path in files.values():
            progress(f"writing {path.name}", next(done), len(paths))
        chart.put(*(_trace(chart, name, path, options, outputs) for name, path in files.items()))
    for name in tables:
        for table in options.tables:
            write = (
                partial(write_frame, content.frames[table]())
                if table != "blocks"
                else partial(BY_NAME[name].load(), profile, beside=content.other and content.other.measured.profile)
            )
            put(with_table(path_of[name], table), write)
    if pictures:
        chart, further = _picture(drawn, options)
        for name in pictures:
            put(path_of[name], partial(BY_NAME[name].load(), chart, format=name, **further))
    if alignment:
        put(alignment, partial(alignment_file.write, profile))


def _with_other(content: Content, other: Other, drawing: Drawing) -> Content:
    """The steps of both runs that are drawn one below the other; of each stage the ranks around the first cause that
    has a place."""
    from trace_export.chart.comparison import paired

    shown, below = paired(content.profile, other.measured.profile)
    causes = [] if other.comparison is None else other.comparison.causes.rows(named=True)
    placed = [each for each in causes if each["ranks"]]
    cause = next((each for each in placed if not each["parts"]), next(iter(placed), None))  # several are nowhere
    if cause is not None and drawing["tracks"] == "stage":
        shown, below = _both_around(shown, below, cause)
    renumbered = replace(other, measured=Bubbles(below))
    return replace(content, measured=content.measured.of(shown), other=renumbered)


@contextmanager
def _trace(chart: Chart, name: str, path: Path, options: WriteOptions, outputs: Outputs) -> Iterator[Put]:
    """A function that appends a part of `chart` to the file at `path`. Raises OutputError."""
    with outputs.file(path) as temporary, BY_NAME[name].load()(chart, temporary, gzip=options.gzip) as put:

        def put_here(part: Part) -> None:
            with blamed(path):  # not the other file that is open
                put(part)

        yield put_here


def _picture(content: Content, options: WriteOptions) -> tuple[Chart, dict[str, Any]]:
    """The chart, and what the writers of pictures take besides: its bubbles, those of another run with its name in
    `of_run`; of one run the steps that were chosen, and the window of time, beside which nothing is shown."""
    measured, other, style = content.measured, content.other, options.figure
    chart = draw(replace(content, detail="spans"), options.drawing)
    shown: dict[str, Any] = {"style": style}
    of_run = measured.windows.with_columns(of_run=pl.lit(None, pl.String))
    if other is not None:
        of_other = other.measured.windows.with_columns(of_run=pl.lit(other.names[1]))
        if other.comparison is not None:
            shown["contents"] = _contents(other.comparison)
        return chart, shown | {"bubbles": pl.concat([of_run, of_other])}
    if content.part.window is not None and style.range is None:
        zero_ns = int(measured.whole.spans["start_ns"].min())  # type: ignore[arg-type]
        shown |= {"style": replace(style, range=content.part.window), "zero_ns": zero_ns}
    return chart, shown | {"bubbles": of_run, "steps": content.part.steps}


def _contents(comparison: Comparison) -> Contents:
    """What an HTML page says of two runs besides their chart."""
    from trace_export.writers.pictures.page import Contents

    a, b = comparison.names
    return Contents(
        f"Comparison: {a} and {b}",
        f"{b} is drawn below {a}",
        comparison.verdict,
        tables=comparison.tables(),
    )


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
    from trace_export.analysis import cause_words
    from trace_export.writers.pictures import picture
    from trace_export.writers.pictures.page import Contents, Focus

    cause = next(result.causes.filter("sentence").iter_rows(named=True), None)
    shown = measured if cause is None else measured.of(_around(measured.profile, cause))
    chart = draw(Content(shown), drawing(bubbles=True))
    focus = Focus(result.steps.select(STEP_KEY).row(result.explained)) if len(result.steps) else None
    if focus and cause is not None and cause["ranks"]:
        drawn = frozenset(cause["ranks"]) & set(shown.profile.spans["rank"])
        focus = replace(focus, ranks=drawn, words=f"the first cause: {cause_words.where(cause)}")
    if focus and cause is not None and cause["code"] == "long-pause":
        focus = replace(focus, pause=True, words=f"the first cause: {cause_words.name(cause)}")
    tables = {table.title: table for table in result.tables()}
    first = [tables.pop(title) for title in ("What a step is made of", "Causes") if title in tables]
    with outputs.file(path) as temporary:
        contents = Contents(
            f"Pipeline report: {name}", result.heading, result.answer, first,
            list(tables.values()), True, overview, focus, result.further,
        )  # fmt: skip
        picture.write(chart, temporary, "html", steps, shown.ranks, contents=contents, lengths=result.steps)


def _around(profile: Profile, cause: Mapping[str, Any]) -> Profile:
    """The profile with one rank of each stage: those of the cause, and the others of the replica in which it lies."""
    if not cause["ranks"] or profile.ranks["stage"].null_count():
        return profile
    ends = [rank for rank in (cause["src_rank"], cause["dst_rank"]) if rank is not None] or cause["ranks"]
    ranks = profile.ranks_with_blocks.select("rank", "stage").join(data_parallel(profile.ranks), on="rank")
    replica = ranks.filter(pl.col("rank") == ends[0])["replica"]
    far = pl.col("replica").ne_missing(replica[0]) if len(replica) else pl.lit(False)
    near = ranks.sort(far, ~pl.col("rank").is_in(ends), "rank").unique("stage", keep="first")
    return _only(profile, near)


def _both_around(a: Profile, b: Profile, cause: Mapping[str, Any]) -> tuple[Profile, Profile]:
    """`_around` for a row of `Comparison.causes`, with the ranks of the run that has the cause in both."""
    if cause["in_b"]:
        near = _around(b, cause)
        return _only(a, near.ranks) if _has(a, near.ranks) else _around(a, cause), near
    near = _around(a, cause)
    return near, _only(b, near.ranks) if _has(b, near.ranks) else _around(b, cause)


def _has(profile: Profile, ranks: pl.DataFrame) -> bool:
    """Whether all of the `ranks` have blocks on the same stages here."""
    return ranks.join(profile.ranks_with_blocks, on=["rank", "stage"], how="anti").is_empty()


def _only(profile: Profile, ranks: pl.DataFrame) -> Profile:
    """The blocks of some ranks alone."""
    kept = {name: getattr(profile, name).join(ranks, on="rank", how="semi", maintain_order="left")
            for name in ("spans", "ranks", "evaluations")}  # fmt: skip
    return replace(profile, **kept)


def write_heat_map(slowdown: Slowdown, result: Report, name: str, path: Path, outputs: Outputs) -> None:
    """The slowdown of each rank of the run called `name` as a picture, stages down, replicas across; of ranks at one
    place the largest. `result` has the sentences below it.

    Raises OutputError, UsageError.
    """
    from trace_export.writers.pictures import heat_map
    from trace_export.writers.pictures.picture import write_still

    ranks = slowdown.parts.filter(pl.col("part") == "rank")
    cells = ranks.group_by("stage", "replica").agg(pl.col("slowdown").max())
    grid = cells.sort("replica").pivot("replica", index="stage", values="slowdown").sort("stage")
    sentences = [sentence.text for sentence in result.verdict if sentence.code != "certainty"]
    with outputs.file(path) as temporary:
        write_still(
            heat_map.draw(f"Slowdown by rank: {name}", grid, sentences), temporary, path.suffix.removeprefix(".")
        )


def announce(content: Content, options: WriteOptions) -> list[Note]:
    """Which of many ranks and arrows a trace will show, and a warning where it is larger than a browser holds."""
    notes: list[Note] = []
    profile, detail = content.profile, content.detail
    drawn = any(BY_NAME[name].kind != "table" for name in options.formats)
    if drawn and content.explanation is not None and path_parts(content, content.explanation).is_empty():
        text = "no step that is drawn has a critical path, which ends where the next step begins"
        notes.append(Note("critical-path-not-drawn", "note", f"{text}; choose other steps with --steps"))
    ranks = profile.ranks_with_blocks
    if drawn and options.drawing["tracks"] == "stage" and ranks.height > MANY_RANKS:
        read = "" if detail == "spans" else "; device tasks of the others were not read"
        text = f"{ranks['stage'].n_unique()} of {ranks.height} ranks are drawn, the first of each stage{read}"
        notes.append(Note("ranks-not-drawn", "note", f"{text}; --tracks rank draws all"))
    if not any(BY_NAME[name].kind == "trace" for name in options.formats):
        return notes
    parts = profile.steps.filter(~pl.col("whole")).join(profile.spans, on=STEP_KEY, how="semi", nulls_equal=True)
    if options.drawing["model"] and len(parts):
        numbers = Numbers.of(parts["step"].drop_nulls())
        text = f"--model draws whole steps; these are not whole, or cut by --time: step {numbers}"
        notes.append(Note("model-not-drawn", "note", text))
    if untimed := sum(file.untimed for file in profile.kernels):
        notes.append(Note("times-unusable", "warning", f"device tasks {UNTIMED}", count=untimed))
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
