"""Work of the GPU that no range names: its share against the sum of what ran, and where it is said."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

import trace_export
from samples.generators import kineto, nsys, rocpd
from samples.generators.nsys import Unnamed
from samples.generators.pipeline import Block
from trace_export import Run
from trace_export.cli.summaries import run_rows


def write_nsys(folder: Path, *unnamed: str) -> list[Block]:
    chance = random.Random(3)
    blocks = nsys.blocks_of(4, 6, 2, chance)
    nsys.record(folder, blocks, 2, (0, 0), chance, Unnamed(*unnamed))
    return blocks


def write_rocpd(folder: Path, *unnamed: str) -> list[Block]:
    chance = random.Random(3)
    blocks = nsys.blocks_of(4, 6, 2, chance)
    rocpd.record(folder, blocks, (0, 0), chance, Unnamed(*unnamed))
    return blocks


FORMATS: dict[str, Callable[..., list[Block]]] = {
    "nsys": write_nsys,
    "rocpd": write_rocpd,
    "kineto": lambda folder, *unnamed: kineto.write(folder, 1, unnamed=unnamed),
}


def warnings(run: Run) -> int:
    return sum(note.count for note in run.notes if (note.code, note.level) == ("compute-outside-blocks", "warning"))


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("unnamed", ["W", "OPT"])
def test_the_share_is_that_of_the_kernels_without_a_range(form: str, unnamed: str, tmp_path: Path) -> None:
    blocks = FORMATS[form](tmp_path, unnamed)
    run = trace_export.load(tmp_path, jobs=1)
    shares = dict(run.ranks.select("rank", "outside").iter_rows())
    for rank in range(4):
        lengths = [(b.kind == unnamed, b.end_ns - b.start_ns) for b in blocks if b.rank == rank]
        share = sum(length for outside, length in lengths if outside) / sum(length for _, length in lengths)
        assert shares[rank] == pytest.approx(share)
        assert share > 0.05
    assert warnings(run) == 4
    report = run.report()
    (sure,) = [sentence.text for sentence in report.verdict if sentence.code == "certainty"]
    assert f"compute for up to {max(shares.values()):.0%} of their time outside all blocks" in sure
    assert "outside all blocks" in dict(run_rows(run.summary()))["bubble"]


@pytest.mark.parametrize("form", FORMATS)
def test_where_all_work_is_named_nothing_is_said(form: str, tmp_path: Path) -> None:
    FORMATS[form](tmp_path)
    run = trace_export.load(tmp_path, jobs=1)
    assert run.ranks["outside"].to_list() == [0, 0, 0, 0]
    assert warnings(run) == 0
    assert "outside" not in dict(run_rows(run.summary()))["bubble"]
