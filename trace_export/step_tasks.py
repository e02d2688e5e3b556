"""The table StepTaskInfo of MindStudio Insight: into which databases of a run it goes, or into which copies of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from trace_export.errors import NothingToExportError, path_text
from trace_export.pipeline.interpret import interpret
from trace_export.progress import Progress, silent
from trace_export.read import read_all
from trace_export.run import Request
from trace_export.selection import Selection, select
from trace_export.sources import formats
from trace_export.writers import step_task_info
from trace_export.writers.outputs import Outputs
from trace_export.writers.paths import output_folder


def databases(wanted: Request) -> list[Path]:
    """The databases of a run in which MindStudio Insight reads the table. Raises NothingToExportError where there is
    none."""
    kinds = [row.kind for row in formats.FORMATS if row.step_task_info]
    paths = [source.path for source in wanted.to_read.sources if source.kind in kinds and source.path.suffix == ".db"]
    if not paths:
        raise NothingToExportError(
            f"{wanted.source.log_dir}: no database here to put the table StepTaskInfo into",
            f"collect {' or '.join(kinds)} profiles with the export type db",
        )
    return paths


def copy(database: Path, log_dir: Path, out: Path | None) -> Path:
    """Where the copy of a database goes: the place that it has in the log_dir, in a folder of the outputs."""
    return output_folder(out, log_dir) / step_task_info.FOLDER / database.relative_to(log_dir)


def write(
    wanted: Request,
    out: Path | None,
    outputs: Outputs,
    progress: Progress = silent,
    *,
    in_place: bool = False,
) -> None:
    """Writes the table, into copies of the databases below `out` or, `in_place`, into themselves.

    Sources that cannot be read, which `Request.read` reports, have none. Times are those of the databases, so nothing
    is aligned, and of the part of the run only the steps count. Raises NothingToExportError, OutputError, UsageError.
    """
    options = wanted.source
    paths = {path_text(path): path for path in databases(wanted)}
    profile, _ = read_all(wanted.to_read.sources, replace(options, detail="spans"), progress)
    labelled = select(interpret(profile, options.declared), Selection(steps=wanted.part.steps))
    of_rank = {rank: paths[name] for rank, name in profile.ranks.select("rank", "source").iter_rows() if name in paths}
    if in_place:
        step_task_info.write_in_place(labelled, of_rank, outputs)
    else:
        targets = {rank: (path, copy(path, options.log_dir, out)) for rank, path in of_rank.items()}
        step_task_info.write_copies(labelled, targets, outputs)
