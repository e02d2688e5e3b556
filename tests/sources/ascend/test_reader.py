"""Ascend and MindSpore profiles: every generated cluster equals its truth, to the nanosecond."""

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from samples.generators.ascend import Truth
from samples.generators.data_parallel import Job, write_ascend
from tests.conftest import AscendRun
from tests.support.ascend_jobs import JOBS
from trace_export.clocks.apply import task_batches
from trace_export.model import Declared, Profile
from trace_export.pipeline.interpret import interpret
from trace_export.read import LoadOptions, read_device_tasks
from trace_export.sources.find import find
from trace_export.sources.merge import merge
from trace_export.sources.read import read
from trace_export.sources.source import ReadOptions

NAMES = [name for name in JOBS if JOBS[name].layout not in ("loose", "merged")]
MARKED = [name for name in NAMES if "without markers" not in name and "text, " not in name]
NUMBERS = ["microbatch", "chunk", "microbatch_b", "chunk_b"]


def load(folder: Path, **options: Any) -> Profile:
    """Everything in `folder` as one profile, not yet labelled."""
    profile, refused = merge(read(source, ReadOptions(**options)) for source in find(folder).sources)
    assert refused == []
    return profile.validate()


def with_details(profile: Profile, detail: Any, folder: Path) -> Profile:
    """With the device tasks of all ranks."""
    ranks = profile.ranks["rank"].to_list()
    kernels, failures = read_device_tasks(profile, ranks, LoadOptions(folder, detail=detail, jobs=1), {}, folder)
    assert failures == []
    return replace(profile, kernels=kernels)


@cache
def understood(folder: Path) -> Profile:
    return interpret(load(folder), Declared()).validate()


def truth_rows(truth: Truth) -> list[tuple[object, ...]]:
    """Rank, stage, kind, start, end and NUMBERS of all blocks but the optimizer; one of the loss head is a backward."""
    return [
        (b.rank, truth.stage(b.rank), "B" if b.kind == "L" else b.kind, b.start_ns, b.end_ns,
         b.microbatch, b.chunk, b.microbatch_b, b.chunk_b)
        for b in truth.blocks
        if b.kind != "OPT"
    ]  # fmt: skip


def rows(profile: Profile) -> list[tuple[object, ...]]:
    """The same of a profile."""
    spans = profile.spans.filter(pl.col("kind") != "OPT").join(profile.ranks.select("rank", "stage"), on="rank")
    return spans.sort("rank", "start_ns").select("rank", "stage", "kind", "start_ns", "end_ns", *NUMBERS).rows()


@pytest.mark.parametrize("name", MARKED)
def test_every_block_equals_the_truth(ascend_run: AscendRun, name: str) -> None:
    folder, truth = ascend_run(name)
    profile = understood(folder)
    assert rows(profile) == truth_rows(truth)
    assert profile.spans["step"].n_unique() == truth.job.steps
    assert [note for note in profile.notes if note.level == "warning"] == []


@pytest.mark.parametrize("name", [name for name in NAMES if JOBS[name].level is not None])
def test_messages_equal_the_truth(ascend_run: AscendRun, name: str) -> None:
    """Each transfer has its two sides: batched, without peers, and where one rank's capture begins late too."""
    folder, truth = ascend_run(name)
    columns = ["src_rank", "dst_rank", "send_start_ns", "send_end_ns", "recv_start_ns", "recv_end_ns"]
    wanted = {(src, dst, *times) for src, dst, _, _, _, *times in truth.messages}
    assert wanted
    assert set(understood(folder).messages.select(columns).rows()) == wanted


@pytest.mark.parametrize("name", ["1f1b", "mindspore text"])
def test_device_tasks_on_demand(ascend_run: AscendRun, tmp_path: Path, name: str) -> None:
    """All tasks but the markers themselves, by start; the optimizer is found among them."""
    folder, truth = ascend_run(name)
    profile = with_details(load(folder, optimizer=True), "kernels", tmp_path)
    counts = {"F": 5, "B": 5, "OPT": 3}
    assert [file.rank for file in profile.kernels] == [0, 1, 2, 3]
    for file in profile.kernels:
        tasks = pl.concat(list(task_batches(profile, file.rank, rows=100)))
        assert tasks["start_ns"].is_sorted()
        blocks = [b for b in truth.blocks if b.rank == file.rank]
        kernels = tasks.filter(pl.col("category") == "compute")
        wanted = [counts[b.kind] for b in blocks]
        assert [kernels["start_ns"].is_between(b.start_ns, b.end_ns).sum() for b in blocks] == wanted
        assert len(kernels) == sum(wanted)
        optimizer = profile.spans.filter((pl.col("rank") == file.rank) & (pl.col("kind") == "OPT"))
        updates = [b for b in blocks if b.kind == "OPT"]
        for ours, block in zip(optimizer.sort("start_ns").to_dicts(), updates, strict=True):
            assert 0 <= ours["start_ns"] - block.start_ns <= 5_000
            assert 0 <= block.end_ns - ours["end_ns"] <= 5_000
    communication = with_details(load(folder), "comm", tmp_path)
    for file in communication.kernels:
        assert pl.read_ipc(file.path)["category"].unique().to_list() == ["communication"]


def test_the_kernels_of_a_marked_optimizer_are_no_second_one(tmp_path: Path) -> None:
    run = write_ascend(tmp_path / "in", Job(stages=2, microbatches=2, steps=2))
    profile = with_details(load(tmp_path / "in", optimizer=True), "kernels", tmp_path)
    assert len(profile.spans.filter(pl.col("kind") == "OPT")) == sum(b.kind == "OPT" for b in run.blocks) > 0


@pytest.mark.parametrize("detail", ["comm", "kernels"])
def test_details_of_a_capture_without_device_tasks(ascend_run: AscendRun, tmp_path: Path, detail: str) -> None:
    """Level_none has markers only: the blocks are there, and no task below them."""
    folder, truth = ascend_run("level none")
    profile = with_details(load(folder), detail, tmp_path)
    assert profile.spans.height == len(truth_rows(truth))
    assert [len(batch) for file in profile.kernels for batch in task_batches(profile, file.rank)] == []
