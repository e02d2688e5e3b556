"""Features of captures that are plain alone, together: in every format that can have both."""

import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from samples.generators import nsys, rocpd
from samples.generators.nsys_export import Export
from samples.generators.pipeline import Block
from samples.generators.unmarked import Program, write
from tests.sources.rocpd.test_reader import in_one_file
from tests.support.captures import drawn, truth
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
    assert drawn(run.profile) == truth(blocks, 0 if form == "rocpd" else Export.epoch_ns)
    assert run.spans["origin"].unique().to_list() == ["inferred"]


DIALECTS = {
    "zero bubble": nsys.Dialect(), "torch": nsys.Torch(), "deepspeed": nsys.DeepSpeed(), "plain": nsys.Plain(),
    "mapping": nsys.Mapping(),
}  # fmt: skip
OF_ROCPD = [("torch", 3), *((name, 4) for name in DIALECTS if name != "plain")]


@pytest.mark.parametrize("name", DIALECTS)
def test_blocks_and_transfers_of_every_dialect_in_exports(name: str, tmp_path: Path) -> None:
    """Whether the name tells step and micro-batch or the order; the clock of the second host is ahead."""
    chance, errors = random.Random(3), (0, 3_700_000)
    blocks = nsys.blocks_of(4, 6, 2, chance, split=DIALECTS[name].split)
    sides = nsys.record(tmp_path, blocks, 2, errors, chance, DIALECTS[name])
    as_recorded(tmp_path, blocks, [Export.epoch_ns + error for error in errors])
    assert sides_of(load(tmp_path, jobs=1)) == sorted(
        (rank, role, kind, start + Export.epoch_ns, end + Export.epoch_ns) for rank, role, kind, start, end in sides
    )


@pytest.mark.parametrize(("name", "schema"), OF_ROCPD)
def test_blocks_and_transfers_of_every_dialect_in_databases(name: str, schema: int, tmp_path: Path) -> None:
    """The same, on hosts that were booted days apart."""
    chance, booted = random.Random(3), (2 * rocpd.DAY_NS, 30 * rocpd.DAY_NS)
    blocks = nsys.blocks_of(4, 6, 2, chance, split=DIALECTS[name].split)
    sides = rocpd.record(tmp_path, blocks, booted, chance, DIALECTS[name], schema)
    run = as_recorded(tmp_path, blocks, booted)
    assert sides_of(run) == sorted(sides)
    ranks = run.ranks.select("rank", "rank_origin", "host", "device").rows()
    assert ranks == [(rank, "recorded", f"node{rank // 2}", rank % 2) for rank in range(4)]
    assert run.profile.hosts.select("host", "epoch").rows() == [("node0", "boot"), ("node1", "boot")]
    assert run.profile.declared.world == 4


def as_recorded(folder: Path, blocks: list[Block], began: Sequence[int]) -> Run:
    """What lies in the folder; its blocks are these, on the clocks of two hosts that began then."""
    run = load(folder, jobs=1)
    assert not run.failures
    wanted = [truth([block], began[block.rank // 2])[0] for block in blocks]
    assert drawn(run.profile) == sorted(wanted, key=str)
    return run


def sides_of(run: Run) -> list[tuple[object, ...]]:
    return sorted(run.profile.p2p.select("rank", "role", "direction", "start_ns", "end_ns").rows())


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
