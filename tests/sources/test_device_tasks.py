"""Device tasks: read for the ranks that are drawn and of the time that is asked for, and nothing else."""

import os
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.rows import crossed
from trace_export import Run, load
from trace_export.cli import main
from trace_export.clocks.apply import clock_of, correct_tasks, recorded_window, task_batches
from trace_export.model import CLOCKS, KERNELS, TIME, Profile, empty
from trace_export.selection import Window
from trace_export.sources.read import read_tasks
from trace_export.sources.source import TaskRequest

SAMPLES = ("nsys", "rocpd", "ascend", "mindspore", "kineto")
MARGIN_NS = 10
"""How much wider than the window what is read may be."""


@dataclass(frozen=True)
class Whole:
    """A sample: where it lies, its ranks, and all that it holds."""

    folder: Path
    ranks: list[int]
    profile: Profile


def tasks(profile: Profile, rank: int) -> pl.DataFrame:
    """The device tasks of a rank as they are drawn, by start and name."""
    whole = pl.concat([empty(KERNELS), *task_batches(profile, rank)])
    return whole.with_columns(pl.col("name").cast(pl.String)).sort("start_ns", "end_ns", "name")


def read(logs: Path, ranks: list[int] | None, folder: Path, detail: Any, **choice: Any) -> Profile:
    """The profile on aligned clocks with the device tasks of `ranks`, or of all."""
    folder.mkdir(exist_ok=True)
    run = aligned(logs, detail).select(**choice)
    profile, failures = run._with_device_tasks(run.ranks["rank"].to_list() if ranks is None else ranks, folder)
    assert failures == []
    return profile


CHOICES: dict[str, dict[str, Any]] = {
    "a window": {"window": Window(7_000_000, 12_000_000)},
    "a window before the first block": {"window": Window(0, 1_500_000)},
    "a stage": {"stages": 1},
}


@cache
def aligned(folder: Path, detail: Any) -> Run:
    """The run in the folder, on aligned clocks."""
    return load(folder, detail=detail, jobs=1).align()


@pytest.fixture(scope="module")
def whole_of(samples: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Whole]:
    """A sample with all device tasks of all its ranks, read once."""

    @cache
    def whole_of(sample: str) -> Whole:
        profile = read(samples / sample, None, tmp_path_factory.mktemp("whole"), "kernels")
        return Whole(samples / sample, profile.ranks["rank"].to_list(), profile)

    return whole_of


@pytest.mark.parametrize(("sample", "choice", "detail"), [
    *crossed(SAMPLES, ["a window"], ["comm", "kernels"]),
    ("nsys", "a window before the first block", "kernels"), ("nsys", "a step", "kernels"), ("nsys", "a stage", "comm"),
])  # fmt: skip
def test_what_is_chosen_is_what_would_be_chosen_of_everything(
    whole_of: Callable[[str], Whole], tmp_path: Path, sample: str, choice: str, detail: Any
) -> None:
    """Readers know of windows and details; steps, stages and what is before the first block become windows and ranks
    for all alike."""
    whole = whole_of(sample)
    last_step = whole.profile.spans["step"].max()
    chosen_by = CHOICES.get(choice, {"steps": last_step})
    ranks = whole.ranks[1:]
    chosen = read(whole.folder, ranks, tmp_path / "chosen", detail, **chosen_by)
    assert chosen.window_ns is not None
    first, last = chosen.window_ns
    kept = set(chosen.ranks["rank"]) & set(ranks)
    assert {file.rank for file in chosen.kernels} <= kept
    inside = (pl.col("end_ns") >= first) & (pl.col("start_ns") <= last)
    if detail == "comm":
        inside &= pl.col("category") == "communication"
    for rank in kept:
        assert tasks(chosen, rank).equals(tasks(whole.profile, rank).filter(inside))
    for file in chosen.kernels:
        on_disk = correct_tasks(pl.read_ipc(file.path), clock_of(chosen, file.rank))
        outside = (pl.col("end_ns") < first - MARGIN_NS) | (pl.col("start_ns") > last + MARGIN_NS)
        assert on_disk.filter(outside).is_empty()


big = st.integers(-(2**40), 2**40)


@given(big, st.floats(-1e-4, 1e-4), st.integers(1, 2**60), big, st.integers(0, 2**40), big)
def test_a_window_of_corrected_time_in_the_clock_of_a_host(
    offset: int, drift: float, reference: int, begin: int, length: int, at: int
) -> None:
    rows = {"host": ["h"], "offset_ns": [offset], "drift": [drift], "reference_ns": [reference], "steps": [None]}
    clock = pl.DataFrame(rows, schema={name: CLOCKS[name] for name in rows})
    window = (reference + begin, reference + begin + length)
    first, last = recorded_window(window, clock)
    times = pl.Series("start_ns", [first, last, first - 1, last + 1, reference + at], TIME)
    shown = correct_tasks(pl.DataFrame([times, times.alias("end_ns")]), clock)["start_ns"].to_list()
    assert window[0] - 6 <= shown[0] <= window[0]
    assert window[1] <= shown[1] <= window[1] + 6
    assert shown[2] < window[0]
    assert shown[3] > window[1]
    if window[0] <= shown[4] <= window[1]:
        assert first <= reference + at <= last


DAMAGED = {
    "nsys": "*.sqlite", "ascend": "ascend_pytorch_profiler_*.db", "mindspore": "kernel_details.csv",
    "kineto": "*.trace.json.gz", "rocpd": "*_results.db",
}  # fmt: skip
"""Sample → the files that hold device tasks."""


@pytest.mark.parametrize("sample", SAMPLES)
def test_a_source_that_shrinks_between_the_two_readings_is_told(samples: Path, tmp_path: Path, sample: str) -> None:
    """Cut short, or gone: a text that ends early reads like a shorter one."""
    logs = tmp_path / "logs"
    shutil.copytree(samples / sample, logs)
    run = load(logs, detail="kernels", jobs=1).align()
    damaged, *others = sorted(logs.rglob(DAMAGED[sample]))
    assert others
    source = next(path for path in run.ranks["source"] if damaged.is_relative_to(path))
    of_others = run.ranks.filter(pl.col("source") != source)["rank"]
    size = damaged.stat().st_size
    for left in (0.5, None):
        if left is None:
            damaged.unlink()
        else:
            os.truncate(damaged, int(size * left))
        profile, (failure,) = run._with_device_tasks(run.ranks["rank"].to_list(), tmp_path)
        assert re.match(rf"{re.escape(str(source))}:? ", str(failure)), left
        assert {file.rank for file in profile.kernels} == set(of_others), left


def test_a_source_that_is_lost_between_the_two_readings_makes_the_exit_code_3(
    samples: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    logs = tmp_path / "logs"
    shutil.copytree(samples / "ascend", logs)
    gone = sorted(logs.rglob("ascend_pytorch_profiler_*.db"))[0]

    def watched(wanted: TaskRequest) -> Any:
        gone.unlink(missing_ok=True)
        return read_tasks(wanted)

    monkeypatch.setattr("trace_export.read.read_tasks", watched)
    options = ["--log_dir", str(logs), "--detail", "kernels", "--jobs", "1", "--out", str(tmp_path / "out")]
    with pytest.raises(SystemExit) as end:
        main(options)
    assert end.value.code == 3
    assert f"{gone} cannot be opened" in capsys.readouterr().err
    assert (tmp_path / "out" / "pipeline_profile.pftrace").stat().st_size > 0
