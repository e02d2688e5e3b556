"""The cost of a profiler that stretches launches or slows kernels by a known amount."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

import trace_export
from samples.generators.data_parallel import WRITERS, Job, simulate
from samples.generators.pipeline import MS, US
from tests.support.command import command
from trace_export.analysis.profiler_cost import sentence
from trace_export.analysis.train_log import StepTimes

PLAIN = Job(stages=3, microbatches=6, replicas=1, gap=200 * US, optimizer=200 * US)
CELLS = PLAIN.cells


def log(step_ns: float) -> StepTimes:
    return StepTimes("Megatron-LM", step_ns, 50_000.0, lines=20, stated=24, steps=24)


@pytest.mark.parametrize(
    "profiled",
    [
        pytest.param(replace(PLAIN, held=dict.fromkeys(CELLS, 2 * MS)), id="launches stretched"),
        pytest.param(replace(PLAIN, slow=dict.fromkeys(CELLS, 1.3)), id="kernels slowed"),
        pytest.param(replace(PLAIN, slow=dict.fromkeys(CELLS, 1.2), held=dict.fromkeys(CELLS, MS)), id="both"),
    ],
)
def test_the_bubble_without_the_profiler_lies_between_the_estimates(profiled: Job, tmp_path: Path) -> None:
    WRITERS["table"](tmp_path, profiled)
    plain, longer = simulate(PLAIN), simulate(profiled)
    said = sentence(trace_export.load(tmp_path)._bubbles, log(plain.step_ns))
    assert said.facts["added"] == pytest.approx(longer.step_ns / plain.step_ns - 1, rel=1e-6)
    assert said.facts["idle_bubble"] - 0.01 <= plain.bubble(PLAIN) <= said.facts["work_bubble"] + 0.01
    assert "estimates" in said.text


def test_a_profiler_that_adds_nothing(tmp_path: Path) -> None:
    WRITERS["table"](tmp_path, PLAIN)
    said = sentence(trace_export.load(tmp_path)._bubbles, log(simulate(PLAIN).step_ns))
    assert said.facts["added"] == pytest.approx(0)
    assert "next to nothing" in said.text


@pytest.mark.parametrize(
    ("slower", "deviation", "steps", "words"),
    [
        (1.0, 0.0, 5, "may be the lines of the profiled steps"),
        (1.2, 0.0, 5, "the profiler adds 20%"),
        (1.2, 0.15, 24, "no more than steps vary"),
    ],
)
def test_what_a_log_cannot_tell(slower: float, deviation: float, steps: int, words: str, tmp_path: Path) -> None:
    """A log of little more than the profiled steps may be of these alone, where it says that they take as long; and
    steps that vary much hide what is added."""
    WRITERS["table"](tmp_path, PLAIN)
    plain = simulate(PLAIN).step_ns / slower
    said = sentence(trace_export.load(tmp_path)._bubbles, StepTimes("NeMo", plain, deviation * plain, 5, 9, steps))
    assert words in said.text
    assert "idle_bubble" in said.facts or "20%" not in said.text


def test_a_log_of_another_job_and_one_with_too_few_lines(tmp_path: Path) -> None:
    WRITERS["table"](tmp_path, PLAIN)
    measured = trace_export.load(tmp_path)._bubbles
    assert "of this job?" in sentence(measured, log(2 * simulate(PLAIN).step_ns)).text
    assert sentence(measured, None).code == "profiler-cost-unknown"


def of_deepspeed(path: Path, step_ns: float) -> None:
    lines = [f"steps: {n} loss: 2.3 iter time (s): {step_ns / 1e9:.6f} samples/sec: 5" for n in range(9)]
    path.write_text("\n".join(lines), encoding="utf-8")


@pytest.mark.parametrize(
    ("logs", "code", "words"),
    [
        ({"train.log": 1.0}, "profiler-cost", "By train.log beside the profiles"),
        ({"train.log": 0.1}, "profiler-cost-unknown", "train.log beside the profiles is not compared"),
        ({"a.log": 1.0, "b.out": 1.0}, "profiler-cost-unknown", "a.log, b.out beside the profiles"),
        ({}, None, ""),
    ],
)
def test_a_log_beside_the_profiles(logs: dict[str, float], code: str | None, words: str, tmp_path: Path) -> None:
    """The only one is compared, with its name; not one of another length; and of two neither is chosen."""
    slow = replace(PLAIN, slow=dict.fromkeys(CELLS, 1.2))
    WRITERS["table"](tmp_path / "run", slow)
    plain = simulate(PLAIN).step_ns
    (tmp_path / "run" / "notes.txt").write_text("steps: none", encoding="utf-8")
    for name, times in logs.items():
        of_deepspeed(tmp_path / "run" / name, times * plain)
    verdict = trace_export.load(tmp_path / "run").report().verdict
    said = [each for each in verdict if each.code.startswith("profiler-cost")]
    assert [each.code for each in said] == ([code] if code else [])
    assert all(words in each.text for each in said)
    if code == "profiler-cost":
        longer = simulate(slow).step_ns / plain - 1
        assert said[0].facts["added"] == pytest.approx(longer, rel=1e-3)
        assert said[0].facts["logs"] == ["train.log"]


def test_a_report_compares_the_profile_with_a_log(tmp_path: Path) -> None:
    WRITERS["table"](tmp_path / "run", replace(PLAIN, slow=dict.fromkeys(CELLS, 1.2)))
    of_deepspeed(tmp_path / "train.log", simulate(PLAIN).step_ns)
    done = command("report", "run", "--train-log", "train.log", "--json", cwd=tmp_path)
    said = next(each for each in json.loads(done.stdout)["verdict"] if each["code"] == "profiler-cost")
    longer = simulate(replace(PLAIN, slow=dict.fromkeys(CELLS, 1.2))).step_ns / simulate(PLAIN).step_ns - 1
    assert said["facts"]["added"] == pytest.approx(longer, rel=1e-3)
    assert "DeepSpeed" in said["text"]
