"""Plausible damage to the files of every format: the figures of the steps that are called whole are right, or a warning
or an error says that something is wrong."""

import random
import shutil
from pathlib import Path

import pytest

from tests.faults.damage_files import DAMAGE, OF_FILES, OF_RECORDS, SOME, make, rewrite
from tests.faults.damage_runs import RUNS
from trace_export import Run, TraceExportError, load
from trace_export.analysis.bubbles import Bubbles

RIGHT = 0.01
"""So much may the bubble of a step differ, and its length in proportion."""
Figures = dict[tuple[int, int], tuple[float, int]]


def read(folder: Path) -> Run:
    tables = sorted(folder.glob("spans.*"))
    return load(tables[0] if tables else folder).align()


def figures(run: Run) -> Figures:
    """Bubble and length of each whole step."""
    steps = Bubbles(run.profile).steps.filter("whole")
    return {(which, step): (bubble, end - start) for which, step, start, end, bubble in
            steps.select("run", "step", "start_ns", "end_ns", "bubble").iter_rows()}  # fmt: skip


def warned(run: Run) -> bool:
    return bool(run.failures) or any(note.level == "warning" for note in run.notes)


@pytest.mark.parametrize("kind", RUNS)
def test_figures_are_right_or_a_warning_says_why_not(kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """In one test for all damage to a format, which shares its sound run."""
    files_of = lambda folder: sorted(folder.rglob(RUNS[kind][1]))  # noqa: E731
    make(kind, tmp_path / "sound")
    run = read(tmp_path / "sound")
    assert not warned(run), run.notes
    assert run.profile.steps["whole"].all()
    true = figures(run)
    every = request.config.getoption("--slow")
    for damage in DAMAGE[kind] if every else SOME[kind]:
        if damage == "of another run":
            make(kind, tmp_path / "other", seed=2)
        for seed in range(20 if every else 1):
            chance = random.Random(f"{damage} {seed}")
            damaged = tmp_path / f"{damage} {seed}"
            shutil.copytree(tmp_path / "sound", damaged)
            if damage in OF_RECORDS:
                rewrite(chance.choice(files_of(damaged)), OF_RECORDS[damage], chance)
            else:
                OF_FILES[damage](files_of(damaged), files_of(tmp_path / "other"), chance)
            check(damaged, true, f"{damage}, seed {seed}")


def check(folder: Path, true: Figures, what: str) -> None:
    """The figures of what lies in `folder` are the true ones, or a warning or an error says that they are not."""
    try:
        run = read(folder)
    except TraceExportError:
        return
    if warned(run):
        return
    result = figures(run)
    assert set(result) <= set(true), f"{what}: {run.notes}"
    for step, (bubble, length) in result.items():
        assert bubble == pytest.approx(true[step][0], abs=RIGHT), f"{what}, {step}: {run.notes}"
        assert length == pytest.approx(true[step][1], rel=RIGHT), f"{what}, {step}: {run.notes}"
