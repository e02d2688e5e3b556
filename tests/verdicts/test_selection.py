"""What is said of some ranks of a run: that they are some, and no cause that only the others could show."""

from __future__ import annotations

import json
import random
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import polars as pl
import pytest

from samples.generators.data_parallel import WRITERS, Job
from tests.conftest import Cli
from tests.support.command import command
from tests.support.rows import crossed, seeds
from tests.verdicts.cases import PLANTED, drawn
from tests.verdicts.judge import causes, report
from trace_export.analysis.verdict import LEVELS
from trace_export.units import duration

ELSEWHERE = ("slow rank", "late rank", "held host")


@pytest.mark.parametrize("name", ELSEWHERE)
@pytest.mark.parametrize("seed", seeds(1, 8))
def test_a_cause_of_ranks_that_were_not_read_is_nobody_elses(name: str, seed: int, tmp_path: Path) -> None:
    """The replica that is read waits in its collectives for the one with the cause."""
    case = drawn(7000 + seed, name, "kineto")
    wrong = {case.job.place(rank)[0] for rank in case.place["ranks"]}
    replica = next((a for a in range(case.job.replicas) if a not in wrong), None)
    if replica is None:
        pytest.skip("the host has ranks of all replicas")
    read = sorted(rank for s in range(case.job.stages) for rank in case.job.lane(replica, s))
    document = report(tmp_path, case.job, case.form, "--ranks", ",".join(map(str, read)))
    assert causes(document) == []
    assert f"only ranks {_shown(read)} were read" in document["verdict"][-1]["text"]


def test_a_rank_that_is_read_alone_is_compared_with_none(samples: Path, run_cli: Cli) -> None:
    text = " ".join(run_cli("report", samples / "paddle" / "single", "--ranks", 1).stdout.split())
    assert "only rank 1 was read, so it is compared with no other" in text


@pytest.mark.parametrize("name", ["slow stage", "slow rank"])
@pytest.mark.parametrize("seed", seeds(1, 6))
def test_a_rank_that_is_read_alone_of_its_stage_may_be_slow_with_it(name: str, seed: int, tmp_path: Path) -> None:
    """Of one replica nothing tells a stage with more work from a device that is slow."""
    case = drawn(7100 + seed, name, "kineto")
    read = sorted(case.job.lane(0, s)[0] for s in range(case.job.stages))
    if case.job.ranks == len(read) or not set(case.place["ranks"]) & set(read):
        pytest.skip("all ranks are read, or only others are slow")
    document = report(tmp_path, case.job, case.form, "--ranks", ",".join(map(str, read)))
    stage = case.job.place(case.place["ranks"][0])[1]
    first = next(each for each in document["verdict"] if each["code"] == "slow-rank")
    assert (first["facts"]["stage"], first["facts"]["unread"]) == (stage, True)
    assert "those of the other stages" in first["text"]
    assert first["next"].startswith(f"if stage {stage} has other ranks, read them too")


@pytest.mark.parametrize("seed", seeds(1, 8))
def test_a_late_collective_is_nobodys_where_ranks_are_missing(seed: int, tmp_path: Path) -> None:
    """Of the replica whose rank begins it late: nobody knows whether it waited for one of the others."""
    case = drawn(7000 + seed, "late gather", "kineto")
    replica = case.job.place(case.place["ranks"][0])[0]
    read = sorted(rank for s in range(case.job.stages) for rank in case.job.lane(replica, s))
    document = report(tmp_path, case.job, case.form, "--ranks", ",".join(map(str, read)))
    assert "late-collective" not in {cause["code"] for cause in document["causes"]}


def _shown(ranks: list[int]) -> str:
    """`0,4,8` or `0-3`."""
    parts: list[list[int]] = []
    for rank in ranks:
        if parts and rank == parts[-1][-1] + 1:
            parts[-1].append(rank)
        else:
            parts.append([rank])
    return ",".join(str(p[0]) if len(p) == 1 else f"{p[0]}-{p[-1]}" for p in parts)


PARTS = ("ranks", "stages", "first stages", "last stages", "replica")


def _part(job: Job, kind: str, draw: random.Random) -> set[int]:
    """Some ranks of a job: by chance, of some stages, of the first or the last ones, of a replica."""
    stages, replicas = range(job.stages), range(job.replicas)
    cut = draw.randrange(1, job.stages)
    if kind == "ranks":
        return set(draw.sample(range(job.ranks), draw.randrange(1, job.ranks)))
    if kind == "replica":
        replicas = range(at := draw.randrange(job.replicas), at + 1)
    else:
        chosen = draw.sample(stages, cut)
        stages = {"stages": chosen, "first stages": stages[:cut], "last stages": stages[cut:]}[kind]  # type: ignore[assignment]
    return {rank for a in replicas for s in stages for rank in job.lane(a, s)}


def _keep(folder: Path, form: str, job: Job, read: set[int]) -> None:
    """Leaves the files of some ranks alone."""
    for rank in set(range(job.ranks)) - read:
        name = {
            "kineto": f"*_{700 + rank}.*.json", "nsys": f"node{rank}.sqlite", "ascend": f"node*_{4000 + rank}_*",
            "paddle": f"workerlog.{rank}",
        }[form]  # fmt: skip
        (result,) = folder.glob(name)
        shutil.rmtree(result) if result.is_dir() else result.unlink()


WRONG = {
    **dict.fromkeys((37, 127), "unequal stages that a slow replica hides in the whole run"),
}
"""Seeds for which a part names what the whole does not, and why."""


def _marks(seed: int) -> list[pytest.MarkDecorator]:
    marks = [] if seed < 3 else [pytest.mark.slow]
    return [*marks, pytest.mark.xfail(reason=WRONG[seed], strict=True)] if seed in WRONG else marks


@pytest.mark.parametrize("seed", [pytest.param(n, marks=_marks(n)) for n in range(150)])
def test_a_part_of_the_ranks_names_no_cause_that_the_whole_does_not(seed: int, tmp_path: Path) -> None:
    """Of files that lack, and of `--ranks`: each cause is that of the whole run, on those of its ranks that are read;
    and where none can be told, it is said why."""
    draw = random.Random(seed)
    form = draw.choice(("kineto", "nsys", "ascend", "paddle"))
    fits = [name for name, (_, _, forms) in PLANTED.items() if form in forms and "host" not in name]
    case = drawn(8000 + seed, draw.choice(fits), form)
    job = replace(case.job, hosts=case.job.ranks if form == "nsys" else 1)
    whole = report(tmp_path / "whole", job, form)["causes"]
    read = _part(job, draw.choice(PARTS if job.replicas > 1 else PARTS[:-1]), draw)
    if draw.random() < 0.5:
        options = ["--ranks", ",".join(map(str, sorted(read)))]
        part = report(tmp_path / "part", job, form, *options)
    else:
        WRITERS[form](tmp_path / "part", job)
        _keep(tmp_path / "part", form, job, read)
        part = json.loads(command("report", tmp_path / "part", "--json", "--jobs", 1).stdout)
    for cause in part["causes"]:
        assert any(_is_part(cause, other, read) for other in whole), (case.planted, sorted(read), cause)
    if part["verdict"][0]["code"] == "nothing-stands-out":
        assert "among the ranks that were read" in part["verdict"][0]["text"]


def _is_part(cause: dict[str, Any], whole: dict[str, Any], read: set[int]) -> bool:
    """Whether a cause is that of the whole run, on the ranks that are read."""
    kind, ranks = cause["code"].split("-")[0], set(cause["ranks"])
    here = set(whole["ranks"]) & read
    if "hidden" in whole["code"] or "link" in cause["code"]:  # of several, of a link whose ends are both read
        return bool(ranks) and ranks <= here
    return kind == whole["code"].split("-")[0] and (ranks == here or (not ranks and not whole["ranks"]))


@pytest.mark.parametrize(
    ("schedule", "stages"),
    crossed(["1f1b", "zb-h1", "gpipe", "interleaved"], [range(2), range(3), range(1, 3), range(1)]),
)
def test_what_a_schedule_waits_is_not_said_of_a_part_of_its_stages(
    schedule: Literal["1f1b", "zb-h1", "gpipe", "interleaved"], stages: range, tmp_path: Path
) -> None:
    """Logs that record no stage, of the first stages of a sound job of four."""
    job = Job(stages=4, replicas=1, microbatches=8, schedule=schedule)
    document = report(tmp_path, job, "paddle", "--ranks", f"{stages[0]}-{stages[-1]}")
    assert causes(document) == []
    assert document["levels"] == []
    step = next(each["text"] for each in document["verdict"] if each["code"] == "step")
    assert "not known" in step


@pytest.mark.parametrize("form", ["nsys", "table"])
def test_a_step_that_warms_up_comes_first_and_can_be_compared(form: str, tmp_path: Path) -> None:
    """The first step takes 6 times as long; the truth is the same job without that."""
    job = Job(stages=4, replicas=1, microbatches=8, steps=4)
    usual = report(tmp_path / "usual", job, form)
    warm = report(tmp_path / "warm", replace(job, warm_up=(6.0,)), form)["verdict"]
    first, *rest = warm
    step_ns = next(s["facts"]["step_ns"] for s in usual["verdict"] if s["code"] == "step")
    assert (first["code"], first["facts"]["steps"]) == ("slow-steps", [0])
    assert first["facts"]["others_ns"] == pytest.approx(step_ns, rel=0.05)
    assert f"{first['facts']['ratio']:.2f} × as long as the others" in first["text"]
    assert "slow-steps" not in [sentence["code"] for sentence in rest]
    screen = command("report", tmp_path / "warm").stdout.partition("\nSteps\n")[2].splitlines()
    assert [line.split()[0] for line in screen if line.endswith("warm-up")] == ["0"]
    options = first["next"].partition(f"compare {tmp_path / 'warm'} ")[2].split()
    compared = json.loads(command("compare", tmp_path / "warm", *options, "--json").stdout)
    assert sum(row["a_ns"] for row in compared["levels"]) == pytest.approx(step_ns, rel=0.05)


@pytest.mark.parametrize("warm_up", [(3.0,), (9.0, 2.5)])
@pytest.mark.parametrize("command_name", ["report", "overview", "export"])
def test_a_warm_up_is_in_no_figure(warm_up: tuple[float, ...], command_name: str, tmp_path: Path) -> None:
    """All figures are those of the same blocks without the steps that warm up."""
    job = Job(stages=4, replicas=2, microbatches=8, steps=len(warm_up) + 4, warm_up=warm_up, slow={(1, 2): 1.3})
    WRITERS["table"](tmp_path / "warm", job)
    for file in (tmp_path / "warm").rglob("*.parquet"):
        part = tmp_path / "usual" / file.relative_to(tmp_path / "warm")
        part.parent.mkdir(parents=True, exist_ok=True)
        pl.read_parquet(file).filter(pl.col("step") >= len(warm_up)).write_parquet(part)
    documents = []
    for name in ("warm", "usual"):
        files = ["--out", tmp_path / f"{name}.json"] if command_name == "export" else []
        documents.append(json.loads(command(command_name, tmp_path / name, *files, "--json").stdout))
    warm, usual = documents
    if command_name == "export":
        figures = "bubble", "step_ns", "pipeline_ns"
        assert [warm[name] for name in figures] == [usual[name] for name in figures]
        return
    assert [row["step"] for row in warm["steps"] if not row["counts"]] == list(range(len(warm_up)))
    said, others = ({s["code"]: s["facts"] for s in document["verdict"]} for document in documents)
    assert said["slow-steps"]["steps"] == list(range(len(warm_up)))
    assert {name: said["step"][name] for name in ("step_ns", "pipeline_ns", "bubble")} == {
        name: others["step"][name] for name in ("step_ns", "pipeline_ns", "bubble")
    }
    gains, theirs = ({row["code"]: row["gain_ns"] for row in document["causes"]} for document in documents)
    assert gains == pytest.approx(theirs, rel=0.01)


def test_steps_that_are_shown_are_told_from_those_that_are_explained(tmp_path: Path) -> None:
    """What a step is made of is said of all steps, so their mean is said, too."""
    job = Job(stages=4, replicas=1, microbatches=8, steps=4, warm_up=(1.9,))
    whole = {s["code"]: s for s in report(tmp_path, job, "table")["verdict"]}
    part = json.loads(command("report", tmp_path, "--steps", "1-3", "--json").stdout)["verdict"]
    step = next(sentence for sentence in part if sentence["code"] == "step")
    assert step["facts"]["step_ns"] < 0.8 * whole["step"]["facts"]["step_ns"]
    levels = [f"{level}_ns" for level in LEVELS]
    assert [step["facts"].get(level) for level in levels] == [whole["step"]["facts"].get(level) for level in levels]
    assert f"; a step of the run takes {duration(whole['step']['facts']['step_ns'])}: " in step["text"]
