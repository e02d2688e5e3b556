"""Operation tables with a damage: what is still said, what is left out, and what is refused.

The job has one worker that computes twice as long: S = 2300/1621, by hand (T = 575 ms, T* = 405.25 ms).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from samples.generators.operation_table import Cell, Job, usual
from trace_export import api
from trace_export.analysis.what_if import Slowdown, what_if
from trace_export.errors import NothingToExportError
from trace_export.pipeline.step_operations import step_operations
from trace_export.workflow.run import Run

COMPUTE = ("forward-compute", "backward-compute")
CLIP, LN, EMB = "optimizer-clip-main-grad", "layernorm-grads-all-reduce", "embedding-grads-all-reduce"
TRANSFERS = ("forward-send", "forward-recv", "backward-send", "backward-recv")
CLOSE = 2e-6


def slow(cell: Cell) -> float:
    return usual(cell) * (2 if cell.optype in COMPUTE and (cell.dp, cell.stage) == (1, 2) else 1)


JOB = Job(length=slow)


@cache
def operations() -> pl.DataFrame:
    return JOB.table().with_columns(pl.col("optype").cast(pl.String))


def aligned(folder: Path, damage: Callable[[pl.DataFrame], pl.DataFrame]) -> Run:
    JOB.describe(folder)
    damage(operations()).write_parquet(folder / "trace-made.parquet")
    return api.load(folder).align()


def slowdown(folder: Path, damage: Callable[[pl.DataFrame], pl.DataFrame]) -> Slowdown:
    return known(aligned(folder, damage))


def known(run: Run) -> Slowdown:
    """The slowdown; raises NothingToExportError, which says why, where there is none."""
    operations = step_operations(run.profile)
    if operations.usual is None:
        raise NothingToExportError(operations.reason)
    return what_if(operations.usual)


def without(*lost: pl.Expr) -> Callable[[pl.DataFrame], pl.DataFrame]:
    return lambda table: table.filter(~pl.all_horizontal(lost))


def of(name: str) -> pl.Expr:
    return pl.col("optype") == name


last_step, rank = pl.col("step") == 2, pl.col("rank") == 5


@pytest.mark.parametrize(
    "damage",
    [
        *(without(last_step, rank, of(name), pl.col("seq_id") == 0) for name in (
            COMPUTE[0], *TRANSFERS[1:3], "params-all-gather", LN, CLIP, "optimizer")),
        *(without(last_step, of(name)) for name in (COMPUTE[1], TRANSFERS[0], CLIP)),
        without(last_step, rank),
        without(last_step, pl.col("dp_rank") == 1),
        without(last_step, pl.col("start_ts") > 0.3),
        lambda table: pl.concat([table, table.filter(last_step, rank)[:1]]),
    ],
)  # fmt: skip
def test_a_damaged_step_is_left_out(damage: Callable[[pl.DataFrame], pl.DataFrame], tmp_path: Path) -> None:
    found = slowdown(tmp_path, damage)
    assert found.total == pytest.approx(2300 / 1621, rel=CLOSE)
    assert found.steps == [(0, 0), (0, 1)]
    assert [row[:2] for row in found.left_out] == [(0, 2)]


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (without(pl.col("stage") == 3), "stage 3 was not read"),
        (without(pl.col("stage") == 0), "stages of some pipelines|were read of"),
        (without(rank), "7 ranks were read of 2 pipelines with 4 stages"),
        *((without(of(name), pl.col("stage") == 1), f"the operations of stage 1 lack {name}, which others have")
          for name in (LN, "optimizer")),
        *((without(of(EMB), pl.col("stage") == stage), f"the operations of stage {stage} lack {EMB}")
          for stage in (0, 3)),
        *((without(of(name)), f"the operations of stage 0 lack {name}") for name in COMPUTE[:1]),
        *((without(of(name), pl.col("stage") == 2), "the operations of stage 2 hold 0 ") for name in TRANSFERS[1:3]),
        (without(of("backward-recv"), pl.col("stage") == 0), "of stage 0 hold 0 of 8 backward receives"),
        (without(of("forward-send"), pl.col("seq_id") == 7, pl.col("stage") == 0), "hold 7 of 8 forward sends"),
        (lambda table: pl.concat([table, table]), "hold 8 forward transfers for 16 forward blocks"),
    ],
)  # fmt: skip
def test_what_is_damaged_everywhere_is_refused(
    damage: Callable[[pl.DataFrame], pl.DataFrame], says: str, tmp_path: Path
) -> None:
    with pytest.raises(NothingToExportError, match=says):
        slowdown(tmp_path, damage)


def test_both_sides_of_a_direction_may_not_lack_between_two_stages(tmp_path: Path) -> None:
    """The study's own program takes such a table, without coupling the stages."""
    between = (of("forward-send") & (pl.col("stage") == 0)) | (of("forward-recv") & (pl.col("stage") == 1))
    with pytest.raises(NothingToExportError, match="of stage 0 hold 0 of 8 forward sends"):
        slowdown(tmp_path, without(between))


@pytest.mark.parametrize(("name", "length"), [("gc", 0), (LN, 1), (EMB, 2), ("optimizer", 3)])
def test_a_type_that_was_not_recorded_is_left_out_of_the_chain(name: str, length: float, tmp_path: Path) -> None:
    found = slowdown(tmp_path, without(of(name)))
    assert found.total == pytest.approx((575 - length) / (405.25 - length), rel=CLOSE)
    assert found.missing == (name,)


@pytest.mark.parametrize("lost", [TRANSFERS, TRANSFERS[:1], TRANSFERS[1:2], TRANSFERS[2:]])
def test_transfers_that_were_not_recorded_are_estimated(lost: tuple[str, ...], tmp_path: Path) -> None:
    """From blocks alone the slowdown of real jobs was within 0.021."""
    found = slowdown(tmp_path, without(pl.col("optype").is_in(lost)))
    assert found.total == pytest.approx(2300 / 1621, abs=0.021)
    assert found.level != "operations"
    assert found.missing == lost


def test_a_collective_that_one_stage_lacks_is_named(tmp_path: Path) -> None:
    found = slowdown(tmp_path, without(of("params-all-gather"), pl.col("stage") == 1))
    assert found.missing == ("params-all-gather of stage 1",)


def test_replicas_that_were_not_read_are_counted(tmp_path: Path) -> None:
    """The slow worker is then one of 4, not of 8: T* = 11 · 30 ms · 5/4 + 34 ms."""
    found = slowdown(tmp_path, without(pl.col("dp_rank") == 0))
    assert found.missing == ("1 of 2 replicas",)
    assert found.total == pytest.approx(575 / 446.5, rel=CLOSE)


def test_without_a_description_the_stages_are_those_of_the_table(tmp_path: Path) -> None:
    path = JOB.write(tmp_path)
    (tmp_path / "meta-made.yaml").unlink()
    assert known(api.load(path).align()).total == pytest.approx(2300 / 1621, rel=CLOSE)


def test_times_count_as_they_were_rounded(tmp_path: Path) -> None:
    """Each end is a 32-bit number of seconds from the zero of the table, wherever the first start lies."""
    shift = 0.1234567
    job = Job(length=lambda c: usual(c) * (1 + 0.0137 * ((7 * c.seq + 3 * c.stage + 5 * c.dp + c.step) % 11)))
    path = job.write(tmp_path)
    table = pl.read_parquet(path).with_columns(start_ts=(pl.col("start_ts") + shift).cast(pl.Float32))
    table.write_parquet(path)
    start, duration = table["start_ts"].to_numpy(), table["duration"].to_numpy()
    end, step = start + duration, table["step"].to_numpy()
    expected = [float(end[step == n].max() - start[step == n].min()) for n in range(3)]
    found = known(api.load(tmp_path).align())
    assert end.dtype == np.float32
    assert (found.observed_ns / 1e9).tolist() == expected


def test_clocks_stay_as_the_table_has_them(tmp_path: Path) -> None:
    """Ranks whose clocks disagree by 30 ms: the study's figures are of the times as they are."""
    path = JOB.write(tmp_path)
    late = pl.when(pl.col("stage") == 2).then(-0.03).otherwise(0.0)
    table = pl.read_parquet(path).with_columns((pl.col("start_ts") + late).cast(pl.Float32).alias("start_ts"))
    table.write_parquet(path)
    run = api.load(tmp_path)
    aligned = run.align()
    assert aligned.spans["start_ns"].equals(run.spans["start_ns"])
    assert "clock-kept" in {note.code for note in aligned.notes}


def test_a_receive_after_its_block_makes_no_circle(tmp_path: Path) -> None:
    """It would wait for the block that waits for it, if it were taken as posted where it starts."""
    late = of("forward-recv") & (pl.col("stage") == 1) & (pl.col("seq_id") == 0)
    moved = pl.when(late).then(pl.col("start_ts") + 0.013).otherwise("start_ts").cast(pl.Float32)
    run = aligned(tmp_path, lambda table: table.with_columns(start_ts=moved))
    assert known(run).steps
    path = run.critical_path()
    lengths = path.parts.group_by("step").agg(pl.col("ns").sum()).sort("step")
    assert lengths["ns"].to_list() == path.steps["length_ns"].to_list()
