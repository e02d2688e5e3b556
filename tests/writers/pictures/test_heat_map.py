"""The heat map: a cell of the right shade for each value, where it belongs, with its number if there is room."""

from pathlib import Path
from xml.etree import ElementTree

import polars as pl
import pytest

from trace_export.writers.pictures.heat_map import SHADES, draw, shade
from trace_export.writers.pictures.picture import write_still
from trace_export.writers.pictures.svg import Still

SVG = "{http://www.w3.org/2000/svg}"


def drawn(rows: int, columns: int, *remarks: str) -> Still:
    """Values from 1 upwards by hundredths, row by row; none in the first cell."""
    values: list[list[float | None]] = [[1 + (row * columns + c) / 100 for c in range(columns)] for row in range(rows)]
    values[0][0] = None
    grid = pl.DataFrame(values, [str(n) for n in range(columns)], orient="row")
    return draw("a <run>", grid.select(pl.int_range(pl.len()).alias("stage"), pl.all()), remarks)


def cells(root: ElementTree.Element) -> list[tuple[float, float, str]]:
    """x, y, fill of every cell."""
    group = next(g for g in root.iter(f"{SVG}g") if g.get("class") == "n")
    return [(float(r.get("x", "")), float(r.get("y", "")), r.get("fill", "")) for r in group.iter(f"{SVG}rect")]


def test_shades() -> None:
    """Six shades between the ends of the scale, which take what lies beyond."""
    result = [SHADES.index(shade(value, 1.5)) for value in (0.5, 1.0, 1.04, 1.06, 1.25, 1.44, 1.5, 9.0)]
    assert result == [0, 0, 0, 1, 2, 4, 5, 5]


def test_cells_stand_in_rows_and_columns() -> None:
    root = ElementTree.fromstring(drawn(3, 20).text)
    result = cells(root)
    assert len(result) == 3 * 20 - 1
    xs, ys = sorted({x for x, _, _ in result}), sorted({y for _, y, _ in result})
    assert (len(xs), len(ys)) == (20, 3)
    names = [float(text.get("y", "")) for text in root.iter(f"{SVG}text") if text.get("class") == "end"]
    assert names == pytest.approx([y + (ys[1] - ys[0]) / 2 + 4 for y in ys], abs=0.1)  # a name in the middle of its row
    assert [fill for _, _, fill in result] == [shade(1 + n / 100, 1.5) for n in range(1, 60)]
    numbers = [text.text for g in root.iter(f"{SVG}g") for text in g.iter(f"{SVG}text")]
    assert numbers == [f"{1 + n / 100:.2f}" for n in range(1, 60)]


@pytest.mark.parametrize(("rows", "columns"), [(2, 300), (200, 2), (64, 1024)])
def test_many_cells_have_colours_only(rows: int, columns: int) -> None:
    still = drawn(rows, columns, "a remark")
    root = ElementTree.fromstring(still.text)
    result = cells(root)
    assert len(result) == rows * columns - 1
    assert max(x for x, _, _ in result) < still.width
    assert max(y for _, y, _ in result) < still.height
    assert not [text for g in root.iter(f"{SVG}g") for text in g.iter(f"{SVG}text")]
    assert "a remark" in still.text


def test_png(tmp_path: Path) -> None:
    write_still(drawn(2, 3), tmp_path / "a.png", "png")
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    write_still(drawn(2, 3), tmp_path / "a.svg", "svg")
    assert ElementTree.fromstring((tmp_path / "a.svg").read_text()).tag == f"{SVG}svg"
