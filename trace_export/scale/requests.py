"""The command `overview`: from what is wanted to files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from trace_export.choices import OverviewFormat
from trace_export.errors import path_text
from trace_export.scale import files
from trace_export.scale.build import Overview, all_ranks, divide
from trace_export.scale.build import overview as build
from trace_export.workflow.progress import Progress, silent
from trace_export.workflow.reading import locate
from trace_export.workflow.requests import Request
from trace_export.writers.outputs import Outputs


def overview(
    wanted: Request,
    formats: Sequence[OverviewFormat],
    out: Path | None,
    *,
    force: bool = False,
    progress: Progress = silent,
) -> tuple[Overview, list[Path]]:
    """An overview, and its files. Raises UsageError before anything is read if one of them may not be replaced;
    NothingToExportError, OutputError."""
    log_dir = wanted.source.log_dir
    located = locate(all_ranks(wanted.source))
    with Outputs([*located.inputs, *wanted.clocks.inputs], force=force) as outputs:
        outputs.check(files.planned(formats, out, log_dir))
        divided = divide(wanted.source, located, progress)
        found = build(wanted.source, wanted.clocks, wanted.part, divided, progress)
        name = path_text(log_dir.resolve().name or log_dir)
        files.write(found, name, formats, out, log_dir, outputs)
    return found, outputs.written
