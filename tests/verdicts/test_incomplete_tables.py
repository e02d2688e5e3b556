"""Tables that lack some kinds of block: a gain is right or not given, and the page says why."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest

from samples.generators.ascend import Truth, record
from samples.generators.data_parallel import Job, write_table
from tests.support.ascend_jobs import JOBS
from tests.support.command import command
from tests.support.rows import seeds, slow
from tests.verdicts.cases import AWAITED, Case, drawn
from tests.verdicts.judge import CLOSE, causes

KIND, STAGE = pl.col("kind"), pl.col("stage")


def _of_stage(kind: str) -> Callable[[Job, random.Random], pl.Expr]:
    return lambda job, draw: KIND.eq(kind) & STAGE.eq(draw.randrange(job.stages))


LACKS: dict[str, tuple[dict[str, object], Callable[[Job, random.Random], pl.Expr]]] = {
    "no W": ({"schedule": "zb-h1"}, lambda job, draw: KIND == "W"),
    "no W, sends awaited": ({**AWAITED, "schedule": "zb-h1", "stages": 4}, lambda job, draw: KIND == "W"),
    "no W of a stage": ({"schedule": "zb-h1"}, _of_stage("W")),
    "no F of a stage": ({}, _of_stage("F")),
    "no B of a stage": ({"schedule": "1f1b"}, _of_stage("B")),
    "no B of a stage, two chunks": ({"schedule": "interleaved"}, _of_stage("B")),
    "no B of a stage, sends awaited": (AWAITED, _of_stage("B")),
    "no B of a rank": (
        {"replicas": 2}, lambda job, draw: (KIND == "B") & (pl.col("rank") == draw.randrange(job.ranks))
    ),
    "rows by chance": ({}, lambda job, draw: pl.int_range(pl.len()).shuffle(draw.randrange(99)) % 20 == 0),
    "rows of a rank": (
        {}, lambda job, draw: (pl.col("rank") == draw.randrange(job.ranks)) & (pl.int_range(pl.len()) % 5 == 0)
    ),
}  # fmt: skip
"""What a job must have, and which blocks its table lacks."""
FAST = ("no W", "no F of a stage", "no B of a stage, two chunks", "no B of a rank", "rows by chance")


def _without(folder: Path, lacking: pl.Expr) -> None:
    for path in folder.rglob("*.parquet"):
        pl.read_parquet(path).filter(KIND.is_null() | ~lacking.fill_null(False)).write_parquet(path)


def _wrong(case: Case, folder: Path) -> list[str]:
    """What is given as a gain and is not the planted one's."""
    document = json.loads(command("report", folder, "--json", "--jobs", 1).stdout)
    sure = next(sentence["text"] for sentence in document["verdict"] if sentence["code"] == "certainty")
    if not document["trust"]["gains"]:
        assert "gains are not given" in sure
        assert not causes(document)
        return []
    result = causes(document)[:1]
    gains = [sentence["facts"]["gain_ns"] for sentence in result]
    said = [f"{s['code']} {s['facts']['gain_ns'] / 1e6:.1f} for {case.gain_ns / 1e6:.1f} ms" for s in result]
    return said if not gains or abs(gains[0] - case.gain_ns) > CLOSE * case.gain_ns else []


@pytest.mark.parametrize("stage", [3, *slow([0, 2])])
def test_a_schedule_that_splits_few_backwards_lacks_no_weight_gradients(stage: int, tmp_path: Path) -> None:
    """DualPipeV as MindSpeed runs it: the last stage splits none."""
    sound = replace(JOBS["dualpipev"], steps=3)
    slow = replace(sound, slow={stage: 1.3})
    gain = _step_ns(record(tmp_path / "slow", slow)) - _step_ns(record(tmp_path / "sound", sound))
    first = causes(json.loads(command("report", tmp_path / "slow", "--json", "--jobs", 1).stdout))[0]
    assert (first["code"], first["facts"]["stage"]) == ("slow-stage", stage)
    assert first["facts"]["gain_ns"] == pytest.approx(gain, rel=CLOSE)


def _step_ns(truth: Truth) -> float:
    begun = pl.DataFrame([(block.step, block.start_ns) for block in truth.blocks], orient="row")
    first = begun.group_by("column_0").min().sort("column_0")["column_1"]
    return float(first.diff().mean())  # type: ignore[arg-type]


@pytest.mark.parametrize("lack", [*FAST, *slow(lack for lack in LACKS if lack not in FAST)])
@pytest.mark.parametrize("seed", seeds(1, 8))
def test_no_gain_is_given_where_a_kind_of_block_is_missing(lack: str, seed: int, tmp_path: Path) -> None:
    fields, lacking = LACKS[lack]
    case = drawn(seed, ("slow stage", "slow rank")[seed % 2], "table", **{"clipped": seed % 3 == 0, **fields})
    write_table(tmp_path, case.job)
    _without(tmp_path, lacking(case.job, random.Random(seed)))
    assert _wrong(case, tmp_path) == []
