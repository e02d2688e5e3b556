"""The beginning of a database: views that show the first rows of each large table of events, under the table's name.

SQLite looks for a name among temporary tables and views first, so a reader asks for its tables as ever. Tables without
times, such as those of names, are looked up by key and stay whole, but for those of parts of events: tasks of an
operation, say.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping

TIMES = ("start", "startns", "timestamp", "timestampns")
"""Columns, in lower case, that say when a row happened; a table with one is a table of events."""
PARTS = 4
"""So many rows of a table of parts are taken for each row of a table of events."""
PROBES = 16
"""How many rows, evenly spread, are looked at to see that a table is in order."""


def views(
    connection: sqlite3.Connection, schema: Mapping[str, frozenset[str]], rows: int, parts: Mapping[str, str]
) -> dict[str, str]:
    """Table → the statement for the view of its first `rows` rows, or `PARTS` times as many; made in `connection`
    already. Not of a table that has fewer rows, nor of one that is not in the order of its times: its first rows would
    be no beginning. `parts`: table of parts → the column that has the number of the event, which orders it."""
    found: dict[str, str] = {}
    for table, columns in schema.items():
        order = next((name for name in (*TIMES, parts.get(table)) if name in columns), None)
        last = _last_row(connection, table, rows * (PARTS if table in parts else 1)) if order else None
        if order and last is not None and _is_sorted(connection, table, order):
            name = _quoted(table)
            found[table] = f"CREATE TEMP VIEW {name} AS SELECT rowid AS rowid, * FROM main.{name} WHERE rowid <= {last}"
    for statement in found.values():
        connection.execute(statement)
    return found


def _last_row(connection: sqlite3.Connection, table: str, rows: int) -> int | None:
    """The id of the last of the first `rows` rows, None where there are no more."""
    sql = f"SELECT rowid FROM main.{_quoted(table)} ORDER BY rowid LIMIT 2 OFFSET {rows - 1}"
    try:
        ids = connection.execute(sql).fetchall()
    except sqlite3.OperationalError:  # a table without row ids
        return None
    return ids[0][0] if len(ids) == 2 else None


def _is_sorted(connection: sqlite3.Connection, table: str, order: str) -> bool:
    name = _quoted(table)
    ((first, last),) = connection.execute(
        f"SELECT (SELECT min(rowid) FROM main.{name}), (SELECT max(rowid) FROM main.{name})"
    ).fetchall()
    row = f"SELECT {_quoted(order)} FROM main.{name} WHERE rowid >= ? ORDER BY rowid LIMIT 1"
    places = (first + (last - first) * n // (PROBES - 1) for n in range(PROBES))
    found = [connection.execute(row, (place,)).fetchone() for place in places]
    times = [one[0] for one in found if one is not None and isinstance(one[0], int)]
    return len(times) == PROBES and times == sorted(times)


def _quoted(identifier: str) -> str:
    return '"' + identifier.replace('"', '""') + '"'
