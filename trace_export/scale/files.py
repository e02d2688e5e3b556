"""The files of an overview: one page, and its tables as Parquet."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import polars as pl

from trace_export.answer import ReportTable
from trace_export.choices import OverviewFormat
from trace_export.scale import words
from trace_export.scale.build import Overview
from trace_export.scale.exceptions import SLOW, SLOW_LINK
from trace_export.writers.outputs import Outputs
from trace_export.writers.overview.heat_map import HeatMap, Quantity, heat_map
from trace_export.writers.overview.page import Contents, page
from trace_export.writers.paths import output_folder
from trace_export.writers.tables import write_frame

STEM = "pipeline_overview"
MOST_ROWS = 500
"""More rows of a table are in the Parquet table alone."""
TABLES = (
    "cells",
    "ranks",
    "replicas",
    "bands",
    "steps",
    "exceptions",
    "links",
    "hosts",
    "failures",
    "causes",
    "levels",
)
OF_PEERS = (Quantity("busy", "busy time, by the median of the stage", "×", least=(1 / SLOW, SLOW)),)
"""What compares the ranks of a stage."""
OF_RANKS = (
    Quantity("idle", "idle share (bubble)", "%", 100.0),
    Quantity("waiting", "waiting share", "%", 100.0),
    Quantity("pipeline_ns", "pipeline time of the replica", "ms", 1e-6),
    Quantity("behind_ns", "start behind the first replica", "ms", 1e-6),
)


def planned(formats: Sequence[OverviewFormat], out: Path | None, log_dir: Path) -> list[Path]:
    """The files that `write` writes."""
    folder = output_folder(out, log_dir)
    tables = [folder / f"{STEM}.{name}.parquet" for name in TABLES] if "parquet" in formats else []
    return [*([_page(out, log_dir)] if "html" in formats else []), *tables]


def _page(out: Path | None, log_dir: Path) -> Path:
    return out if out is not None and out.suffix == ".html" else output_folder(out, log_dir) / f"{STEM}.html"


def write(
    overview: Overview,
    name: str,
    formats: Sequence[OverviewFormat],
    out: Path | None,
    log_dir: Path,
    outputs: Outputs,
) -> None:
    """Writes the overview of the run called `name`. Raises OutputError, UsageError."""
    if "html" in formats:
        with outputs.file(_page(out, log_dir)) as temporary:
            temporary.write_text(page(_contents(overview, name)), encoding="utf-8")
    for table in TABLES if "parquet" in formats else ():
        with outputs.file(output_folder(out, log_dir) / f"{STEM}.{table}.parquet") as temporary:
            write_frame(getattr(overview, table), temporary)


def _contents(overview: Overview, name: str) -> Contents:
    peers = overview.ranks["stage"].is_duplicated().any()
    cells = heat_map(overview.cells, overview.ranks, (*OF_PEERS, *OF_RANKS) if peers else OF_RANKS)
    ms = [(pl.col(f"{column}_ns") / 1e6).alias(column) for column in ("p5", "p50", "p95", "max")]
    failures = words.failure_rows(overview)
    causes, different = words.cause_rows(overview), words.exception_rows(overview)
    return Contents(
        title=f"Pipeline overview: {name}",
        heading=words.heading(overview),
        sentences=words.sentences(overview),
        warning=words.missing(overview),
        causes=_table("Causes", causes, (causes.height and _GAIN) or "None."),
        exceptions=_table("Exceptions", different, (different.height and _THRESHOLDS) or "None."),
        on_map=_map_cells(overview, cells),
        map=cells,
        bands=overview.bands.select("stage", *ms),
        tables=[
            _table("", words.stage_rows(overview)),
            *_cohorts(overview),
            _table("What a step is made of", words.level_rows(overview)),
            _table("Steps", words.step_rows(overview), _STEPS_NOTE),
            *([_table("Not read", failures)] if failures.height else []),
        ],
    )


def _table(title: str, frame: pl.DataFrame, note: str = "") -> ReportTable:
    """A table of the page, whose size is not to grow with that of the run."""
    return ReportTable(title, frame, note).part(range(min(frame.height, MOST_ROWS)))


_GAIN = "Gain: how much shorter a step is without the cause, in a replay."
_THRESHOLDS = (
    f"Blocks that take {SLOW} times as long as those of their peers, and transfers that take {SLOW_LINK} times as long "
    "as those between the same stages, beyond the usual scatter. An exception need not cost anything."
)
_STEPS_NOTE = (
    "step: from the first block to that of the next step; pipeline: from the first block of a replica to its last, the "
    "mean over the ranks, and the longest."
)


def _cohorts(overview: Overview) -> Iterator[ReportTable]:
    """The groups of replicas, if there are several replicas."""
    if overview.replicas.height > 1:
        typical = (
            "" if overview.representative is None else f" Replica {overview.representative} is most like the others."
        )
        alike = (
            "Replicas of a group have the same micro-batches and order of blocks, and work that differs by at most 3 %"
            " from one to the next."
        )
        rows = words.cohort_rows(overview)
        yield _table("Replicas that behave alike", rows, alike + typical)


def _map_cells(overview: Overview, cells: HeatMap) -> dict[int, tuple[int, int]]:
    """The rows of the map with the rank, or else the replica, of each exception."""
    places = {}
    first = pl.coalesce("rank", pl.col("ranks").list.first())
    for row, (rank, replica) in enumerate(overview.exceptions.select(first, "replica").iter_rows()):
        place = cells.of_rank(rank) if rank is not None else None if replica is None else cells.of_replica(replica)
        if place is not None:
            places[row] = place
    return places
