"""Queries of a run's tables in SQL, which can do nothing but read these tables.

SQLite and not Polars' own SQL, which has functions that read any file; SQLite asks for every table, function and
statement that a query needs whether it may (sqlite3_set_authorizer).
"""

from __future__ import annotations

import sqlite3
import weakref
from collections.abc import Mapping
from typing import Any

import polars as pl

from trace_export.errors import UsageError

ALLOWED = (sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION, sqlite3.SQLITE_RECURSIVE)
MOST_OPERATIONS = 300_000_000
"""Of SQLite's virtual machine, some 10 s; a query that takes more is ended."""
EACH_OPERATIONS = 1_000_000
MOST_BYTES = 1_000_000
"""Of one value, so that no function makes a text that fills the memory."""
TYPES = {pl.Float64: "REAL", pl.String: "TEXT"}


class Database:
    """Tables in memory, until it is freed."""

    def __init__(self, tables: Mapping[str, pl.DataFrame]) -> None:
        self._connection = sqlite3.connect(":memory:", check_same_thread=False)
        weakref.finalize(self, self._connection.close)
        for name, frame in tables.items():
            columns = ", ".join(
                f'"{column}" {TYPES.get(type(kind), "INTEGER")}' for column, kind in frame.schema.items()
            )
            self._connection.execute(f'create table "{name}" ({columns})')
            marks = ", ".join("?" * frame.width)
            self._connection.executemany(f'insert into "{name}" values ({marks})', frame.iter_rows())
        self._connection.commit()
        self._connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MOST_BYTES)
        self._connection.set_authorizer(
            lambda action, *_: sqlite3.SQLITE_OK if action in ALLOWED else sqlite3.SQLITE_DENY
        )

    def rows(self, sql: str, limit: int) -> dict[str, Any]:
        """columns, rows, and whether there are more than `limit`. Raises UsageError for what is not a query, is not
        allowed or takes too long."""
        left = MOST_OPERATIONS // EACH_OPERATIONS

        def tick() -> int:
            nonlocal left
            left -= 1
            return left < 0

        self._connection.set_progress_handler(tick, EACH_OPERATIONS)
        try:
            cursor = self._connection.execute(sql)
            rows = cursor.fetchmany(limit + 1)
        except sqlite3.Error as error:
            raise UsageError(f"the query fails: {error}", "write one SELECT on the tables", parameter="sql") from error
        if cursor.description is None:
            raise UsageError("this is not a query", "write one SELECT on the tables", parameter="sql")
        columns = [column[0] for column in cursor.description]
        return {"columns": columns, "rows": rows[:limit], "truncated": len(rows) > limit}
