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
