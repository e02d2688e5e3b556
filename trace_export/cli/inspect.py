"""`trace-export inspect`: whether what lies in a folder can be drawn; exports nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Unpack

import typer

from trace_export.cli import terminal
from trace_export.cli.inputs import one_folder
from trace_export.options import Inspect, Inspecting, in_words_of, part

if TYPE_CHECKING:
    import polars as pl

    from trace_export.inspection.inspect import Inspection

SHOWN = {
    "rank": "rank", "stage": "stage", "host": "host", "steps": "steps", "microbatches": "mb", "F": "F", "B": "B",
    "W": "W", "FB": "FB", "OPT": "OPT", "step_ns": "step ms", "transfers": "p2p", "collectives": "coll.",
}  # fmt: skip
"""The columns of a rank that the terminal shows, where they differ between ranks, and their headings."""
WORDS = {
    "host": "host {}", "steps": "{} steps", "microbatches": "{} micro-batches", "transfers": "{} sends and receives",
    "collectives": "{} collectives", "origin": "{} times", "stage_origin": "stages {}", "rank_origin": "ranks {}",
    "F": "{} F", "B": "{} B", "W": "{} W", "FB": "{} FB", "OPT": "{} OPT",
}  # fmt: skip
"""How what is the same on all ranks is said."""


def inspect(**given: Unpack[Inspect]) -> None:
    """Check whether the profiles in a folder can be drawn, and what each of them holds. Writes nothing.

    Exit code 1: no source can be drawn; 3: some cannot.
    """
    from trace_export import api

    with terminal.progress(given) as progress:
        options: Inspecting = {**part(given, Inspecting), "progress": progress}
        result = api.inspect(one_folder(given), **options)
    for error in result.failures:
        in_words_of(Inspect, error)
    if given["json"]:
        terminal.json(result.json())
    else:
        show(result)
        terminal.notes(result.notes, given["verbose"])
    terminal.errors(result.failures, given["debug"])
    raise typer.Exit(1 if not result.facts.get("ranks") else 3 if result.failures else 0)


def show(result: Inspection) -> None:
    """The verdict, what all ranks have in common, the ranks."""
    out = terminal.output()
    terminal.paragraph(out, result.verdict, style="bold")
    counts = result.sources.group_by("kind", maintain_order=True).len()
    out.print("sources: " + (", ".join(f"{n} {kind}" for kind, n in counts.iter_rows()) or "none"))
    if result.facts.get("beginnings"):
        terminal.paragraph(out, _beginning(result.facts))
    if result.runs.height > 1 or (result.runs["windows"] > 1).any():
        _show_runs(result.runs)
    if result.ranks.height:
        _show_ranks(result.ranks)


def _show_runs(runs: pl.DataFrame) -> None:
    import polars as pl

    from trace_export.answer import ReportTable

    start = pl.from_epoch("start_ns", time_unit="ns").dt.strftime("%Y-%m-%d %H:%M:%S").alias("start")
    missing = [] if runs["missing_ranks"].eq("").all() else [pl.col("missing_ranks").alias("missing ranks")]
    table = runs.select("run", start, "ranks", "windows", "steps", *missing, "read")
    note = "start: UTC; the rest is about the run that was read, --run N chooses another" if runs.height > 1 else ""
    terminal.output().print()
    terminal.tables([ReportTable("Runs", table, note)])


def _beginning(facts: dict[str, Any]) -> str:
    """What was read, and what was not."""
    sources = f"{facts['beginnings']} large source{'s' * (facts['beginnings'] != 1)}"
    return (
        f"read: only the beginning of {sources}, which the counts are about; the number of steps is an estimate"
        f" (--full reads all {facts['bytes'] / 1e6:,.0f} MB)"
    )


def _show_ranks(ranks: pl.DataFrame) -> None:
    import polars as pl

    from trace_export.analysis.cause_words import ranks_text
    from trace_export.answer import Place, ReportTable

    same = [name for name in WORDS if ranks[name].n_unique() == 1]
    common = [
        WORDS[name].format(value).removesuffix(("es" if name == "microbatches" else "s") * (value == 1))
        for name in same
        if (value := ranks[name][0]) not in (None, 0, "")
    ]
    if ranks["device_tasks"].any():
        common.append("device tasks with --detail kernels")
    where = " in the beginning" if ranks["beginning"].any() else ""
    terminal.paragraph(terminal.output(), f"on every rank{where}: " + ", ".join(common), style="dim")
    usual = ranks["blocks"].drop_nulls().mode().max()  # null: no rank has any
    odd = ranks.select((pl.col("blocks").ne_missing(pl.lit(usual)) & pl.lit(usual is not None)).arg_true()).to_series()
    ms = (pl.col("step_ns") / 1e6).round(3)
    columns = [
        name for name in SHOWN if name not in same and not (name != "rank" and ranks[name].null_count() == ranks.height)
    ]
    table = ranks.with_columns(step_ns=ms).select(pl.col(name).alias(SHOWN[name]) for name in columns)
    which = ranks["rank"].gather(odd).to_list()
    note = f"another number of blocks than most ranks have: {ranks_text(which)}" if which else ""
    terminal.output().print()
    terminal.tables([ReportTable("Ranks", table, note, dict.fromkeys(odd.to_list(), Place()))])
