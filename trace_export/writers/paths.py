"""Where the outputs go, and what they are called."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from trace_export.errors import UsageError
from trace_export.selection import Numbers
from trace_export.writers.formats import BY_NAME, OUTPUT_FORMATS

STEM = "pipeline_profile"
PAGE = "pipeline_report.html"
ALIGNMENT = "clock_alignment.json"


def output_paths(formats: Sequence[str], out: Path | None, log_dir: Path, *, gzip: bool = False) -> dict[str, Path]:
    """Format → the file it goes to: `out`, where that names a file, else a file in the folder `out` or `log_dir`.

    Raises UsageError for an unknown format or one file for several formats.
    """
    for name in formats:
        if name not in BY_NAME:
            raise UsageError(f'--format "{name}" is unknown', f"choose from {', '.join(BY_NAME)}")
    folder = out or log_dir
    suffixes = tuple(f".{known.extension}" for known in OUTPUT_FORMATS)
    if folder.name.removesuffix(".gz").endswith(suffixes) and not folder.is_dir():
        if len(formats) != 1:
            raise UsageError(
                f"--out {folder} is one file, but --format names {len(formats)}", "give a folder, or one format"
            )
        return {formats[0]: folder}
    return {name: folder / _file_name(name, gzip) for name in formats}


def _file_name(name: str, gzip: bool) -> str:
    known = BY_NAME[name]
    return f"{STEM}.{known.extension}{'.gz' if gzip and known.kind == 'trace' else ''}"


def with_steps(path: Path, steps: Numbers) -> Path:
    """pipeline_profile.json.gz → pipeline_profile.steps2-4.json.gz"""
    stem, _, extension = path.name.partition(".")
    return path.with_name(f"{stem}.steps{steps}.{extension}")


def report_page(out: Path | None, log_dir: Path) -> Path:
    """The file of the report's page: `out` if it names one, else PAGE in the folder `out` or beside the input."""
    folder = out or (log_dir if log_dir.is_dir() else log_dir.parent)
    return folder if folder.suffix == ".html" else folder / PAGE
