"""A cause of lost time, planted in profiles that the generators write, is the first sentence of `report`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import trace_export
from samples.generators import nsys, paddle
from samples.generators.pipeline import MS
from trace_export import api

CAUSES = {
    "slow-stage": (replace(nsys.TIMING, slow={5: 1.4}), "Stage 5 is slow (rank 5, node2, device "),
    "slow-link": (
        replace(nsys.TIMING, slow_links={(3, 4): 6 * MS, (4, 3): 6 * MS}),
        "The link between rank 3 and rank 4 is slow (node1, node2)",
    ),
    "late-host": (replace(nsys.TIMING, late={4: 3 * MS, 5: 3 * MS}), "Host node2 (ranks 4-5) starts late"),
    "long-optimizer": (
        replace(nsys.TIMING, lengths={**nsys.TIMING.lengths, "OPT": 40 * MS}),
        "The optimizer is long: it takes 40 ms",
    ),
}


def first(folder: Path) -> tuple[str, str]:
    sentence = api.report(folder, jobs=1).report.verdict[0]
    return sentence.code, sentence.text


@pytest.mark.parametrize("cause", CAUSES)
def test_in_exports_of_nsight_systems(cause: str, tmp_path: Path) -> None:
    timing, words = CAUSES[cause]
    nsys.write_planted(tmp_path, timing)
    code, text = first(tmp_path)
    assert (code, text[: len(words)]) == (cause, words)


def test_none_in_a_sound_run(tmp_path: Path) -> None:
    nsys.write_planted(tmp_path, nsys.TIMING)
    verdict = api.report(tmp_path, jobs=1).report.verdict
    assert [sentence.code for sentence in verdict] == ["nothing-stands-out", "step", "certainty"]


def test_a_slow_rank_in_logs_of_paddle(tmp_path: Path) -> None:
    paddle.write_logs(tmp_path, paddle.Job(data=3, machines=3, clock_errors_us=(0, 0, 0), slow={(2, 1): 1.3}))
    code, text = first(tmp_path)
    assert (code, text.startswith("Rank 6 (stage 2, machine1) is slow")) == ("slow-rank", True)


def test_missing_ranks_in_exports_of_nsight_systems(tmp_path: Path) -> None:
    """Stages 2 and 3 lie in the export that is not there."""
    nsys.write_planted(tmp_path, nsys.TIMING)
    (tmp_path / "node1.sqlite").unlink()
    code, text = first(tmp_path)
    assert code == "missing-ranks"
    assert text.startswith("No rank of stages 2-3 of 8 has a profile here")
    assert "profiles into DIR" in api.report(tmp_path, jobs=1).report.verdict[0].next


@pytest.mark.parametrize(
    ("ranks", "deeper"),
    [
        pytest.param("0", True, marks=pytest.mark.slow),
        ("0-3", True),
        ("3", True),
        ("4-7", False),
        pytest.param("all", False, marks=pytest.mark.slow),
    ],
)
def test_some_ranks_of_a_pipeline_are_not_taken_for_all(ranks: str, deeper: bool, tmp_path: Path) -> None:
    """The first of eight stages send activations to others, which the exports do not name."""
    nsys.write_planted(tmp_path, nsys.TIMING)
    done = api.report(tmp_path, ranks=ranks, jobs=1)
    warned = {note.code for note in done.run.notes if note.level == "warning"}
    assert ("stages-deeper" in warned) is deeper
    step = next(each for each in done.report.verdict if each.code == "step")
    assert ("give --pp" in step.text) is deeper
    found = trace_export.inspect(tmp_path, ranks=ranks, jobs=1)
    assert ("part of a pipeline of unknown depth" in found.verdict) is deeper
    if deeper:
        given = api.report(tmp_path, ranks=ranks, pp=8, jobs=1)
        assert "8 stages" in next(each for each in given.report.verdict if each.code == "step").text
