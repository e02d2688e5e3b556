"""The files of an overview: one page, and its tables as Parquet."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import polars as pl

from trace_export.analysis.stragglers import SLOW
from trace_export.choices import OverviewFormat
from trace_export.scale import words
from trace_export.scale.build import Overview
from trace_export.writers.outputs import Outputs
from trace_export.writers.overview.heat_map import HeatMap, Quantity, heat_map, worker_map
from trace_export.writers.overview.page import Contents, Table, page
from trace_export.writers.paths import output_folder
from trace_export.writers.tables import write_frame

STEM = "pipeline_overview"
TABLES = ("cells", "ranks", "replicas", "bands", "steps", "exceptions", "links", "hosts", "failures", "workers")
QUANTITIES = (
    Quantity("busy", "busy time, by the median of the stage", "×", least=(1 / SLOW, SLOW)),
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
    found: Overview,
    name: str,
    traces: Mapping[int, Path],
    formats: Sequence[OverviewFormat],
    out: Path | None,
    log_dir: Path,
    outputs: Outputs,
) -> None:
    """Writes the overview of the run called `name`; `traces`: the trace of each replica that has one. Raises
    OutputError, UsageError."""
    if "html" in formats:
        target = _page(out, log_dir)
        links = {replica: path.relative_to(target.parent).as_posix() for replica, path in traces.items()}
        with outputs.file(target) as temporary:
            temporary.write_text(page(_contents(found, name, links)), encoding="utf-8")
    for table in TABLES if "parquet" in formats else ():
        with outputs.file(output_folder(out, log_dir) / f"{STEM}.{table}.parquet") as temporary:
            write_frame(getattr(found, table), temporary)


def _contents(found: Overview, name: str, links: Mapping[int, str]) -> Contents:
    cells = heat_map(found.cells, found.ranks, QUANTITIES)
    ms = [(pl.col(f"{column}_ns") / 1e6).alias(column) for column in ("p5", "p50", "p95", "max")]
    failures = words.failure_rows(found)
    return Contents(
        title=f"Pipeline overview: {name}",
        heading=words.heading(found),
        sentences=words.sentences(found),
        warning=words.missing(found),
        first=[
            Table("Exceptions", words.exception_rows(found), _THRESHOLDS, _places(found, cells), _linked(found, links))
        ],
        map=cells,
        workers=worker_map(found.workers) if found.slowdown and found.replicas.height > 1 else None,
        bands=found.bands.select("stage", *ms),
        tables=[
            Table("", words.stage_rows(found)),
            Table(
                "Replicas that behave alike", words.cohort_rows(found), _cohort_note(found), {}, _typical(found, links)
            ),
            *_slowest(found, cells, links),
            Table("Steps", words.step_rows(found), _STEPS),
            *([Table("Traces", *_traces(found, links))] if links else []),
            *([Table("Not read", failures)] if failures.height else []),
        ],
    )


SLOWEST = 24
"""So many workers are named."""


def _slowest(found: Overview, cells: HeatMap, links: Mapping[int, str]) -> list[Table]:
    """The workers that make the run the slowest, none of one replica."""
    rows = words.worker_rows(found, SLOWEST)
    if rows.is_empty() or found.replicas.height < 2:
        return []
    places = {row: cells.of_rank(rank) for row, rank in enumerate(rows["rank"])}
    traces = {row: links[replica] for row, replica in enumerate(rows["replica"]) if replica in links}
    return [Table("Workers that make the run slower", rows, "", {r: at for r, at in places.items() if at}, traces)]


_THRESHOLDS = (
    "Compared with the same stage, or the same link, of the other replicas: blocks that take more than 1.1 times as "
    "long, transfers that take more than 1.5 times as long, and that stand out of the scatter of their peers."
)
_STEPS = (
    "step: from the first block of a replica to that of the next step; pipeline: from its first block to its last; "
    "medians over the replicas, and the longest."
)


def _cohort_note(found: Overview) -> str:
    typical = "" if found.representative is None else f" Replica {found.representative} is most like the others."
    alike = (
        "The same micro-batches and order of blocks, and work that takes as long as that of the next one within 3 %."
    )
    return alike + typical


def _linked(found: Overview, links: Mapping[int, str]) -> dict[int, str]:
    """The trace of the replica of each exception."""
    return {row: links[replica] for row, replica in enumerate(found.exceptions["replica"]) if replica in links}


def _typical(found: Overview, links: Mapping[int, str]) -> dict[int, str]:
    """That of the replica that is most like the others, beside the largest group."""
    typical = found.representative
    return {0: links[typical]} if typical is not None and typical in links else {}


def _traces(
    found: Overview, links: Mapping[int, str]
) -> tuple[pl.DataFrame, str, dict[int, tuple[int, int]], dict[int, str]]:
    """An index of the traces that were written: why each was, and its file."""
    why = {} if found.representative is None else {found.representative: ["most like the others"]}
    for replica, kind in found.exceptions.select("replica", "kind").unique(maintain_order=True).iter_rows():
        why.setdefault(replica, []).append(words.KINDS[kind][0])
    rows = [(replica, ", ".join(why.get(replica, []))) for replica in links]
    frame = pl.DataFrame(rows, {"replica": pl.Int64, "why": pl.String}, orient="row")
    return frame, "With all ranks of the replica; for the Perfetto UI.", {}, dict(enumerate(links.values()))


def _places(found: Overview, cells: HeatMap) -> dict[int, tuple[int, int]]:
    """Where the map has the rank, or else the replica, of each exception."""
    places = {}
    for row, (rank, replica) in enumerate(found.exceptions.select("rank", "replica").iter_rows()):
        place = cells.of_rank(rank) if rank is not None else None if replica is None else cells.of_replica(replica)
        if place is not None:
            places[row] = place
    return places
