"""Texts by combination of values, against the same expression on every row."""

from __future__ import annotations

from unittest import mock

import polars as pl
from hypothesis import given, settings
from hypothesis import strategies as st

from trace_export.chart import texts
from trace_export.chart.block_names import NAMED_BY, block_name
from trace_export.chart.texts import by_combination
from trace_export.model import SPANS

NUMBER = st.none() | st.integers(0, 3) | st.sampled_from([-(2**31), 2**31 - 1])
ROWS = st.lists(
    st.fixed_dictionaries(
        {
            "kind": st.sampled_from([None, "F", "B", "FB", "OPT"]),
            "marker": st.sampled_from([None, "forward", "sync"]),
            **dict.fromkeys(("microbatch", "chunk", "microbatch_b", "chunk_b"), NUMBER),
        }
    ),
    max_size=12,
)


@settings(max_examples=40)
@given(ROWS, st.booleans(), st.sampled_from([1, 50, 1 << 20]))
def test_names_are_those_of_each_row_by_itself(rows: list[dict[str, object]], chunks: bool, most: int) -> None:
    dtype = pl.Categorical(pl.Categories.random())
    columns = ("kind", "marker", "microbatch", "chunk", "microbatch_b", "chunk_b")
    blocks = pl.DataFrame(rows, {name: SPANS[name] for name in columns})
    coded = blocks.with_columns(pl.col(pl.String).cast(dtype))
    with mock.patch.object(texts, "MOST_COMBINATIONS", most):
        found = by_combination(coded, NAMED_BY, block_name(chunks), dtype)
    assert found.dtype == dtype
    assert found.to_list() == blocks.select(block_name(chunks)).to_series().to_list()


def test_without_keys_all_rows_have_one_text() -> None:
    dtype = pl.Categorical(pl.Categories.random())
    rows = pl.DataFrame({"rank": [0, 1, 2]})
    assert by_combination(rows, [], pl.lit("block").alias("category"), dtype).to_list() == ["block"] * 3
    assert by_combination(rows.clear(), [], pl.lit("block").alias("category"), dtype).to_list() == []
