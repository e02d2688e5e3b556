"""Distinct texts, and records of several sizes in the order of their rows."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trace_export.writers.traces.packing import Rows, Shapes, Words, distinct

TEXTS = st.lists(st.none() | st.sampled_from(["", "b", "a", "ä", "a b"]))


@pytest.mark.parametrize("dtype", [pl.String(), pl.Categorical(), pl.Enum(["b", "", "a b", "x", "ä", "a"])])
@given(texts=TEXTS)
def test_codes_lead_to_the_texts(dtype: pl.DataType, texts: list[str | None]) -> None:
    codes, place, found = distinct(pl.Series(texts, dtype=dtype))
    assert found == sorted({text for text in texts if text is not None})
    assert len(codes) == len(texts)
    for code, text in zip(codes, texts, strict=True):
        assert place[code] < max(1, len(found))
        assert text is None or found[place[code]] == text


@given(sizes=st.lists(st.integers(0, 3), min_size=1))
def test_records_of_several_sizes_keep_the_order_of_rows(sizes: list[int]) -> None:
    shapes = Shapes(len(sizes))
    shapes.add(np.array(sizes), 4)

    def build(rows: Rows, example: int) -> Words:
        numbers = np.arange(len(sizes))[rows]
        return np.repeat(numbers[:, None], sizes[example] + 1, axis=1).astype(np.uint64)

    assert shapes.interleave(build).tolist() == [row for row, size in enumerate(sizes) for _ in range(size + 1)]
