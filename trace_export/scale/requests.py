"""The command `overview`: from options to files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from trace_export.choices import OverviewFormat
from trace_export.errors import NothingToExportError, UsageError, path_text
from trace_export.progress import Progress, silent
from trace_export.read import Located
from trace_export.run import Request, Run, outputs
from trace_export.scale import files
from trace_export.scale.build import Overview, of_run
from trace_export.scale.build import overview as build
from trace_export.scale.replicas import Placed, look
from trace_export.selection import Numbers
from trace_export.sources.spans import span_table
from trace_export.writers.outputs import Outputs

CHART_RANKS = 256
"""A report of more ranks has an overview beside it: its chart shows one rank of each stage."""


def overview(
    wanted: Request,
    formats: Sequence[OverviewFormat],
    out: Path | None,
    replicas: Numbers | None = None,
    *,
    force: bool = False,
    progress: Progress = silent,
) -> tuple[Overview, list[Path]]:
    """An overview of the `replicas` (None: all), and its files: `formats` in `out`, a folder or the page. Raises
    UsageError before any block is read if one of them may not be replaced; NothingToExportError, OutputError."""
    log_dir = wanted.source.log_dir
    placed = _placed(wanted, replicas, progress)
    wanted = wanted if placed is None else replace(wanted, located=placed.located)
    with outputs(wanted, force=force) as written:
        written.check(files.planned(formats, out, log_dir))
        result = build(wanted, placed, replicas, progress)
        if result.cells.is_empty():
            what = f"{log_dir}: no step has a forward or a backward, so there is nothing to compare"
            raise NothingToExportError(what, "draw what is there with trace-export export")
        name = path_text(log_dir.resolve().name or log_dir)
        files.write(result, name, formats, out, log_dir, written)
    return result, written.written


def _placed(wanted: Request, replicas: Numbers | None, progress: Progress) -> Placed | None:
    """The places of the ranks; None for a table, and with `devices`: these are read whole as for a report. Raises
    UsageError for options that need replicas to be read apart."""
    source = wanted.source
    one_table = span_table.is_table(source.log_dir, source.columns)
    if source.devices is None and not one_table:
        return look(source, progress)
    if replicas is not None:
        whole = (
            f"{source.log_dir} is one table" if one_table else f"with devices {source.devices} the run is read whole"
        )
        raise UsageError(f"{whole}, so its replicas cannot be read apart", "leave it out", parameter="replica")
    return None


def overview_page(report: Path, located: Located) -> list[Path]:
    """The page of an overview beside that of a report, if the run has too many ranks for a chart, by the number of its
    sources or the ranks in them."""
    return [_page(report)] if len(located.sources) > CHART_RANKS else []


def write_overview_page(run: Run, report: Path, outputs: Outputs) -> str:
    """Writes the overview beside the page of a report; its name, "" where the chart shows all ranks."""
    ranks = run.profile.ranks_with_blocks
    if ranks.height <= CHART_RANKS:
        return ""
    result = of_run(run, ranks["source"].n_unique())
    page = _page(report)
    files.write(result, run.name, ["html"], page, run.log_dir, outputs)
    return page.name


def _page(report: Path) -> Path:
    return report.with_name(f"{files.STEM}.html")
