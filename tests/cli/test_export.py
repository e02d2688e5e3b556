"""The manners of the command line."""

import gzip
import re
import shlex
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import orjson
import pytest

from tests.conftest import Cli


def test_version_and_help(run_cli: Cli) -> None:
    assert re.fullmatch(r"trace-export \d+\.\d+\.\d+\n", run_cli("--version").stdout)
    assert "inspect" in run_cli("--help").stdout
    assert run_cli().returncode in (0, 2)


def test_the_folder_may_stand_alone_and_either_spelling_is_right(run_cli: Cli, samples: Path, tmp_path: Path) -> None:
    logs = samples / "paddle" / "single"
    for number, arguments in enumerate(
        [("--log_dir", logs), ("--log-dir", logs), (logs,), ("export", logs), ("paddle", "--log_dir", logs)]
    ):
        out = tmp_path / str(number)
        assert run_cli(*arguments, "--out", out, "--format", "csv", "--color_by", "none").returncode == 0
    assert len({(tmp_path / str(n) / "pipeline_profile.csv").read_bytes() for n in range(5)}) == 1


@pytest.mark.parametrize("folder", ["paddle/single", "nsys/two_hosts", "ascend"])
def test_ranks_that_are_not_there(run_cli: Cli, samples: Path, tmp_path: Path, folder: str) -> None:
    result = run_cli("--log_dir", samples / folder, "--out", tmp_path, "--ranks", "70-77")
    assert result.returncode == 1
    assert "no source holds a rank of --ranks 70-77" in result.stderr


@pytest.mark.parametrize(
    ("folder", "there"),
    [("paddle/single", "; choose from ranks 0-3"), ("recorder", "; choose from ranks 0-3"), ("nsys", "")],
)
def test_inspect_does_not_name_itself_as_the_remedy(run_cli: Cli, samples: Path, folder: str, there: str) -> None:
    """Which ranks a capture of Nsight Systems has is not known before it is read."""
    result = run_cli("inspect", samples / folder, "--ranks", 99)
    assert result.returncode == 1
    (line,) = result.stderr.splitlines()
    assert line.endswith(there or "--ranks 99: rank 99 is not in the data [selection-absent]")


@pytest.mark.parametrize(
    ("chosen", "named"),
    [
        (("--steps", "99"), "step 99"),
        (("--stages", "7-8"), "stages 7-8"),
        (("--time", "5s-6s", "--stages", "0"), "stage 0, the time 5 s to 6 s"),
    ],
)
def test_what_there_is_to_choose_from(
    run_cli: Cli, samples: Path, tmp_path: Path, chosen: tuple[str, ...], named: str
) -> None:
    """The sample is of two machines with two of four stages each, and of the steps 2 to 4."""
    result = run_cli(samples / "paddle" / "two_machines", "--out", tmp_path, *chosen)
    assert result.returncode == 1
    assert f"no block matches {named}; the run has steps 2-4, stages 0-3, 0." in result.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("chosen", "level", "text"),
    [
        (("--ranks", "0-100"), "warning", "--ranks 0-100: ranks 4-100 are not in the data, which has ranks 0-3"),
        (("--steps", "2-3,9"), "note", "--steps 2-3,9: step 9 is not in the data, which has steps 2-4"),
        (("--stages", "3,4"), "note", "--stages 3,4: stage 4 is not in the data, which has stages 0-3"),
    ],
)
def test_what_was_asked_for_and_is_not_there_is_named(
    run_cli: Cli, samples: Path, tmp_path: Path, chosen: tuple[str, str], level: str, text: str
) -> None:
    for command in (["export", "--format", "csv", "--out", tmp_path], ["report"]):
        result = run_cli(*command, samples / "paddle" / "single", *chosen, "--json")
        assert result.returncode == 0, result.stderr
        actual = [note for note in orjson.loads(result.stdout)["notes"] if note["code"] == "selection-absent"]
        assert [(note["level"], note["text"]) for note in actual] == [(level, text)]


def test_a_part_of_the_stages_is_a_part_of_all(run_cli: Cli, samples: Path, tmp_path: Path) -> None:
    done = run_cli(samples / "paddle" / "single", "--stages", "1", "--format", "chrome", "--out", tmp_path)
    assert "1 of 4 (inferred)" in done.stdout
    (trace,) = tmp_path.glob("*.json")
    events = orjson.loads(trace.read_bytes())["traceEvents"]
    names = [event["args"]["name"] for event in events if event["name"] == "process_name"]
    assert "PP chart · 1F1B · PP=4" in names


@pytest.mark.parametrize("option", ["--ranks", "--devices"])
def test_a_table_has_no_sources_to_choose_from(run_cli: Cli, samples: Path, tmp_path: Path, option: str) -> None:
    table = tmp_path / "spans.parquet"
    assert run_cli(samples / "paddle" / "single", "--format", "parquet", "--out", table).returncode == 0
    result = run_cli(table, option, "0", "--out", tmp_path / "out")
    assert result.returncode == 2
    assert f"{option}: {table} is a span table, where {option[2:]} cannot be chosen" in result.stderr


def test_an_incomplete_chart_in_place_of_an_older_one_is_a_warning(run_cli: Cli, samples: Path, tmp_path: Path) -> None:
    """A device that is not there is an error; the other ranks still come out."""
    draw = ("--log_dir", samples / "paddle" / "single", "--out", tmp_path, "--format", "csv", "--json")
    for expected in ([], [(str(tmp_path / "pipeline_profile.csv"), 1)]):
        result = run_cli(*draw, "--devices", "0,9")
        assert result.returncode == 3
        notes = [note for note in orjson.loads(result.stdout)["notes"] if note["code"] == "incomplete-replaced"]
        assert [(note["where"], note["count"]) for note in notes] == expected
    result = run_cli(*draw)
    assert "incomplete-replaced" not in result.stdout


def test_inspect_exits_with_what_can_be_drawn(run_cli: Cli, samples: Path, tmp_path: Path) -> None:
    (tmp_path / "rank9.pt.trace.json").write_text("{}")
    result = run_cli("inspect", tmp_path)
    assert (result.returncode, "rank9.pt.trace.json" in result.stderr) == (1, True)
    shutil.copytree(samples / "kineto" / "two_hosts", tmp_path / "good")
    result = run_cli("inspect", tmp_path)
    assert (result.returncode, "rank9.pt.trace.json" in result.stderr) == (3, True)
    assert run_cli("inspect", tmp_path / "good").returncode == 0


def test_inspect_begins_with_a_verdict(run_cli: Cli, samples: Path, tmp_path: Path) -> None:
    result = run_cli("inspect", samples / "ascend")
    verdict = " ".join(result.stdout.partition("sources:")[0].split())
    assert verdict.startswith("can be drawn: 1F1B, 4 stages, 6 micro-batches, 2 steps of "), verdict
    assert re.search(r"clocks of 2 hosts: [0-9]+ messages", verdict)
    shutil.copytree(samples / "ascend", tmp_path / "part")
    for folder in (tmp_path / "part").glob("*4002*"):
        shutil.rmtree(folder)
    result = run_cli("inspect", tmp_path / "part")
    verdict = " ".join(result.stdout.partition("sources:")[0].split())
    assert verdict.startswith("can be drawn: 1F1B, 3 of 4 stages, ")
    assert "missing stage 2;" in verdict


def test_inspect_reads_as_export_does(run_cli: Cli, samples: Path) -> None:
    """With the ranges themselves in place of the GPU work, with a rule for names, with some ranks only."""
    traces = samples / "kineto" / "two_hosts"
    result = [orjson.loads(run_cli("inspect", traces, "--json", *more).stdout) for more in ([], ["--host"])]
    assert [{rank["origin"] for rank in each["ranks"]} for each in result] == [{"device"}, {"host"}]
    assert run_cli("inspect", traces, "--marker", "(=>F").returncode == 2
    ranks = orjson.loads(run_cli("inspect", samples / "ascend", "--ranks", "1-2", "--json").stdout)["ranks"]
    assert [rank["rank"] for rank in ranks] == [1, 2]


def test_errors_that_differ_in_their_paths_and_numbers_are_one_sentence(
    run_cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))  # without nsys
    for rank in range(4):
        (tmp_path / f"node {rank}.nsys-rep").write_bytes(b"x")
    result = run_cli("inspect", tmp_path)
    assert (result.returncode, result.stdout.startswith("cannot be drawn")) == (1, True)
    assert result.stderr.count("error: ") == 1
    assert f"run nsys export --type sqlite '{tmp_path}/node 0.nsys-rep'" in result.stderr
    assert "the same for 3 more: " in result.stderr


def test_the_command_that_opens_a_trace_can_be_pasted(run_cli: Cli, samples: Path, tmp_path: Path) -> None:
    """Whatever blanks are in the path, and also where a word of it is that of the alignment."""
    for name in ("my charts/run 1", "clock"):
        out = tmp_path / name
        result = run_cli(samples / "paddle" / "single", "--format", "perfetto", "--out", out / "my_clock.pftrace")
        (line,) = [line for line in result.stdout.splitlines() if line.startswith("open it:")]
        assert shlex.split(line)[2:] == ["trace-export", "open", str(out / "my_clock.pftrace")]


def test_databases_are_named_by_their_folder_with_what_opens_it(run_cli: Cli, samples: Path, tmp_path: Path) -> None:
    out = tmp_path / "insight"
    said = run_cli(samples / "ascend", "--step-task-info", "--format", "csv", "--out", out).stdout
    assert f"wrote the table StepTaskInfo into databases below {out}/step_task_info: 4" in said
    assert f"open it:  the folder {out}/step_task_info in MindStudio Insight" in said
    assert ".db" not in said


def test_a_rank_recorded_twice(run_cli: Cli, samples: Path, tmp_path: Path) -> None:
    """Nobody but the user can know which file is right."""
    folder = tmp_path / "twice"
    for name in ("a", "b"):
        shutil.copytree(samples / "nsys" / "two_hosts", folder / name)
    for database in (folder / "b").glob("*.sqlite"):
        with closing(sqlite3.connect(database)) as db:
            db.execute("PRAGMA user_version = 7")
    result = run_cli("--log_dir", folder, "--out", tmp_path / "out", "--format", "csv")
    assert "holds rank 0" in result.stderr
    assert "keep only one of them" in result.stderr
    assert result.returncode == 3


def test_folders_of_different_jobs_are_not_mixed(run_cli: Cli, samples: Path, tmp_path: Path) -> None:
    for name, sample in (("a", "nsys/two_hosts"), ("b", "ascend")):
        shutil.copytree(samples / sample, tmp_path / "jobs" / name)
    result = run_cli("--log_dir", tmp_path / "jobs", "--out", tmp_path / "out", "--format", "csv")
    assert "a and b hold different jobs: give one of these folders" in result.stderr
    assert result.returncode == 0


def test_a_file_beside_its_packed_copy_counts_once(run_cli: Cli, samples: Path, tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    shutil.copytree(samples / "kineto" / "two_hosts", logs)
    for path in sorted(logs.glob("*.gz"))[:2]:
        path.with_suffix("").write_bytes(gzip.decompress(path.read_bytes()))
    result = run_cli("--log_dir", logs, "--out", tmp_path / "out", "--format", "csv", "--json")
    assert result.returncode == 0, result.stderr
    actual = orjson.loads(result.stdout)
    twice = [(note["level"], note["count"]) for note in actual["notes"] if note["code"] == "source-recorded-twice"]
    assert twice == [("warning", 2)]
    assert actual["ranks"] == 4
