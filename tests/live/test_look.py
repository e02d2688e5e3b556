"""The looks at a job that runs say of each step what a report on its whole profiles says."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import cast

import polars as pl
import pytest

from samples.generators.ascend import Job as AscendJob
from samples.generators.ascend import record
from samples.generators.job_runs import OVERWRITTEN, WRITERS, Plan, Recorded
from samples.generators.paddle import Job, write_logs
from tests.support.growing_logs import GrowingLogs
from tests.support.rows import crossed
from trace_export import Run, load
from trace_export.live import growth
from trace_export.live.look import Look, Watch
from trace_export.live.watching import LOOK_S, ticks
from trace_export.read import load_options
from trace_export.run import Request

JOB = Job(stages=3, microbatches=4, steps=range(20), announced=False)


def test_a_watch_looks_at_once_and_then_by_the_clock_until_it_is_stopped() -> None:
    waited: list[float | None] = []

    class Stop(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            waited.append(timeout)
            return len(waited) == 3

    assert list(ticks(Stop())) == [None] * 3
    assert waited == [LOOK_S] * 3


def looks(
    folder: Path, changes: list[Callable[[], object]], last: int = 3, *, slowdown: bool = False, **options: object
) -> list[Look]:
    """A look before and after each of the changes, as far as there is anything new."""

    def after_each() -> Iterator[None]:
        yield None
        for change in changes:
            change()
            yield None

    request = Request(load_options(folder, options))
    return list(Watch(request, last, slowdown=slowdown).looks(after_each()))


def steps(result: list[Look]) -> list[int | None]:
    return [step.step for look in result for step in look.steps]


def step_ns(job: Job) -> float:
    """The mean time from start to start in the simulation itself."""
    begins = [min(b.start_ns for b in job.blocks() if b.step == step) for step in job.steps]
    return (begins[-1] - begins[0]) / (len(begins) - 1)


def test_the_cause_of_the_last_steps_is_what_was_planted(tmp_path: Path) -> None:
    """With the gain of the same job without it."""
    job = replace(JOB, steps=range(6), slow={(1, 0): 1.4})
    logs = GrowingLogs(tmp_path, job)
    result = looks(logs.folder, [lambda s=s: logs.write(s) for s in job.steps], last=4)  # type: ignore[misc]
    last = result[-1].steps[-1]
    assert last.cause is not None
    assert last.cause.startswith("Stage 1 is slow")
    assert last.cause_gain_ns == pytest.approx(step_ns(job) - step_ns(replace(job, slow={})), rel=0.1)
    assert last.worst_link is None


@pytest.fixture
def logs(tmp_path: Path) -> GrowingLogs:
    return GrowingLogs(tmp_path, JOB)


def test_each_step_is_reported_once_with_the_figures_of_a_report(logs: GrowingLogs) -> None:
    logs.write(0)
    result = looks(logs.folder, [lambda s=s: logs.write(s) for s in range(1, 6)], slowdown=True)  # type: ignore[misc]
    assert steps(result) == list(range(6))
    whole = load(logs.folder).align()
    table = {row["step"]: row for row in whole.report().steps.iter_rows(named=True)}
    slowdown = dict(whole.what_if().steps.select("step", "slowdown").iter_rows())
    starts = [table[step]["start_ns"] for step in sorted(table)]
    for figures in (step for look in result for step in look.steps):
        number = cast("int", figures.step)
        row = table[number]
        assert not figures.host_times
        assert (figures.start_ns, figures.pipeline_ns, figures.bubble, figures.bubble_own) == (
            row["start_ns"], row["pipeline_ns"], pytest.approx(row["bubble"]), pytest.approx(row["bubble_own"]),
        )  # fmt: skip
        assert figures.since_previous_ns == (starts[number] - starts[number - 1] if number else None)
        assert figures.blocks == 3 * 9
        assert figures.slowdown is not None
        if number in slowdown:  # the last has no length yet
            assert slowdown[number] == pytest.approx(figures.slowdown, rel=0.02)  # the usual lengths are of fewer steps
    assert result[-1].run is not None
    assert result[-1].run.spans["step"].unique().sort().to_list() == [3, 4, 5]


def test_a_step_counts_when_all_ranks_have_finished_it(logs: GrowingLogs) -> None:
    logs.write(0, 1)
    result = looks(
        logs.folder,
        [lambda: logs.write(2, ranks=range(2)), lambda: logs.write(2, ranks=range(2, 3))],
    )
    assert [[step.step for step in look.steps] for look in result] == [[0, 1], [], [2]]


def test_the_first_steps_of_a_long_job_are_not_kept(logs: GrowingLogs) -> None:
    logs.write(*range(15))
    result = looks(logs.folder, [lambda: logs.write(15)], last=4)
    assert steps(result) == [11, 12, 13, 14, 15]


def test_a_folder_that_is_empty_at_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(growth, "FIND_S", 0.0)
    logs = GrowingLogs(tmp_path, JOB)
    result = looks(tmp_path, [lambda: logs.write(0, 1)])
    assert result[0].run is None
    assert "no profile" in result[0].problem or "nothing" in result[0].problem
    assert steps(result) == [0, 1]
    assert result[-1].problem == ""


@pytest.mark.parametrize("sizes", [{}, {"pp": 3}])
def test_a_rank_that_appears_late(sizes: dict[str, int], logs: GrowingLogs, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sizes fit only when it is there."""
    monkeypatch.setattr(growth, "FIND_S", 0.0)
    logs.write(0, 1, ranks=range(2))
    result = looks(logs.folder, [lambda: logs.write(0, 1, ranks=range(2, 3)), lambda: logs.write(2)], **sizes)
    assert result[-1].problem == ""
    assert result[-1].run is not None
    assert result[-1].run.spans["rank"].unique().sort().to_list() == [0, 1, 2]
    assert result[-1].run.ranks["rank"].to_list() == [0, 1, 2]  # each was read as one of two ranks before
    in_step = result[-1].run.spans.filter(step=2)
    assert in_step["rank"].value_counts(sort=True)["count"].to_list() == [len(logs.blocks) // 20 // 3] * 3
    assert steps(result)[-1] == 2


def test_a_log_that_is_removed_stays_named(logs: GrowingLogs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(growth, "FIND_S", 0.0)
    logs.write(0, 1, 2)
    result = looks(
        logs.folder,
        [logs.path(1).unlink, lambda: None, *(lambda s=s: logs.write(s, ranks=range(0, 3, 2)) for s in (3, 4))],
    )  # type: ignore[misc]
    assert [str(e) for e in result[-1].failures if "workerlog.1" in str(e)]
    assert steps(result) == [0, 1, 2]
    assert result[-1].problem == "waiting for rank 1: step 3 is not finished there, and others have finished step 4"
    assert result[-1].run is not None


def test_a_folder_that_vanishes_and_comes_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(growth, "FIND_S", 0.0)
    logs = GrowingLogs(tmp_path / "logs", JOB)
    logs.write(0, 1)
    away = tmp_path / "away"
    result = looks(
        logs.folder, [lambda: logs.folder.rename(away), lambda: away.rename(logs.folder), lambda: logs.write(2)]
    )
    gone, back = result[1], result[-1]
    assert gone.run is not None
    assert (len(gone.failures), bool(gone.problem)) == (3, True)
    assert (back.failures, back.problem) == ((), "")
    assert steps(result) == [0, 1, 2]


def test_a_profile_that_is_written_anew_keeps_what_it_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record(tmp_path, AscendJob())
    monkeypatch.setattr(growth, "QUIET_S", 0.0)

    def rewrite() -> None:
        monkeypatch.setattr(growth, "QUIET_S", 1e9)
        next(tmp_path.rglob("*.db")).touch()

    def add() -> None:
        monkeypatch.setattr(growth, "QUIET_S", 0.0)

    result = looks(tmp_path, [rewrite, add])
    assert all(look.run is not None and look.failures == () for look in result)
    assert len({look.run.spans.height for look in result if look.run is not None}) == 1


def test_ranks_whose_first_profile_is_being_written_are_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bubble without them is another. One that is written for ever does not hold up the others for ever."""
    record(tmp_path, AscendJob())
    late = next(tmp_path.rglob("*.db"))
    before, after = (late.stat().st_mtime + seconds for seconds in (-1e6, 1e9))
    os.utime(late, (after, after))

    def finish() -> None:
        os.utime(late, (before, before))

    monkeypatch.setattr(growth, "QUIET_S", 0.0)
    result = looks(tmp_path, [finish])
    assert not result[0].steps
    table = load(tmp_path).align().report().steps.filter("whole")
    figures = [(step.step, step.bubble) for look in result for step in look.steps]
    assert figures == list(table.select("step", "bubble").iter_rows())[-len(figures) :]

    os.utime(late, (after, after))
    monkeypatch.setattr(growth, "FIRST_S", 0.0)
    assert steps(looks(tmp_path, [])) == [step for step, _ in figures]


def test_a_log_that_is_truncated_goes_on_with_what_is_written_then(logs: GrowingLogs) -> None:
    logs.write(0, 1, 2)
    result = looks(logs.folder, [lambda: logs.path(0).write_text(""), lambda: logs.write(3), lambda: logs.write(4)])
    assert steps(result)[:3] == [0, 1, 2]
    assert result[-1].failures == ()


def test_a_job_that_is_started_again(tmp_path: Path) -> None:
    """Its steps are counted from the beginning, and are those of another run; the ranks do not start at one time."""
    logs = GrowingLogs(tmp_path, JOB)
    logs.write(0, 1, 2)
    changes: list[Callable[[], object]] = [lambda s=s: logs.write(s) for s in range(3, 5)]  # type: ignore[misc]
    changes += [lambda: again(logs, 0, range(1)), lambda: again(logs, 0, range(1, 3)), lambda: again(logs, 1, range(3))]
    result = looks(tmp_path, changes)
    assert steps(result) == [0, 1, 2, 3, 4, 0, 1]
    assert result[-1].run is not None
    assert result[-1].run.profile.spans["step"].unique().sort().to_list() == [0, 1]


def test_jobs_in_folders_of_machines_are_told_apart_as_a_report_tells_them(tmp_path: Path) -> None:
    """They run other numbers of micro-batches in each step."""
    job = replace(JOB, steps=range(4))
    for number, microbatches in enumerate((6, 4)):
        write_logs(tmp_path / f"machine{number}", replace(job, microbatches=microbatches, seed=number))
    (result,) = looks(tmp_path, [])
    assert steps([result]) == [1, 2, 3]
    assert result.run is not None
    assert last_two(result.run) == last_two(load(tmp_path).align())
    assert result.run.ranks.height == 3
    assert ["hold different jobs" in note.text for note in result.notes] == [True]


def test_one_of_two_jobs_is_shown_as_both_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """That which began later, once it has a step, although the steps that are kept of the other often began later."""
    monkeypatch.setattr(growth, "FIND_S", 0.0)
    jobs = [
        GrowingLogs(tmp_path / f"machine{n}", replace(JOB, microbatches=m, steps=range(12), seed=1 + 6 * n))
        for n, m in enumerate((4, 6))
    ]
    ends = sorted(
        (max(b.end_ns for b in job.blocks if b.step == step), n, step)
        for n, job in enumerate(jobs)
        for step in range(12)
    )
    writes = [lambda n=n, step=step: jobs[n].write(step) for _, n, step in ends]  # type: ignore[misc]
    shown = [set(look.run.ranks["host"]) for look in looks(tmp_path, writes) if look.run is not None]
    assert len(shown) > 15
    later = shown[shown.index({"machine1"}) :]
    assert [hosts for hosts in later if hosts != {"machine1"}] == []


def again(logs: GrowingLogs, step: int, ranks: range) -> None:
    """Appends a step of a start of the job an hour later."""
    for rank in ranks:
        later = re.sub(r"_time = (\d+)", lambda m: f"_time = {int(m[1]) + 3_600_000}", logs.text(rank, step))
        with logs.path(rank).open("a") as file:
            file.write(later.replace(" 223", " 334"))  # the thread of another process


def test_a_rank_that_was_started_again_alone_has_no_steps_with_the_others(tmp_path: Path) -> None:
    """The job died before the others were, and before the watch, or goes on later."""
    logs = GrowingLogs(tmp_path, JOB)
    logs.write(0, 1, 2)
    again(logs, 0, range(1))
    assert steps(looks(tmp_path, [])) == []
    assert steps(looks(tmp_path, [lambda: again(logs, 0, range(1, 3)), lambda: again(logs, 1, range(3))])) == [0, 1]


CRASHES: tuple[Plan, ...] = (
    (Recorded(0, 0), Recorded(1, 2700, ranks=[0])),
    (Recorded(0, 0), Recorded(1, 2700, ranks=[1]), Recorded(1, 2760, ranks=[1], first_step=10)),
    (Recorded(0, 0), Recorded(0, 60, first_step=10), Recorded(1, 2700, ranks=[0]), Recorded(2, 5400, ranks=[0])),
)


WHOLE_FILES = [name for name in WRITERS if name != "paddle" and name not in OVERWRITTEN]


@pytest.mark.parametrize(("name", "plan"), crossed(WHOLE_FILES, CRASHES, every=3))
def test_the_run_before_a_crash_is_shown_until_all_ranks_have_recorded_the_next(
    name: str, plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one that `load` reads; that there is a newer one is said."""
    monkeypatch.setattr(growth, "QUIET_S", 0.0)
    WRITERS[name](tmp_path, plan)
    (result,) = looks(tmp_path, [])
    assert result.run is not None
    assert last_two(result.run) == last_two(load(tmp_path).align())
    assert "is newer, and has 1 rank so far" in result.problem


def last_two(run: Run) -> list[tuple[object, ...]]:
    """Rank, kind and start of the blocks of the last two whole steps, whatever their numbers."""
    numbers = run.profile.steps.filter("whole")["step"][-2:]
    spans = run.spans.filter(pl.col("step").is_in(numbers.implode()))
    return sorted(spans.select("rank", "kind", "start_ns").iter_rows())


def test_two_machines_are_aligned(tmp_path: Path) -> None:
    job = Job(stages=4, microbatches=8, steps=range(10), machines=2, clock_errors_us=(0, 3_200), announced=False)
    logs = GrowingLogs(tmp_path, job)
    logs.write(0, 1, 2)
    result = looks(tmp_path, [lambda s=s: logs.write(s) for s in range(3, 6)], last=3)  # type: ignore[misc]
    errors = [step.clock_error_ns for look in result for step in look.steps]
    assert all(error is not None and error < 300_000 for error in errors)
    run = result[-1].run
    assert run is not None
    offsets = dict(run.clocks.select("host", "offset_ns").iter_rows())
    assert max(offsets.values()) - min(offsets.values()) == pytest.approx(3_200_000, abs=4 * max(errors))  # type: ignore[type-var,arg-type]
    truth = {(b.rank, b.step, b.kind, b.microbatch): b.start_ns for b in logs.blocks}
    moved = [
        start - truth[rank, step, kind, microbatch]
        for rank, step, kind, microbatch, start in run.spans.select(
            "rank", "step", "kind", "microbatch", "start_ns"
        ).iter_rows()
    ]
    assert max(moved) - min(moved) < 4 * max(errors)  # type: ignore[operator,type-var]


def test_profiles_that_are_written_whole_are_read_when_nobody_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record(tmp_path, AscendJob())
    monkeypatch.setattr(growth, "QUIET_S", 1e9)
    assert steps(looks(tmp_path, [])) == []
    monkeypatch.setattr(growth, "QUIET_S", 0.0)
    result = looks(tmp_path, [])
    whole = load(tmp_path).align().report().steps.filter("whole")["step"].to_list()
    assert steps(result) == whole[-len(steps(result)) :]
    assert result[-1].run is not None
