"""CSV in pieces: the rows that Polars reads from the whole file, whatever the pieces, and no line without end."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trace_export.errors import SourceError
from trace_export.sources.shared import csv_table

cells = st.text(
    st.one_of(st.characters(exclude_characters="\r", exclude_categories=["Cs"]), st.sampled_from('\n"')), max_size=8
)
tables = st.lists(st.tuples(cells, cells, cells), min_size=1, max_size=12)


@settings(max_examples=50)
@given(tables, st.integers(1, 40), st.booleans())
def test_the_pieces_together_are_the_table(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[str, str, str]], piece: int, newline: bool
) -> None:
    path = tmp_path_factory.getbasetemp() / "table.csv"
    quoted = [",".join('"{}"'.format(cell.replace('"', '""')) for cell in row) for row in rows]
    path.write_text("\n".join(["one,two,three", *quoted]) + "\n" * newline)
    whole = pl.read_csv(path, infer_schema=False)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(csv_table, "PIECE_BYTES", piece)
        scan = csv_table.scan(path)
        assert scan.collect().equals(whole)
        assert scan.head(2).collect().equals(whole.head(2))
        assert scan.filter(pl.col("one") > "b").select("three").collect().equals(
            whole.filter(pl.col("one") > "b").select("three")
        )  # fmt: skip


def test_bytes_that_are_no_utf8_and_rows_of_other_lengths(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    path.write_bytes(b"\xef\xbb\xbfa,b,a\n1,2,3,4\n5\n\xff,\xb2\xe2,x\n")
    assert csv_table.scan(path).collect().rows() == [("1", "2", "3"), ("5", None, None), ("\ufffd", "\ufffd" * 2, "x")]
    assert csv_table.scan(path).collect_schema().names() == ["a", "b", "a_duplicated_0"]


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"a" * (1 << 20), "its first line is longer"),
        (b"a," * 5000, "its first line is longer"),
        (b"a,b\n1,2\n" + b"x" * (10 << 20), "holds a line of more than 1,048,576 bytes"),
        (b"a,b\n" + b"x" * (9 << 20) + b"\n1,2\n", "holds a line of more than 1,048,576 bytes"),
    ],
)
def test_lines_without_end_are_refused(content: bytes, why: str, tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    path.write_bytes(content)
    with pytest.raises(SourceError, match=why):
        csv_table.scan(path).collect()
