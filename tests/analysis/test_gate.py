"""The gate: a run that is slower by more than the limit fails, one that only varies does not."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

import trace_export
from tests.conftest import Cli
from tests.support.rows import examples
from trace_export.analysis import baseline
from trace_export.analysis.explanation import CAUSES, LEVELS
from trace_export.analysis.gate import judge
from trace_export.analysis.run_figures import BLOCKS, STAGES, STEPS, WHOLE, RunFigures
from trace_export.errors import SourceError, UsageError
from trace_export.writers.mark import is_marked

TRAITS: dict[str, str | int] = {
    "schedule": "1F1B",
    "stages": 2,
    "ranks": 2,
    "micro-batches": 4,
    "chunks": 1,
    "backwards": "whole",
    "times": "of the device",
}


def figures(times: list[float]) -> RunFigures:
    """A run whose steps take these times, in nanoseconds."""
    count = len(times)
    whole = [round(time) for time in times]
    steps = {
        "run": [0] * count, "step": range(count), "step_ns": whole, "pipeline_ns": whole, "bubble": [0.1] * count,
        "slowdown": [None] * count,
    }  # fmt: skip
    stages = {"run": [0] * count, "step": range(count), "stage": [1] * count, "busy_ns": times}
    return RunFigures(
        TRAITS, True, pl.DataFrame(schema=WHOLE), pl.DataFrame(schema=LEVELS), pl.DataFrame(schema=CAUSES),
        pl.DataFrame(schema=BLOCKS), pl.DataFrame(steps, STEPS), pl.DataFrame(stages, STAGES),
    )  # fmt: skip


def noisy(seed: int, slower: float = 0.0, steps: int = 24, noise: float = 0.01) -> RunFigures:
    draw = np.random.default_rng(seed)
    return figures(list(1e9 * (1 + slower) * (1 + noise * draw.standard_normal(steps))))


@pytest.mark.parametrize(("on", "slower", "seeds", "least", "most"), [
    ("step", 0.02, 20, 0, 0), ("step", 0.03, 100, 0, 4), ("step", 0.05, 20, 20, 20),
    ("stage:1", 0.02, 20, 0, 0), ("stage:1", 0.05, 20, 20, 20),
])  # fmt: skip
def test_planted_slowdowns(on: str, slower: float, seeds: int, least: int, most: int) -> None:
    """Noise of 1 % a step, a limit of 3 %. At the limit itself 1 of 100 fails: of 100, more than 4 with p = 0.4 %."""
    result = sum(judge(noisy(n), noisy(1000 + n, slower), 0.03, on).failed for n in range(seeds))
    assert least <= result <= most


@examples(15)
@given(st.lists(st.floats(1e6, 1e9), min_size=3, max_size=20), st.floats(0, 0.5))
def test_a_run_is_not_worse_than_itself(times: list[float], limit: float) -> None:
    run = figures(times)
    result = judge(run, run, limit)
    assert (result.change, result.failed) == (0.0, False)
    assert result == judge(run, run, limit)


def test_steps_without_noise_show_the_exact_change() -> None:
    result = judge(figures([1e9] * 5), figures([1.04e9] * 5), 0.03)
    assert (result.change, result.at_least) == (pytest.approx(0.04), pytest.approx(0.04))
    assert result.sentence == (
        "The step time of B is 4% more than of A, with 99% confidence at least 4%: above the limit of 3%"
        " (5 and 5 steps)."
    )


def test_few_steps_that_vary_are_no_proof() -> None:
    result = judge(figures([1e9, 1.1e9, 0.9e9]), figures([1.05e9, 1.2e9, 0.95e9]), 0.03)
    assert result.change == pytest.approx(3.2 / 3.0 - 1)
    assert not result.failed
    assert "but the steps vary too much to be sure (3 and 3 steps)" in result.sentence


def test_bubbles_differ_in_points() -> None:
    a, b = figures([1e9] * 4), figures([1e9] * 4)
    b = replace(b, steps=b.steps.with_columns(bubble=pl.lit(0.15)))
    result = judge(a, b, 0.03, "bubble")
    assert result.failed
    assert result.sentence.startswith("The bubble of B is 5 points more than of A")


def test_what_is_not_comparable() -> None:
    a = figures([1e9] * 4)
    other = replace(a, traits={**TRAITS, "schedule": "ZB-H1", "micro-batches": 8})
    with pytest.raises(UsageError, match=r"not comparable \(schedule: 1F1B and ZB-H1; micro-batches: 4 and 8\)"):
        judge(a, other, 0.03)
    with pytest.raises(UsageError, match=r"B has 2 whole steps with this figure .*; record at least 3"):
        judge(a, figures([1e9] * 2), 0.03)
    with pytest.raises(UsageError, match=r"0 whole steps with this figure \(slowdown\)"):
        judge(a, a, 0.03, "slowdown")


def run_of(path: Path, forward_ns: float, *, steps: int = 5, stages: int = 4, stretch: int = 1) -> Path:
    """A span table of `steps` equal steps of 1F1B with 8 micro-batches; blocks of stage 2 take `stretch` times more."""
    one = trace_export.simulate("1f1b", stages, 8, {"forward": forward_ns, "backward": 2 * forward_ns}).spans
    length = int(one["end_ns"].max()) + 1_000_000  # type: ignore[arg-type]
    spans = pl.concat(
        one.with_columns(pl.col("start_ns", "end_ns") + n * length, step=pl.lit(n, pl.Int32)) for n in range(steps)
    )
    columns = ["step", "kind", "microbatch", "chunk", "start_ns", "end_ns"]
    spans.select("rank", pl.lit("h").alias("host"), pl.col("rank").alias("stage"), *columns).write_parquet(path)
    return path


def test_the_command_fails_with_code_4(run_cli: Cli, tmp_path: Path) -> None:
    a, b = run_of(tmp_path / "a.parquet", 1e6), run_of(tmp_path / "b.parquet", 1.1e6)
    failed = run_cli("compare", a, b, "--fail-above", "3%")
    assert failed.returncode == 4
    # 11 + 3 forward-backward pairs of 3 ms, 1 ms between steps: 34 and 37.3 ms
    assert "The step time of b.parquet is 9.71% more than of a.parquet" in failed.stderr.replace("\n", " ")
    assert run_cli("compare", b, a, "--fail-above", "3%").returncode == 0
    assert run_cli("compare", a, b, "--fail-above", "3%", "--on", "bubble").returncode == 0
    other = run_of(tmp_path / "c.parquet", 1e6, stages=2)
    refused = run_cli("compare", a, other, "--fail-above", "3%")
    assert refused.returncode == 2
    assert "--fail-above: a.parquet and c.parquet are not comparable (stages: 4 and 2" in refused.stderr


def test_too_few_step_times_are_told(run_cli: Cli, tmp_path: Path) -> None:
    """Of three steps two have a step time, and three a pipeline time: 11 pairs of 3 and of 3.3 ms each."""
    a, b = run_of(tmp_path / "a.parquet", 1e6, steps=3), run_of(tmp_path / "b.parquet", 1.1e6, steps=3)
    failed = run_cli("compare", a, b, "--fail-above", "3%")
    said = failed.stderr.replace("\n", " ")
    assert failed.returncode == 4
    assert "The pipeline time of b.parquet is 10% more than of a.parquet" in said
    assert "(3 and 3 steps; too few of them have a step time)" in said


def test_a_baseline_stands_for_its_run(run_cli: Cli, tmp_path: Path) -> None:
    a, b = run_of(tmp_path / "a.parquet", 1e6), run_of(tmp_path / "b.parquet", 1.1e6)
    kept = tmp_path / "main.json"
    assert run_cli("compare", a, "--baseline", kept, "--save").returncode == 0
    assert is_marked(kept)
    beside = run_cli("compare", b, "--baseline", kept, "--fail-above", "3%", "--format", "markdown")
    directly = run_cli("compare", a, b, "--fail-above", "3%", "--format", "markdown")
    assert beside.returncode == directly.returncode == 4
    assert beside.stdout == directly.stdout
    assert beside.stdout.startswith("# a.parquet and b.parquet\n\n1. The step time of b.parquet is 9.71% more")
    run = trace_export.load(a)
    assert run.save_baseline(tmp_path / "again.json").read_bytes() == kept.read_bytes()
    for name in baseline.TABLES:
        assert getattr(baseline.read(kept).figures, name).equals(getattr(run.baseline().figures, name))


def test_a_file_that_is_not_ours_is_kept(run_cli: Cli, tmp_path: Path) -> None:
    a = run_of(tmp_path / "a.parquet", 1e6)
    (tmp_path / "notes.json").write_text("{}")
    refused = run_cli("compare", a, "--baseline", tmp_path / "notes.json", "--save")
    assert refused.returncode == 2
    assert (tmp_path / "notes.json").read_text() == "{}"


@pytest.mark.parametrize(
    ("content", "message"),
    [(None, "cannot be read: No such file"), ("", "is not JSON"), ("{}", "is not a baseline of this version")],
)
def test_a_baseline_that_is_none(content: str | None, message: str, run_cli: Cli, tmp_path: Path) -> None:
    a, kept = run_of(tmp_path / "a.parquet", 1e6), tmp_path / "main.json"
    if content is not None:
        kept.write_text(content)
    refused = run_cli("compare", a, "--baseline", kept)
    assert refused.returncode == 1
    assert refused.stderr.count("\n") == 1
    assert f"{kept} {message}" in refused.stderr


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The text of a baseline."""
    folder = tmp_path_factory.mktemp("saved")
    return trace_export.load(run_of(folder / "a.parquet", 1e6)).save_baseline(folder / "main.json").read_text("utf-8")


@pytest.mark.parametrize(("find", "put", "message"), [
    ('"trace_export baseline 2"', '"trace_export baseline 1"', "is not a baseline of this version"),
    ('"gains": true', '"gains": 1', '"gains" is neither true nor false'),
    ('"chunks": 1', '"chunk": 1', "its traits are not schedule, stages, ranks, micro-batches, chunks, backwards"),
    ('"what": "busy"', '"that": "busy"', 'the rows of "whole" do not have what, value'),
    ('"step": 0', '"step": "x"', 'a value of "steps" is not of its type'),
    ("{", "{{", "is not JSON"),
])  # fmt: skip
def test_a_damaged_baseline(find: str, put: str, message: str, saved: str, tmp_path: Path) -> None:
    path = tmp_path / "main.json"
    assert find in saved
    path.write_text(saved.replace(find, put, 1))
    with pytest.raises(SourceError, match=message):
        baseline.read(path)
