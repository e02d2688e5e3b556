"""Operation tables of the straggler study: what is read of them, and what is refused."""

from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest

from samples.generators.operation_table import Job
from tests.support.one_source import read
from trace_export import api
from trace_export.errors import SourceError
from trace_export.sources.source import ReadOptions, Source
from trace_export.steps.recorded import recorded

SMALL = Job(stages=2, microbatches=2, replicas=2, steps=(3, 7))


def test_a_table_is_found_and_read(tmp_path: Path) -> None:
    """Blocks become spans, sends and receives p2p, the rest collectives; nothing is lost."""
    SMALL.write(tmp_path)
    run = api.load(tmp_path)
    assert run.ranks.select("rank", "stage", "dp").rows() == [(0, 0, 0), (1, 0, 1), (2, 1, 0), (3, 1, 1)]
    kinds = dict(run.spans.group_by("kind").len().iter_rows())
    assert kinds == {"F": 16, "B": 16, "OPT": 8, None: 8}
    assert run.profile.p2p.height == 2 * 2 * 2 * 4
    assert run.collectives["op"].n_unique() == 5
    assert run.spans.height + run.profile.p2p.height + run.collectives.height == SMALL.table().height
    assert run.messages.height == 2 * 2 * 2 * 2
    assert sorted(run.spans["step"].unique()) == [3, 7]
    assert run.report().theory.recognition.plan.name == "1f1b"


def test_times_are_those_of_the_table(tmp_path: Path) -> None:
    path = SMALL.write(tmp_path)
    blocks = api.load(tmp_path).spans.filter(pl.col("step") == 3, pl.col("kind") == "F")
    table = pl.read_parquet(path).filter(pl.col("step") == 3, pl.col("optype").cast(pl.String) == "forward-compute")
    assert sorted(blocks["end_ns"] - blocks["start_ns"]) == [10_000_000] * 8
    start = (table["start_ts"].cast(pl.Float64) * 1e9).round().cast(pl.Int64)
    assert sorted(blocks["start_ns"] - blocks["start_ns"].min()) == sorted(start - start.min())


def test_operations_around_the_blocks_stay_in_their_step(tmp_path: Path) -> None:
    """Gathers long before the first block of a step, and long after the last one of it."""
    path = SMALL.write(tmp_path)
    late = pl.read_parquet(path).with_columns(optype=pl.col("optype").cast(pl.String))
    moved = pl.when(pl.col("optype") == "params-all-gather").then(-9.0).otherwise(0.0)
    moved += pl.when(pl.col("optype") == "embedding-grads-all-reduce").then(7.0).otherwise(0.0)
    late.with_columns((pl.col("start_ts") + moved).cast(pl.Float32).alias("start_ts")).write_parquet(path)
    result = recorded(api.load(tmp_path).profile)
    counts = result.parts.group_by("step_index").len().sort("step_index")
    assert counts["len"].to_list() == [result.parts.height / 2] * 2


def test_a_table_without_the_description_of_its_job_is_found_by_its_columns(tmp_path: Path) -> None:
    SMALL.write(tmp_path)
    described = api.load(tmp_path).what_if().parts
    (tmp_path / "meta-made.yaml").unlink()
    SMALL.table().rename({"optype": "other"}).write_parquet(tmp_path / "trace-other.parquet")
    run = api.load(tmp_path)
    assert not run.failures
    assert run.what_if().parts.equals(described)


def without(column: str) -> Callable[[pl.DataFrame], pl.DataFrame]:
    return lambda table: table.drop(column)


def first(column: str, value: object) -> Callable[[pl.DataFrame], pl.DataFrame]:
    row = pl.int_range(pl.len()) == 0
    return lambda table: table.with_columns(pl.when(row).then(pl.lit(value)).otherwise(column).alias(column))


@pytest.mark.parametrize(
    ("broken", "says"),
    [
        (without("optype"), "is not an operation table: it has no column optype"),
        (first("duration", -0.5), "starts at 0.* s and takes -0.5 s; times are seconds"),
        (first("duration", float("nan")), "takes nan s"),
        (first("start_ts", 1e12), "starts at 9.99999996e.11 s"),
        (first("rank", None), "lacks values in the column rank"),
        (first("seq_id", -1), "has a negative number in the column seq_id"),
        (lambda t: t.with_columns(mc=pl.lit(-2)), "has a negative number in the column mc"),
        (lambda t: t.with_columns(optype=pl.lit("lunch")), 'operations of an unknown type "lunch"'),
    ],
)
def test_a_broken_table_gets_one_sentence(
    broken: Callable[[pl.DataFrame], pl.DataFrame], says: str, tmp_path: Path
) -> None:
    path = SMALL.write(tmp_path)
    broken(pl.read_parquet(path)).write_parquet(path)
    with pytest.raises(SourceError, match=says) as caught:
        read(Source("operation_table", path, "machine0"), ReadOptions())
    assert "\n" not in str(caught.value)


def test_gaps_in_the_numbers_are_noted(tmp_path: Path) -> None:
    path = SMALL.write(tmp_path)
    lost = (pl.col("optype").cast(pl.String) == "forward-compute") & (pl.col("seq_id") == 0) & (pl.col("rank") == 3)
    pl.read_parquet(path).filter(~lost).write_parquet(path)
    (note,) = (note for note in api.load(tmp_path).notes if note.code == "operations-missing")
    assert (note.level, note.count) == ("warning", 2)
    assert note.text == "2 operations are missing, the first of them forward-compute of rank 3 in step 3"


@pytest.mark.parametrize("column", ["optype", "rank"])
def test_a_cell_is_not_printed_whole(column: str, tmp_path: Path) -> None:
    SMALL.write(tmp_path)
    path = tmp_path / "trace-made.parquet"
    pl.read_parquet(path).with_columns(pl.lit("SECRET" + "x" * 100_000).alias(column)).write_parquet(path)
    with pytest.raises(SourceError) as caught:
        api.load(tmp_path)
    assert len(str(caught.value)) < len(str(path)) + 300


@pytest.mark.parametrize("column", ["dp_rank", "stage"])
def test_a_rank_has_one_place(column: str, tmp_path: Path) -> None:
    """Each of its rows in another would be multiplied by all others in every join."""
    SMALL.write(tmp_path)
    path = tmp_path / "trace-made.parquet"
    pl.read_parquet(path).with_columns(pl.int_range(pl.len(), dtype=pl.Int32).alias(column)).write_parquet(path)
    with pytest.raises(SourceError, match="has rank 0 on several stages or in several replicas"):
        api.load(tmp_path)
