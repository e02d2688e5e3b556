"""Plausible damage to the files of a run: nothing that a reader could call broken."""

import gzip
import json
import random
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import polars as pl

from samples.generators import torch_pftrace
from tests.faults.damage_runs import OF_TASKS, ONE_FILE, RUNS

Rows = list[Any]
Change = Callable[[Rows, random.Random], Rows]


def make(kind: str, folder: Path, seed: int = 1) -> list[Path]:
    """A run in a new folder; the files to damage, one for each rank."""
    folder.mkdir()
    RUNS[kind][0](folder, seed)
    (folder / "truth.csv").unlink(missing_ok=True)
    return sorted(folder.rglob(RUNS[kind][1]))


def rewrite(path: Path, change: Change, chance: random.Random) -> None:
    """The file with its records changed: lines, events, or rows of the tables of a database that have times."""
    if path.is_dir():
        _rewrite_tables(path, change, chance)
    elif path.suffix in (".sqlite", ".db"):
        _rewrite_database(path, change, chance)
    elif path.suffix == ".parquet":
        frame = pl.read_parquet(path)
        pl.DataFrame(change(frame.rows(), chance), frame.schema, orient="row").write_parquet(path)
    elif path.suffix in (".gz", ".json"):
        content = path.read_bytes()
        packed = path.suffix == ".gz"
        document = json.loads(gzip.decompress(content) if packed else content)
        if "pp_rank" in path.name:
            path.write_text(json.dumps(dict(change(list(document.items()), chance))))
            return
        events = document["traceEvents"] if isinstance(document, dict) else document
        meta = [event for event in events if event.get("ph") == "M"]
        events[:] = meta + change([event for event in events if event.get("ph") != "M"], chance)
        changed = json.dumps(document).encode()
        path.write_bytes(gzip.compress(changed, mtime=0) if packed else changed)
    elif path.suffix == ".pftrace":
        trace = torch_pftrace.perfetto.Trace.FromString(gzip.decompress(path.read_bytes()))
        head = [
            packet for packet in trace.packet if not packet.HasField("timestamp") or packet.HasField("clock_snapshot")
        ]
        rest = [packet for packet in trace.packet if packet not in head]
        changed_trace = torch_pftrace.perfetto.Trace(packet=head + change(rest, chance))
        path.write_bytes(gzip.compress(changed_trace.SerializeToString(), mtime=0))
    else:
        lines = path.read_text().splitlines(keepends=True)
        head = 1 if path.suffix in (".csv", ".blocks") else 0
        path.write_text("".join(lines[:head] + change(lines[head:], chance)))


TIMES = ("startNs", "start", "timestamp")


def _rewrite_database(path: Path, change: Change, chance: random.Random) -> None:
    with closing(sqlite3.connect(path)) as db:
        db.execute("PRAGMA legacy_alter_table = ON")  # renames a table that views name
        seed = chance.random()
        for (table,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name").fetchall():
            columns = [row[1] for row in db.execute(f'PRAGMA table_info("{table}")')]
            time = next((column for column in TIMES if column in columns), None)
            if time is None:
                continue
            rows = db.execute(f'SELECT * FROM "{table}" ORDER BY "{time}"').fetchall()
            db.execute(f'CREATE TABLE "{table} changed" AS SELECT * FROM "{table}" WHERE 0')  # without keys
            marks = ",".join("?" * len(columns))
            changed = change(rows, random.Random(seed))  # the same part of every table
            db.executemany(f'INSERT INTO "{table} changed" VALUES ({marks})', changed)
            db.execute(f'DROP TABLE "{table}"')
            db.execute(f'ALTER TABLE "{table} changed" RENAME TO "{table}"')
        db.commit()


def _rewrite_tables(folder: Path, change: Change, chance: random.Random) -> None:
    """The tables of a folder that have times."""
    seed = chance.random()
    for path in sorted(folder.glob("*.parquet")):
        frame = pl.read_parquet(path)
        if "start" in frame.columns:
            rows = change(frame.sort("start").rows(), random.Random(seed))
            pl.DataFrame(rows, frame.schema, orient="row").write_parquet(path)


def truncated(rows: Rows, chance: random.Random) -> Rows:
    """The end is missing."""
    return rows[: int(len(rows) * chance.uniform(0.2, 0.98))]


def late(rows: Rows, chance: random.Random) -> Rows:
    """The begin is missing."""
    return rows[int(len(rows) * chance.uniform(0.02, 0.8)) :]


def holed(rows: Rows, chance: random.Random) -> Rows:
    """A piece in the middle is missing."""
    begin, length = chance.uniform(0.1, 0.7), chance.uniform(0.05, 0.2)
    return rows[: int(len(rows) * begin)] + rows[int(len(rows) * (begin + length)) :]


def thinned(rows: Rows, chance: random.Random) -> Rows:
    """Every twentieth record is missing."""
    return [row for row in rows if chance.random() > 0.05]


def doubled(rows: Rows, chance: random.Random) -> Rows:
    return rows + rows


def half_doubled(rows: Rows, chance: random.Random) -> Rows:
    """As an upload that was begun twice."""
    return rows[: int(len(rows) * chance.uniform(0.1, 0.9))] + rows


def shuffled(rows: Rows, chance: random.Random) -> Rows:
    return chance.sample(rows, len(rows))


OF_RECORDS: dict[str, Change] = {
    "truncated": truncated, "late": late, "holed": holed, "thinned": thinned, "doubled": doubled,
    "half doubled": half_doubled, "shuffled": shuffled,
}  # fmt: skip


def _put(what: Path, place: Path) -> None:
    """A copy of a file or folder in place of another."""
    if place.is_dir():
        shutil.rmtree(place)
        shutil.copytree(what, place)
    else:
        shutil.copyfile(what, place)


def swapped(files: list[Path], other: list[Path], chance: random.Random) -> None:
    """Two files have changed their names."""
    one, two = chance.sample(files, 2)
    kept = one.rename(one.with_name("kept"))
    two.rename(one)
    kept.rename(two)


def copied(files: list[Path], other: list[Path], chance: random.Random) -> None:
    """One file lies in place of another."""
    one, two = chance.sample(files, 2)
    _put(two, one)


def of_another_run(files: list[Path], other: list[Path], chance: random.Random) -> None:
    """The file of one rank is that of the same rank in another run."""
    at = chance.randrange(len(files))
    _put(other[at], files[at])


OF_FILES = {"swapped": swapped, "copied": copied, "of another run": of_another_run}
GROUPS = (("truncated", "late", "holed", "thinned"), ("doubled", "half doubled", "shuffled"), tuple(OF_FILES))
"""Damage that is noticed in the same way: by what is missing, by what repeats, by what other files say."""


def possible(kind: str, damage: str) -> bool:
    return not (damage == "thinned" and kind in OF_TASKS) and not (damage in OF_FILES and kind in ONE_FILE)


def some(number: int) -> Iterator[str]:
    """A quarter of all for the format of that number, others for the next: each comes up in several formats."""
    for group in GROUPS:
        yield from (damage for place, damage in enumerate(group) if (place + number) % 4 == 0)


DAMAGE = {kind: [damage for damage in (*OF_RECORDS, *OF_FILES) if possible(kind, damage)] for kind in RUNS}
SOME = {kind: [damage for damage in some(number) if possible(kind, damage)] for number, kind in enumerate(RUNS)}
