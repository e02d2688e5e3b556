"""The beginnings of many exports at once are what the reader gives for each alone."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

import trace_export
from samples.generators import nsys as generate
from tests.support import long_runs
from tests.support.databases import changing
from tests.support.same_profiles import assert_as_one_by_one, assert_same
from trace_export.model import Profile
from trace_export.sources.find import find
from trace_export.sources.nsys import beginnings, reader
from trace_export.sources.shared.sqlite import Database
from trace_export.sources.source import ReadOptions, Source
from trace_export.workers import sizing
from trace_export.workflow import inspection, reading

STEPS = 4
LOOK = ReadOptions(beginning=1)


@pytest.fixture(autouse=True)
def pieces_are_small(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (beginnings, reader):
        monkeypatch.setattr(module, "PIECE_ROWS", 60)


def by_time(path: Path) -> None:
    """The rows in the order in which nsys writes them."""
    with changing(path) as db:
        for table in ("NVTX_EVENTS", "CUPTI_ACTIVITY_KIND_RUNTIME", "CUPTI_ACTIVITY_KIND_KERNEL"):
            db.execute(f"CREATE TEMP TABLE once AS SELECT * FROM {table} ORDER BY start")
            db.execute(f"DELETE FROM {table}")
            db.execute(f"INSERT INTO {table} SELECT * FROM once ORDER BY rowid")
            db.execute("DROP TABLE once")
        db.commit()


def run_of(folder: Path, dialect: generate.Dialect, hosts: int = 2) -> list[Source]:
    """Exports of two ranks each, on clocks of their own."""
    chance = random.Random(3)
    blocks = generate.blocks_of(4, 6, STEPS, chance, split=dialect.split)
    generate.record(folder, blocks, hosts, tuple(7_000 * host for host in range(hosts)), chance, dialect)
    for path in folder.glob("*.sqlite"):
        by_time(path)
    return list(find(folder).sources)


def assert_together(sources: list[Source], options: ReadOptions = LOOK) -> None:
    for source, profile in zip(sources, beginnings.read(sources, options), strict=True):
        assert profile is not None
        assert profile.spans.height and profile.recorded_until
        assert_same(reader.read_one(source, options), profile)


@pytest.mark.parametrize(
    "dialect", [generate.Dialect(), generate.Torch(), generate.DeepSpeed(), generate.Plain(), generate.Mapping()]
)
def test_every_naming(dialect: generate.Dialect, tmp_path: Path) -> None:
    assert_together(run_of(tmp_path, dialect))


@pytest.mark.parametrize("options", [ReadOptions(beginning=1, host_ranges=True), ReadOptions(beginning=2)])
def test_one_rank_an_export(options: ReadOptions, tmp_path: Path) -> None:
    long_runs.nsys(tmp_path, 8)
    assert_together(list(find(tmp_path).sources), options)


def test_calls_of_nccl_without_names(tmp_path: Path) -> None:
    """Collectives, and sends whose direction is that of the blocks around them, of which a note counts."""
    sources = run_of(tmp_path, generate.Dialect())
    for source in sources:
        change(
            source.path,
            "UPDATE NVTX_EVENTS SET text = CASE WHEN text LIKE 'SEND%' THEN 'ncclSend' ELSE 'ncclAllReduce' END"
            " WHERE text LIKE '%END_F%' OR text LIKE '%ECV_B%'",
        )
    assert_together(sources)
    (first, *_) = beginnings.read(sources, LOOK)
    assert first is not None
    assert first.collectives.height
    assert "transfer-direction-inferred" in {note.code for note in first.notes}


def change(path: Path, *statements: str) -> None:
    with changing(path) as db:
        for statement in statements:
            db.execute(statement)
        db.commit()


AUTOGRAD = (
    "CREATE TABLE ThreadNames (nameId INTEGER, priority INTEGER, globalTid INTEGER)",
    "INSERT INTO StringIds VALUES (987654, 'pt_autograd_0')",
    f"INSERT INTO ThreadNames VALUES (987654, 0, {(77 << 24) + 1})",
)
"""A process without named passes, which trains."""


@pytest.mark.parametrize(
    "spoil",
    [
        lambda path: path.write_bytes(path.read_bytes()[:5000]),
        lambda path: path.unlink(),
        lambda path: change(path, "DROP TABLE CUPTI_ACTIVITY_KIND_KERNEL"),
        lambda path: change(path, "DELETE FROM NVTX_EVENTS WHERE text NOT LIKE 'Opt%'"),
        lambda path: change(path, *(f"DELETE FROM {table} WHERE rowid > 40" for table in reader.EVENTS[:3])),
        lambda path: change(path, *AUTOGRAD),
    ],
    ids=["truncated", "gone", "no kernels", "no names", "small", "unnamed process"],
)
def test_what_only_the_reader_can_judge(spoil: Callable[[Path], object], tmp_path: Path) -> None:
    """It is left to the reader, and the other sources are not."""
    sources = run_of(tmp_path, generate.Dialect())
    spoil(sources[0].path)
    first, second = beginnings.read(sources, LOOK)
    assert first is None
    assert second is not None
    assert_same(reader.read_one(sources[1], LOOK), second)


@pytest.mark.parametrize("column", ['"end" = NULL', "start = -9223372036854775807"])
def test_ranges_of_which_there_is_something_to_say(column: str, tmp_path: Path) -> None:
    sources = run_of(tmp_path, generate.Dialect(), hosts=4)
    change(sources[1].path, f"UPDATE NVTX_EVENTS SET {column} WHERE rowid = 5")
    assert assert_as_one_by_one(reader.read_one, beginnings.read, sources, LOOK) == [True, False, True, True]


def test_inspect_says_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of good sources, a damaged one and one that lacks kernels, read together and one by one."""
    sources = run_of(tmp_path, generate.Dialect(), hosts=4)
    sources[0].path.write_bytes(b"SQLite format 3\0 and no more")
    change(sources[1].path, "DROP TABLE CUPTI_ACTIVITY_KIND_KERNEL")
    monkeypatch.setattr(inspection, "WHOLE_BYTES", 0)
    read = []

    def counted(sources: list[Source], options: ReadOptions) -> list[Profile | None]:
        read.append(len(sources))
        return original(sources, options)

    original = beginnings.read
    monkeypatch.setattr(beginnings, "read", counted)
    together = trace_export.inspect(tmp_path, jobs=1)
    assert read == [4]
    monkeypatch.setattr(reading, "TOGETHER", 2)
    monkeypatch.setattr(sizing, "cores", lambda: 2)
    monkeypatch.setattr(sizing, "free_memory", lambda: 1 << 40)
    on_threads = trace_export.inspect(tmp_path)
    assert (on_threads.json(), read) == (together.json(), [4, 2, 2])
    monkeypatch.setattr(reading, "TOGETHER", 1)
    alone = trace_export.inspect(tmp_path, jobs=1)
    assert (together.json(), len(together.failures)) == (alone.json(), 2)


def test_no_export() -> None:
    assert beginnings.read([], LOOK) == []


def test_of_a_long_table_only_the_beginning_is_gone_through(tmp_path: Path) -> None:
    """SQLite searches with one of two upper bounds of the row's number: the condition of a piece is not above that of
    the view."""
    long_runs.nsys(tmp_path, 8)
    with Database(next(tmp_path.glob("*.sqlite")), 60) as db:
        assert list(db.chunks("NVTX_EVENTS")) == ["rowid BETWEEN 1 AND 60"]
