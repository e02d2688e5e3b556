"""Many databases at once, or their beginnings, are what the reader gives for each alone."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import trace_export
from tests.support import long_runs
from tests.support.databases import changing, copied
from tests.support.same_profiles import assert_same, small_pieces
from trace_export import read as reading
from trace_export.inspection import inspect as inspection
from trace_export.model import Profile
from trace_export.sources.ascend import database_rank
from trace_export.sources.find import find
from trace_export.sources.read import read_group
from trace_export.sources.source import Group, ReadOptions, Source

LOOK = ReadOptions(beginning=1)
PLAIN = {
    "as it is": [],
    "without steps": ["DROP TABLE STEP_TIME"],
    "steps by markers": [
        "DROP TABLE STEP_TIME",
        "UPDATE STRING_IDS SET value = 'step 3' WHERE id = (SELECT message FROM MSTX_EVENTS WHERE rowid = 1)",
        "UPDATE MSTX_EVENTS SET endNs = endNs + 1000000000 WHERE rowid % 9 = 1",
    ],
    "blocks between steps": ["UPDATE STEP_TIME SET endNs = startNs + 1000"],
    "without tasks of transfers": ["DROP TABLE COMMUNICATION_TASK_INFO"],
    "tasks of several peers": ["UPDATE COMMUNICATION_TASK_INFO SET dstRank = globalTaskId % 3"],
    "operators of the same name": ["UPDATE COMMUNICATION_OP SET opName = (SELECT min(opName) FROM COMMUNICATION_OP)"],
    "without metadata": ["DROP TABLE META_DATA"],
    "other numbers of texts": [
        "UPDATE STRING_IDS SET id = -id - 7000000000",
        "UPDATE MSTX_EVENTS SET message = -message - 7000000000, domainId = -domainId - 7000000000",
        "UPDATE COMMUNICATION_OP SET opName = -opName - 7000000000, groupName = -groupName - 7000000000",
    ],
    "impossible times": ["UPDATE MSTX_EVENTS SET startNs = 5 WHERE rowid % 7 = 0"],
    "texts that are missing": ["DELETE FROM STRING_IDS WHERE id % 5 = 0"],
    "weight gradients": [
        "UPDATE STRING_IDS SET value = 'W1.0.0' WHERE value LIKE '%backward%'",
        "UPDATE MSTX_EVENTS SET endNs = startNs + 100 WHERE rowid % 3 = 0",
        "DELETE FROM COMPUTE_TASK_INFO WHERE globalTaskId % 4 > 0",
    ],
    "never on the device": ["DELETE FROM TASK WHERE connectionId > 4000000000"],
    "not yet closed on the device": ["DELETE FROM TASK WHERE connectionId > 4000000000 AND rowid % 3 = 0"],
    "twice on the device": [
        "UPDATE TASK SET connectionId = (SELECT max(connectionId) FROM MSTX_EVENTS) WHERE connectionId > 4000000000"
        " AND rowid % 3 = 0",
    ],
    "counters": [
        "CREATE TABLE NPU_MEM (type INTEGER, hbm INTEGER, timestampNs INTEGER)",
        "INSERT INTO NPU_MEM SELECT min(message), 7, startNs FROM MSTX_EVENTS GROUP BY startNs",
    ],
}
ODD = {
    "no tasks": ["DROP TABLE TASK"],
    "no texts": ["DROP TABLE STRING_IDS"],
    "no markers": ["DROP TABLE MSTX_EVENTS"],
    "no communication": ["DROP TABLE COMMUNICATION_OP"],
    "other markers": ["UPDATE STRING_IDS SET value = 'x' || value"],
    "no compute tasks": ["DROP TABLE COMPUTE_TASK_INFO", "DELETE FROM TASK WHERE rowid > 30"],
    "small": ["DELETE FROM TASK WHERE rowid > 30"],
    "text for a number": ["UPDATE MSTX_EVENTS SET startNs = 'now' WHERE rowid = 3"],
}
"""Databases that are not usual."""


@pytest.fixture(scope="module")
def databases(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("ascend")
    long_runs.ascend(folder, 4)
    return sorted(folder.rglob("*.db"))


def write(path: Path, original: Path, kind: str) -> None:
    """A database of this kind."""
    if copied(original, path, kind):
        with changing(path) as db:
            for statement in (PLAIN | ODD)[kind]:
                db.execute(statement)
            db.commit()


@settings(max_examples=2)
@given(order=st.permutations([*PLAIN, *ODD, "absent", "truncated"]), ranks=st.permutations([0, 1, 2, 3] * 7))
@pytest.mark.parametrize("options", [LOOK, ReadOptions()], ids=["beginnings", "whole"])
def test_databases_of_all_kinds(
    options: ReadOptions, order: list[str], ranks: list[int], databases: list[Path]
) -> None:
    """The odd ones, wherever they are, are left to the reader, and the others are not."""
    kinds = list(zip(ranks, order, strict=False))
    for first, last in ((0, 1), (1, 7), (7, 12), (12, 18), (18, 30)):
        read_together(kinds[first:last], databases, options)


def read_together(parts: list[tuple[int, str]], databases: list[Path], options: ReadOptions) -> None:
    """Whether each database (rank, kind) comes out as it does alone, in small pieces."""
    with TemporaryDirectory() as folder, small_pieces(database_rank):
        sources = []
        for place, (rank, kind) in enumerate(parts):
            path = Path(folder) / str(place) / "ASCEND_PROFILER_OUTPUT" / "profiler.db"
            write(path, databases[rank], kind)
            known = None if place % 3 == 2 else place % 2  # the same number may come twice
            sources.append(Source("ascend", path, f"host{place % 2}", place % 2, known, "assumed"))
        for source, result in zip(sources, read_group(Group(tuple(sources)), options), strict=True):
            (alone,) = read_group(Group((source,)), options)
            if isinstance(alone, Profile):
                assert isinstance(result, Profile), result
                assert_same(result, alone)
            else:
                assert str(result) == str(alone)


def test_inspect_says_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of good databases, a damaged one and one without markers, read together and one by one."""
    long_runs.ascend(tmp_path, 20, 6)
    monkeypatch.setattr(inspection, "WHOLE_BYTES", 0)
    sources = find(tmp_path).sources
    sources[2].path.write_bytes(b"SQLite format 3\0 and no more")
    with changing(sources[4].path) as db:
        db.execute("DROP TABLE MSTX_EVENTS")
    at_once = trace_export.inspect(tmp_path, jobs=1)
    monkeypatch.setattr(reading, "TOGETHER", 1)
    alone = trace_export.inspect(tmp_path, jobs=1)
    assert at_once.json() == alone.json()
    assert (at_once.facts["beginnings"], len(at_once.failures)) == (5, 1)
