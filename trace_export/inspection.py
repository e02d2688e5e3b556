"""What lies in a folder, told without exporting anything: find → read → interpret, and a look at the result."""

from __future__ import annotations

from dataclasses import asdict, dataclass

import orjson
import polars as pl

from trace_export import export
from trace_export.errors import TraceExportError, path_text
from trace_export.model import Note, Profile
from trace_export.pipeline.interpret import interpret
from trace_export.render import Progress, silent
from trace_export.sources.choose import nothing_found
from trace_export.sources.find import find


@dataclass(frozen=True)
class Inspection:
    """`sources`: kind, path, machine, rank as the layout tells them. `ranks`: one row a rank, with stage, host, steps,
    blocks, its first start (unix ns of its host's clock) and the length of its recording in seconds."""

    sources: pl.DataFrame
    ranks: pl.DataFrame
    notes: tuple[Note, ...]
    failures: tuple[TraceExportError, ...]

    def shown(self) -> pl.DataFrame:
        """The ranks as people read them: times as text, in UTC."""
        first = pl.from_epoch("first_ns", time_unit="ns").dt.strftime("%Y-%m-%d %H:%M:%S%.6f")
        return self.ranks.with_columns(first_ns=first, seconds=pl.col("seconds").round(3)).rename({"first_ns": "first"})

    def json(self) -> str:
        tables = {
            "sources": self.sources.to_dicts(),
            "ranks": self.ranks.to_dicts(),
            "notes": [asdict(note) for note in self.notes],
            "failures": [str(e) for e in self.failures],
        }
        return orjson.dumps(tables, option=orjson.OPT_INDENT_2).decode()


def inspect(options: export.LoadOptions, progress: Progress = silent) -> Inspection:
    """Reads every source of the folder on its own clock. Raises UsageError when it is no folder."""
    found = find(options.log_dir, follow_links=options.follow_links)
    rows = [(s.kind, path_text(s.path), s.machine, s.rank, s.rank_origin) for s in found.sources]
    schema = {"kind": pl.String, "path": pl.String, "machine": pl.Int32, "rank": pl.Int32, "rank_origin": pl.String}
    sources = pl.DataFrame(rows, schema, orient="row")
    if not found.sources:
        return Inspection(sources, pl.DataFrame(), found.notes, (nothing_found(found, options.log_dir),))
    profile, failures = export.read_all(list(found.sources), options, progress)
    profile = interpret(profile, options.told)
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
