"""Databases in every state that a copied profile may be in."""

import hashlib
import sqlite3
from contextlib import closing
from pathlib import Path

import polars as pl
import pytest

from trace_export.errors import SourceError
from trace_export.sources.shared import sqlite, sqlite_beginning
from trace_export.sources.shared.sqlite import Database, decoded

PARTS = {"parts": "event", "mixed": "event"}


def build(path: Path, rows: int = 10, *statements: str) -> Path:
    with closing(sqlite3.connect(path)) as db:
        db.execute("CREATE TABLE event(start INTEGER, name TEXT)")
        db.executemany("INSERT INTO event VALUES (?, ?)", [(i * i, f"n{i}") for i in range(rows)])
        for statement in statements:
            db.execute(statement)
        db.commit()
    return path


def digest(folder: Path) -> dict[str, str]:
    return {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in sorted(folder.iterdir())}


def refusal(path: Path, sql: str = "SELECT start FROM event") -> str:
    with pytest.raises(SourceError) as caught, Database(path) as db:
        db.frame(sql)
    assert str(path) in str(caught.value)
    return str(caught.value)


def test_tables_columns_and_numbers(tmp_path: Path) -> None:
    path = build(tmp_path / "a b%20?#ü.sqlite")
    before = digest(tmp_path)
    with Database(path) as db:
        assert db.tables() == {"event"}
        assert db.has("event") and db.has("EVENT", "Start", "name")
        assert not db.has("event", "start", "end") and not db.has("none")
        frame = db.frame('SELECT start, start * 0.5 AS half FROM "event"', real=["half"])
        assert db.texts("SELECT name FROM event WHERE start = ?", [4]) == [("n2",)]
    assert frame["start"].to_list() == [i * i for i in range(10)]
    assert frame["half"].to_list() == [i * i / 2 for i in range(10)]
    assert digest(tmp_path) == before


@pytest.mark.parametrize("rows", [1, 3, 7, 10, 100])
def test_chunks_cover_a_table_with_holes_exactly_once(tmp_path: Path, rows: int) -> None:
    path = build(
        tmp_path / "x.db",
        25,
        "DELETE FROM event WHERE start BETWEEN 9 AND 200",
        "UPDATE event SET rowid = 1 << 60 WHERE start = 576",
    )
    with Database(path) as db:
        parts = [db.frame(f"SELECT start FROM event WHERE {where}") for where in db.chunks("event", rows)]
    assert all(0 < len(p) <= rows for p in parts)
    assert sorted(pl.concat(parts)["start"]) == [0, 1, 4, *(i * i for i in range(15, 25))]


def test_bytes_that_are_not_utf8_are_replaced(tmp_path: Path) -> None:
    path = build(
        tmp_path / "x.db",
        0,
        "INSERT INTO event VALUES (1, CAST(x'46ff33' AS TEXT)), (2, 'ü'), (3, NULL), (4, CAST(x'46ff33' AS TEXT))",
    )
    with Database(path) as db:
        (frame,) = db.frames("event", "SELECT CAST(name AS BLOB) AS name FROM event WHERE {where}", blobs=["name"])
        names = frame["name"]
        assert db.texts("SELECT name FROM event WHERE start = 1") == [("F\ufffd3",)]
    assert decoded(names).to_list() == ["F\ufffd3", "ü", None, "F\ufffd3"]


def test_a_database_in_wal_mode_is_read_with_its_log_and_left_alone(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    with closing(sqlite3.connect(source / "x.sqlite")) as writer:
        writer.execute("PRAGMA journal_mode = wal")
        writer.execute("CREATE TABLE event(start INTEGER)")
        writer.execute("INSERT INTO event VALUES (7)")
        writer.commit()
        copy = tmp_path / "copy"
        copy.mkdir()
        for name in ("x.sqlite", "x.sqlite-wal"):
            (copy / name).write_bytes((source / name).read_bytes())
    before = digest(copy)
    with Database(copy / "x.sqlite") as db:
        assert db.frame("SELECT start FROM event")["start"].to_list() == [7]
    assert digest(copy) == before
    # The writer has closed and folded its log into the file, which is still marked as WAL.
    before = digest(source)
    with Database(source / "x.sqlite") as db:
        assert db.frame("SELECT start FROM event")["start"].to_list() == [7]
    assert digest(source) == before


def test_missing_empty_foreign_and_cut_files(tmp_path: Path) -> None:
    assert "cannot be opened" in refusal(tmp_path / "none.sqlite")
    assert "cannot be opened" in refusal(tmp_path)
    (tmp_path / "zero").touch()
    assert "is empty" in refusal(tmp_path / "zero")
    (tmp_path / "text").write_text("not a database at all, but long enough to be one" * 9)
    assert "not an SQLite database" in refusal(tmp_path / "text")
    whole = build(tmp_path / "x.db", 2000).read_bytes()
    for size in (50, 100, 4096, len(whole) - 1):
        (tmp_path / "cut").write_bytes(whole[:size])
        assert "truncated" in refusal(tmp_path / "cut")


def test_a_locked_database(tmp_path: Path) -> None:
    path = build(tmp_path / "x.db")
    with closing(sqlite3.connect(path)) as writer:
        writer.execute("BEGIN EXCLUSIVE")
        assert "is locked" in refusal(path)
    with Database(path) as db:
        assert len(db.frame("SELECT start FROM event")) == 10


def test_an_unfinished_transaction(tmp_path: Path) -> None:
    path = build(tmp_path / "x.db", 3000)
    with closing(sqlite3.connect(path)) as writer:
        writer.execute("PRAGMA cache_size = 1")
        writer.execute("BEGIN")
        writer.execute("UPDATE event SET name = name || 'changed' || start")
        died = tmp_path / "died"
        died.mkdir()
        for file in (path, path.with_name("x.db-journal")):
            (died / file.name).write_bytes(file.read_bytes())
    before = digest(died)
    assert "unfinished transaction" in refusal(died / "x.db")
    assert digest(died) == before


@pytest.mark.parametrize("page", range(2, 8))
def test_damaged_pages(tmp_path: Path, page: int) -> None:
    data = bytearray(build(tmp_path / "x.db", 2000).read_bytes())
    data[(page - 1) * 4096 : page * 4096] = b"\xa5" * 4096
    (tmp_path / "bad.db").write_bytes(data)
    assert "is damaged" in refusal(tmp_path / "bad.db")


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("x'00'", "holds bytes"),
        ("'soon'", "holds text"),
        ("0.5", "holds fractions"),
        ("CAST(x'ff' AS TEXT)", "holds text"),
    ],
)
def test_columns_of_a_wrong_type(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: str, words: str) -> None:
    path = build(tmp_path / "x.db", 5, f"INSERT INTO event VALUES ({value}, '')")
    assert words in refusal(path)
    monkeypatch.setattr(sqlite, "BATCH_ROWS", 2)
    with pytest.raises(SourceError, match="not all of one type"), Database(path) as db:
        db.frame("SELECT start FROM event")


def test_a_query_that_cannot_be(tmp_path: Path) -> None:
    assert "lacks the column nosuch" in refusal(build(tmp_path / "x.db"), "SELECT nosuch FROM event")


def test_row_ids_far_apart_are_read_in_few_pieces(tmp_path: Path) -> None:
    """A piece of equal width in ids would be a query for each row."""
    path = tmp_path / "sparse.sqlite"
    with closing(sqlite3.connect(path)) as db:
        db.execute("CREATE TABLE event (start INTEGER)")
        rows = [(n * (1 << 52) - (1 << 62), n) for n in range(1500)] + [(2**63 - 1 - n, n) for n in range(5)]
        db.executemany("INSERT INTO event (rowid, start) VALUES (?, ?)", rows)
        db.commit()
    with Database(path) as db:
        pieces = list(db.chunks("event", rows=1000))
        assert len(pieces) == 2
        read = [db.frame(f"SELECT rowid AS id, start FROM event WHERE {piece}") for piece in pieces]
    assert sorted(pl.concat(read).rows()) == sorted(rows)


def test_the_beginning_of_large_tables_of_events(tmp_path: Path) -> None:
    """The first rows of a table in the order of its times; one without times is looked up and stays whole."""
    with closing(sqlite3.connect(path := tmp_path / "x.db")) as db:
        for table, value in (("events", "n"), ("turned", "-n"), ("parts", "n"), ("mixed", "-n")):
            db.execute(f"CREATE TABLE {table} ({'event' if table in PARTS else 'start'} INTEGER, name INTEGER)")
            numbers = "(WITH RECURSIVE c(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c WHERE n < 500) SELECT n FROM c)"
            db.execute(f"INSERT INTO {table} SELECT {value}, n FROM {numbers}")
        db.execute("CREATE TABLE names AS SELECT name AS id FROM events")
        db.execute("CREATE TABLE few AS SELECT * FROM events LIMIT 100")
        db.commit()
    with Database(path, 100) as db:
        assert db.shortened == {"events"}
        counts = {t: db.texts(f"SELECT count(*) FROM {t}")[0][0] for t in ("events", "turned", "names", "few")}
        assert counts == {"events": 100, "turned": 500, "names": 500, "few": 100}
        assert db.texts("SELECT count(*) FROM parts") == [(500,)], "nobody said that its rows are parts of events"
        assert db.frame("SELECT max(start) AS last FROM events")["last"].item() == 100
        assert pl.concat(db.frames("events", "SELECT rowid AS row FROM events WHERE {where}"))["row"].max() == 100
        assert db.last("events", "start") == 500
    with Database(path, 10, PARTS) as db:
        counts = {t: db.texts(f"SELECT count(*) FROM {t}")[0][0] for t in ("events", "parts", "mixed")}
        assert counts == {"events": 10, "parts": 10 * sqlite_beginning.PARTS, "mixed": 500}
    with Database(path) as db:
        assert not db.shortened
        assert db.texts("SELECT count(*) FROM events") == [(500,)]


def test_a_beginning_is_counted_in_rows_whatever_their_ids(tmp_path: Path) -> None:
    with closing(sqlite3.connect(path := tmp_path / "x.db")) as db:
        numbers = "WITH RECURSIVE c(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c WHERE n < 500)"
        tables = (("gaps", "7 * n", 500), ("negative", "n - 1000", 500), ("one_more", "n", 101), ("as_many", "n", 100))
        for table, key, rows in tables:
            db.execute(f"CREATE TABLE {table} (id INTEGER PRIMARY KEY, start INTEGER)")
            db.execute(f"INSERT INTO {table} {numbers} SELECT {key}, n FROM c LIMIT {rows}")
        db.execute("CREATE TABLE without_ids (id TEXT PRIMARY KEY, start INTEGER) WITHOUT ROWID")
        db.execute(f"INSERT INTO without_ids {numbers} SELECT n, n FROM c")
        db.execute("CREATE TABLE swapped AS SELECT start FROM gaps ORDER BY start > 250 DESC, start")
        db.commit()
    with Database(path, 100) as db:
        assert db.shortened == {"gaps", "negative", "one_more"}
        for table in db.shortened:
            assert db.texts(f"SELECT count(*), max(start) FROM {table}") == [(100, 100)]
        assert db.texts("SELECT count(*) FROM without_ids") == [(500,)]
