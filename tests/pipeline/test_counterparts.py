"""Micro-batches that ran in one direction only."""

from __future__ import annotations

import polars as pl
import pytest

from trace_export.model import SPANS, conform
from trace_export.pipeline.counterparts import unpaired


def blocks(words: str) -> pl.DataFrame:
    """`F0 B1 F2+B3`, with `?` for an unknown micro-batch, of one rank and step."""
    rows = []
    for word in words.split():
        first, _, second = word.partition("+")
        number = None if first[1:] == "?" else int(first[1:])
        other = int(second[1:]) if second else None
        rows.append((0, 0, 5, "FB" if second else first[0], number, other))
    columns = ["rank", "run", "step", "kind", "microbatch", "microbatch_b"]
    return conform(pl.DataFrame(rows, schema=columns, orient="row"), SPANS)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("F0 F1 B0 B1", 0),
        ("F0 F1 B0 B2", 2),
        ("F0 F1 F2+B0 B1 B2", 0),
        ("F0 F1 F2+B0 B1 B3", 2),
        ("F0 F1 W0 B0 B1", 0),
        ("F0 F1 B0 B0 B1", 0),
        ("F0 F? B1 B2", 0),
    ],
)
def test_blocks_without_a_counterpart(words: str, expected: int) -> None:
    assert unpaired(blocks(words))["unpaired"].sum() == expected
