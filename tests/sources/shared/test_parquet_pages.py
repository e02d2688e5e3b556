"""The sizes that a Parquet file states are checked before Polars believes them."""

from io import BufferedReader
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.texts import CHARACTERS
from trace_export.sources.shared.parquet_pages import checked

FRAME = pl.DataFrame({"rank": [0, 1, 2, 3, 4]}, schema={"rank": pl.Int64})


def check(path: Path) -> None:
    with path.open("rb") as file:
        assert isinstance(file, BufferedReader)
        assert checked(file).tell() == 0


@settings(max_examples=30)
@given(
    numbers=st.lists(st.none() | st.integers(-(2**63), 2**63 - 1), max_size=300),
    text=st.text(CHARACTERS, max_size=20),
    options=st.fixed_dictionaries({
        "compression": st.sampled_from(["zstd", "snappy", "gzip", "lz4", "uncompressed"]),
        "row_group_size": st.integers(1, 400), "data_page_size": st.integers(1, 5000), "statistics": st.booleans(),
    }),
)  # fmt: skip
def test_what_polars_writes_is_possible(
    numbers: list[int | None], text: str, options: dict[str, Any], tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("parquet") / "a.parquet"
    rows = [[text * (n % 3)] for n in range(len(numbers))]
    frame = pl.DataFrame({"a": numbers, "b": rows}, schema={"a": pl.Int64, "b": pl.List(pl.String)})
    frame.with_columns(c=pl.col("b").list.first().cast(pl.Categorical)).write_parquet(path, **options)
    check(path)


def test_a_page_of_a_negative_number_of_values(tmp_path: Path) -> None:
    """Polars would ask for 2^61 bytes, and the process would be ended."""
    path = tmp_path / "a.parquet"
    FRAME.write_parquet(path, compression="uncompressed", statistics=False)
    content = path.read_bytes()
    values = b"\x2c\x15\x0a"  # of PageHeader the struct DataPageHeader, its first field, 5 in zigzag
    assert content.count(values) == 1
    check(path)
    for wrong in (b"\x2c\x15\x09", b"\x2c\x15\x0c"):  # -5 and 6
        path.write_bytes(content.replace(values, wrong))
        with pytest.raises(pl.exceptions.ComputeError, match="damaged pages"):
            check(path)


def test_every_cut_and_every_flipped_byte_is_an_error_or_possible(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    FRAME.write_parquet(path)
    content = path.read_bytes()
    refused = 0
    for at in range(len(content)):
        for damaged in (content[:at], content[:at] + bytes([content[at] ^ 0xFF]) + content[at + 1 :]):
            path.write_bytes(damaged)
            try:
                check(path)
            except pl.exceptions.ComputeError:
                refused += 1
    assert refused > len(content)
