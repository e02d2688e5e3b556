"""The published answers of the straggler study, from its own tables."""

from __future__ import annotations

import json
from pathlib import Path

import polars as pl
import pytest

from trace_export import api

ONE_PART_IN_A_MILLION = 1e-6


@pytest.mark.parametrize("job", ["ST"])
def test_the_numbers_of_the_study(recorded: Path, job: str) -> None:
    folder = recorded / "foreign" / "straggler"
    result, workers, last = (json.loads((folder / f"{name}-{job}.json").read_text()) for name in ("result", "mw", "ms"))
    run = api.load(folder).align()
    found = run.what_if()
    got = found.document()
    pairs = [(got["S"], result["blocking_slowdown"]), (got["fidelity"], result["launch_slowdown"])]
    for ours, theirs in (("by_type", "optype"), ("by_dp", "dp_rank"), ("by_stage", "stage")):
        assert set(got[ours]) == set(result[f"blocking_decompose_by_{theirs}"])
        pairs += [(got[ours][name], value) for name, value in result[f"blocking_decompose_by_{theirs}"].items()]
        for n, (_, step) in enumerate(found.steps):
            each = {str(k): v[n] / found.ideal_to_optimizer_ns[n] for k, v in getattr(found, ours).items()}
            published = result[f"blocking_decompose_by_{theirs}_per_step"][str(step)]
            pairs += [(each[name], value) for name, value in published.items()]
    for ours, theirs in (("steps", "blocking_step_slowdown"), ("fidelity_steps", "launch_step_slowdown")):
        pairs += [(got[ours][step], value) for step, value in result[theirs].items()]
    pairs += [(got["M_W"], workers["Mw"]), (got["M_S"], last["Ms"])]
    for key, times in (("tori", found.simulated_ns), ("tideal", found.ideal_ns)):
        pairs += [(times.mean() / 1e9, workers[key]), (times.mean() / 1e9, last[key])]
    for times, theirs, key in (
        (found.without_slowest_ns, workers, "trem"), (found.only_slowest_ns, workers, "tadd"),
        (found.without_last_stage_ns, last, "trem"), (found.only_last_stage_ns, last, "tadd"),
    ):  # fmt: skip
        pairs.append((times.mean() / 1e9, theirs[key]))
    assert len(pairs) > 600
    for ours, theirs in pairs:
        assert ours == pytest.approx(theirs, rel=ONE_PART_IN_A_MILLION)


def test_the_critical_path_of_a_real_step(recorded: Path) -> None:
    """Its parts, in nanoseconds, as an independent program found them."""
    path = api.load(recorded / "foreign" / "straggler").align().critical_path()
    first = path.parts.filter(pl.col("step") == 23).group_by("part").agg(pl.col("ns").sum())
    assert dict(first.iter_rows()) == {
        "work": 1973519205, "wire": 5031573, "collective": 363416903, "launch": 39684436,
    }  # fmt: skip
    assert path.steps["length_ns"][0] == 2381652117


def test_primus(recorded: Path) -> None:
    """1F1B with 16 micro-batches; a step is as long as its longest `total`, in milliseconds."""
    folder = recorded / "foreign" / "primus_pp8"
    report = api.load(folder).align().report()
    plan = report.theory.recognition.plan
    assert plan is not None
    assert (plan.name, plan.stages, plan.microbatches) == ("1f1b", 8, 16)
    totals = [json.loads(path.read_text()) for path in sorted(folder.glob("pp_rank_*.json"))]
    longest = [max(each[str(n)]["total"] for each in totals) * 1e6 for n in range(1, 21)]
    assert report.steps["step_ns"][:19].to_list() == pytest.approx(longest[:19], rel=1e-3)
    assert report.steps["pipeline_ns"].to_list() == pytest.approx(longest, rel=2e-3)


def test_megascan(recorded: Path) -> None:
    """4 stages × 4 chunks × 8 micro-batches, interleaved."""
    (path,) = (recorded / "foreign" / "megascan").glob("*.json")
    report = api.load(path.parent).align().report()
    plan = report.theory.recognition.plan
    assert plan is not None
    assert (plan.name, plan.stages, plan.microbatches, plan.chunks) == ("interleaved", 4, 8, 4)
    times = [event["ts"] for event in json.loads(path.read_text()) if event["ph"] in "BE"]
    assert report.steps["pipeline_ns"].to_list() == [1000 * (max(times) - min(times))]
