"""A watch of a folder in which the profile of any format grows ends with what the finished profile says."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from samples.generators import kineto, nsys
from tests.faults.inputs import INPUTS
from tests.live.test_look import looks
from trace_export import load
from trace_export.live import growth

PARTS = 2
COLUMNS = ["rank", "kind", "step", "microbatch", "start_ns", "end_ns"]


def make(kind: str, folder: Path) -> Path:
    """The file that the reader of a format reads first."""
    if kind == "kineto":  # the tiny input has no whole step
        blocks = nsys.blocks_of(1, 4, 2, random.Random(1))
        kineto.record(folder, blocks, random.Random(2), nsys.Dialect())
        return next(folder.iterdir())
    folder.mkdir()
    INPUTS[kind].make(folder)
    return next(folder.rglob(INPUTS[kind].files[0]))


@pytest.mark.parametrize("kind", INPUTS)
def test_a_profile_that_grows(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is written in parts; each is looked at as if it were finished."""
    monkeypatch.setattr(growth, "QUIET_S", 0.0)
    monkeypatch.setattr(growth, "FIND_S", 0.0)
    file = make(kind, tmp_path / "run")
    whole = file.read_bytes()
    file.write_bytes(b"")

    def grow(part: int) -> None:
        file.write_bytes(whole[: len(whole) * part // PARTS])

    parts = range(1, PARTS + 1)
    last = looks(file.parent, [lambda part=part: grow(part) for part in parts], last=50)[-1]  # type: ignore[misc]
    assert (last.problem, last.failures) == ("", ())
    assert last.run is not None
    expected = load(file.parent).align().spans.select(COLUMNS).sort(COLUMNS)
    assert last.run.spans.select(COLUMNS).sort(COLUMNS).equals(expected)
