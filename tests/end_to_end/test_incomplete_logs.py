"""Logs that are cut, doubled or copied: the figures are those of whole steps, and what is wrong is said."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from samples.generators import paddle as generate_paddle
from tests.conftest import Cli

Summary = dict[str, Any]


@pytest.fixture
def logs(samples: Path, tmp_path: Path) -> Path:
    """Four ranks; the logs announce the steps 2-4 of 8 micro-batches, and have them."""
    return Path(shutil.copytree(samples / "paddle" / "single", tmp_path / "logs"))


def summary(run_cli: Cli, logs: Path) -> Summary:
    result = run_cli("--log_dir", logs, "--out", logs.parent / "out", "--format", "chrome,svg", "--json")
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)  # type: ignore[no-any-return]


def notes(result: Summary) -> dict[str, str]:
    return {note["code"]: note["level"] for note in result["notes"]}


def lines_of(log: Path) -> list[str]:
    return log.read_text().splitlines(keepends=True)


def test_a_log_that_was_cut(run_cli: Cli, logs: Path) -> None:
    whole = summary(run_cli, logs)
    log = logs / "workerlog.2"
    log.write_text("".join(lines_of(log)[: len(lines_of(log)) * 6 // 10]))
    result = summary(run_cli, logs)
    assert notes(result)["blocks-missing"] == "warning"
    text = next(note["text"] for note in result["notes"] if note["code"] == "blocks-missing")
    assert "stage 2 (rank 2): step 4 has 0 of 16 blocks (2 cases in all, on rank 2, in steps 3-4)" in text
    assert (result["steps"], result["whole_steps"]) == (3, 1)
    assert result["bubble"] == pytest.approx(whole["bubble"], abs=0.002), "31.4 % over all three"
    events = json.loads((logs.parent / "out" / "pipeline_profile.json").read_bytes())["traceEvents"]
    marked = {e["name"]: e["args"].get("whole") for e in events if e.get("cat") == "step" and e["ph"] == "X"}
    assert marked == {"step 2": None, "step 3": "no", "step 4": "no"}
    assert "step 3 (incomplete)" in (logs.parent / "out" / "pipeline_profile.svg").read_text()


@pytest.mark.parametrize(("begin", "count", "alike"), [(0, 8, "0-7"), (25, 4, "4-7")])
def test_the_logs_of_one_machine_in_the_folder_of_another(
    run_cli: Cli, logs: Path, begin: int, count: int, alike: str
) -> None:
    """Whole or their ends, which have no times of their own. They count as ranks of that machine, as they are numbered;
    a warning says what they look like."""
    machines = logs.parent / "machines"
    for name in ("machine0", "machine1"):
        shutil.copytree(logs, machines / name)
    for log in (machines / "machine1").glob("workerlog.*"):
        log.write_text("".join(lines_of(log)[begin:]))
    result = run_cli("--log_dir", machines, "--out", logs.parent / "out", "--pp", 4, "--json")
    assert result.returncode == 0, result.stderr
    (note,) = [note for note in json.loads(result.stdout)["notes"] if note["code"] == "ranks-identical"]
    assert (note["level"], note["count"]) == ("warning", count)
    assert f"ranks {alike} have exactly the same times as another rank" in note["text"]


@pytest.mark.parametrize("kept", [slice(0, 40), slice(0, None), slice(25, None)])
def test_a_log_that_was_copied_in_part(run_cli: Cli, logs: Path, kept: slice) -> None:
    """Under the number of another rank: while it grew, or without its beginning."""
    whole = summary(run_cli, logs)
    (logs / "workerlog.4").write_text("".join(lines_of(logs / "workerlog.0")[kept]))
    result = summary(run_cli, logs)
    assert notes(result)["source-recorded-twice"] == "warning"
    assert {k: result[k] for k in ("ranks", "steps", "bubble")} == {k: whole[k] for k in ("ranks", "steps", "bubble")}


def test_whole_milliseconds_may_be_the_same_on_two_ranks(run_cli: Cli, tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    generate_paddle.write_records(logs, generate_paddle.Job(2, 4, range(2)))
    for record in sorted(logs.glob("profile_record_tmp_file_for_rank_*")):
        rank = int(record.name.rpartition("_")[2])
        shutil.copy(record, logs / f"profile_record_tmp_file_for_rank_{rank + 2}")
    result = summary(run_cli, logs)
    assert result["ranks"] == 4
    assert {"ranks-identical", "source-recorded-twice"} & set(notes(result)) == set()


def test_the_report_takes_means_over_whole_steps(run_cli: Cli, logs: Path) -> None:
    log = logs / "workerlog.2"
    log.write_text("".join(lines_of(log)[: len(lines_of(log)) * 6 // 10]))
    document = json.loads(run_cli("report", logs, "--json").stdout)
    assert [step["whole"] for step in document["steps"]] == [True, False, False]
    said = next(sentence["facts"] for sentence in document["verdict"] if sentence["facts"].get("bubble") is not None)
    assert said["bubble"] == document["steps"][0]["bubble"]
    text = run_cli("report", logs, "--full").stdout
    assert "means over the whole steps" in text
