"""The sentence that says whether profiles can be drawn."""

import re
from pathlib import Path

import pytest

import trace_export
from samples.generators import ascend, data_parallel, paddle
from samples.generators.kineto_trace import Trace
from tests.conftest import Cli
from tests.support.profiles import profile, span
from tests.support.torch_traces import one_block
from trace_export.writers.tables import write_csv


def test_one_of_each_is_no_plural(tmp_path: Path) -> None:
    one_block().write(tmp_path / "rank0.json")
    assert ": 1 stage, 1 micro-batch, 1 step" in trace_export.inspect(tmp_path).verdict


def test_a_log_without_passes_is_described(tmp_path: Path) -> None:
    """A Paddle program that is not parallel has one job of the type `default` in a step."""
    paddle.write(tmp_path, stages=1, microbatches=1)
    log = tmp_path / "workerlog.0"
    log.write_text(re.sub(r"type = \w+", "type = default", log.read_text()))
    result = trace_export.inspect(tmp_path)
    assert "1 stage, no forward or backward;" in result.verdict
    assert result.facts["microbatches"] is None


def test_of_a_warm_up_and_a_step_the_step_is_typical(tmp_path: Path) -> None:
    """Two step times are known of three steps: the first is ten times as long."""
    trace = Trace()
    for step, start in enumerate([0, 10_000, 11_000]):
        for name, at in (("F0.0", 0), ("B0.0", 300)):
            trace.range(1_000 + start + at, 1_200 + start + at, f"te:{name} stage=0 step={step} rank=0")
            trace.kernel(1_050 + start + at, 1_190 + start + at, trace.call(1_020 + start + at))
    trace.write(tmp_path / "rank0.json")
    assert trace_export.inspect(tmp_path).facts["step_ns"] == 1_000


@pytest.mark.parametrize("device", [True, False])
def test_device_tasks_are_those_of_a_device(tmp_path: Path, device: bool) -> None:
    trace = Trace()
    trace.range(1_000, 9_000, "F0.0.0")
    if device:
        trace.kernel(20_000, 30_007, trace.call(5_000, thread=77))
    trace.write(tmp_path / "rank0.json")
    assert trace_export.inspect(tmp_path, host_ranges=True).ranks["device_tasks"].to_list() == [device]


@pytest.mark.parametrize("clip", [{0: 5, 2: 3}, {0: 9, 1: 11, 2: 9, 3: 7}])
def test_a_step_that_was_cut_says_nothing_of_the_others(tmp_path: Path, clip: dict[int, int]) -> None:
    """The step time and the micro-batches of a step are those that `export` and the whole steps have."""
    ascend.record(tmp_path, ascend.Job(4, 8, 3, clip=clip))
    result = trace_export.inspect(tmp_path)
    assert result.facts["microbatches"] == 8
    exported = trace_export.load(tmp_path).summary().step_ns
    assert result.facts["step_ns"] == pytest.approx(exported, rel=0.01)


def test_very_many_missing_stages_are_said_in_short(tmp_path: Path) -> None:
    """A list of them that is shortened is no list of numbers any more."""
    paddle.write(tmp_path, stages=66, microbatches=1)
    for rank in range(1, 66, 2):
        (tmp_path / f"workerlog.{rank}").unlink()
    verdict = trace_export.inspect(tmp_path, pp=66).verdict
    assert "33 of 66 stages" in verdict
    assert "missing stages 1,3,5," in verdict


@pytest.mark.parametrize("ranks", [None, "0"])
def test_of_the_stages_that_are_recorded_some_may_be_read(ranks: str | None, tmp_path: Path) -> None:
    """A file that was given alone, or ranks that were chosen: nothing is missing, and the job has three stages."""
    ascend.record(tmp_path, ascend.Job(3, 4, 1, hosts=1))
    first = min(tmp_path.rglob("ascend_pytorch_profiler_*.db"))
    result = trace_export.inspect(tmp_path, ranks=ranks) if ranks else trace_export.inspect(first)
    assert "1 of 3 stages" in result.verdict
    assert (result.facts["stages"], result.facts["all_stages"], result.facts["missing_stages"]) == (1, 3, "")


def test_a_rank_whose_pipeline_is_of_unknown_depth(tmp_path: Path, run_cli: Cli) -> None:
    """Rank 1 of 4, whose log shows that two stages follow or more: how many is not recorded."""
    paddle.write(tmp_path, stages=4, microbatches=8)
    log = tmp_path / "workerlog.1"
    assert "1 of at least 2 stages" in trace_export.inspect(log).verdict
    assert "1 of at least 2 (inferred)" in run_cli(log, "--out", tmp_path / "out", "--format", "csv").stdout


@pytest.mark.parametrize(("hosts", "aligned"), [(2, False), (4, True)])
def test_hosts_that_nothing_connects_are_told_of(hosts: int, aligned: bool, tmp_path: Path) -> None:
    """Of two replicas of two stages, each on a host of its own, or each on two."""
    job = data_parallel.Job(stages=2, replicas=2, hosts=hosts, stages_first=True, jitter=0.02)
    data_parallel.write_paddle(tmp_path, job)
    verdict = trace_export.inspect(tmp_path).verdict
    assert ("no messages, only the order of the blocks" in verdict) is aligned
    assert ("nothing connects them, so they are not aligned" in verdict) is not aligned


def test_a_clock_that_was_set_back_makes_no_step_of_less_than_nothing(tmp_path: Path) -> None:
    starts = {(0, 0): 9_000, (0, 1): 9_100, (1, 0): 9_000, (1, 1): 4_100}
    blocks = [
        span(rank, kind, 0, at + later, at + later + 5, step=step)
        for (rank, step), at in starts.items() for kind, later in (("F", 0), ("B", 10))
    ]  # fmt: skip
    write_csv(profile(blocks, {0: 0, 1: 1}), tmp_path / "spans.csv")
    assert trace_export.inspect(tmp_path / "spans.csv").ranks["step_ns"].to_list() == [100, None]
