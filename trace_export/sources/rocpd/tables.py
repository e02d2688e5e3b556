"""The tables of a rocpd database, of schema 3 and 4.

Each process has a set of tables whose names end in its id (rocpd_region_0199…); the views of the same names without it
join the sets of a merged database. Rows of one set refer to each other by `id`, which is the row id. In schema 3 a row
has its thread, agent, queue and stream itself and a category is a string; in schema 4 a track has them, and categories
have a table. Source: ROCm/rocm-systems, projects/rocprofiler-sdk/source/share/rocprofiler-sdk-rocpd.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from trace_export.sources.shared.sqlite import Database

_FIRST = "rocpd_metadata"
_NEEDED = ("region", "event", "string", "kernel_dispatch", "info_kernel_symbol")
MOST_PROCESSES = 1024
"""In one file; each is gone through by itself."""
MARKERS, RCCL = "MARKER_*", "RCCL_*"
"""The categories of ROCTx ranges and of calls of RCCL; all others are calls of the runtime."""


def is_rocpd(tables: frozenset[str]) -> bool:
    """Whether a database with these tables, in lower case, is one of rocpd."""
    return any(name.startswith(_FIRST) for name in tables) and any(name.startswith("rocpd_region") for name in tables)


@dataclass(frozen=True)
class Tables:
    """The set of tables of one process, numbered from 0 in the order of their names."""

    db: Database
    process: int
    suffix: str

    def name(self, table: str) -> str:
        return f"rocpd_{table}{self.suffix}"

    def has(self, table: str, *columns: str) -> bool:
        return self.db.has(self.name(table), *columns)

    @property
    def tracks(self) -> bool:
        """Whether rows refer to tracks, as in schema 4."""
        return self.has("region", "track_id")

    def rows(self, table: str, *columns: str) -> str:
        """The piece of a table that `Database.frames` asks for, with the columns of the row's track, as R."""
        piece = f"(SELECT rowid AS row, * FROM {self.name(table)} WHERE {{where}})"
        if not self.tracks:
            return f"{piece} AS R"
        own = ", ".join(f"T.{column}" for column in columns)
        track = f"LEFT JOIN {self.name('track')} AS T ON T.id = P.track_id"
        return f"(SELECT P.*, {own} FROM {piece} AS P {track}) AS R"

    def event(self) -> str:
        """The join with the event of a row, as E."""
        return f"LEFT JOIN {self.name('event')} AS E ON E.id = R.event_id"

    def of_category(self, *patterns: str) -> str:
        """The condition that the event is of a category like one of the patterns."""
        table, column = ("info_category", "name") if self.has("info_category", "name") else ("string", "string")
        like = " OR ".join(f"{column} GLOB '{pattern}'" for pattern in patterns)
        return f"E.category_id IN (SELECT id FROM {self.name(table)} WHERE {like})"

    def named(self, pattern: str) -> str:
        """The condition that the name of a row is like the pattern."""
        return f"R.name_id IN (SELECT id FROM {self.name('string')} WHERE string GLOB '{pattern}')"


def sets_of(db: Database) -> Iterator[Tables]:
    """The sets of tables that have all that a process needs."""
    suffixes = sorted(name.removeprefix(_FIRST) for name in db.tables() if name.startswith(_FIRST))
    whole = [s for s in suffixes if all(db.has(f"rocpd_{table}{s}") for table in _NEEDED)]
    for number, suffix in enumerate(whole):
        yield Tables(db, number, suffix)
