"""Databases that tests change."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path


@contextmanager
def changing(path: Path) -> Iterator[sqlite3.Connection]:
    """A connection whose commits wait for no disk and leave no journal; it is closed at the end."""
    with closing(sqlite3.connect(path)) as db:
        db.executescript("PRAGMA journal_mode = memory; PRAGMA synchronous = off")
        yield db


def copied(original: Path, path: Path, kind: str) -> bool:
    """A copy of a database in a folder that is made: the beginning of one that is "truncated", none that is "absent".
    Returns whether it is whole, and can be changed as its kind says."""
    if kind != "absent":
        path.parent.mkdir(parents=True)
        path.write_bytes(original.read_bytes()[: 9_000 if kind == "truncated" else None])
    return kind not in ("absent", "truncated")
