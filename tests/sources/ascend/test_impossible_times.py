"""Ascend: ranges and kernels with times that their stream or the host makes impossible, and ranges of the host only."""

import random
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import trace_export
from samples.generators.ascend import Job, no_marker, record
from samples.generators.pipeline import MS, Block
from tests.support.ascend_jobs import JOBS
from tests.support.rows import crossed, seeds
from trace_export import Run
from trace_export.cli.summaries import run_rows
from trace_export.run import Run as _Run

S = 10**9
JOB = Job(stages=2, microbatches=4, steps=2, hosts=1)
UNMARKED = replace(JOB, marker=no_marker)
"""Blocks are inferred from the kernels, which lie some µs inside of them."""


def drawn(run: Run, rank: int) -> list[tuple[object, ...]]:
    work = pl.col("kind").is_in(["F", "B"])
    return run.spans.filter(work, rank=rank).sort("start_ns").select("kind", "start_ns", "end_ns").rows()


def true(blocks: list[Block], rank: int) -> list[tuple[object, ...]]:
    of_rank = [b for b in blocks if b.rank == rank and b.kind in "FB"]
    return [(b.kind, b.start_ns, b.end_ns) for b in sorted(of_rank, key=lambda b: b.start_ns)]


def near(result: list[tuple[Any, ...]], wanted: list[tuple[Any, ...]]) -> bool:
    """Whether inferred blocks are the true ones but for the µs between a block's ends and its kernels."""
    pairs = list(zip(result, wanted, strict=True))
    return all(a[0] == b[0] and abs(a[1] - b[1]) < 50_000 and abs(a[2] - b[2]) < 50_000 for a, b in pairs)


def counted(run: Run, code: str) -> int:
    return sum(note.count for note in run.notes if (note.code, note.level) == (code, "warning"))


@pytest.mark.parametrize(("by", "text"), crossed([3 * S, 10 * MS, 86_000 * S], [False, True]))
def test_a_range_that_runs_into_the_next_one_is_cut_and_hides_none(by: int, text: bool, tmp_path: Path) -> None:
    truth = record(tmp_path, replace(JOB, wrong={(1, 0, "F", 2, 0): by}, text=text))
    run = trace_export.load(tmp_path, jobs=1)
    assert drawn(run, 0) == true(truth.blocks, 0)
    wanted = true(truth.blocks, 1)
    hit = next(b for b in truth.blocks if (b.rank, b.step, b.kind, b.microbatch) == (1, 0, "F", 2))
    at = wanted.index(("F", hit.start_ns, hit.end_ns))
    wanted[at] = ("F", hit.start_ns, wanted[at + 1][1])
    assert drawn(run, 1) == wanted
    assert counted(run, "tasks-past-next") == 1


@pytest.mark.parametrize("text", [False, True])
def test_a_range_that_begins_before_it_was_issued_is_left_out(text: bool, tmp_path: Path) -> None:
    """As a text export does not say when that was: one in which nothing ran."""
    hits = {(0, 0, "F", 0, 0): -5 * 3600 * S, (0, 0, "F", 1, 0): -300 * MS}
    truth = record(tmp_path, replace(JOB, wrong=hits, text=text))
    run = trace_export.load(tmp_path, jobs=1)
    assert drawn(run, 0) == true(truth.blocks, 0)[2:]
    assert drawn(run, 1) == true(truth.blocks, 1)
    assert counted(run, "times-unusable" if text else "tasks-before-launch") == 2


@pytest.mark.parametrize("text", [False, True])
@pytest.mark.parametrize("marked", [False, True])
def test_a_time_of_another_clock_is_left_out_where_nothing_says_when_it_was_issued(
    marked: bool, text: bool, tmp_path: Path
) -> None:
    job = replace(JOB if marked else UNMARKED, text=text)
    truth = record(tmp_path, replace(job, wrong={(1, 1, "B", 2, 1 - marked): -5 * 3600 * S}))
    run = trace_export.load(tmp_path, jobs=1)
    wanted = true(truth.blocks, 1)
    if marked:
        hit = next(b for b in truth.blocks if (b.rank, b.step, b.kind, b.microbatch) == (1, 1, "B", 2))
        wanted.remove(("B", hit.start_ns, hit.end_ns))
    assert near(drawn(run, 0), true(truth.blocks, 0))
    assert near(drawn(run, 1), wanted)
    assert counted(run, "times-unusable" if text or not marked else "tasks-before-launch") == 1


def test_a_kernel_that_runs_into_the_next_one_makes_no_inferred_block_longer(tmp_path: Path) -> None:
    truth = record(tmp_path, replace(UNMARKED, wrong={(1, 0, "F", 2, 1): 3 * S}))
    run = trace_export.load(tmp_path, jobs=1)
    for rank in range(2):
        assert near(drawn(run, rank), true(truth.blocks, rank))
    assert counted(run, "tasks-past-next") == 1


WARNED = {"tasks-past-next", "times-unusable", "tasks-before-launch"}
DEVICES = "devices of one process"
SOUND = {DEVICES: Job(3, 4, level=0, hosts=1, together=True)} | {
    name: job for name, job in JOBS.items() if name not in ("text, loose", "text, merged")
}
BY_MS = {"late end": (1, 2, 5, 20), "late end of the last": (20, 400), "early": (-1.3, -2, -5.1, -9.3, -21, -60)}


@pytest.mark.parametrize(("text", "how", "seed"), crossed([False, True], BY_MS, range(8), every=2))
def test_no_range_with_a_wrong_time_passes_in_silence(text: bool, how: str, seed: int, tmp_path: Path) -> None:
    """The blocks are the true ones, or a warning says that a range was cut or left out."""
    chance = random.Random(f"{seed} {how}")
    stages, microbatches = chance.choice([(2, 4), (3, 5), (4, 6), (4, 8)])
    job = replace(JOB, stages=stages, microbatches=microbatches, tensor=chance.choice([1, 2]), text=text, seed=seed)
    stage, step, kind = chance.randrange(stages), chance.randrange(2), chance.choice("FB")
    microbatch, by = chance.randrange(microbatches), round(chance.choice(BY_MS[how]) * MS)
    if how == "late end of the last":
        step, kind, microbatch = 1, "B", microbatches - 1
    truth = record(tmp_path, replace(job, wrong={(stage, step, kind, microbatch, 0): by}))
    run = trace_export.load(tmp_path, jobs=1)
    if not any(counted(run, code) for code in WARNED):
        assert all(near(drawn(run, rank), true(truth.blocks, rank)) for rank in range(job.ranks))


@pytest.mark.parametrize("seed", seeds(6, 12))
def test_a_range_of_a_database_that_was_moved_later_is_named(seed: int, tmp_path: Path) -> None:
    """Also where it then stands in idle time of its stream."""
    chance = random.Random(f"later {seed}")
    truth = record(tmp_path, replace(JOB, microbatches=6, seed=seed))
    hit = chance.choice([b for b in truth.blocks if b.kind in "FB" and b.rank == 0])
    by = round(chance.choice([1.3, 3, 9, 40]) * MS)
    path = next(tmp_path.rglob("*_0.db"))
    with closing(sqlite3.connect(path)) as db, db:
        at = "WHERE connectionId > 4000000000 AND startNs = ?"
        changed = db.execute(f"UPDATE TASK SET startNs = startNs + {by}, endNs = endNs + {by} {at}", (hit.start_ns,))
        assert changed.rowcount == 1
    run = trace_export.load(tmp_path, jobs=1)
    assert any(counted(run, code) for code in WARNED)


@pytest.mark.parametrize(("text", "name", "seed"), crossed([False, True], SOUND, range(5), every=2))
def test_no_true_range_is_said_to_be_wrong(text: bool, name: str, seed: int, tmp_path: Path) -> None:
    record(tmp_path, replace(SOUND[name], text=text and name != DEVICES, seed=seed, steps=2))
    run = trace_export.load(tmp_path, jobs=1)
    assert not any(counted(run, code) for code in WARNED)


@pytest.mark.parametrize("text", [False, True])
def test_ranges_of_the_host_only_are_inferred_from_the_kernels(text: bool, tmp_path: Path) -> None:
    truth = record(tmp_path, replace(JOB, host_only=True, text=text))
    run = trace_export.load(tmp_path, jobs=1)
    for rank in range(2):
        assert near(drawn(run, rank), true(truth.blocks, rank))
    assert set(run.spans["origin"]) == {"inferred"}
    assert counted(run, "host-times") == 0
    assert "no marker is on the device" in " ".join(note.text for note in run.notes)


@pytest.mark.parametrize("text", [False, True])
@pytest.mark.parametrize("host_only", [False, True])
def test_what_infer_says_is_done(host_only: bool, text: bool, tmp_path: Path) -> None:
    """As in captures of GPUs: only takes no marker, off nothing but markers of the device."""
    truth = record(tmp_path, replace(JOB, host_only=host_only, text=text))
    only = trace_export.load(tmp_path, jobs=1, infer="only")
    for rank in range(2):
        assert near(drawn(only, rank), true(truth.blocks, rank))
    assert set(only.spans["origin"]) == {"inferred"}
    if not host_only:
        assert set(trace_export.load(tmp_path, jobs=1, infer="off", detail="kernels").spans["origin"]) == {"device"}
        return
    with pytest.raises(
        trace_export.TraceExportError, match="none of its markers is on the device, and nothing is inferred"
    ):
        trace_export.load(tmp_path, jobs=1, infer="off")


@pytest.mark.parametrize("text", [False, True])
def test_where_only_times_of_the_host_are_left_every_figure_says_so(text: bool, tmp_path: Path) -> None:
    """Without a device task there is nothing to infer blocks from."""
    record(tmp_path, replace(JOB, host_only=True, level=None, text=text))
    says_so(trace_export.load(tmp_path, jobs=1), 32)


def test_what_host_asks_for_says_so_too(tmp_path: Path) -> None:
    record(tmp_path, JOB)
    says_so(trace_export.load(tmp_path, jobs=1, host_ranges=True), 32)
    plain = trace_export.load(tmp_path, jobs=1)
    assert counted(plain, "host-times") == 0
    assert "host" not in dict(run_rows(plain.summary()))["bubble"]


def says_so(run: _Run, blocks: int) -> None:
    assert set(run.spans["origin"]) == {"host"}
    assert counted(run, "host-times") == blocks
    rows = dict(run_rows(run.summary()))
    assert rows["bubble"].endswith("in times of the host")
    assert rows["steps"].endswith("in times of the host")
    report = run.report()
    sentences = {sentence.code: sentence.text for sentence in report.verdict}
    assert "in times of the host and not of the device" in sentences["step"]
    assert "all blocks have times of the host" in sentences["certainty"]
    assert all("in times of the host" in table.note for table in report.tables() if table.frame.height)
