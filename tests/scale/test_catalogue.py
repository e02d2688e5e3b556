"""The catalogue of a folder: what a second look opens, and when the first one counts no longer."""

from __future__ import annotations

import shutil
from pathlib import Path
from unittest import mock

import polars as pl
import pytest

import trace_export
from samples.generators.paddle import Job, write_logs
from tests.support.command import command
from tests.support.many_ranks import ManyRanks, write
from trace_export.scale import catalogue, replicas

LOGS = Job(2, 6, tensor=2, data=4, machines=2, clock_errors_us=(0, 3_000))


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    write_logs(tmp_path / "logs", LOGS)
    return tmp_path / "logs"


def blocks(folder: Path, cache: Path | None, replica: int = 2) -> pl.DataFrame:
    return trace_export.load(folder, replica=replica, cache=cache, pp=2, tp=2).spans


def looked_again(folder: Path, cache: Path) -> bool:
    """Whether the sources were searched, in spite of the cache."""
    with mock.patch.object(replicas, "locate", wraps=replicas.locate) as spy:
        blocks(folder, cache)
    return bool(spy.called)


def test_a_second_look_searches_nothing_and_finds_the_same(logs: Path, tmp_path: Path) -> None:
    first = blocks(logs, tmp_path / "cache")
    assert [path.name for path in (tmp_path / "cache").iterdir()] == [catalogue.NAME]
    assert not looked_again(logs, tmp_path / "cache")
    assert blocks(logs, tmp_path / "cache").equals(first)
    assert first.equals(blocks(logs, None))


def test_another_replica_is_found_in_it_too(logs: Path, tmp_path: Path) -> None:
    blocks(logs, tmp_path / "cache", 0)
    assert blocks(logs, tmp_path / "cache", 3).equals(blocks(logs, None, 3))


def test_a_new_source_is_found(logs: Path, tmp_path: Path) -> None:
    blocks(logs, tmp_path / "cache")
    shutil.copy(logs / "machine1" / "workerlog.0", logs / "machine1" / "workerlog.8")
    assert looked_again(logs, tmp_path / "cache")


def test_other_sizes_are_asked_for_anew(logs: Path, tmp_path: Path) -> None:
    blocks(logs, tmp_path / "cache")
    with mock.patch.object(replicas, "locate", wraps=replicas.locate) as spy:
        trace_export.load(logs, replica=0, cache=tmp_path / "cache", pp=2, tp=1)
    assert spy.called


@pytest.mark.parametrize("content", [b"", b"PAR1 cut off", b"something else"])
def test_a_damaged_catalogue_is_not_used_and_not_replaced(logs: Path, tmp_path: Path, content: bytes) -> None:
    """It carries no mark, so it may be somebody else's."""
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / catalogue.NAME).write_bytes(content)
    with pytest.raises(trace_export.UsageError, match="not known to be an output of trace-export"):
        blocks(logs, tmp_path / "cache")
    assert (tmp_path / "cache" / catalogue.NAME).read_bytes() == content


def test_a_table_that_was_rewritten_is_looked_into_again(tmp_path: Path) -> None:
    """Its name does not tell its ranks."""
    run = ManyRanks(stages=2, tensor=2, replicas=4, microbatches=2, steps=1)
    write(tmp_path / "logs", run)
    cache = tmp_path / "cache"
    trace_export.load(tmp_path / "logs", replica=1, cache=cache)
    table = tmp_path / "logs" / run.host(0, 1) / "blocks.spans.parquet"
    frame = pl.read_parquet(table)
    assert trace_export.load(tmp_path / "logs", replica=1, cache=cache).ranks.height == 4
    frame.with_columns(dp=pl.when(pl.col("tp") == 1).then(9).otherwise("dp").cast(pl.Int32)).write_parquet(table)
    assert trace_export.load(tmp_path / "logs", replica=1, cache=cache).ranks.height == 3
    assert trace_export.load(tmp_path / "logs", replica=9, cache=cache).ranks.height == 1


def test_what_is_in_no_cache_of_a_replica_is_still_an_input(logs: Path, tmp_path: Path) -> None:
    """An output over a source of another replica is refused, also where that one was not looked at."""
    for _ in range(2):
        done = command(
            "export", logs, "--replica", 2, "--pp", 2, "--tp", 2, "--cache", tmp_path / "cache", "--force",
            "--format", "csv", "--out", tmp_path / "link.csv",
        )  # fmt: skip
        assert done.returncode == (2 if (tmp_path / "link.csv").is_symlink() else 0), done.stderr
        (tmp_path / "link.csv").unlink()
        (tmp_path / "link.csv").symlink_to(logs / "machine0" / "workerlog.0")
    assert "is the same file as the input" in done.stderr


def test_a_cache_beside_the_profiles_is_refused(logs: Path) -> None:
    done = command("overview", logs, "--cache", logs / "cache")
    assert done.returncode == 2
    assert "--cache: " in done.stderr
    assert "lies in the folder of the profiles; name a folder outside it" in done.stderr


def test_a_cache_without_a_replica_is_refused(logs: Path, tmp_path: Path) -> None:
    done = command("export", logs, "--cache", tmp_path)
    assert done.returncode == 2
    assert "--cache: keeps where the replicas are; give it together with replica" in done.stderr
