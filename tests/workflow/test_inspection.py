"""The sentence that says whether profiles can be drawn."""

from __future__ import annotations

from pathlib import Path

import trace_export
from tests.support.torch_traces import one_block


def test_one_of_each_is_no_plural(tmp_path: Path) -> None:
    one_block().write(tmp_path / "rank0.json")
    assert ", 1 stage, 1 micro-batch, 1 step" in trace_export.inspect(tmp_path).verdict
