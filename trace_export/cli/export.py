"""`trace-export export`, the default: the chart of what lies in a folder."""

from __future__ import annotations

from typing import Unpack

import typer

from trace_export.cli import terminal
from trace_export.cli.inputs import one_folder, style
from trace_export.options import Export, Exporting, in_words_of, part


def export(**given: Unpack[Export]) -> None:
    """Draw the profiles in a folder; the format is detected.

    `trace-export DIR` is short for `trace-export export DIR`.
    """
    from trace_export import api

    with terminal.progress(given) as progress:
        options: Exporting = {**part(given, Exporting), "figure": style(given), "progress": progress}
        done = api.export(one_folder(given), given["path"], given["formats"], **options)
    if given["json"]:
        from trace_export.analysis.run_document import export_document
        from trace_export.documents import encode

        for error in done.run.failures:
            in_words_of(Export, error)
        terminal.json(encode(export_document(done.run.summary(), done.files)))
    elif not given["quiet"]:
        from trace_export.cli import summaries

        terminal.facts(summaries.run_rows(done.run.summary()))
        terminal.notes(done.run.notes, given["verbose"])
        terminal.files(done.files)
        if given["detail"] != "spans":
            terminal.hint("communication and device tasks: click the arrow of the group Ranks, below the stages")
    raise typer.Exit(terminal.conclude([done.run], given))
