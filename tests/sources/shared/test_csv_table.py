"""CSV: the rows that Polars reads from the whole file, of any bytes, and no header without end."""

from pathlib import Path

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.rows import examples
from trace_export.errors import SourceError
from trace_export.sources.shared import csv_table

cells = st.text(
    st.one_of(st.characters(exclude_characters="\r", exclude_categories=["Cs"]), st.sampled_from('\n"')), max_size=8
)
tables = st.lists(st.tuples(cells, cells, cells), min_size=1, max_size=12)


@examples(20)
@given(tables, st.booleans())
def test_the_rows_are_those_of_the_table(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[str, str, str]], newline: bool
) -> None:
    path = tmp_path_factory.getbasetemp() / "table.csv"
    quoted = [",".join('"{}"'.format(cell.replace('"', '""')) for cell in row) for row in rows]
    path.write_text("\n".join(["one,two,three", *quoted]) + "\n" * newline)
    whole = pl.read_csv(path, infer_schema=False)
    scan = csv_table.scan(path)
    assert scan.collect().equals(whole)
    assert scan.head(2).collect().equals(whole.head(2))
    assert scan.filter(pl.col("one") > "b").select("three").collect().equals(
        whole.filter(pl.col("one") > "b").select("three")
    )  # fmt: skip


def test_a_quoted_line_break_is_part_of_its_row_wherever_it_stands(tmp_path: Path) -> None:
    """In files of more than 8 MB, too."""
    path = tmp_path / "table.csv"
    row = '1,"two\nlines","x""y"\n' + "2,plain,\n" * 6
    path.write_text("a,b,c\n0,,\n" + row * 120_000)
    result = csv_table.scan(path).select("b").collect()["b"]
    assert result.len() == 1 + 7 * 120_000
    assert (result == "two\nlines").sum() == 120_000


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
    ],
)
def test_headers_without_end_are_refused(content: bytes, why: str, tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    path.write_bytes(content)
    with pytest.raises(SourceError, match=why):
        csv_table.scan(path).collect()
