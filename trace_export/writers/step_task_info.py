"""The table StepTaskInfo, from which MindStudio Insight draws its pipeline chart, in profiler databases.

`CREATE TABLE StepTaskInfo (name TEXT, startNs INTEGER, endNs INTEGER, type INTEGER)`, one row per block in the order of
their starts, times as recorded. Names and types are those of msprof-analyze (`cluster -m pp_chart`): for DualPipeV the
micro-batches, chunk 1 counted on after chunk 0, and the phase 0 to 6; for any other schedule FP and BP, 0 and 1.
"""

from __future__ import annotations

import resource
import shutil
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from urllib.parse import quote

import polars as pl

from trace_export.errors import OutputError
from trace_export.model import WORK_KINDS, Profile
from trace_export.schedules.orders import COOL_DOWN, DUAL_PHASES, ONE_B_ONE_W_ONE_F, OVERLAP, WARM_UP
from trace_export.writers.mark import APPLICATION_ID
from trace_export.writers.outputs import Outputs

FOLDER = "step_task_info"
"""The copies lie in a folder of this name, at the places that the databases have in the log_dir."""
LOCKED_S = 5.0
"""A database that another program uses is waited for so long."""

_CREATE = 'CREATE TABLE "StepTaskInfo" ("name" TEXT, "startNs" INTEGER, "endNs" INTEGER, "type" INTEGER)'


def write_copies(profile: Profile, copies: Mapping[int, tuple[Path, Path]], outputs: Outputs) -> None:
    """Copies databases (rank → its database, where the copy goes) and puts the table into the copies.

    `profile` is labelled, but its times are still those of the databases. Raises OutputError, UsageError.
    """
    table = rows(profile)
    for rank, (source, target) in copies.items():
        with outputs.file(target) as temporary:
            _copy(source, temporary)
            with _changed(temporary, target) as database:
                database.execute(f"PRAGMA application_id = {APPLICATION_ID}")
                _replace(database, table, rank)
                database.execute("COMMIT")


def write_in_place(profile: Profile, databases: Mapping[int, Path], outputs: Outputs) -> None:
    """Puts the table into the databases (rank → file) themselves: into all of them, or into none.

    Every database is locked and changed before the first change is made permanent. Should one of these last steps fail
    (the disk does), `outputs.written` has the databases that hold the table. Errors as `write_copies`.
    """
    table = rows(profile)
    with _many_files(4 * len(databases)), ExitStack() as stack:
        opened = [(rank, path, stack.enter_context(_changed(path, path))) for rank, path in databases.items()]
        for rank, path, database in opened:
            with _named(path):
                _replace(database, table, rank)
        for _, path, database in opened:
            with _named(path):
                database.execute("COMMIT")
            outputs.written.append(path)


def rows(profile: Profile) -> pl.DataFrame:
    """rank, name, startNs, endNs, type of all blocks, by rank and start."""
    blocks = profile.spans.filter(pl.col("kind").is_in(WORK_KINDS)).sort("rank", "start_ns", "end_ns")
    if blocks["phase"].is_in([p for p in DUAL_PHASES if p not in (WARM_UP, COOL_DOWN)]).any():
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
        .when((kind == "B") & (phase == ONE_B_ONE_W_ONE_F)).then(pl.format("{}b", front))
        .when(kind == "B").then(pl.format("{}B", front))
        .when(fused & (phase == OVERLAP)).then(pl.format("{}F", front))
        .otherwise(pl.format("{}", front))
    )  # fmt: skip
    number = phase.replace_strict(DUAL_PHASES, range(len(DUAL_PHASES)), default=0, return_dtype=pl.Int64).fill_null(0)
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


@contextmanager
def _changed(path: Path, shown: Path) -> Iterator[sqlite3.Connection]:
    """The database at `path` for this process alone, in a transaction; `shown` is the path that an error names."""
    with (
        _named(shown),
        closing(
            sqlite3.connect(f"file:{quote(bytes(path.absolute()))}?mode=rw", uri=True, timeout=LOCKED_S)
        ) as database,
    ):
        database.isolation_level = None
        database.execute("BEGIN EXCLUSIVE")
        yield database  # what is not committed is rolled back as the connection closes


def _replace(database: sqlite3.Connection, table: pl.DataFrame, rank: int) -> None:
    """Puts the rows that `table` has of the rank into the database."""
    values = table.filter(pl.col("rank") == rank).drop("rank").rows()
    database.execute("DROP TABLE IF EXISTS StepTaskInfo")
    database.execute(_CREATE)
    database.executemany("INSERT INTO StepTaskInfo VALUES (?, ?, ?, ?)", values)


@contextmanager
def _named(path: Path) -> Iterator[None]:
    """Errors of SQLite as errors of the database at `path`."""
    try:
        yield
    except sqlite3.Error as error:
        what = f"the table StepTaskInfo cannot be written: {error}"
        raise OutputError(path, what, "close programs that have it open") from error


@contextmanager
def _many_files(count: int) -> Iterator[None]:
    """This many files more than usual may be open, as far as the system allows."""
    usual, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if usual != resource.RLIM_INFINITY:
        wanted = usual + count if most == resource.RLIM_INFINITY else min(usual + count, most)
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, most))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (usual, most))
