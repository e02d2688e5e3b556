"""The catalogue of a folder: what a second look opens, and when the first one counts no longer."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import polars as pl
import pytest

import trace_export
from samples.generators.paddle import Job, write_logs
from tests.support.command import command
from tests.support.many_ranks import ManyRanks, write
from trace_export import read as reading
from trace_export.scale import catalogue, replicas
from trace_export.sources.read import read_group
from trace_export.sources.shared.batch import Result
from trace_export.sources.source import Group, ReadOptions

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
    with pytest.raises(trace_export.UsageError, match="trace-export did not write it"):
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


def empty_log(folder: Path) -> tuple[object, ...]:
    """One of two logs holds nothing."""
    write_logs(folder, Job(2, 4, steps=range(2, 4)))
    (folder / "workerlog.1").write_text("started\n")
    return "--devices", "0,1"


def some_devices(folder: Path) -> tuple[object, ...]:
    write_logs(folder, Job(2, 4, steps=range(2, 4)))
    return "--devices", "0"


def a_table(folder: Path) -> tuple[object, ...]:
    write_logs(folder, Job(2, 4, steps=range(2, 4)))
    command("export", folder, "--format", "csv", "--out", folder / "run" / "spans.csv")
    for log in folder.glob("workerlog.*"):
        log.unlink()
    return ()


@pytest.mark.parametrize("make", [empty_log, some_devices, a_table])
def test_a_command_that_works_without_a_cache_works_with_one(
    make: Callable[[Path], tuple[object, ...]], tmp_path: Path
) -> None:
    options = make(tmp_path / "logs")
    place = next((tmp_path / "logs").glob("run/*.csv"), tmp_path / "logs")
    written = []
    for more in ((), ("--cache", tmp_path / "cache")):
        out = tmp_path / f"out{len(more)}"
        ended = command("export", place, *options, "--steps", "3", *more, "--format", "csv", "--out", out)
        written.append((ended.returncode, next(out.glob("*.csv")).read_bytes()))
        assert ("[cache-unused]" in ended.stderr) == bool(more)
    assert written[0] == written[1]


def test_a_cache_beside_the_profiles_is_refused(logs: Path) -> None:
    done = command("overview", logs, "--cache", logs / "cache")
    assert done.returncode == 2
    assert "--cache: " in done.stderr
    assert "lies in the folder of the profiles; name a folder outside it" in done.stderr


def opened(folder: Path, cache: Path, steps: int) -> set[int | None]:
    """The ranks whose sources are read for a step."""
    read = []

    def noted(group: Group, options: ReadOptions) -> list[Result]:
        read.extend(source.rank for source in group.sources)
        return read_group(group, options)

    with mock.patch.object(reading, "read_group", noted):
        trace_export.load(folder, steps=steps, cache=cache, pp=2, tp=2, jobs=1)
    return set(read)


def test_ranks_are_found_in_it_without_a_search(logs: Path, tmp_path: Path) -> None:
    blocks(logs, tmp_path / "cache")
    with mock.patch.object(reading, "_found", side_effect=AssertionError("it was searched")):
        chosen = trace_export.load(logs, ranks="3,9", cache=tmp_path / "cache", pp=2, tp=2, jobs=1)
    assert chosen.spans.equals(trace_export.load(logs, ranks="3,9", pp=2, tp=2, jobs=1).spans)


def test_a_source_that_lacks_the_steps_stays_closed_once_it_was_read(logs: Path, tmp_path: Path) -> None:
    """Steps 2 to 4 were logged; rank 5 ended in the first one."""
    log, cache = logs / "machine0" / "workerlog.5", tmp_path / "cache"
    lines = log.read_text().splitlines(keepends=True)
    log.write_text("".join(lines[: len(lines) * 3 // 10]))
    assert opened(logs, cache, 4) == set(range(16))
    trace_export.overview(logs, tmp_path / "out", cache=cache, pp=2, tp=2, jobs=1)
    held = {row["rank"]: row for row in pl.read_parquet(cache / catalogue.NAME).iter_rows(named=True)}
    assert [(held[rank]["first_step"], held[rank]["last_step"]) for rank in (4, 5)] == [(2, 4), (2, 2)]
    assert held[4]["end_ns"] - held[4]["start_ns"] > 2 * (held[5]["end_ns"] - held[5]["start_ns"]) > 0
    assert opened(logs, cache, 4) == set(range(16)) - {5}
    assert opened(logs, cache, 2) == set(range(16))
    log.touch()  # it may have grown since
    assert opened(logs, cache, 4) == set(range(16))


def test_a_cache_without_a_replica_is_refused(logs: Path, tmp_path: Path) -> None:
    done = command("export", logs, "--cache", tmp_path)
    assert done.returncode == 2
    assert (
        "--cache helps only if a part of the run is read; give it together with --replica, --ranks or --steps"
        in done.stderr
    )
