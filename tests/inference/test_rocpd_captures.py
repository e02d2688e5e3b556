"""Databases of rocprofv3 in which no pass is named: every block that is found is that of the truth."""

from __future__ import annotations

import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest

import trace_export
from samples.generators.pipeline import Block
from samples.generators.unmarked import Program, write
from tests.support.databases import changing
from trace_export.errors import SourceError
from trace_export.model import Profile
from trace_export.sources.read import read
from trace_export.sources.source import ReadOptions, Source

SMALL = Program(stages=3, microbatches=6, layers=1)
"""One stage of each kind: the first, one between, the last."""
PROGRAMS = {
    "1f1b": SMALL,
    "without waits": replace(SMALL, waits=False),
    "with varying experts": replace(SMALL, experts=True, varying=True, waits=False),
    "graphs of layers": replace(SMALL, graphs=True),
    "through the host": replace(SMALL, host_transfers=True),
    "with operators": replace(SMALL, operators=True),
}


def of(folder: Path, rank: int, **options: object) -> Profile:
    path = folder / f"{4_000 + 11 * rank}_results.db"
    return read(Source("rocpd", path, "node0"), ReadOptions(**options)).validate()  # type: ignore[arg-type]


def spans(profile: Profile) -> list[tuple[object, ...]]:
    return sorted(profile.spans.select("rank", "kind", "start_ns", "end_ns").rows())


def truth(blocks: list[Block], rank: int) -> list[tuple[object, ...]]:
    return sorted((b.rank, b.kind, b.start_ns, b.end_ns) for b in blocks if b.rank == rank)


def table(db: sqlite3.Connection, name: str) -> str:
    """The name of the process's own table."""
    found = db.execute("SELECT name FROM sqlite_master WHERE type = 'table' AND name GLOB ?", [f"rocpd_{name}_*"])
    return str(found.fetchone()[0])


@pytest.mark.parametrize(("name", "schema"), [*((name, 4) for name in PROGRAMS), ("1f1b", 3)])
def test_blocks_of_an_unmarked_database_are_exact(tmp_path: Path, name: str, schema: int) -> None:
    blocks = write(tmp_path, PROGRAMS[name], rocpd=True, schema=schema)
    for rank in range(PROGRAMS[name].stages):
        profile = of(tmp_path, rank)
        assert spans(profile) == truth(blocks, rank), rank
        assert set(profile.spans["origin"]) == {"inferred"}
        assert profile.spans["marker"].null_count() == profile.spans.height
        assert (profile.p2p.height > 0) is not PROGRAMS[name].host_transfers
        assert (profile.spans["pair"].null_count() < profile.spans.height) is PROGRAMS[name].operators


@pytest.mark.parametrize("end", ["start - 1", '"end" + 31536000000000000'], ids=["before", "a year later"])
def test_a_kernel_with_an_impossible_end_is_left_out_with_a_warning(tmp_path: Path, end: str) -> None:
    blocks = write(tmp_path, SMALL, rocpd=True)
    hit = next(b for b in blocks if (b.rank, b.kind, b.microbatch) == (1, "F", 3))
    with changing(tmp_path / "4011_results.db") as db:
        kernels = table(db, "kernel_dispatch")
        assert db.execute(f'UPDATE {kernels} SET "end" = {end} WHERE "end" = {hit.end_ns}').rowcount == 1
        db.commit()
    profile = of(tmp_path, 1)
    ((kind, first, last),) = {row[-3:] for row in set(spans(profile)) - set(truth(blocks, 1))}
    assert (kind, first) == ("F", hit.start_ns)
    assert isinstance(last, int)
    assert hit.start_ns < last < hit.end_ns
    (note,) = [note for note in profile.notes if note.code == "times-unusable"]
    assert (note.level, note.count) == ("warning", 1)


def test_a_kernel_that_runs_past_the_next_one_is_cut_and_one_before_its_launch_left_out(tmp_path: Path) -> None:
    """The first kernels of two forwards: the one keeps its times, the other begins with its second kernel."""
    blocks = write(tmp_path, SMALL, rocpd=True)
    long, early = (
        next(b for b in blocks if (b.rank, b.kind, b.microbatch, b.step) == (1, "F", number, 1)) for number in (2, 4)
    )
    with changing(tmp_path / "4011_results.db") as db:
        kernels = table(db, "kernel_dispatch")
        db.execute(f'UPDATE {kernels} SET "end" = "end" + 3000000000 WHERE start = {long.start_ns}')
        shifted = 'SET start = start - 300000000, "end" = "end" - 300000000'
        assert db.execute(f"UPDATE {kernels} {shifted} WHERE start = {early.start_ns}").rowcount == 1
        db.commit()
    profile = of(tmp_path, 1)
    ((_, kind, first, last),) = set(spans(profile)) - set(truth(blocks, 1))
    assert isinstance(first, int)
    assert early.start_ns < first < early.end_ns
    assert (kind, last, len(spans(profile))) == ("F", early.end_ns, len(truth(blocks, 1)))
    notes = {note.code: (note.level, note.count) for note in profile.notes}
    assert notes["tasks-past-next"] == notes["tasks-before-launch"] == ("warning", 1)


def test_stages_micro_batches_and_the_schedule_follow(tmp_path: Path) -> None:
    blocks = write(tmp_path, Program(), rocpd=True)
    run = trace_export.load(tmp_path)
    found = run.spans.sort("rank", "end_ns")
    wanted = sorted((b.rank, b.end_ns, b.kind, b.microbatch) for b in blocks)
    labels = [(rank, kind, number) for rank, _, kind, number in wanted]
    assert found.select("rank", "kind", "microbatch").rows() == labels
    assert run.ranks.sort("rank")["stage"].to_list() == [0, 1, 2, 3]
    (note,) = [note.text for note in run.notes if note.code == "schedule-recognised"]
    assert "exactly that of 1F1B" in note


def test_transfers_are_told_from_collectives_by_the_calls_of_rccl(tmp_path: Path) -> None:
    """The kernels of both have one name. Without recorded calls the waits of the host separate the passes."""
    blocks = write(tmp_path, SMALL, rocpd=True)
    with changing(tmp_path / "4000_results.db") as db:
        strings, regions = table(db, "string"), table(db, "region")
        db.execute(f"DELETE FROM {regions} WHERE name_id IN (SELECT id FROM {strings} WHERE string GLOB 'nccl*')")
        db.commit()
    without = of(tmp_path, 0)
    assert spans(without) == truth(blocks, 0)
    assert without.p2p.is_empty()
    (note,) = [note.text for note in without.notes if note.code == "blocks-inferred"]
    assert "waits of the host" in note
    assert of(tmp_path, 1).p2p.height > 0


def test_names_count_where_there_are_any(tmp_path: Path) -> None:
    blocks = write(tmp_path, replace(SMALL, marked=frozenset(range(3))), rocpd=True)
    for options, origin in (({}, "device"), ({"infer": "off"}, "device"), ({"infer": "only"}, "inferred")):
        profile = of(tmp_path, 1, **options)
        assert spans(profile) == truth(blocks, 1)
        assert set(profile.spans["origin"]) == {origin}


def test_a_program_of_one_thread_is_refused(tmp_path: Path) -> None:
    write(tmp_path, replace(SMALL, one_thread=True), rocpd=True)
    words = "no pass is named, and they cannot be found from the launches: one thread launches everything"
    with pytest.raises(SourceError, match=words):
        of(tmp_path, 0)
    with pytest.raises(SourceError, match="no ROCTx range is named like a pipeline block"):
        of(tmp_path, 0, infer="off")


def test_on_one_thread_sequence_numbers_tell_forwards_from_backwards(tmp_path: Path) -> None:
    blocks = write(tmp_path, replace(SMALL, one_thread=True, operators=True), rocpd=True)
    assert spans(of(tmp_path, 2)) == truth(blocks, 2)


def test_only_whole_times_count(tmp_path: Path) -> None:
    """Kernels of invalid times are left out, as in marked databases."""
    blocks = write(tmp_path, Program(stages=2, microbatches=4), rocpd=True)
    with changing(tmp_path / "4000_results.db") as db:
        db.execute(f'UPDATE {table(db, "kernel_dispatch")} SET "end" = start - 5 WHERE rowid % 50 = 0')
        db.commit()
    found = {(kind, start) for _, kind, start, _ in spans(of(tmp_path, 0))}
    assert len(found & {(kind, start) for _, kind, start, _ in truth(blocks, 0)}) > 8
