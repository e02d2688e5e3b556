"""The samples of the project against their truth and their generators."""

import gzip
import runpy
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import polars as pl
import pytest

from tests.conftest import ROOT
from trace_export import load

SAMPLES = sorted(str(file.parent.relative_to(ROOT / "samples")) for file in (ROOT / "samples").rglob("truth.csv"))
ON = ["rank", "step", "kind", "microbatch"]
COARSE = ("ascend", "paddle/two_machines", "mindspore")
"""Those whose hosts are less well aligned, or whose times are in microseconds."""
ELSEWHERE = ("rocpd/two_hosts", "mindspore")
"""Those whose truth is on another clock: since the first machine booted, and that of the other host."""


@pytest.mark.parametrize("name", SAMPLES)
def test_a_sample_is_drawn_on_one_clock(name: str, samples: Path) -> None:
    """The transfers between its hosts bring every block to where it really ran; none is lost or longer."""
    run = load(samples / name, jobs=1).align()
    truth = pl.read_csv(samples / name / "truth.csv", infer_schema_length=None).filter(pl.col("kind") != "OPT")
    truth = truth.rename(lambda column: column.removeprefix("true_"))
    if "start_us" in truth.columns:
        truth = truth.with_columns(start_ns=pl.col("start_us") * 1000, end_ns=pl.col("end_us") * 1000)
    spans = run.spans.filter(pl.col("kind") != "OPT")
    both = spans.join(truth.with_columns(pl.col("rank", "step", "microbatch").cast(pl.Int32)), on=ON, suffix="_true")
    assert both.height == truth.height == spans.height
    error, end_error = (both[f"{at}_ns"] - both[f"{at}_ns_true"] for at in ("start", "end"))
    assert (end_error - error).abs().max() <= 1
    assert error.max() - error.min() < (5_000 if name in COARSE else 3_000)  # type: ignore[operator]
    assert name in ELSEWHERE or error.abs().max() <= 5_000  # type: ignore[operator]
    assert run.ranks["stage"].to_list() == run.ranks["rank"].to_list()
    assert [note.code for note in run.notes if note.level == "warning"] == []
    assert ("clock-without-wall-time" in {note.code for note in run.notes}) is (name == "rocpd/two_hosts")


def content(file: Path) -> object:
    """Unpacked; of a database what it holds, for each version of SQLite writes other bytes into its header."""
    if file.suffix in (".db", ".sqlite"):
        with closing(sqlite3.connect(file)) as db:
            return list(db.iterdump())
    return gzip.decompress(file.read_bytes()) if file.suffix == ".gz" else file.read_bytes()


@pytest.mark.parametrize("generator", ["ascend", "kineto", "nsys", "paddle", "recorder", "rocpd", "unmarked"])
def test_a_generator_writes_its_samples_again(generator: str, samples: Path, tmp_path: Path) -> None:
    (tmp_path / "generators").mkdir()
    program = shutil.copy(samples / "generators" / f"{generator}.py", tmp_path / "generators")
    runpy.run_path(program, run_name="__main__")
    written = [name for name in SAMPLES if (tmp_path / name).exists()]
    assert written
    for name in written:
        ours, again = (
            {file.relative_to(place): content(file) for file in (place / name).rglob("*") if file.is_file()}
            for place in (samples, tmp_path)
        )
        assert again.keys() <= ours.keys()  # some charts lie beside them
        assert [file for file in again if again[file] != ours[file]] == []
