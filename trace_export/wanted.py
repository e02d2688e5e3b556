"""What users ask for: from the values of the options, each checked, to what the program works with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trace_export import arguments
from trace_export.arguments import Inputs
from trace_export.choices import Align, Format, Table
from trace_export.errors import UsageError
from trace_export.files import is_folder
from trace_export.model import Declared
from trace_export.options import Drawing, Figure, Option, drawing, filled, options_of, part
from trace_export.read import LoadOptions
from trace_export.selection import Selection
from trace_export.sources.source import ReadOptions
from trace_export.sources.spans.columns import Columns
from trace_export.writers.formats import OUTPUT_FORMATS
from trace_export.writers.pictures.style import FigureStyle

if TYPE_CHECKING:
    from trace_export.draw import WriteOptions
    from trace_export.workers.cluster import Cluster

DEFAULT_FORMATS: tuple[Format, ...] = ("perfetto", "chrome")


@dataclass(frozen=True)
class AlignOptions:
    """How to align clocks; see `Run.align`."""

    align: Align | Path = "auto"
    offsets_ns: Mapping[str, int] = field(default_factory=dict)
    max_error_ns: float | None = None

    @property
    def inputs(self) -> tuple[Path, ...]:
        """The files that the options name."""
        return (self.align,) if isinstance(self.align, Path) else ()


def load_options(log_dir: Inputs, values: Mapping[str, Any]) -> LoadOptions:
    """What the checked values of options ask to read. Raises UsageError."""
    cluster = _cluster(values.get("scheduler"), values.get("at", ()))
    if cluster is not None and cluster.folders:
        if log_dir is not None:
            raise UsageError("both folders of machines and a log_dir are given", "give one of them", parameter="at")
        log_dir = Path()
    columns = values.get("columns")
    place, files = arguments.places(log_dir, "log_dir", table=columns is not None)
    sizes = Declared(**{size: values.get(size) for size in ("pp", "tp", "dp", "cp")})
    return filled(
        LoadOptions,
        values,
        log_dir=place,
        files=files,
        read=filled(ReadOptions, values),
        columns=None if columns is None else Columns.parse(columns),
        declared=sizes.or_else(values.get("declared") or Declared()),
        cluster=cluster,
    )


def _cluster(scheduler: str | None, at: tuple[str, ...]) -> Cluster | None:
    if scheduler is None:
        if at:
            what = "machines are those of a Dask cluster, and no scheduler is given"
            raise UsageError(what, "give the scheduler, tcp://HOST:PORT", parameter="at")
        return None
    from trace_export.workers.cluster import Cluster

    return Cluster.parse(scheduler, at)


def align_options(values: Mapping[str, Any]) -> AlignOptions:
    """How the checked values of options ask to align."""
    return filled(AlignOptions, values)


def selection(values: Mapping[str, Any]) -> Selection:
    """The part of a run that the checked values of options ask for."""
    return filled(Selection, values)


def write_options(path: object, formats: object, values: Mapping[str, Any]) -> WriteOptions:
    """What the checked values of options ask to write. Raises UsageError."""
    from trace_export.draw import WriteOptions

    out = arguments.path_or_none(path, "path")
    names = _formats_of(out) if formats is None else arguments.choices(formats, "formats", Format)
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


def _tables(tables: tuple[Table, ...], formats: tuple[Format, ...]) -> tuple[Table, ...]:
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
