"""The marks of real frameworks, several processes on the CPU, against the published order of each schedule.

See frameworks/README.md for how to give these tests the frameworks; without them they are skipped.
"""

import json
import os
import socket
import subprocess
import sys
import time
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from polars.testing import assert_frame_equal

from tests.conftest import Cli
from trace_export.inference.sequence_numbers import numbered_passes
from trace_export.schedules.schedule import schedule
from trace_export.sources.find import find
from trace_export.sources.kineto.unmarked import read_process
from trace_export.sources.merge import merge
from trace_export.sources.ranges.dialects import Dialects
from trace_export.sources.ranges.rules import OWN
from trace_export.sources.read import read
from trace_export.sources.source import ReadOptions

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
PYTHON = os.environ.get("TRACE_EXPORT_FRAMEWORKS_PYTHON", sys.executable)


@cache
def missing(module: str) -> bool:
    code = f"import importlib.util as u, sys; sys.exit(u.find_spec({module.partition('.')[0]!r}) is None)"
    return subprocess.run([PYTHON, "-c", code]).returncode != 0


def needs(module: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(
        missing(module), reason=f"{module} is not installed; see tests/instrument/frameworks/README.md"
    )


def train(program: str, ranks: int, *arguments: Any, **variables: str) -> str:
    """Runs one process per rank to its end, with `variables` in its environment; the processes' stderr together. Fails
    when one of them fails."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("COV", "TRACE_EXPORT"))}
    environment |= {
        "PYTHONPATH": str(ROOT), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1",
        "WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks), "PYTHONWARNINGS": "ignore", **variables,
    }  # fmt: skip
    command = [PYTHON, str(HERE / "frameworks" / program), *map(str, arguments)]
    running = [
        subprocess.Popen(
            command, env=environment | {"RANK": str(r), "LOCAL_RANK": str(r)}, stderr=subprocess.PIPE, text=True
        )
        for r in range(ranks)
    ]
    try:
        errors = [p.communicate(timeout=600)[1] for p in running]
    finally:
        for process in running:
            process.kill()
    assert [p.returncode for p in running] == [0] * ranks, "\n".join(errors)[-3000:]
    return "".join(errors)


def recorded(out: Path, rank: int) -> pl.DataFrame:
    """What the readers make of a rank's blocks, in order. The calls must alternate: no block lies inside another."""
    calls = json.loads((out / f"rank{rank}.json").read_text())
    assert [what for what, *_ in calls] == ["push", "pop"] * (len(calls) // 2)
    texts = pl.Series([name for what, name, *_ in calls if what == "push"])
    names = Dialects().parse(texts).names
    assert names["dialect"].unique().to_list() == [OWN]
    blocks = texts.to_frame("text").join(names, on="text", how="left", maintain_order="left")
    assert (blocks["rank"].unique().to_list(), blocks["place"].unique().to_list()) == ([rank], [rank])
    return blocks.filter(pl.col("kind") != "OPT")


def expected(name: str, ranks: int, microbatches: int, rank: int, **how: int) -> list[tuple[Any, ...]]:
    """(kind, micro-batch, chunk) of one step in the schedule's order; an overlapped pair runs forward first here."""
    rows = schedule(name, ranks, microbatches, **how).ops.filter(pl.col("stage") == rank)
    order: list[tuple[Any, ...]] = []
    for row in rows.iter_rows(named=True):
        kind = "F" if row["kind"] == "FB" else row["kind"]
        order.append((kind, row["microbatch"], row["chunk"]))
        if row["kind"] == "FB":
            order.append(("B", row["microbatch_b"], row["chunk_b"]))
    return order


def check(out: Path, name: str, ranks: int, microbatches: int, steps: int, **how: int) -> None:
    for rank in range(ranks):
        blocks = recorded(out, rank)
        assert blocks["step"].unique().sort().to_list() == list(range(steps))
        for step in range(steps):
            result = blocks.filter(pl.col("step") == step).select("kind", "microbatch", "chunk").rows()
            assert result == expected(name, ranks, microbatches, rank, **how), (rank, step)


def optimizers(out: Path, rank: int) -> list[str]:
    calls = json.loads((out / f"rank{rank}.json").read_text())
    return [name for _, name, *_ in calls if name.startswith("te:Optimizer")]


@needs("torch")
@pytest.mark.parametrize(
    ("name", "microbatches", "when"),
    [
        ("GPipe", 4, "before"),
        ("1F1B", 5, "after"),
        ("Interleaved1F1B", 4, "before"),
        ("InterleavedZeroBubble", 4, "after"),
        ("ZBVZeroBubble", 4, "before"),
        ("DualPipeV", 6, "after"),
    ],
)
def test_torch_pipelining(tmp_path: Path, name: str, microbatches: int, when: str) -> None:
    train("train_torch.py", 2, name, 2, microbatches, tmp_path, when)
    check(tmp_path, name, 2, microbatches, 2)
    assert optimizers(tmp_path, 1) == [f"te:Optimizer stage=1 step={s} rank=1" for s in (0, 1)]


@needs("torch")
def test_a_trace_of_the_real_torch_profiler(tmp_path: Path) -> None:
    begin = time.time_ns()
    train("train_torch.py", 2, "InterleavedZeroBubble", 2, 4, tmp_path, "profiled")
    end = time.time_ns()
    profile, refused = merge(read(s, ReadOptions(host_ranges=True)) for s in find(tmp_path).sources)
    assert refused == []
    assert profile.ranks.select("rank", "rank_origin", "stage").rows() == [(0, "recorded", 0), (1, "recorded", 1)]
    blocks = profile.spans.filter(pl.col("kind") != "OPT")
    for rank, step in ((r, s) for r in range(2) for s in range(2)):
        result = blocks.filter(pl.col("rank") == rank, pl.col("step") == step)
        order = result.sort("start_ns").select("kind", "microbatch", "chunk").rows()
        assert order == expected("InterleavedZeroBubble", 2, 4, rank), (rank, step)
    assert begin < blocks["start_ns"].min() < blocks["end_ns"].max() < end  # type: ignore[operator]
    assert (blocks["end_ns"] - blocks["start_ns"]).min() > 0  # type: ignore[operator]


FOUR = [("1F1B", 6), ("InterleavedZeroBubble", 8)]
"""Runs of four processes; where they are skipped, one line is enough."""


@needs("torch")
@pytest.mark.parametrize(("schedule_name", "microbatches"), FOUR[:1] if missing("torch") else FOUR)
def test_the_chart_of_a_run_of_four_processes(
    tmp_path: Path, run_cli: Cli, schedule_name: str, microbatches: int
) -> None:
    """The command draws what torch.profiler recorded: each stage's blocks in the schedule's order, with its labels."""
    train("train_torch.py", 4, schedule_name, 2, microbatches, tmp_path, "profiled")
    out = tmp_path / "out"
    done = run_cli(tmp_path, "--host", "--format", "parquet,perfetto", "--tracks", "rank", "--out", out)
    assert done.returncode == 0, done.stderr
    blocks = pl.read_parquet(out / "pipeline_profile.parquet").filter(pl.col("kind") != "OPT")
    assert blocks.select("rank", "stage").unique().sort("rank").rows() == [(rank, rank) for rank in range(4)]
    for (rank, _), step in blocks.sort("start_ns").group_by("rank", "step", maintain_order=True):
        result = step.select("kind", "microbatch", "chunk").rows()
        assert result == expected(schedule_name, 4, microbatches, rank)
    assert blocks["step"].n_unique() == 2


LABELS = ["rank", "stage", "step", "kind", "microbatch", "chunk", "microbatch_b", "chunk_b"]


@needs("torch")
@pytest.mark.parametrize(("schedule_name", "microbatches"), FOUR[:1] if missing("torch") else FOUR)
def test_the_recorder_draws_what_torch_profiler_does(
    tmp_path: Path, run_cli: Cli, schedule_name: str, microbatches: int
) -> None:
    """Of the same blocks of one run: all labels, and all times but for what another process had the core meanwhile:
    the two read their clocks one after the other."""
    traces, record = tmp_path / "traces", tmp_path / "record"
    traces.mkdir()
    train(
        "train_torch.py",
        4,
        schedule_name,
        3,
        microbatches,
        traces,
        "profiled",
        TRACE_EXPORT_RECORD=str(record),
        OFF_CORE=str(tmp_path),
    )
    charts = []
    for folder in (traces, record):
        out = tmp_path / "out" / folder.name
        host = ("--host",) if folder is traces else ()
        done = run_cli(folder, *host, "--format", "parquet", "--out", out)
        assert done.returncode == 0, done.stderr
        charts.append(pl.read_parquet(out / "pipeline_profile.parquet").sort("rank", "start_ns"))
    profiled, recorded = charts
    assert recorded.height == 3 * sum(
        len(expected(schedule_name, 4, microbatches, rank)) + 1 for rank in range(4)
    )  # and an optimizer
    assert_frame_equal(recorded.select(LABELS), profiled.select(LABELS))
    away = [blocks for rank in range(4) for blocks in json.loads((tmp_path / f"off_core{rank}.json").read_text())]
    for end, off_core in zip(("start_ns", "end_ns"), zip(*away, strict=True), strict=True):
        apart = (recorded[end] - profiled[end]).abs()
        assert (apart - pl.Series(off_core)).max() < 50_000, end  # type: ignore[operator]
        assert apart.quantile(0.9) < 50_000  # type: ignore[operator]


SPLIT = ("InterleavedZeroBubble", "ZBVZeroBubble")


PAIRED = [(name, model) for name in ("GPipe", "1F1B", "Interleaved1F1B", *SPLIT) for model in ("linear", "recomputed")]


@needs("torch")
@pytest.mark.parametrize(("name", "model"), PAIRED[:1] if missing("torch") else PAIRED)  # one line where it is skipped
def test_sequence_numbers_of_a_real_trace_pair_its_passes(tmp_path: Path, name: str, model: str) -> None:
    """What follows from the numbers alone lies in the ranges of the marks, and pairs have one micro-batch and chunk. On
    the CPU one thread does everything. The first stage has no input gradient: its weight gradient is a whole backward.
    """
    train("train_torch.py", 2, name, 2, 4, tmp_path, "profiled", model)
    for rank in range(2):
        rows = read_process(tmp_path / f"trace{rank}.pt.trace.json.gz").operators
        marks = rows.filter(pl.col("name").str.contains("^te:[FBW]")).sort("start")
        truth = marks.select("start", "end", kind=pl.col("name").str.slice(3, 1), text=pl.col("name").str.slice(4))
        bare = rows.filter(~pl.col("name").str.starts_with("te:"))
        result = numbered_passes(bare, marks["thread"][0], np.zeros(0, np.int64))
        assert result is not None
        met = result.sort("start").join_asof(truth, on="start", suffix="_marked")
        assert (met["end"] <= met["end_marked"]).all()
        assert met.group_by("pair").agg(pl.col("text").n_unique())["text"].unique().to_list() == [1]
        marked = Counter(truth["kind"])
        whole = 8 if rank == 0 and name in SPLIT else 0
        wanted = {("F", "F"): marked["F"], ("B", "B"): marked["B"] - whole, ("W", "W"): marked["W"] - whole}
        assert Counter(met.select("kind", "kind_marked").rows()) == Counter(wanted) + Counter({("B", "W"): whole})


@needs("megatron.core")
@pytest.mark.parametrize(("chunks", "microbatches"), [(1, 5), (2, 4)])
def test_megatron_core(tmp_path: Path, chunks: int, microbatches: int) -> None:
    train("train_megatron.py", 2, chunks, 2, microbatches, tmp_path)
    name, how = ("1f1b", {}) if chunks == 1 else ("interleaved", {"chunks": chunks})
    check(tmp_path, name, 2, microbatches, 2, **how)
    assert optimizers(tmp_path, 1) == [f"te:Optimizer stage=1 step={s} rank=1" for s in (0, 1)]


@needs("deepspeed")
def test_deepspeed(tmp_path: Path) -> None:
    train("train_deepspeed.py", 2, 2, 5, tmp_path)
    check(tmp_path, "1f1b", 2, 5, 2)
    assert optimizers(tmp_path, 0) == [f"te:Optimizer stage=0 step={s} rank=0" for s in (0, 1)]
