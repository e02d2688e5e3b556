"""The gain that `report` predicts for a planted cause is what the same run takes less without it."""

import random
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from samples.generators import ascend, kineto, nsys, rocpd
from samples.generators.pipeline import MS, Block
from trace_export import Report, api

CLOSE = 0.05


def step_ns(blocks: Iterable[Block]) -> float:
    """The mean time of a step from its first start to its last end."""
    steps: dict[int, tuple[int, int]] = {}
    for block in blocks:
        start, end = steps.get(block.step, (block.start_ns, block.end_ns))
        steps[block.step] = min(start, block.start_ns), max(end, block.end_ns)
    return sum(end - start for start, end in steps.values()) / len(steps)


def read(folder: Path) -> Report:
    return api.report(folder, jobs=1).report


def check(report: Report, expected: dict[str, Any], gain_ns: float) -> None:
    first = report.causes.row(0, named=True)
    assert {name: first[name] for name in expected} == expected
    assert first["gain_ns"] == pytest.approx(gain_ns, rel=CLOSE)


CAUSES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "kineto": ({"late": {4: 3 * MS}}, {"code": "late-rank", "ranks": [4]}),
    "rocpd": ({"late": {4: 3 * MS}}, {"code": "late-rank", "ranks": [4]}),
}
"""What is planted, and the first cause that is to be named. `tests/verdicts` has other causes; who starts late is seen
in what the host did."""
PROFILERS = {"kineto": kineto, "rocpd": rocpd}


@pytest.mark.parametrize("profiler", CAUSES)
def test_in_profiles_of_gpus(profiler: str, tmp_path: Path) -> None:
    causes, expected = CAUSES[profiler]
    slow = PROFILERS[profiler].write_planted(tmp_path, replace(nsys.TIMING, **causes))
    sound = nsys.planted(nsys.TIMING, random.Random(1)).blocks
    check(read(tmp_path), expected, step_ns(slow) - step_ns(sound))


BOTH_WAYS = {(1, 2): 6 * MS, (2, 1): 6 * MS}


@pytest.mark.parametrize(
    ("causes", "expected"),
    [
        ({"slow_links": BOTH_WAYS}, {"code": "slow-link", "src_rank": 1, "dst_rank": 2, "direction": None}),
        ({"late": {1: 3 * MS}}, {"code": "late-rank", "ranks": [1]}),
    ],
    ids=["link", "host"],
)
def test_in_text_exports_of_mindspore(
    causes: dict[str, Any], expected: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sound = ascend.write(tmp_path / "sound", text=True)
    monkeypatch.setattr(ascend, "TIMING", replace(ascend.TIMING, **causes))
    slow = ascend.write(tmp_path / "slow", text=True)
    check(read(tmp_path / "slow"), expected, step_ns(slow) - step_ns(sound))
