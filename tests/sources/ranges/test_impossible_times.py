"""Device times that a launch or a stream makes impossible: what is left of the blocks, and what is said."""

import random
from collections.abc import Callable
from pathlib import Path

import pytest

import trace_export
from samples.generators import kineto, nsys, rocpd
from samples.generators.pipeline import MS, Block, WrongTimes
from tests.support.rows import crossed
from trace_export import Run

S = 10**9
LAST = {"nsys": 3, "rocpd": 3, "kineto": 2}
"""The place of the last kernel of a block."""


def write_nsys(folder: Path, wrong: WrongTimes) -> list[Block]:
    chance = random.Random(3)
    blocks = nsys.blocks_of(4, 6, 2, chance)
    nsys.record(folder, blocks, 2, (0, 0), chance, wrong=wrong)
    return blocks


def write_rocpd(folder: Path, wrong: WrongTimes) -> list[Block]:
    chance = random.Random(3)
    blocks = nsys.blocks_of(4, 6, 2, chance)
    rocpd.record(folder, blocks, (0, 0), chance, wrong=wrong)
    return blocks


WRITERS: dict[str, Callable[[Path, WrongTimes], list[Block]]] = {
    "nsys": write_nsys, "rocpd": write_rocpd,
    "kineto": lambda folder, wrong: kineto.write(folder, 1, wrong),
}  # fmt: skip
FORMATS = pytest.mark.parametrize("form", WRITERS)
Key = tuple[int, int, str, int | None]


def drawn(run: Run, rank: int) -> dict[Key, tuple[int, int]]:
    """The times of each block of a rank, counted from its first one."""
    spans = run.spans.filter(rank=rank).sort("start_ns")
    first = spans["start_ns"][0]
    rows = spans.select("rank", "step", "kind", "microbatch", "start_ns", "end_ns").iter_rows()
    return {(r, step, kind, number): (start - first, end - first) for r, step, kind, number, start, end in rows}


def true(blocks: list[Block], rank: int) -> dict[Key, tuple[int, int]]:
    of_rank = sorted((b for b in blocks if b.rank == rank), key=lambda b: b.start_ns)
    first = of_rank[0].start_ns
    return {(b.rank, b.step, b.kind, b.microbatch): (b.start_ns - first, b.end_ns - first) for b in of_rank}


def counted(run: Run, code: str) -> int:
    return sum(note.count for note in run.notes if (note.code, note.level) == (code, "warning"))


def assert_begin_later(run: Run, blocks: list[Block], hits: WrongTimes) -> None:
    """That the blocks whose first kernels are `hits` begin later and end as they did, and all others are right."""
    for rank in range(4):
        result, wanted = drawn(run, rank), true(blocks, rank)
        for key in {hit[:4] for hit in hits if hit[0] == rank}:
            (start, end), (begin, until) = result.pop(key), wanted.pop(key)
            assert begin < start < end == until
        assert result == wanted


@pytest.mark.parametrize(("form", "by"), crossed(WRITERS, [3 * S, 20 * MS, 3600 * S]))
def test_a_kernel_that_runs_on_while_the_next_of_its_stream_runs_is_cut(form: str, by: int, tmp_path: Path) -> None:
    """The first kernel of a block, which is then as long as it was, and the last one of another, which then lasts until
    the next block begins: nobody can know how much of that it ran."""
    hits = {(1, 0, "F", 2, 0): by, (1, 1, "B", 3, LAST[form]): by}
    blocks = WRITERS[form](tmp_path, hits)
    run = trace_export.load(tmp_path, jobs=1)
    for rank in range(4):
        wanted = true(blocks, rank)
        if rank == 1:
            start, end = wanted[1, 1, "B", 3]
            wanted[1, 1, "B", 3] = start, min(begin for begin, _ in wanted.values() if begin >= end)
        assert drawn(run, rank) == wanted
    assert counted(run, "tasks-past-next") == 2
    assert counted(run, "tasks-before-launch") == 0


@pytest.mark.parametrize(("form", "by"), crossed(WRITERS, [3 * S, 3600 * S]))
def test_the_last_kernel_of_a_stream_that_outlasts_the_recording_is_cut(form: str, by: int, tmp_path: Path) -> None:
    """It is then as long as the longest other kernel of its stream, which no block is shorter than."""
    last = max((b for b in WRITERS[form](tmp_path / "true", {}) if b.rank == 1), key=lambda b: b.end_ns)
    key = (1, last.step, last.kind, last.microbatch)
    blocks = WRITERS[form](tmp_path / "wrong", {(*key, LAST[form]): by})
    run = trace_export.load(tmp_path / "wrong", jobs=1)
    assert counted(run, "tasks-past-next") == 1
    result, wanted = drawn(run, 1), true(blocks, 1)
    (start, end), (begin, until) = result.pop(key), wanted.pop(key)
    assert start == begin
    assert until <= end <= until + max(stop - go for go, stop in wanted.values())
    assert result == wanted


@pytest.mark.parametrize(("form", "by"), crossed(WRITERS, [-300 * MS, -5 * MS, -5 * 3600 * S, -MS // 2, -MS // 4]))
def test_a_kernel_that_begins_before_its_launch_is_left_out(form: str, by: int, tmp_path: Path) -> None:
    """The first kernels of two blocks, which then begin with their second one, as those of a session's beginning."""
    hits = {(0, 1, "F", 0, 0): by, (0, 1, "F", 1, 0): by}
    blocks = WRITERS[form](tmp_path, hits)
    run = trace_export.load(tmp_path, jobs=1)
    assert_begin_later(run, blocks, hits)
    assert counted(run, "tasks-before-launch") == 2
    assert counted(run, "tasks-past-next") == 0


@FORMATS
def test_a_stream_whose_kernels_mostly_overlap_is_told_of(form: str, tmp_path: Path) -> None:
    places = range(LAST[form] + 1)
    every = [
        (1, step, kind, number, place) for step in range(2) for kind in "FB" for number in range(6) for place in places
    ]
    WRITERS[form](tmp_path, dict.fromkeys(every, MS))
    run = trace_export.load(tmp_path, jobs=1)
    assert counted(run, "tasks-past-next") == 0
    (note,) = [note for note in run.notes if note.code == "tasks-beside-next"]
    assert (note.level, note.count > 24) == ("warning", True)


@pytest.mark.parametrize(("form", "by"), crossed(WRITERS, [-MS // 4, -MS // 2, -MS * 9 // 10]))
def test_a_device_whose_clock_is_off_loses_no_kernel(form: str, by: int, tmp_path: Path) -> None:
    numbers = [("OPT", None), *((kind, number) for kind in "FBW" for number in range(6))]
    every = [(0, step, kind, number, place) for step in range(2) for kind, number in numbers for place in range(4)]
    blocks = WRITERS[form](tmp_path, dict.fromkeys(every, by))
    run = trace_export.load(tmp_path, jobs=1)
    assert counted(run, "tasks-before-launch") == 0
    assert drawn(run, 0) == true(blocks, 0)


@FORMATS
def test_clock_noise_and_programmatic_launches_change_nothing(form: str, tmp_path: Path) -> None:
    hits = {(1, 0, "F", 2, 0): 90_000, (1, 1, "B", 3, 1): 60_000, (2, 0, "F", 1, 0): -40_000}
    blocks = WRITERS[form](tmp_path, hits)
    run = trace_export.load(tmp_path, jobs=1)
    assert counted(run, "tasks-past-next") == counted(run, "tasks-before-launch") == 0
    wanted = true(blocks, 2)
    start, end = wanted[2, 0, "F", 1]
    wanted[2, 0, "F", 1] = start - 40_000, end
    assert drawn(run, 1) == true(blocks, 1)
    assert drawn(run, 2) == wanted


@pytest.mark.parametrize(("form", "by"), crossed(WRITERS, [-300 * MS, -5 * MS]))
def test_many_kernels_that_begin_before_their_launch_are_left_out(form: str, by: int, tmp_path: Path) -> None:
    """More than a few, as of each rank some, and fewer than a tenth: the others are right."""
    hits = {(rank, step, kind, n, 0): by for rank in range(4) for step in range(2) for kind in "FB" for n in (1, 3)}
    blocks = WRITERS[form](tmp_path, hits)
    run = trace_export.load(tmp_path, jobs=1)
    assert counted(run, "tasks-before-launch") == len(hits)
    assert_begin_later(run, blocks, hits)


@pytest.mark.parametrize(("form", "by"), crossed(WRITERS, [-50 * MS, -2 * MS, -MS * 3 // 2]))
@pytest.mark.parametrize("places", [4, 2])
def test_a_file_of_which_much_work_begins_too_early_is_refused(form: str, by: int, places: int, tmp_path: Path) -> None:
    """All kernels, or those alone that waited for nothing: the others seem right, as a queue hides the wrong clock."""
    numbers = [("OPT", None), *((kind, number) for kind in "FBW" for number in range(6))]
    every = [(0, step, kind, number, place) for step in range(2) for kind, number in numbers for place in range(places)]
    WRITERS[form](tmp_path, dict.fromkeys(every, by))
    run = trace_export.load(tmp_path, jobs=1)
    assert run.ranks["rank"].to_list() == ([2, 3] if form == "nsys" else [1, 2, 3])
    (error,) = run.failures
    assert "its GPU work begins before it was launched" in str(error)
