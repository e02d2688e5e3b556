"""The table StepTaskInfo, from which MindStudio Insight draws its pipeline chart, in profiler databases.

`CREATE TABLE StepTaskInfo (name TEXT, startNs INTEGER, endNs INTEGER, type INTEGER)`, one row per block in the order of
their starts, times as recorded. Names and types are those of msprof-analyze (`cluster -m pp_chart`): for DualPipeV the
micro-batches, chunk 1 counted on after chunk 0, and the phase 0 to 6; for any other schedule FP and BP, 0 and 1.
"""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from urllib.parse import quote

import polars as pl

from trace_export.errors import OutputError
from trace_export.model import Profile
from trace_export.writers.atomic import whole

FOLDER = "step_task_info"
"""The copies lie in a folder of this name, at the places that the databases have in the log_dir."""

PHASES = (
    "warm-up", "interleaved forward", "1b1w1f", "overlap", "1b1overlap", "interleaved backward", "cool-down",
)  # fmt: skip
"""Of DualPipeV; a phase's place is its type."""

_CREATE = 'CREATE TABLE "StepTaskInfo" ("name" TEXT, "startNs" INTEGER, "endNs" INTEGER, "type" INTEGER)'


def write(profile: Profile, log_dir: Path, out: Path | None) -> list[Path]:
    """The databases written: copies under `out`, or the profiler's own (in place) when `out` is None.

    `profile` is labelled, but its times are still those of the files. A copy is whole or absent, a database in place
    is changed in one transaction. Ranks that are not read from a database have none. Raises OutputError.
    """
    written = []
    databases = profile.ranks.filter(
        pl.col("kind").is_in(["ascend", "mindspore"]) & pl.col("source").str.ends_with(".db")
    )
    table = rows(profile)
    for rank, source in databases.select("rank", "source").iter_rows():
        path, values = Path(source), table.filter(pl.col("rank") == rank).drop("rank").rows()
        if out is None:
            _replace(path, path, values)
            written.append(path)
            continue
        target = out / FOLDER / path.relative_to(log_dir)
        with whole(target, named=True) as temporary:  # SQLite opens no other
            _copy(path, temporary)
            _replace(temporary, target, values)
        written.append(target)
    return written


def rows(profile: Profile) -> pl.DataFrame:
    """rank, name, startNs, endNs, type of all blocks, by rank and start."""
    blocks = profile.spans.filter(pl.col("kind").is_in(["F", "B", "W", "FB"])).sort("rank", "start_ns", "end_ns")
    if blocks["phase"].is_in([p for p in PHASES if p not in ("warm-up", "cool-down")]).any():
        named = _dualpipev(blocks)
    else:
        forward = pl.col("marker").str.to_lowercase().str.contains("forward") | (pl.col("kind") == "F")
        named = blocks.with_columns(
            name=pl.when(forward.fill_null(False)).then(pl.lit("FP")).otherwise(pl.lit("BP")),
            type=pl.when(forward.fill_null(False)).then(0).otherwise(1),
        )
    return named.select("rank", "name", startNs="start_ns", endNs="end_ns", type="type")


def _dualpipev(blocks: pl.DataFrame) -> pl.DataFrame:
    """`blocks` with name and type; blocks of unknown place have an empty name and type 0."""
    kind, phase, fused = pl.col("kind"), pl.col("phase"), pl.lit(bool((blocks["kind"] == "FB").any()))
    pairs = kind == "FB"
    per_chunk = pl.max_horizontal("microbatch", "microbatch_b").max() + 1
    front = pl.col("microbatch") + pl.col("chunk") * per_chunk
    behind = pl.when(pairs).then(pl.col("microbatch_b") + pl.col("chunk_b") * per_chunk).otherwise(front)
    # The backward of the loss head is a block of its own before the backward of its micro-batch.
    head = (kind == "B") & (front == behind.shift(-1).over("rank")) & kind.shift(-1).over("rank").is_in(["B", "FB"])
    name = (
        pl.when(pairs).then(pl.format("{}F+{}B", front, behind))
        .when(kind == "W").then(pl.format("{}w", front))
        .when(head).then(pl.lit("logits"))
        .when((kind == "B") & (phase == "1b1w1f")).then(pl.format("{}b", front))
        .when(kind == "B").then(pl.format("{}B", front))
        .when(fused & (phase == "overlap")).then(pl.format("{}F", front))
        .otherwise(pl.format("{}", front))
    )  # fmt: skip
    number = phase.replace_strict(PHASES, range(len(PHASES)), default=0, return_dtype=pl.Int64).fill_null(0)
    return blocks.with_columns(name=name.fill_null(""), type=number)


def _copy(path: Path, to: Path) -> None:
    """A copy of a database, with what its write-ahead log still holds."""
    shutil.copyfile(path, to)
    log = path.with_name(path.name + "-wal")
    if not log.is_file() or log.stat().st_size == 0:
        return
    copied = to.with_name(to.name + "-wal")
    shutil.copyfile(log, copied)
    try:
        with closing(sqlite3.connect(to)) as db:
            db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            db.execute("PRAGMA journal_mode=DELETE")
    finally:
        copied.unlink(missing_ok=True)


def _replace(path: Path, shown: Path, values: list[tuple[object, ...]]) -> None:
    """The table in the database at `path` with `values` for its rows; `shown` is the path that an error names."""
    try:
        with closing(sqlite3.connect(f"file:{quote(bytes(path.absolute()))}?mode=rw", uri=True, timeout=5)) as db:
            db.isolation_level = None
            db.execute("BEGIN IMMEDIATE")
            try:
                db.execute("DROP TABLE IF EXISTS StepTaskInfo")
                db.execute(_CREATE)
                db.executemany("INSERT INTO StepTaskInfo VALUES (?, ?, ?, ?)", values)
                db.execute("COMMIT")
            except BaseException:
                db.execute("ROLLBACK")
                raise
    except sqlite3.Error as error:
        raise OutputError(
            shown, f"the table StepTaskInfo cannot be written: {error}", "close programs that have it open"
        ) from error
