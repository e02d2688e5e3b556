"""Why an Ascend rank has no block: true of its files, and said of what is wrong and not of what is beside it."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from samples.generators.ascend import Job, no_marker, record
from samples.generators.pipeline import Block
from tests.conftest import Cli

SMALL = Job(2, 2, 1, hosts=1)


def named(block: Block) -> str:
    return f"compute {block.kind.lower()} of layer"


@pytest.mark.parametrize(
    ("job", "words"),
    [
        (replace(SMALL, marker=no_marker, level=None), "and no kernels of the device are recorded"),
        (
            replace(SMALL, marker=named, level=None),
            "(the most frequent names: compute b of layer, compute f of layer, compute opt of layer), and no kernels",
        ),
        (replace(SMALL, microbatches=1, marker=no_marker), "fewer than 2 forwards or fewer than 2 backwards"),
    ],
)
def test_the_reason_is_that_of_the_ranges_and_of_the_kernels(
    tmp_path: Path, run_cli: Cli, job: Job, words: str
) -> None:
    record(tmp_path, job)
    ended = run_cli(tmp_path)
    assert ended.returncode == 1
    assert words in ended.stderr
    assert "--marker 'REGEX=>F'" in ended.stderr


def test_a_capture_beside_it_is_not_the_reason(tmp_path: Path, run_cli: Cli) -> None:
    """A warning that an older capture was left out says nothing of why the latest has no block."""
    record(tmp_path, replace(SMALL, marker=no_marker, level=None))
    for capture in list(tmp_path.iterdir()):
        shutil.copytree(capture, tmp_path / capture.name.replace("20251127", "20251126"))
    said = run_cli(tmp_path).stderr
    assert "no pipeline blocks: no range is marked as a forward or a backward, and no kernels" in said


@pytest.mark.parametrize("text", [False, True])
@pytest.mark.parametrize("rules", [("absent=>F",), ("absent=>F", "gone=>B")])
def test_a_rule_that_matches_nothing_is_said(tmp_path: Path, run_cli: Cli, rules: tuple[str, ...], text: bool) -> None:
    record(tmp_path, replace(SMALL, marker=named, level=None, text=text))
    ended = run_cli(tmp_path, *(word for rule in rules for word in ("--marker", rule)))
    assert ended.returncode == 1
    assert all(f"--marker '{rule}' matches no name of a range" in ended.stderr for rule in rules)
