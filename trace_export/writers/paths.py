"""Folders and names of the output files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from trace_export.choices import HeatMapFormat
from trace_export.errors import UsageError
from trace_export.files import is_file, is_folder
from trace_export.selection import Numbers
from trace_export.writers.formats import BY_NAME, OUTPUT_FORMATS

STEM = "pipeline_profile"
PAGE = "pipeline_report.html"
HEAT_MAP = "pipeline_slowdown"
ALIGNMENT = "clock_alignment.json"


def output_paths(formats: Sequence[str], out: Path | None, log_dir: Path, *, gzip: bool = False) -> dict[str, Path]:
    """Format → the file it goes to: `out`, where that names a file, else a file in `output_folder`.

    Raises UsageError for one file for several formats, or for a format that its name does not have.
    """
    if out is not None and _names_a_file(out):
        if len(formats) != 1:
            what = f"{out} is one file, and there are {len(formats)} formats: {', '.join(formats)}"
            raise UsageError(what, "give a folder, or one format", parameter="path")
        extension = BY_NAME[formats[0]].extension
        if not _ends_in(out, extension):
            what = f"{out} is not the name of a file in the format {formats[0]}"
            raise UsageError(what, f"let it end in .{extension}, or choose the format of its name", parameter="path")
        return {formats[0]: out}
    folder = output_folder(out, log_dir)
    return {name: folder / _file_name(name, gzip) for name in formats}


def output_folder(out: Path | None, log_dir: Path) -> Path:
    """Where outputs of fixed names go: `out`, or the folder of the file that it names; without it `log_dir`, or where
    that is a span table, the table's folder."""
    if out is not None:
        return out.parent if _names_a_file(out) else out
    return log_dir.parent if is_file(log_dir) else log_dir


def alignment_path(out: Path | None, log_dir: Path) -> Path | None:
    """The file of the clock alignment; None where `out` asks for one file only."""
    return None if out is not None and _names_a_file(out) else output_folder(out, log_dir) / ALIGNMENT


def _names_a_file(out: Path) -> bool:
    return any(_ends_in(out, output_format.extension) for output_format in OUTPUT_FORMATS) and not is_folder(out)


def _ends_in(out: Path, extension: str) -> bool:
    return out.name.removesuffix(".gz").endswith(f".{extension}")


def _file_name(name: str, gzip: bool) -> str:
    output_format = BY_NAME[name]
    return f"{STEM}.{output_format.extension}{'.gz' if gzip and output_format.kind == 'trace' else ''}"


def with_steps(path: Path, steps: Numbers | None) -> Path:
    """pipeline_profile.json.gz → pipeline_profile.steps2-4.json.gz; without steps the same."""
    if steps is None:
        return path
    stem, _, extension = path.name.partition(".")
    return path.with_name(f"{stem}.steps{steps}.{extension}")


def with_table(path: Path, table: str) -> Path:
    """pipeline_profile.parquet → pipeline_profile.messages.parquet; of the blocks the same."""
    return path if table == "blocks" else path.with_name(f"{path.stem}.{table}{path.suffix}")


def report_page(out: Path | None, log_dir: Path) -> Path:
    """The file of the report's page: `out` if it names one, else PAGE in the folder `out` or beside the input."""
    folder = out or output_folder(None, log_dir)
    return folder if folder.suffix == ".html" else folder / PAGE


def heat_map_path(out: Path | None, log_dir: Path, format: HeatMapFormat | None) -> Path:
    """The file of the heat map: `out` if it names one, else HEAT_MAP in the folder `out` or beside the input; svg where
    no `format` is given. Raises UsageError where the name is of another format."""
    folder = out or output_folder(None, log_dir)
    if folder.suffix in (".svg", ".png"):
        if format is not None and folder.suffix != f".{format}":
            remedy = f"give a name that ends in .{format}"
            raise UsageError(f"{folder.name}: the name does not fit --format {format}", remedy, parameter="path")
        return folder
    return folder / f"{HEAT_MAP}.{format or 'svg'}"
