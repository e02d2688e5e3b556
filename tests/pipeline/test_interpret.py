"""Interpretation as a whole: each fact of the pipeline is worked out once, whatever asks for it."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from tests.support.command import command
from trace_export.analysis import bubbles
from trace_export.pipeline import edges, passes, replicas, schedule_match, stages
from trace_export.steps import build, idle

FACTS = {
    "passes": passes.passes_of,
    "edges": edges.pass_edges,
    "placement": stages.chunk_placement,
    "replicas": replicas.number_replicas,
    "schedule": schedule_match.recognise,
    "windows of ranks": bubbles._windows,
    "measured graph": build.build,
    "causes of gaps": idle.idle,
}


def calls(functions: dict[str, Callable[..., Any]], run: Callable[[], None]) -> dict[str, int]:
    """How often each of `functions` is called by `run`, by whatever name."""
    names = {function.__code__: name for name, function in functions.items()}
    found: Counter[str] = Counter(dict.fromkeys(functions, 0))

    def count(frame: FrameType, event: str, argument: object) -> None:
        if event == "call" and frame.f_code in names:
            found[names[frame.f_code]] += 1

    sys.setprofile(count)
    try:
        run()
    finally:
        sys.setprofile(None)
    return dict(found)


@pytest.mark.parametrize("sample", ["nsys", "paddle/two_machines"])
def test_each_fact_is_worked_out_once(samples: Path, sample: str, tmp_path: Path) -> None:
    """Traces, pictures, bubbles, the model, arrows, the fit of the clocks and the labels of messages all need them."""
    drawn = ["--format", "perfetto,chrome,svg,html,parquet", "--bubbles", "--model", "--steps", "0-3"]
    arguments = ["export", str(samples / sample), *drawn, "--out", str(tmp_path), "--jobs", "1"]

    def export() -> None:
        result = command(*arguments)
        assert result.returncode == 0, result.stderr

    assert calls(FACTS, export) == dict.fromkeys(FACTS, 1)
