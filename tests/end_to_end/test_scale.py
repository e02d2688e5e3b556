"""Many ranks: what is read, what is drawn, and what the summary says about it."""

from pathlib import Path

import orjson
import pytest

from samples.generators import paddle as generate_paddle
from tests.conftest import Cli

STAGES, MACHINES = 4, 17


@pytest.fixture
def many(tmp_path: Path) -> Path:
    """68 ranks: 17 replicas of a pipeline of four stages, a machine each."""
    folder = tmp_path / "logs"
    for machine in range(MACHINES):
        generate_paddle.write_logs(folder / f"machine{machine}", generate_paddle.Job(STAGES, 4, range(1), seed=machine))
    return folder


def tracks(path: Path) -> set[str]:
    """The names of the rows with blocks in a Chrome trace."""
    events = orjson.loads(path.read_bytes())["traceEvents"]
    names = {e["tid"]: e["args"]["name"] for e in events if e["ph"] == "M" and e["name"] == "thread_name"}
    return {names[e["tid"]] for e in events if e["ph"] == "X" and e["name"][0] in "FB"}


def test_one_rank_stands_for_each_stage(many: Path, tmp_path: Path, run_cli: Cli) -> None:
    result = run_cli("--log_dir", many, "--out", tmp_path, "--json", "--pp", STAGES, "--jobs", 2)
    assert result.returncode == 0, result.stderr
    document = orjson.loads(result.stdout)
    assert (document["ranks"], document["stages"]) == (STAGES * MACHINES, STAGES)
    (text,) = [note["text"] for note in document["notes"] if note["code"] == "ranks-not-drawn"]
    assert text.startswith("4 of 68 ranks")
    assert len(tracks(tmp_path / "pipeline_profile.json")) == STAGES


def test_all_ranks_when_they_are_asked_for(many: Path, tmp_path: Path, run_cli: Cli) -> None:
    result = run_cli("--log_dir", many, "--out", tmp_path, "--json", "--pp", STAGES, "--tracks", "rank")
    assert result.returncode == 0, result.stderr
    assert "ranks are drawn" not in result.stdout
    assert len(tracks(tmp_path / "pipeline_profile.json")) == STAGES * MACHINES
