"""Several runs of a job, windows of one, and jobs side by side, as each profiler leaves them in a folder."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from samples.generators import ascend, nsys, paddle, recorder
from samples.generators.job_runs import (
    APPENDED,
    MICROBATCHES,
    NAMED,
    ONE_FILE,
    OVERWRITTEN,
    STAGES,
    WRITERS,
    Plan,
    Recorded,
)
from samples.generators.kineto_trace import Trace
from samples.generators.nsys_export import Export
from samples.generators.pipeline import Block
from tests.conftest import Cli
from tests.support.rows import crossed, slow
from trace_export import Run, UsageError, inspect, load
from trace_export.clocks.apply import task_batches

WINDOWED = [name for name in WRITERS if name != "paddle: dynamic graph"]
RESTARTED = [name for name in WRITERS if name not in OVERWRITTEN]


def few(names: list[str]) -> list[Any]:
    """All formats tell runs apart by the same rules, which some of them show in every run."""
    return [*names[::4], *slow(name for n, name in enumerate(names) if n % 4)]


WINDOWS = (Recorded(0, 0), Recorded(0, 30, first_step=10), Recorded(0, 75, first_step=20))
STARTS = (Recorded(0, 0), Recorded(1, 2700), Recorded(2, 5400))
CRASHED = (Recorded(0, 0), Recorded(1, 2700, ranks=[0]))


def blocks_in(run: Run, number: int | None = None) -> list[tuple[int, str | None, int]]:
    """Rank, kind and start of the passes, in the run of this number."""
    spans = run.spans if number is None else run.spans.filter(run=number)
    passes = spans.filter(spans["kind"].is_in(["F", "B"]))
    return sorted(passes.select("rank", "kind", "start_ns").iter_rows())


def passes(*recorded: Sequence[Block]) -> list[tuple[int, str, int]]:
    return sorted((b.rank, b.kind, b.start_ns) for blocks in recorded for b in blocks if b.kind in "FB")


def notes(run: Run) -> list[str]:
    return [note.code for note in run.notes if note.code.startswith("run")]


@pytest.mark.parametrize("name", few(WINDOWED))
def test_windows_are_segments_of_their_run(name: str, tmp_path: Path) -> None:
    """Their steps are further steps of the ranks, and none lasts until the next window."""
    truth = WRITERS[name](tmp_path, WINDOWS)
    run = load(tmp_path)
    assert blocks_in(run) == passes(*truth)
    assert notes(run) == []
    steps = run.report().steps
    assert steps.select("window").to_series().to_list() == [1, 1, 2, 2, 3, 3]
    assert steps["step"].is_unique().all()
    assert steps["step"].is_sorted()
    assert [time is None for time in steps["step_ns"]] == [False, True] * 3
    assert steps["whole"].all()
    assert run.profile.recordings["source"].n_unique() == ONE_FILE.get(name, 6)
    assert [note.count for note in run.notes if note.code == "recording-breaks"] == ([2] if name in ONE_FILE else [])


@pytest.mark.parametrize(("name", "lacks"), crossed(WINDOWED, [0, 1], every=3))
def test_a_rank_that_lacks_a_window_keeps_its_place_in_the_others(name: str, lacks: int, tmp_path: Path) -> None:
    """Its steps keep their numbers too, also where names give none."""
    plan = [replace(one, ranks=[0]) if n == lacks else one for n, one in enumerate(WINDOWS)]
    truth = WRITERS[name](tmp_path, plan)
    run = load(tmp_path)
    assert blocks_in(run) == passes(*truth)
    windows = {0: {1, 2, 3}, 1: {1, 2, 3} - {lacks + 1}}
    assert set(run.spans.select("rank", "window").unique().rows()) == {(r, w) for r in windows for w in windows[r]}
    steps = run.report().steps
    assert steps.filter("whole")["window"].to_list() == [w for w in (1, 1, 2, 2, 3, 3) if w in windows[1]]


@pytest.mark.parametrize("name", few(RESTARTED))
def test_of_several_starts_the_newest_complete_one_is_read(name: str, tmp_path: Path) -> None:
    truth = WRITERS[name](tmp_path, STARTS)
    run = load(tmp_path)
    assert blocks_in(run) == passes(truth[2])
    assert notes(run) == ["runs-not-read"]
    one = load(tmp_path, run=1)
    assert blocks_in(one) == passes(truth[0])
    assert notes(one) == []
    whole = load(tmp_path, run="all")
    for number, blocks in enumerate(truth, 1):
        assert blocks_in(whole, number) == passes(blocks)
    assert [time is None for time in whole.report().steps["step_ns"]] == [False, True] * 3


@pytest.mark.parametrize("name", few(RESTARTED))
def test_a_start_that_died_before_all_ranks_were_recorded_is_not_mixed_with_another(name: str, tmp_path: Path) -> None:
    truth = WRITERS[name](tmp_path, CRASHED)
    run = load(tmp_path)
    assert blocks_in(run) == passes(truth[0])
    assert notes(run) == ["runs-not-read"]
    assert blocks_in(load(tmp_path, run=2)) == passes(truth[1])


@pytest.mark.parametrize("name", NAMED)
@pytest.mark.parametrize(("attempts", "apart_s"), [((0, 0), 900), ((0, 1), 10)])
def test_what_the_environment_calls_a_start_says_which_run_it_is(
    name: str, attempts: tuple[int, int], apart_s: float, tmp_path: Path
) -> None:
    """Ranks that were recorded one after the other: of one start however late, of two starts however soon."""
    first, second = attempts
    plan = [Recorded(first, 0, ranks=[0], attempt=first), Recorded(second, apart_s, ranks=[1], attempt=second)]
    truth = WRITERS[name](tmp_path, plan)
    run = load(tmp_path)
    if first == second:
        assert blocks_in(run) == passes(*truth)
        assert notes(run) == []
    else:
        assert blocks_in(run) == passes(truth[1])
        assert notes(run) == ["runs-not-read", "run-incomplete"]
    named = "pretrain", "10.0.0.7", "29500", "enp3s0"
    assert not any(word in str(value) for word in named for row in run.ranks.rows() for value in row)


@pytest.mark.parametrize(("apart_s", "one"), [(30, True), (900, False)])
def test_ranks_recorded_one_after_the_other_are_of_one_run_where_it_is_soon(
    apart_s: float, one: bool, tmp_path: Path
) -> None:
    """Nothing names the start, and both are on one host."""
    truth = WRITERS["nsys"](tmp_path, [Recorded(0, 0, ranks=[0]), Recorded(1, apart_s, ranks=[1])])
    run = load(tmp_path)
    assert blocks_in(run) == (passes(*truth) if one else passes(truth[1]))
    assert ("runs-not-read" in notes(run)) is not one


@pytest.mark.parametrize("name", ["nsys", *slow(("ascend", "rocpd", "torch: handler", "mindspore"))])
def test_windows_of_two_starts(name: str, tmp_path: Path) -> None:
    plan = [Recorded(run, 2700 * run + 40 * n, first_step=10 * n) for run in range(2) for n in range(2)]
    truth = WRITERS[name](tmp_path, plan)
    assert blocks_in(load(tmp_path)) == passes(*truth[2:])
    whole = load(tmp_path, run="all")
    assert blocks_in(whole, 1) == passes(*truth[:2])
    assert whole.report().steps.select("run", "window").rows() == [(run, n) for run in (1, 2) for n in (1, 1, 2, 2)]


@pytest.mark.parametrize("name", APPENDED)
def test_a_file_that_was_copied_to_its_end_is_no_second_run(name: str, tmp_path: Path) -> None:
    (truth,) = WRITERS[name](tmp_path, STARTS[:1])
    for path in tmp_path.iterdir():
        path.write_text(path.read_text() * 2)
    run = load(tmp_path)
    assert blocks_in(run) == passes(truth)
    assert notes(run) == []
    assert run.failures == ()


@pytest.mark.parametrize("name", OVERWRITTEN)
def test_a_rank_that_was_left_over_is_no_part_of_the_newest_run(name: str, tmp_path: Path) -> None:
    """Files with fixed names: the second start has replaced that of its one rank."""
    truth = WRITERS[name](tmp_path, CRASHED)
    run = load(tmp_path)
    assert blocks_in(run) == passes(truth[1])
    assert notes(run) == ["runs-not-read", "run-incomplete"]


JOBS: Plan = [Recorded(0, 0, folder="control"), Recorded(1, 8 * 86_400, folder="test")]
AT_ONCE: Plan = [Recorded(0, 0, folder="control"), Recorded(1, 0.01, folder="test")]


@pytest.mark.parametrize("name", few(RESTARTED))
def test_jobs_in_sibling_folders_are_told_and_not_merged(name: str, tmp_path: Path) -> None:
    truth = WRITERS[name](tmp_path, JOBS)
    run = load(tmp_path)
    assert blocks_in(run) == passes(truth[1])
    assert run.ranks["stage"].to_list() == [0, 1]
    (note,) = [note for note in run.notes if note.code == "runs-not-read"]
    assert "control and test hold different jobs" in note.text


@pytest.mark.parametrize("name", ["nsys", "nsys: around the launcher", "rocpd", "torch: handler", "ascend"])
def test_jobs_that_ran_at_one_time_are_not_merged(name: str, tmp_path: Path) -> None:
    truth = WRITERS[name](tmp_path, AT_ONCE)
    run = load(tmp_path)
    assert blocks_in(run) in [passes(blocks) for blocks in truth]
    assert notes(run) == ["runs-not-read"]


def test_of_jobs_one_after_the_other_one_names_its_ranks(tmp_path: Path) -> None:
    """Ten seconds lie between two experiments on one host: their ranks look different, for one counts them alone."""
    for folder, after_s, rank in (("control", 0, 0), ("control", 0, 1), ("test", 10, None)):
        trace = Trace(rank=rank, pid=4700 + after_s + (rank or 0), base_ns=(Trace.base_ns or 0) + after_s * 10**9)
        trace.range(1_000, 9_000, "F0.0.0" if rank is not None else "te:F0.0 stage=0 step=0")
        trace.kernel(20_000, 30_007, trace.call(5_000, thread=77))
        (tmp_path / folder).mkdir(exist_ok=True)
        trace.write(tmp_path / folder / f"trace{rank or 0}.json")
    run = load(tmp_path)
    assert run.ranks["rank"].to_list() == [0, 1]
    (note,) = [note for note in run.notes if note.code == "runs-not-read"]
    assert "control and test hold different jobs" in note.text


@pytest.mark.parametrize(
    ("folders", "after_s", "microbatches", "steps", "one"),
    [
        (("control", "test"), 20, 4, 2, False),
        (("exp_1", "exp_2"), 20, 4, 2, False),
        (("exp_1", "exp_2"), 0, 6, 2, False),
        (("exp_1", "exp_2"), 0, 4, 2, True),
        (("machine0", "machine1"), 20, 4, 4, True),
        (("node-a", "node-b"), 0, 6, 2, True),
        (("node-a", "node-b"), 0, 6, 4, False),
        (("machine0", "machine1"), 0, 4, 4, True),
        (("10.0.0.7", "10.0.0.8"), 20, 4, 2, True),
    ],
)
def test_folders_whose_ranks_nothing_numbers_are_machines_or_jobs(
    folders: tuple[str, str], after_s: int, microbatches: int, steps: int, one: bool, tmp_path: Path
) -> None:
    """Jobs where they ran one after the other or differ in their micro-batches, unless they are called machines: then
    only if they differ in several steps."""
    jobs = [paddle.Job(2, count, range(steps)) for count in (4, microbatches)]
    for thread, folder, job, at_s in zip((22300, 33400), folders, jobs, (0, after_s), strict=True):
        later = [replace(b, start_ns=b.start_ns + at_s * 10**9, end_ns=b.end_ns + at_s * 10**9) for b in job.blocks()]
        (tmp_path / folder).mkdir()
        for rank in range(2):
            (tmp_path / folder / f"workerlog.{rank}").write_text(paddle.log(job, later, rank, thread))
    run = load(tmp_path)
    assert run.ranks["rank"].to_list() == [*range(4 if one else 2)]
    said = " ".join(note.text for note in run.notes)
    assert (f"{folders[0]} and {folders[1]} hold different jobs" in said) is not one


def test_a_cut_step_makes_no_job_of_a_machine(tmp_path: Path) -> None:
    job = paddle.Job(2, 4, range(2))
    for thread, folder, cut in ((22300, "a", 0), (33400, "b", 6)):
        (tmp_path / folder).mkdir()
        for rank in range(2):
            lines = paddle.log(job, job.blocks(), rank, thread).splitlines(keepends=True)
            (tmp_path / folder / f"workerlog.{rank}").write_text("".join(lines[: len(lines) - cut]))
    assert load(tmp_path).ranks["rank"].to_list() == [0, 1, 2, 3]
    for path in tmp_path.rglob("workerlog.*"):  # one step of the one, and a part of it of the other
        path.write_text("".join(path.read_text().splitlines(keepends=True)[: 7 if path.parent.name == "b" else 10]))
    assert load(tmp_path).ranks["rank"].to_list() == [0, 1, 2, 3]


def test_a_run_by_its_number(tmp_path: Path) -> None:
    truth = WRITERS["paddle"](tmp_path, STARTS)
    for there in (1, "2", 3):
        assert blocks_in(load(tmp_path, run=there)) == passes(truth[int(there) - 1])
    with pytest.raises(UsageError, match="run: there is no run 4; choose from 1 to 3, or all"):
        load(tmp_path, run=4)
    for wrong in ("newest", "0", "-1", 0, 1.5):
        with pytest.raises(UsageError, match=r"^run: "):
            load(tmp_path, run=wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["nsys", "paddle", *slow(["ascend"])])
def test_inspect_lists_the_runs(name: str, tmp_path: Path, run_cli: Cli) -> None:
    """Of the second start rank 1 is missing; the third was recorded twice, or once where that cannot be."""
    windows = [Recorded(2, 5400), Recorded(2, 5440, first_step=10)]
    WRITERS[name](tmp_path, [*CRASHED, *(windows if name not in APPENDED else windows[:1])])
    last = (3, 2, 2, 4, "", True) if name not in APPENDED else (3, 2, 1, 2, "", True)
    columns = ("run", "ranks", "windows", "steps", "missing_ranks", "read")
    result = inspect(tmp_path)
    assert result.runs.select(columns).rows() == [(1, 2, 1, 2, "", False), (2, 1, 1, 2, "1", False), last]
    starts = result.runs["start_ns"].to_list()
    assert [round((start - starts[0]) / 1e9) for start in starts] == [0, 2700, 5400]
    assert inspect(tmp_path, run=1).facts["steps"] == 2
    text = run_cli("inspect", tmp_path).stdout
    assert [line.split()[0] for line in text.partition("\nRuns\n")[2].splitlines()[1:4]] == ["1", "2", "3"]


def test_clocks_are_aligned_within_a_run(tmp_path: Path) -> None:
    """The clock of the second host is 2.3 ms ahead in the first run and 1.4 ms behind in the second one."""
    logs = tmp_path / "logs"
    for run, skew_ns in enumerate((2_300_000, -1_400_000)):
        job = ascend.Job(STAGES, MICROBATCHES, 2, hosts=2, skew_ns=skew_ns)
        ascend.record(logs, job, at_ns=run * 2700 * 10**9, pid=4000 + 1000 * run)
    whole = load(logs, run="all", detail="kernels").align()
    assert whole.clocks["steps"].list.len().max() == 1
    messages = []
    for number in (1, 2):
        alone = load(logs, run=number, detail="kernels").align()
        messages.append(alone.clocks["messages"])
        assert (alone.clocks["offset_ns"] != 0).any()
        assert blocks_in(whole, number) == blocks_in(alone)
        folder = tmp_path / f"run{number}"
        folder.mkdir()
        first, last = alone.spans.select(pl.col("start_ns").min(), pl.col("end_ns").max()).row(0)
        tasks = [
            pl.concat(task_batches(run._with_device_tasks([1], folder)[0], 1)).filter(
                pl.col("start_ns").is_between(first, last)
            )
            for run in (alone, whole)
        ]
        assert len(tasks[0]) > 0
        assert tasks[0].select("start_ns", "end_ns").equals(tasks[1].select("start_ns", "end_ns"))
    assert whole.clocks["messages"].to_list() == (messages[0] + messages[1]).to_list()


HOUR_NS = 3600 * 10**9


def _an_hour_off(name: str, folder: Path, ahead_ns: int) -> list[Block]:
    """Two hosts, the clock of the second one ahead. Returns the blocks on the clock of the first."""
    clocks = (0, ahead_ns)
    if name == "nsys":
        blocks = nsys.write(folder, clock_errors_ns=clocks)
    elif name == "recorder":
        blocks = recorder.write(folder, clock_errors_ns=clocks)
    elif name == "paddle":
        blocks = paddle.write(folder, machines=2, clock_errors_us=(0, ahead_ns // 1000))
    else:
        recorded = ascend.record(folder, ascend.Job(4, 6, 2, hosts=2, skew_ns=ahead_ns)).blocks
        blocks = [replace(b, start_ns=b.start_ns - (b.rank > 1) * ahead_ns) for b in recorded]
    return blocks


@pytest.mark.parametrize(
    ("name", "ahead_ns"), crossed(["nsys", "recorder", "paddle", "ascend"], [HOUR_NS, -24 * HOUR_NS])
)
def test_hosts_whose_clocks_are_hours_apart_are_one_run_where_the_user_says_so(
    name: str, ahead_ns: int, tmp_path: Path
) -> None:
    """A warning says that they may be, and with what; with that all blocks lie as in the truth."""
    truth = sorted((b.rank, b.start_ns) for b in _an_hour_off(name, tmp_path, ahead_ns) if b.kind in "FB")
    apart = load(tmp_path)
    assert apart.ranks.height == 2
    (note,) = [note for note in apart.notes if note.code == "runs-not-read"]
    assert note.level == "warning"
    assert "different jobs" not in note.text
    host, seconds = note.text.partition("give --offset ")[2].split("=")
    offsets = {host: float(seconds.removesuffix("s")) * 1e9}
    assert abs(abs(offsets[host]) - abs(ahead_ns)) < 10**9
    one = load(tmp_path, offsets_ns=offsets).align()
    assert notes(one) == []
    starts = [(rank, start) for rank, _, start in blocks_in(one)]
    moved = [start - true for (_, start), (_, true) in zip(sorted(starts), truth, strict=True)]
    assert [rank for rank, _ in sorted(starts)] == [rank for rank, _ in truth]
    assert max(moved) - min(moved) < 200_000
    assert [note for note in one.notes if note.code.startswith("clock") and note.level == "warning"] == []
    assert inspect(tmp_path, offsets_ns=offsets).runs.height == 1
    whole = load(tmp_path, run="all").align(offsets_ns=offsets)
    assert whole.spans.height == one.spans.height
    for read in (inspect, load):
        with pytest.raises(UsageError, match='there is no host "node7"'):
            read(tmp_path, offsets_ns={"node7": 1})  # type: ignore[operator]


@pytest.mark.parametrize("name", ["nsys", "torch: handler", "ascend"])
def test_starts_on_one_host_are_no_run_whose_clocks_differ(name: str, tmp_path: Path) -> None:
    WRITERS[name](tmp_path, [Recorded(0, 0, ranks=[0]), Recorded(1, 3600, ranks=[1])])
    (note,) = [note for note in load(tmp_path).notes if note.code == "runs-not-read"]
    assert "--offset" not in note.text


@pytest.mark.parametrize("name", ["paddle", "plain", "numbered"])
def test_a_process_that_starts_anew_with_its_number_begins_a_run(name: str, tmp_path: Path) -> None:
    """As in a container, or within the process: its steps are counted anew, and the log announces as many as before."""
    again = [Recorded(0, 0), Recorded(0, 600)]
    if name == "paddle":
        truth = WRITERS[name](tmp_path, again)
    else:
        export = Export(host="node0")
        truth = [one.blocks() for one in again]
        for blocks, rank in product(truth, range(STAGES)):
            made = nsys.Rank(export, rank, 0, dialect=nsys.Plain() if name == "plain" else None, process=4000 + rank)
            mine = [b for b in blocks if b.rank == rank]
            for block in mine:
                made.block(block, random.Random(1))
            made.steps(mine)
        export.write(tmp_path / "node0.sqlite")
        start = Export.epoch_ns
        truth = [[replace(b, start_ns=b.start_ns + start) for b in blocks] for blocks in truth]
    run = load(tmp_path)
    assert blocks_in(run) == passes(truth[1])
    assert notes(run) == ["runs-not-read"]
    whole = load(tmp_path, run="all")
    assert [blocks_in(whole, number) for number in (1, 2)] == [passes(blocks) for blocks in truth]
    assert [step for _, step in sorted(set(whole.spans.select("run", "step").drop_nulls().rows()))] == [0, 1, 0, 1]


@pytest.mark.parametrize("kept", [5, 14])
def test_a_log_of_a_start_that_died_with_the_same_thread_is_cut_at_the_pause(kept: int, tmp_path: Path) -> None:
    """Two steps are announced for each start, and the first one died in one of them."""
    job = paddle.Job(2, 4, range(1, 3))
    second = [replace(b, start_ns=b.start_ns + 5 * 10**9, end_ns=b.end_ns + 5 * 10**9) for b in job.blocks()]
    for rank in range(2):
        lost = [line for line in paddle.log(job, job.blocks(), rank).splitlines(keepends=True) if "Profiler" in line]
        (tmp_path / f"workerlog.{rank}").write_text("".join(lost[: kept + 1]) + paddle.log(job, second, rank))
    run = load(tmp_path)
    assert blocks_in(run) == passes(second)
    assert run.spans["step"].drop_nulls().unique().sort().to_list() == [1, 2]
