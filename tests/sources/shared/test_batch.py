"""What each of many sources has, of tables of all."""

from __future__ import annotations

import polars as pl
from hypothesis import given, settings
from hypothesis import strategies as st

from trace_export.model import HOSTS, RANKS, SPANS, Profile, conform
from trace_export.sources.shared.batch import split


def profile(numbers: list[int], hosts: list[str], blocks: list[list[int]]) -> Profile:
    """Sources with these numbers of their rank, hosts and starts of blocks."""
    places = range(len(numbers))
    spans = [(number, start) for number, own in zip(numbers, blocks, strict=True) for start in own]
    return Profile(
        hosts=conform(pl.DataFrame({"host": pl.Series(hosts, dtype=pl.String)}), HOSTS),
        ranks=conform(pl.DataFrame({"rank": pl.Series(numbers, dtype=pl.Int32), "device": list(places)}), RANKS),
        spans=conform(pl.DataFrame(spans, {"rank": pl.Int32, "start_ns": pl.Int64}, orient="row"), SPANS),
    )


@settings(max_examples=40)
@given(st.lists(st.tuples(st.integers(0, 3), st.sampled_from("ab"), st.lists(st.integers(0, 9), max_size=3))))
def test_each_has_its_own_rows_in_their_order(sources: list[tuple[int, str, list[int]]]) -> None:
    """Numbers of ranks and names of hosts may come twice."""
    numbers, hosts, blocks = ([source[i] for source in sources] for i in range(3))
    whole = profile(list(range(len(sources))), hosts, blocks)
    parts = split(whole, numbers, range(len(numbers))) if sources else []
    assert len(parts) == len(sources)
    for place, (number, host, starts) in enumerate(sources):
        alone = profile([number], [host], [starts]).ranks.with_columns(device=pl.lit(place, pl.Int32))
        assert parts[place].hosts["host"].to_list() == [host]
        assert parts[place].ranks.equals(alone)
        assert parts[place].spans.select("rank", "start_ns").rows() == [(number, start) for start in starts]
        parts[place].validate()
