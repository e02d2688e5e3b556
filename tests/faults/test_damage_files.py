"""Plausible damage to the files of every format: the figures of the steps that are called whole are right, or a warning
or an error says that something is wrong."""

from __future__ import annotations

import random
import shutil
from functools import cache
from pathlib import Path

import pytest

from tests.faults.damage_files import CASES, OF_FILES, OF_RECORDS, SOME, make, rewrite
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


@pytest.fixture(scope="session")
def sound(tmp_path_factory: pytest.TempPathFactory) -> object:
    """A run of that format, and its figures."""
    root = tmp_path_factory.mktemp("runs")

    @cache
    def made(kind: str) -> tuple[Path, Figures]:
        make(kind, root / kind)
        run = read(root / kind)
        assert not warned(run), run.notes
        assert run.profile.steps["whole"].all()
        return root / kind, figures(run)

    return made


@pytest.mark.parametrize(
    ("kind", "damage"), [pytest.param(*case, marks=[] if case in SOME else pytest.mark.slow) for case in CASES]
)
def test_figures_are_right_or_a_warning_says_why_not(
    kind: str, damage: str, sound, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    folder, true = sound(kind)
    if damage == "of another run":
        make(kind, tmp_path / "other", seed=2)
    for seed in range(20 if request.config.getoption("--slow") else 1):
        chance = random.Random(f"{damage} {seed}")
        damaged = tmp_path / str(seed)
        shutil.copytree(folder, damaged)
        files = sorted(damaged.rglob(RUNS[kind][1]))
        if damage in OF_RECORDS:
            rewrite(chance.choice(files), OF_RECORDS[damage], chance)
        else:
            OF_FILES[damage](files, sorted((tmp_path / "other").rglob(RUNS[kind][1])), chance)
        try:
            run = read(damaged)
        except TraceExportError:
            continue
        if warned(run):
            continue
        found = figures(run)
        assert set(found) <= set(true), f"seed {seed}: {run.notes}"
        for step, (bubble, length) in found.items():
            assert bubble == pytest.approx(true[step][0], abs=RIGHT), f"seed {seed}, {step}: {run.notes}"
            assert length == pytest.approx(true[step][1], rel=RIGHT), f"seed {seed}, {step}: {run.notes}"
