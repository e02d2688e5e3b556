"""What users ask for: from the values of the API's parameters, each checked, to the options of the workflow."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

from trace_export.choices import Align, ColorBy, Detail, Format, Infer, Legend, Table, Theme, Tracks
from trace_export.errors import UsageError
from trace_export.files import is_file, is_folder
from trace_export.model import Declared, RankOrder
from trace_export.selection import Selection
from trace_export.sources import formats
from trace_export.sources.source import ReadOptions
from trace_export.sources.spans.columns import Columns
from trace_export.workflow import arguments
from trace_export.workflow.reading import LoadOptions
from trace_export.writers.formats import OUTPUT_FORMATS
from trace_export.writers.pictures.style import FigureStyle

if TYPE_CHECKING:
    from trace_export.workers.cluster import Cluster
    from trace_export.workflow.render import WriteOptions

DEFAULT_FORMATS: tuple[Format, ...] = ("perfetto", "chrome")


@dataclass(frozen=True)
class AlignOptions:
    """How to align clocks; see `Run.align`."""

    method: Align | Path = "auto"
    offsets_ns: Mapping[str, int] = field(default_factory=dict)
    max_error_ns: float | None = None

    @property
    def inputs(self) -> tuple[Path, ...]:
        """The files that the options name."""
        return (self.method,) if isinstance(self.method, Path) else ()


@dataclass(frozen=True)
class GateOptions:
    """When a run is worse than another, see `analysis.gate`: `limit` is a share, None where there is none."""

    limit: float | None = None
    on: str = "step"


def gate_options(fail_above: object, on: object) -> GateOptions:
    """What the values of these parameters ask for. Raises UsageError."""
    limit = None if fail_above is None else arguments.share(fail_above, "fail_above")
    word = arguments.instance(on, "on", str, "step, bubble, slowdown or stage:N")
    if not re.fullmatch(r"step|bubble|slowdown|stage:\d{1,9}", word):
        what = f"{arguments.shown(on)} is unknown"
        raise UsageError(what, "choose from step, bubble, slowdown, stage:N", parameter="on")
    return GateOptions(limit, word)


def load_options(
    log_dir: object = None,
    *,
    family: object = None,
    devices: object = None,
    multi_machine: object = False,
    follow_links: object = False,
    ranks: object = None,
    run: object = "latest",
    pp: object = None,
    tp: object = None,
    dp: object = None,
    cp: object = None,
    declared: object = None,
    host_ranges: object = False,
    markers: object = (),
    columns: object = None,
    infer: object = "auto",
    detail: object = "spans",
    jobs: object = None,
    scheduler: object = None,
    at: object = (),
) -> LoadOptions:
    """What the values of these parameters ask to read. Raises UsageError."""
    cluster = _cluster(scheduler, at)
    if cluster is not None and cluster.folders:
        if log_dir is not None:
            raise UsageError("both folders of machines and a log_dir are given", "give one of them", parameter="at")
        log_dir = Path()
    sizes = Declared(
        pp=arguments.whole_or_none(pp, "pp"),
        tp=arguments.whole_or_none(tp, "tp"),
        dp=arguments.whole_or_none(dp, "dp"),
        cp=arguments.whole_or_none(cp, "cp"),
    )
    place, files = arguments.places(log_dir, "log_dir", table=columns is not None)
    return LoadOptions(
        log_dir=place,
        files=files,
        family=None if family is None else arguments.word(family, "family", formats.commands()),
        devices=arguments.numbers(devices, "devices"),
        multi_machine=arguments.flag(multi_machine, "multi_machine"),
        follow_links=arguments.flag(follow_links, "follow_links"),
        run=arguments.run_choice(run, "run"),
        read=ReadOptions(
            host_ranges=arguments.flag(host_ranges, "host_ranges"),
            ranks=arguments.numbers(ranks, "ranks"),
            markers=arguments.texts(markers, "markers"),
            infer=arguments.choice(infer, "infer", Infer),
        ),
        declared=sizes.or_else(_declared(declared)),
        columns=_columns(columns),
        detail=arguments.choice(detail, "detail", Detail),
        jobs=arguments.whole_or_none(jobs, "jobs"),
        cluster=cluster,
    )


def _columns(value: object) -> Columns | None:
    if value is None:
        return None
    return Columns.parse(arguments.instance(value, "columns", str, "a text such as rank=rank,kind=name,start=ts:us"))


_CHECKS: dict[str, Callable[[object, str], object]] = {
    "schedule": partial(arguments.instance, kind=str, what="the name of a schedule"),
    "placement": partial(arguments.choice, known=Literal["loop", "vee"]),
    "rank_order": partial(arguments.choice, known=RankOrder),
    "numbers_continue": arguments.flag,
    "overlapped": arguments.flag,
    "steps": arguments.pair,
    "every_operation": arguments.flag,
    "step_zeros": partial(arguments.instance, kind=tuple, what="pairs of a step and a time"),
}
"""The facts of `Declared` that are no whole numbers."""


def _declared(value: object) -> Declared:
    """What the user declares, each fact checked."""
    declared: Declared = arguments.instance(
        Declared() if value is None else value, "declared", Declared, "of the type Declared"
    )
    for name, fact in vars(declared).items():
        if fact is not None:
            _CHECKS.get(name, arguments.whole)(fact, f"declared.{name}")
    return declared


def _cluster(scheduler: object, at: object) -> Cluster | None:
    entries = arguments.texts(at, "at")
    if scheduler is None:
        if entries:
            what = "machines are those of a Dask cluster, and no scheduler is given"
            raise UsageError(what, "give the scheduler, tcp://HOST:PORT", parameter="at")
        return None
    from trace_export.workers.cluster import Cluster

    return Cluster.parse(arguments.instance(scheduler, "scheduler", str, "an address such as tcp://HOST:PORT"), entries)


def align_options(how: object, offsets_ns: object, max_error_ns: object) -> AlignOptions:
    """How the values of these parameters ask to align. Raises UsageError."""
    return AlignOptions(
        _alignment(how),
        arguments.times_by_name(offsets_ns, "offsets_ns"),
        None if max_error_ns is None else arguments.nanoseconds(max_error_ns, "max_error_ns"),
    )


def _alignment(how: object) -> Align | Path:
    words = get_args(Align)
    if isinstance(how, str) and how in words:
        return how  # type: ignore[return-value]
    remedy = f"choose {', '.join(words)}, or the path of a clock_alignment.json"
    try:
        path = arguments.path(how, "align")
        found = path.is_file()
    except (UsageError, OSError):
        found = False
    if not found:
        raise UsageError(f"{arguments.shown(how)} is unknown, and there is no such file", remedy, parameter="align")
    return path


def selection(steps: object, stages: object, window: object) -> Selection:
    """The part of a run that the values of these parameters ask for. Raises UsageError."""
    return Selection(
        arguments.numbers(steps, "steps"), arguments.numbers(stages, "stages"), arguments.window(window, "window")
    )


def write_options(
    path: object,
    formats: object,
    *,
    gzip: object = False,
    tracks: object = "stage",
    color_by: object = "kind",
    bubbles: object = False,
    model: object = False,
    critical_path: object = False,
    tables: object = "blocks",
    max_slices: object = None,
    figure: object = None,
) -> WriteOptions:
    """What the values of these parameters ask to write. Raises UsageError."""
    from trace_export.workflow.render import WriteOptions

    out = arguments.path_or_none(path, "path")
    names = _formats_of(out) if formats is None else arguments.choices(formats, "formats", Format)
    return WriteOptions(
        formats=names,
        out=out,
        gzip=arguments.flag(gzip, "gzip") or (formats is None and out is not None and out.name.endswith(".gz")),
        tracks=arguments.choice(tracks, "tracks", Tracks),
        color_by=arguments.choice(color_by, "color_by", ColorBy),
        bubbles=arguments.flag(bubbles, "bubbles"),
        model=arguments.flag(model, "model"),
        critical_path=arguments.flag(critical_path, "critical_path"),
        tables=_tables(tables, names),
        max_slices=arguments.whole_or_none(max_slices, "max_slices"),
        figure=_figure(figure),
    )


def _figure(value: object) -> FigureStyle:
    """How pictures look, each word and number checked."""
    style: FigureStyle = arguments.instance(
        FigureStyle() if value is None else value, "figure", FigureStyle, "of the type FigureStyle"
    )
    if style.width_mm is not None:
        arguments.number(style.width_mm, "figure.width_mm")
    arguments.choice(style.theme, "figure.theme", Theme)
    arguments.choice(style.legend, "figure.legend", Legend)
    if style.steps is not None:
        arguments.whole(style.steps, "figure.steps")
    if style.first_microbatch not in (0, 1):
        raise arguments.wrong("figure.first_microbatch", style.first_microbatch, "0 or 1")
    title = None if style.title is None else arguments.instance(style.title, "figure.title", str, "a text")
    font = arguments.path_or_none(style.font, "figure.font")
    if font is not None and not is_file(font):
        raise UsageError(f"{font} is not a file", "give a .ttf or .otf file", parameter="figure.font")
    return replace(style, title=title, range=arguments.window(style.range, "figure.range"), font=font)


def _tables(value: object, formats: tuple[Format, ...]) -> tuple[Table, ...]:
    tables: tuple[Table, ...] = arguments.choices(value, "tables", Table)
    if tables != ("blocks",) and "parquet" not in formats:
        raise UsageError("further tables are Parquet files", "add the format parquet", parameter="tables")
    if tables != ("blocks",) and "csv" in formats:
        raise UsageError("further tables are Parquet files", "leave out the format csv", parameter="tables")
    return tables


def _formats_of(out: Path | None) -> tuple[Format, ...]:
    """The format that the name of the output tells; the usual ones where it is a folder, perhaps still to be made."""
    if out is None or not out.suffix or is_folder(out):
        return DEFAULT_FORMATS
    extension = out.name.removesuffix(".gz").rpartition(".")[2]
    names = tuple(known.name for known in OUTPUT_FORMATS if known.extension == extension)
    if not names:
        known = ", ".join(f".{known.extension}" for known in OUTPUT_FORMATS)
        what = f"{out} is neither a folder nor a file whose name tells a format ({known})"
        raise UsageError(what, "name the formats", parameter="path")
    return names
