"""Tables of a job that was started again, which do not say which run a row is of."""

import random
from pathlib import Path

import polars as pl
import pytest

import trace_export
from samples.generators import nsys
from samples.generators.pipeline import Block

EPOCH_NS = 1_760_000_000_000_000_000
STARTS_S = (0, 1_000, 5_000)
COLUMNS = "rank=rank,kind=kind,start=start_ns,end=end_ns,step=step,microbatch=mb"


def _runs() -> list[list[Block]]:
    """Three starts of a job, whose first one died in its second step."""
    runs = [nsys.blocks_of(3, 4, steps, random.Random(steps), split=False) for steps in (2, 3, 4)]
    return [runs[0][:-9], *runs[1:]]


def _table(folder: Path, name: str, microbatch: str) -> Path:
    rows = [(b.rank, b.kind, b.start_ns + at, b.end_ns + at, b.step, b.microbatch)
            for start, blocks in zip(STARTS_S, _runs(), strict=True) for at in (EPOCH_NS + start * 10**9,)
            for b in blocks]  # fmt: skip
    random.Random(1).shuffle(rows)
    names = ["rank", "kind", "start_ns", "end_ns", "step", microbatch]
    pl.DataFrame(rows, names, orient="row").write_csv(folder / name)
    return folder / name


@pytest.mark.parametrize("own", [False, True])
def test_each_start_of_a_job_is_a_run_of_its_own(own: bool, tmp_path: Path) -> None:
    path = _table(tmp_path, "run.spans.csv" if own else "other.csv", "microbatch" if own else "mb")
    run = trace_export.load(path, run="all", **({} if own else {"columns": COLUMNS}))
    steps = run.spans.group_by("run").agg(pl.col("step").max(), pl.len()).sort("run").select("step", "len").rows()
    assert steps == [(len({b.step for b in blocks}) - 1, len(blocks)) for blocks in _runs()]
    longest = max(b.end_ns for b in _runs()[2])
    assert run.report().steps["step_ns"].max() < longest
    last = trace_export.load(path, **({} if own else {"columns": COLUMNS}))
    assert last.spans.height == len(_runs()[2])


def test_a_step_that_is_wholly_there_again_is_of_another_run(tmp_path: Path) -> None:
    """Two seconds later, as where two runs of one step each were put into one file."""
    blocks = nsys.blocks_of(3, 4, 1, random.Random(1), split=False)
    rows = [(b.rank, b.kind, b.start_ns + at, b.end_ns + at, b.step, b.microbatch) for at in (0, 2 * 10**9)
            for b in blocks]  # fmt: skip
    names = ["rank", "kind", "start_ns", "end_ns", "step", "microbatch"]
    pl.DataFrame(rows, names, orient="row").write_parquet(tmp_path / "run.spans.parquet")
    assert trace_export.load(tmp_path, run="all").spans["run"].unique().sort().to_list() == [1, 2]
    last = trace_export.load(tmp_path)
    assert last.spans.height == len(blocks)
    assert "runs-not-read" in [note.code for note in last.notes]


def test_numbers_that_are_there_again_within_a_step_are_no_runs(tmp_path: Path) -> None:
    """Two chunks of a rank without a column that says so."""
    blocks = nsys.blocks_of(3, 4, 2, random.Random(1), split=False)
    rows = [(b.rank, b.kind, b.start_ns, b.end_ns, b.step, b.microbatch and b.microbatch // 2) for b in blocks]
    names = ["rank", "kind", "start_ns", "end_ns", "step", "microbatch"]
    pl.DataFrame(rows, names, orient="row").write_parquet(tmp_path / "run.spans.parquet")
    assert trace_export.load(tmp_path, run="all").spans["run"].unique().to_list() == [0]
