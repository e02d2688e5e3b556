"""`trace-export overview`: any number of ranks on one page."""

from __future__ import annotations

from dataclasses import replace
from typing import Unpack

import typer

from trace_export.cli import terminal
from trace_export.cli.inputs import one_folder
from trace_export.options import Overview, Overviewing, as_typed, part

EXCEPTIONS_SHOWN = 20


def overview(**given: Unpack[Overview]) -> None:
    """Show any number of ranks on one page: ranks × steps as a heat map, the stages, and what differs from its peers.

    Of more than 1,024 ranks each pipeline replica is read, aligned and measured by itself; only small tables come back.
    """
    import polars as pl

    from trace_export import api
    from trace_export.scale import words

    files_wanted = given["path"] is not None or not given["json"]
    formats = given["formats"] or ("html" if files_wanted else None)
    with terminal.progress(given) as progress:
        options: Overviewing = {**part(given, Overviewing), "progress": progress}
        done = api.overview(one_folder(given), given["path"], formats, **options)
    first = pl.Series([as_typed(text, Overview) for text in done.overview.failures["first"]], dtype=pl.String)
    shown = replace(done.overview, failures=done.overview.failures.with_columns(first=first))
    if given["json"]:
        from trace_export.documents import encode
        from trace_export.scale.overview_document import overview_document

        terminal.json(encode(overview_document(shown)))
    elif not given["quiet"]:
        terminal.lead(words.heading(shown))
        terminal.answer(words.sentences(shown))
        terminal.lines(words.exception_lines(shown, EXCEPTIONS_SHOWN))
        terminal.notes(shown.notes, given["verbose"])
        terminal.files(done.files)
    terminal.lost(shown.failures.rows(), shown.sources)
    warned = given["strict"] and any(note.level == "warning" for note in shown.notes)
    raise typer.Exit(3 if shown.unread or warned else 0)
