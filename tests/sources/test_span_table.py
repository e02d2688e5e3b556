"""A span table that is damaged, or a file that is not one: one sentence, without what stands in it."""

import random
from pathlib import Path

import polars as pl
import pytest

from samples.generators import paddle as generate_paddle
from tests.faults.mutate import flip
from tests.support.profiles import profile, span
from trace_export import api
from trace_export.errors import SourceError
from trace_export.sources.spans import span_table
from trace_export.writers.tables import write_csv, write_parquet

TIMES = ("start_ns", "end_ns")
SECRET = "TOKEN-" + "a" * 1_000_000


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """The table of a small run, as Parquet."""
    generate_paddle.write(tmp_path / "logs", stages=2, microbatches=2, steps=2)
    (path,) = api.load(tmp_path / "logs").align().write(tmp_path / "spans.parquet")
    return path


@pytest.mark.parametrize("name", ["spans.csv", "spans.parquet"])
def test_the_steps_of_a_job_that_began_again_are_those_of_two_runs(name: str, tmp_path: Path) -> None:
    blocks = [span(0, "F", 0, at, at + 5, run=run) for run, at in ((0, 0), (1, 1000))]
    path = tmp_path / name
    {".csv": write_csv, ".parquet": write_parquet}[path.suffix](profile(blocks, {0: 0}), path)
    assert span_table.read_table(path).spans.select("run", "step").rows() == [(0, 0), (1, 0)]


def test_a_parquet_table_with_flipped_bits_is_read_or_refused(table: Path) -> None:
    """In some places Polars panics, which is no Exception."""
    content, broken = table.read_bytes(), table.with_name("broken.parquet")
    refused = 0
    for seed in range(100):
        broken.write_bytes(flip(content, random.Random(seed)))
        try:
            span_table.read_table(broken)
        except SourceError as error:
            refused += 1
            assert str(error).startswith(f"{broken} ")
            assert len(str(error)) < len(str(broken)) + 200
    assert refused


@pytest.mark.parametrize("header", ["rank,kind,start_ns,end_ns", "rank,kind,start_ns,end_ns,step", "a,b,c,d"])
def test_a_wrong_table_is_refused_without_its_cells(header: str, tmp_path: Path) -> None:
    path = tmp_path / "wrong.csv"
    path.write_text(f"{header}\n{SECRET},F,{SECRET},2\n")
    with pytest.raises(SourceError) as caught:
        span_table.read_table(path)
    assert "TOKEN" not in str(caught.value)
    assert len(str(caught.value)) < 300 + len(str(path))


def test_a_table_of_another_tool_with_the_same_columns_is_refused(tmp_path: Path) -> None:
    """None of its kinds says what a pass is; nothing of it would be in any figure."""
    path = tmp_path / "blocks.csv"
    path.write_text("rank,kind,step,start_ns,end_ns\n0,forward-compute,0,0,5\n0,backward-compute,0,5,9\n")
    with pytest.raises(SourceError, match=r"no row is of the kind F, B, W, FB or OPT; .* `columns`"):
        span_table.read_table(path)


def test_a_table_with_other_columns_is_refused_with_the_option_that_explains_them(tmp_path: Path) -> None:
    path = tmp_path / "blocks.csv"
    path.write_text("rank,name,begin,finish\n0,F,0,1\n", encoding="utf-8")
    with pytest.raises(SourceError, match=r"it has no column kind; .* mean with `columns`"):
        span_table.read_table(path)


def test_the_column_of_a_wrong_value_is_named(tmp_path: Path) -> None:
    path = tmp_path / "wrong.csv"
    path.write_text("rank,kind,start_ns,end_ns\n0,F,soon,2\n")
    with pytest.raises(SourceError, match=r"cannot be read as a span table \(column start_ns\); give a table"):
        span_table.read_table(path)


@pytest.mark.parametrize("digits", ["{:.2E}", "{:.14E}"])
@pytest.mark.parametrize("mapped", [False, True])
def test_times_that_a_spreadsheet_has_rounded_are_refused(digits: str, mapped: bool, table: Path) -> None:
    """1.76E+18 is what Excel makes of a unix time in ns; with a comma in other languages."""
    rounded = table.with_suffix(".csv")
    times = [pl.col(name).map_elements(lambda ns: digits.format(ns).replace(".", ","), pl.String) for name in TIMES]
    pl.read_parquet(table).with_columns(times).write_csv(rounded, separator=";")
    columns = "rank=rank,kind=kind,start=start_ns,end=end_ns" if mapped else None
    with pytest.raises(
        SourceError, match=r"has times that a spreadsheet has rounded: 1,76\d*E\+18 in the column start"
    ):
        api.load(rounded, columns=columns)


@pytest.mark.parametrize(("grid", "said"), [(1_000, 0), (10_000, 1), (100_000, 0), (1_000_000, 0)])
@pytest.mark.parametrize("mapped", [False, True])
def test_unix_times_of_15_digits_are_told_as_rounded(grid: int, said: int, mapped: bool, table: Path) -> None:
    """1760000000123456789 ns becomes 1760000000123450000; coarser times are those of a program."""
    rounded = table.with_suffix(".csv")
    pl.read_parquet(table).with_columns(pl.col(name) // grid * grid for name in TIMES).write_csv(rounded)
    run = api.load(rounded, columns="rank=rank,kind=kind,start=start_ns,end=end_ns" if mapped else None)
    assert [note.code for note in run.notes].count("times-rounded") == said


def test_a_small_file_of_countless_rows_is_refused(tmp_path: Path) -> None:
    """Equal values take no room in Parquet, so that a file of some kB may stand for a table of any size."""
    rows = 2_000_000
    path = tmp_path / "bomb.parquet"
    row = {"rank": 0, "kind": "F", "start_ns": 1, "end_ns": 2}
    pl.select(pl.repeat(value, rows).alias(name) for name, value in row.items()).write_parquet(path)
    assert path.stat().st_size < rows
    with pytest.raises(SourceError, match="so small a file cannot hold 2,000,000 blocks"):
        span_table.read_table(path)
