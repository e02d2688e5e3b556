"""Work of the GPU that no range names: its share against the sum of what ran, and where it is said."""

import random
from pathlib import Path

import pytest

import trace_export
from samples.generators import nsys
from tests.support.captures import CAPTURES
from tests.support.rows import crossed
from trace_export import Run
from trace_export.cli.summaries import run_rows


def warnings(run: Run) -> int:
    return sum(note.count for note in run.notes if (note.code, note.level) == ("compute-outside-blocks", "warning"))


@pytest.mark.parametrize(("form", "unnamed"), crossed(CAPTURES, ["W", "OPT"]))
def test_the_share_is_that_of_the_kernels_without_a_range(form: str, unnamed: str, tmp_path: Path) -> None:
    blocks = nsys.blocks_of(4, 6, 2, random.Random(3))
    CAPTURES[form](tmp_path, blocks, nsys.Unnamed(unnamed))
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
