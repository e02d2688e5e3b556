"""`trace-export inspect`: what lies in a folder; exports nothing."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

import typer

from trace_export.cli import options as opt
from trace_export.cli import terminal

if TYPE_CHECKING:
    from trace_export.workflow.inspection import Inspection

RANKS_SHOWN = 64


def inspect(
    folder: opt.Folder = None,
    log_dir: opt.LogDir = None,
    follow_links: opt.FollowLinks = False,
    json: opt.Json = False,
    debug: opt.Debug = False,
) -> None:
    """List the sources, ranks, hosts, stages and steps in a folder. Writes nothing.

    Exit code 1: no source can be drawn; 3: some cannot.
    """
    from trace_export import api

    printing = opt.Printing(json=json, debug=debug)
    with terminal.progress(printing) as progress:
        result = api.inspect(opt.one_folder(folder, log_dir), follow_links=follow_links, progress=progress)
    if json:
        terminal.json(_document(result))
    else:
        _show(result)
    terminal.errors(result.failures, debug)
    raise typer.Exit(1 if result.ranks.is_empty() else 3 if result.failures else 0)


def _document(result: Inspection) -> str:
    """Everything, as JSON."""
    import orjson

    document = {
        "sources": result.sources.to_dicts(),
        "ranks": result.ranks.to_dicts(),
        "notes": [asdict(note) for note in result.notes],
        "failures": [str(error) for error in result.failures],
    }
    return orjson.dumps(document, option=orjson.OPT_INDENT_2).decode()


def _show(result: Inspection) -> None:
    """The ranks, with times as text in UTC, then the notes."""
    import polars as pl

    from trace_export.analysis.report_tables import ReportTable

    counts = result.sources.group_by("kind", maintain_order=True).len()
    terminal.console().print("sources: " + (", ".join(f"{n} {kind}" for kind, n in counts.iter_rows()) or "none"))
    if result.ranks.height:
        first = pl.from_epoch("first_ns", time_unit="ns").dt.strftime("%Y-%m-%d %H:%M:%S%.6f")
        shown = result.ranks.head(RANKS_SHOWN).with_columns(first_ns=first, seconds=pl.col("seconds").round(3))
        more = result.ranks.height - RANKS_SHOWN
        note = f"… and {more} more ranks; --json lists them all" if more > 0 else ""
        terminal.tables([ReportTable("Ranks", shown.rename({"first_ns": "first"}), note)])
    terminal.notes(result.notes)
