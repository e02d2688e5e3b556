"""The beginnings of many databases at once are what the reader gives for each alone."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import trace_export
from tests.support import long_runs
from tests.support.databases import changing, copied
from tests.support.same_profiles import assert_as_one_by_one, assert_kinds_as_one_by_one, small_pieces
from trace_export.selection import Numbers
from trace_export.sources.find import find
from trace_export.sources.rocpd import beginnings, reader
from trace_export.sources.source import ReadOptions, Source
from trace_export.workflow import inspection, reading

LOOK = ReadOptions(beginning=1)
MESSAGE = "json_extract(extdata, '$.message')"
PLAIN = {
    "as it is": [],
    "without a host": ["DROP TABLE rocpd_info_node{s}"],
    "without an environment": ["UPDATE rocpd_info_process{s} SET environment = '{{}}'"],
    "of another world": ["""UPDATE rocpd_info_process{s} SET environment = '{{"WORLD_SIZE": "8"}}'"""],
    "without transfers": [f"UPDATE rocpd_event{{s}} SET extdata = NULL WHERE {MESSAGE} GLOB '*END_*'"],
    "calls of RCCL": [
        f"""UPDATE rocpd_event{{s}} SET extdata = '{{{{"message": "{call}"}}}}' WHERE {MESSAGE} GLOB '{pattern}'"""
        for call, pattern in (("ncclSend", "SEND*"), ("ncclAllReduce", "RECV_F*"))
    ],
    "on several threads": ["UPDATE rocpd_region{s} SET tid = 1 + rowid % 2"],
    "a kernel at the end": ["DELETE FROM rocpd_kernel_dispatch{s} WHERE id > 1"],
}
ODD = {
    "no kernels": ["DELETE FROM rocpd_kernel_dispatch{s}"],
    "no names": ["UPDATE rocpd_event{s} SET extdata = NULL"],
    "no ranges": ["DELETE FROM rocpd_region{s}"],
    "small": ["DELETE FROM rocpd_region{s} WHERE id > 40", "DELETE FROM rocpd_kernel_dispatch{s} WHERE id > 40"],
    "by nothing": ["UPDATE rocpd_region{s} SET start = start + 1000000000000 WHERE id < 200"],
    "without a table": ["DROP TABLE rocpd_event{s}"],
    "text for a number": ["UPDATE rocpd_region{s} SET start = 'now' WHERE id = 3"],
    "two processes": [
        f"CREATE TABLE rocpd_{table}_2 AS SELECT * FROM rocpd_{table}{{s}}"
        for table in ("metadata", "region", "event", "string", "kernel_dispatch", "info_kernel_symbol")
    ],
}
"""Databases that the reader must look at."""


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    """Schema → databases of four ranks."""
    made = {schema: tmp_path_factory.mktemp("rocpd") for schema in (3, 4)}
    for schema, folder in made.items():
        long_runs.rocpd(folder, 2, schema=schema)
    return made


@pytest.fixture(scope="module")
def databases(folders: dict[int, Path]) -> list[Path]:
    return sorted(folders[3].rglob("*.db"))


def change(path: Path, statements: list[str]) -> None:
    with changing(path) as db:
        names = [name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        suffix = next(name.removeprefix("rocpd_region") for name in names if name.startswith("rocpd_region"))
        for (view,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'view'").fetchall():
            db.execute(f"DROP VIEW {view}")
        for statement in statements:
            db.execute(statement.format(s=suffix))
        db.commit()


def write(path: Path, original: Path, kind: str) -> None:
    """A database of this kind."""
    if copied(original, path, kind):
        change(path, (PLAIN | ODD)[kind])


@settings(max_examples=2)
@given(order=st.permutations([*PLAIN, *ODD, "absent", "truncated"]), ranks=st.permutations([0, 1, 2, 3] * 5))
def test_databases_of_all_kinds(order: list[str], ranks: list[int], databases: list[Path]) -> None:
    """The odd ones, wherever they are, are left to the reader, and the others are not."""
    kinds = list(zip(ranks, order, strict=False))
    for first, last in ((0, 0), (0, 1), (1, 6), (6, 11), (11, 20)):
        read_together(kinds[first:last], databases)


def read_together(parts: list[tuple[int, str]], databases: list[Path]) -> None:
    """Whether each database (rank, kind) comes out as its reader alone gives it."""

    def written(folder: Path, place: int, part: tuple[int, str]) -> Source:
        path = folder / f"{part[0]}_results.db"
        write(path, databases[part[0]], part[1])
        return Source("rocpd", path, f"host{place % 2}", place % 2)

    read = assert_kinds_as_one_by_one((reader, beginnings), parts, written, LOOK)
    for (_, kind), was_read in zip(parts, read, strict=True):
        assert was_read == (kind in PLAIN), kind


@pytest.mark.parametrize("schema", [3, 4])
@pytest.mark.parametrize(
    "options",
    [LOOK, ReadOptions(beginning=1, host_ranges=True), ReadOptions(beginning=1, ranks=Numbers.of([1, 2]))],
    ids=["plain", "host", "ranks"],
)
def test_schemas_and_options(schema: int, options: ReadOptions, folders: dict[int, Path]) -> None:
    sources = find(folders[schema]).sources
    with small_pieces(reader, beginnings):
        read = assert_as_one_by_one(reader.read_one, beginnings.read, sources, options)
    assert read == [options.ranks is None or rank in (1, 2) for rank in range(4)]


def test_inspect_says_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of good databases and one without kernels, read together and one by one."""
    long_runs.rocpd(tmp_path, 8)
    monkeypatch.setattr(inspection, "WHOLE_BYTES", 0)
    change(find(tmp_path).sources[2].path, ODD["no kernels"])
    together = trace_export.inspect(tmp_path, jobs=1)
    monkeypatch.setattr(reading, "TOGETHER", 1)
    alone = trace_export.inspect(tmp_path, jobs=1)
    assert together.json() == alone.json()
    assert (together.facts["beginnings"], len(together.failures)) == (3, 1)
