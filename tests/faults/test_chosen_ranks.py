"""A rank that is chosen comes out of every format as it does among all, and no other one does."""

from pathlib import Path

import pytest

import trace_export
from tests.faults.inputs import INPUTS
from trace_export.errors import TraceExportError

LABELS = ["stage", "chunk", "microbatch", "step"]
"""What the program finds out from all ranks together."""


@pytest.mark.parametrize("kind", INPUTS)
def test_a_chosen_rank(kind: str, tmp_path: Path) -> None:
    INPUTS[kind].make(tmp_path)
    whole = trace_export.load(tmp_path)
    for rank in whole.ranks["rank"].to_list()[:2]:
        chosen = trace_export.load(tmp_path, ranks=str(rank))
        assert chosen.ranks["rank"].to_list() == [rank]
        drop = ["id", *(name for name in LABELS if name in whole.spans.columns)]
        expected = whole.spans.filter(rank=rank).drop(drop)
        assert expected.height
        assert chosen.spans.drop(drop).equals(expected)
    with pytest.raises(TraceExportError):
        trace_export.load(tmp_path, ranks="999")
