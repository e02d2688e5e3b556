"""Micro-batches that ran in one direction only."""

from __future__ import annotations

import polars as pl
import pytest

from trace_export.model import PASSES, conform
from trace_export.pipeline.completeness import unpaired


def passes(words: str) -> pl.DataFrame:
    """`F0 B1 W2`, with `?` for an unknown micro-batch, of one rank and step."""
    rows = [(0, 0, 5, word[0], None if word[1:] == "?" else int(word[1:]), 0) for word in words.split()]
    columns = ["rank", "run", "step", "kind", "microbatch", "chunk"]
    return conform(pl.DataFrame(rows, schema=columns, orient="row"), PASSES)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("F0 F1 B0 B1", 0),
        ("F0 F1 B0 B2", 2),
        ("F0 F1 F2 B0 B1 B2", 0),
        ("F0 F1 F2 B0 B1 B3", 2),
        ("F0 F1 W0 B0 B1", 0),
        ("F0 F1 B0 B0 B1", 0),
        ("F0 F? B1 B2", 0),
    ],
)
def test_passes_without_a_counterpart(words: str, expected: int) -> None:
    assert unpaired(passes(words))["unpaired"].sum() == expected
