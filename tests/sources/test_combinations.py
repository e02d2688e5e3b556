"""Features of captures that are plain alone, together: in every format that can have both."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from samples.generators import nsys, rocpd
from samples.generators.nsys_export import Export
from samples.generators.pipeline import Block
from samples.generators.unmarked import Program, write
from tests.sources.rocpd.test_reader import in_one_file
from tests.support.rows import crossed
from trace_export import load
from trace_export.run import Run

UNMARKED: dict[str, dict[str, Any]] = {"nsys": {}, "kineto": {"kineto": True}, "rocpd": {"rocpd": "db"}}
STEPS = {
    "numbered": ("iteration {step}", r"iteration (?P<step>\d+)=>STEP"),
    "without a number": ("training step", "training step=>STEP"),
    "in names that are known": ("te:Step step={step}", None),
}


@pytest.mark.parametrize(("form", "named"), crossed(UNMARKED, STEPS))
def test_steps_are_marked_and_passes_are_not(form: str, named: str, tmp_path: Path) -> None:
    name, rule = STEPS[named]
    program = Program(stages=3, microbatches=6, layers=1, around=name)
    blocks = write(tmp_path, program, **UNMARKED[form])
    run = load(tmp_path, markers=() if rule is None else [rule])
    epoch = 0 if form == "rocpd" else Export.epoch_ns
    columns = ["rank", "step", "kind", "microbatch", "start_ns", "end_ns"]
    truth = [(b.rank, b.step, b.kind, b.microbatch, b.start_ns + epoch, b.end_ns + epoch) for b in blocks]
    assert sorted(run.spans.select(columns).rows(), key=str) == sorted(truth, key=str)
    assert run.spans["origin"].unique().to_list() == ["inferred"]


def _exports(folder: Path, blocks: list[Block], *, merged: bool) -> None:
    nsys.record(folder, blocks, 1 if merged else 4, (0,) * 4, random.Random(4), nsys.Torch())


def _databases(folder: Path, blocks: list[Block], *, merged: bool) -> None:
    rocpd.record(folder, blocks, (0,), random.Random(4), nsys.Torch())
    files = sorted(folder.rglob("*.db"))
    if merged:
        in_one_file(files, folder / "merged_results.db")
        for file in files:
            file.unlink()


MERGED: dict[str, Callable[..., None]] = {"nsys": _exports, "rocpd": _databases}
"""Several processes in one file: one export for a host, or what `rocpd merge` writes."""


@pytest.mark.parametrize("form", MERGED)
def test_actions_of_torch_in_one_file_and_in_one_for_each_process(form: str, tmp_path: Path) -> None:
    blocks = nsys.blocks_of(4, 6, 2, random.Random(3))
    tables: list[dict[str, pl.DataFrame]] = []
    for merged in (True, False):
        MERGED[form](tmp_path / str(merged), blocks, merged=merged)
        run = load(tmp_path / str(merged))
        assert run.spans.height == len(blocks)
        tables.append({name: in_order(run, name) for name in ("spans", "messages")})
    assert tables[0]["messages"].height == sum(b.kind in "FB" for b in blocks) * 3 // 4
    for name, rows in tables[0].items():
        assert rows.equals(tables[1][name]), name


def in_order(run: Run, table: str) -> pl.DataFrame:
    """The rows without the numbers of blocks, which go by hosts."""
    rows: pl.DataFrame = getattr(run, table).drop("id", "src_pass", "dst_pass", strict=False)
    return rows.sort(rows.columns)
