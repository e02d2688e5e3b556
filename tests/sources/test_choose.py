"""Of the sources that were found, those that the user asked for."""

import shutil
from pathlib import Path

import polars as pl
import pytest

from samples.generators.paddle import line
from tests.conftest import Cli
from trace_export.errors import UsageError
from trace_export.selection import Numbers
from trace_export.sources.choose import choose, nothing_found
from trace_export.sources.folders import SearchResult
from trace_export.sources.formats import FORMATS
from trace_export.sources.source import Source


def logs(*hosts: str, workers: int = 4) -> SearchResult:
    return SearchResult(
        tuple(Source("paddle", Path(h, f"workerlog.{n}"), h, local_rank=n) for h in hosts for n in range(workers))
    )


def numbers(text: str) -> Numbers | None:
    return Numbers.parse(text, "--devices")


def test_devices_that_are_not_there_are_one_bounded_sentence() -> None:
    """One for all hosts that lack the same of the same."""
    result = logs("a", "b")
    result = SearchResult((*result.sources, *logs("c", workers=2).sources))
    chosen, missing, _ = choose(result, Path("logs"), devices=numbers("2,3,0-9999999"))
    assert len(chosen) == 10
    assert [str(e) for e in missing] == [
        "logs: no profile of devices 4-9999999 of a, b; choose from devices 0-3",
        "logs: no profile of devices 2-9999999 of c; choose from devices 0-1",
    ]


def test_times_that_no_log_has_are_said_before_devices_that_are_missing(run_cli: Cli, tmp_path: Path) -> None:
    """As a log of a run on CPUs has them."""
    for number in range(2):
        (tmp_path / f"workerlog.{number}").write_text(line(1, "forward", 0, 0.0, 0.0))
    for devices in ("0", "0-1", "0-3"):
        assert "all records have the time 0.000000" in run_cli(tmp_path, "--devices", devices).stderr


def test_what_is_wrong_with_the_logs_is_said_before_what_is_missing(run_cli: Cli, tmp_path: Path) -> None:
    for number in range(2):
        (tmp_path / f"workerlog.{number}").write_text("INFO: nothing was profiled\n")
    alone, with_others = (run_cli(tmp_path, "--devices", devices).stderr for devices in ("0", "0-3"))
    reason = alone.split("workerlog.0: ")[1]
    assert f"none of the 2 sources gave a block; the first: {tmp_path}/workerlog.0: {reason}" in with_others


def test_the_command_line_prints_one_line_for_a_range_of_devices(samples: Path, run_cli: Cli, tmp_path: Path) -> None:
    folder = samples / "paddle" / "single"
    result = run_cli("--devices", "0-9999999", "--log_dir", folder, "--out", tmp_path, "--format", "csv", "--quiet")
    assert result.returncode == 3
    assert result.stderr.splitlines() == [
        f"error: {folder}: no profile of devices 4-9999999 of machine0; choose from devices 0-3"
    ]


@pytest.mark.parametrize(("sample", "command"), [("nsys/two_hosts", "nsys"), ("kineto/two_hosts", "kineto")])
def test_devices_of_sources_whose_ranks_are_known_after_reading(
    sample: str, command: str, samples: Path, run_cli: Cli, tmp_path: Path
) -> None:
    """Ranks 0 and 1 ran on one host, 2 and 3 on the other."""
    done = run_cli(command, samples / sample, "--devices", "1", "--out", tmp_path, "--format", "parquet")
    assert done.returncode == 0, done.stderr
    ranks = pl.read_parquet(tmp_path / "pipeline_profile.parquet")["rank"].unique().sort()
    assert ranks.to_list() == [1, 3]


def test_a_host_without_one_of_the_devices_is_named(samples: Path, run_cli: Cli, tmp_path: Path) -> None:
    folder = samples / "kineto" / "two_hosts"
    done = run_cli(folder, "--devices", "1-9999999", "--out", tmp_path, "--format", "parquet", "--quiet")
    assert done.returncode == 3
    assert done.stderr.splitlines() == [
        f"error: {folder}: no profile of devices 2-9999999 of node0, node1; choose from devices 0-1"
    ]
    ranks = pl.read_parquet(tmp_path / "pipeline_profile.parquet")["rank"].unique().sort()
    assert ranks.to_list() == [1, 3]


def test_devices_of_global_ranks_are_counted_on_each_machine(run_cli: Cli, tmp_path: Path) -> None:
    """Records of the dynamic graph have the global rank in their names: device 0 of the second machine is rank 2."""
    line = '{{"name": "{}0", "ph": "{}", "pid": 0, "tid": 1, "ts": {}}}\n'
    for rank in range(4):
        place = tmp_path / "logs" / f"machine{rank // 2}"
        place.mkdir(parents=True, exist_ok=True)
        events = ((kind, ph, 10**12 + at) for at, (kind, ph) in enumerate((k, p) for k in "FB" for p in "BE"))
        record = "".join(line.format(*event) for event in events)
        (place / f"profile_record_tmp_file_for_rank_{rank}").write_text(record)
    done = run_cli(tmp_path / "logs", "--devices", "0", "--out", tmp_path, "--format", "parquet")
    assert done.returncode == 0, done.stderr
    assert pl.read_parquet(tmp_path / "pipeline_profile.parquet")["rank"].unique().sort().to_list() == [0, 2]


def test_an_unknown_family_names_the_known_ones() -> None:
    families = ", ".join(dict.fromkeys(row.command for row in FORMATS))
    with pytest.raises(UsageError, match=f'no format "Paddle"; choose one of {families}'):
        choose(logs("a"), Path("logs"), family="Paddle")


def test_the_error_of_an_empty_folder_names_the_formats_looked_for() -> None:
    names = ", ".join(dict.fromkeys(row.command for row in FORMATS))
    looked = f"logs: no profile in this folder; looked for profiles of {names}"
    assert (
        str(nothing_found(SearchResult(()), Path("logs")))
        == f"{looked}; trace-export docs NAME says how to collect one"
    )
    files = " and ".join(row.files for row in FORMATS if row.command == "kineto")
    assert str(nothing_found(SearchResult(()), Path("logs"), family="kineto")) == (
        f"logs: no kineto profile in this folder; looked for {files}; trace-export docs kineto says how to collect one"
    )


def test_a_device_whose_lower_neighbour_was_not_recorded_keeps_its_number(
    samples: Path, run_cli: Cli, tmp_path: Path
) -> None:
    """Of the ranks 0-1 and 2-3 on two hosts only 1, 2 and 3 are there: 1 is still device 1 of its host."""
    whole, part = samples / "ascend", tmp_path / "logs"
    shutil.copytree(whole, part)
    first = min(part.rglob("*_0.db"))
    shutil.rmtree(first.parent.parent)
    done = run_cli(part, "--devices", "1", "--out", tmp_path, "--format", "parquet")
    assert done.returncode == 0, done.stderr
    ranks = pl.read_parquet(tmp_path / "pipeline_profile.parquet")["rank"].unique().sort()
    assert ranks.to_list() == [1, 3]
    assert "lower ones were not recorded" in done.stderr and "[devices-inferred]" in done.stderr
    done = run_cli(whole, "--devices", "1", "--out", tmp_path / "all", "--format", "parquet")
    assert "[devices-inferred]" not in done.stderr
