"""The beginning of a database: views that show the first rows of each large table of events, under the table's name.

SQLite looks for a name among temporary tables and views first, so a reader asks for its tables as ever. Tables without
times, such as those of names, are looked up by key and stay whole, but for those of parts of events: tasks of an
operation, say.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping

TIMES = ("start", "startns", "timestamp", "timestampns")
"""Columns, in lower case, that say when a row happened; a table with one is a table of events."""
PARTS = 4
"""This many rows of a table of parts are taken for each row of a table of events."""
PROBES = 16
"""How many rows, evenly spread, are looked at to see that a table is in order."""


def views(
    connection: sqlite3.Connection, schema: Mapping[str, frozenset[str]], rows: int, parts: Mapping[str, str]
) -> dict[str, str]:
    """Table → the statement for the view of its first `rows` rows, or `PARTS` times as many; made in `connection`
    already. Not of a table that has fewer rows, nor of one that is not in the order of its times: its first rows would
    be no beginning. `parts`: table of parts → the column that has the number of the event, which orders it."""
    statements: dict[str, str] = {}
    for table, columns in schema.items():
        order = next((name for name in (*TIMES, parts.get(table)) if name in columns), None)
        last = _last_row(connection, table, order, rows * (PARTS if table in parts else 1)) if order else None
        if last is not None:
            name = quoted(table)
            statements[table] = (
                f"CREATE TEMP VIEW {name} AS SELECT rowid AS rowid, * FROM main.{name} WHERE rowid <= {last}"
            )
    for statement in statements.values():
        connection.execute(statement)
    return statements


def _last_row(connection: sqlite3.Connection, table: str, order: str, rows: int) -> int | None:
    """The id of the last of the first `rows` rows, None where there are no more, or where they are not in `order`."""
    name = quoted(table)
    nth = f"SELECT rowid FROM main.{name} ORDER BY rowid LIMIT 1 OFFSET {rows - 1}"
    least, most = (f"SELECT {which}(rowid) FROM main.{name}" for which in ("min", "max"))
    try:
        ((last, first, end),) = connection.execute(f"SELECT ({nth}), ({least}), ({most})").fetchall()
    except sqlite3.OperationalError:  # a table without row ids
        return None
    if last is None or last == end:
        return None
    probes = json.dumps([first + (end - first) * n // (PROBES - 1) for n in range(PROBES)])
    value = f"SELECT {quoted(order)} FROM main.{name} WHERE rowid >= place.value ORDER BY rowid LIMIT 1"
    values = connection.execute(f"SELECT ({value}) FROM json_each(?) AS place", (probes,)).fetchall()
    times = [time for (time,) in values if isinstance(time, int)]
    return last if len(times) == PROBES and times == sorted(times) else None


def quoted(identifier: str) -> str:
    """A name as SQL takes it, whatever it holds."""
    return '"' + identifier.replace('"', '""') + '"'
