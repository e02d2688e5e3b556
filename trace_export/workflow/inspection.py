"""What lies in a folder, without exporting anything: find → read → interpret, and a look at the result."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import polars as pl

from trace_export.errors import TraceExportError, path_text
from trace_export.model import Declared, Note, Profile
from trace_export.pipeline import completeness
from trace_export.pipeline.interpret import interpret
from trace_export.sources.choose import nothing_found
from trace_export.sources.find import find
from trace_export.workflow.progress import Progress
from trace_export.workflow.reading import LoadOptions, read_all


@dataclass(frozen=True)
class Inspection:
    """`sources`: kind, path, machine, rank as the layout tells them. `ranks`: one row a rank, with stage, host, steps,
    blocks, its first start (unix ns of its host's clock) and the length of its recording in seconds."""

    sources: pl.DataFrame
    ranks: pl.DataFrame
    notes: tuple[Note, ...]
    failures: tuple[TraceExportError, ...]


def inspect(log_dir: Path, progress: Progress, *, follow_links: bool = False) -> Inspection:
    """Reads every source of the folder on its own clock. Raises UsageError when it is no folder."""
    found = find(log_dir, follow_links=follow_links)
    rows = [(s.kind, path_text(s.path), s.machine, s.rank, s.rank_origin) for s in found.sources]
    schema = {"kind": pl.String, "path": pl.String, "machine": pl.Int32, "rank": pl.Int32, "rank_origin": pl.String}
    sources = pl.DataFrame(rows, schema, orient="row")
    if not found.sources:
        return Inspection(sources, pl.DataFrame(), found.notes, (nothing_found(found, log_dir),))
    profile, failures = read_all(found.sources, LoadOptions(log_dir), progress)
    profile = completeness.check(interpret(profile, Declared()), one_clock=False, all_ranks=True)
    return Inspection(sources, _ranks(profile), found.notes + profile.notes, tuple(failures))


def _ranks(profile: Profile) -> pl.DataFrame:
    blocks = profile.spans.group_by("rank").agg(
        pl.struct("run", "step").drop_nulls().n_unique().alias("steps"),
        pl.len().alias("blocks"),
        pl.col("start_ns").min().alias("first_ns"),
        ((pl.col("end_ns").max() - pl.col("start_ns").min()) / 1e9).alias("seconds"),
    )
    ranks = profile.ranks.join(blocks, on="rank", how="left").sort("rank")
    return ranks.select(
        "rank", "rank_origin", "stage", "stage_origin", "host", "device", "steps", "blocks", "first_ns", "seconds"
    )
