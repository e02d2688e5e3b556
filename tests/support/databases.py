"""Databases that tests change."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path


@contextmanager
def changing(path: Path) -> Iterator[sqlite3.Connection]:
    """A connection that waits for no disk and leaves no journal; at the end all is committed and it is closed."""
    with closing(sqlite3.connect(path)) as db:
        db.executescript("PRAGMA journal_mode = memory; PRAGMA synchronous = off")
        yield db
        db.commit()
