"""The picture of busy times: its axis, and bars, lines and dots where the axis has their values."""

from xml.etree import ElementTree

import polars as pl
import pytest

from trace_export.writers.overview import bands


def elements(stages: int) -> list[ElementTree.Element]:
    """Of the picture of stages whose times are 1, 2, 3 and 4 ms, and by the tenth of a ms more for each stage."""
    table = pl.DataFrame([(n, *(ms + n / 10 for ms in (1, 2, 3, 4))) for n in range(stages)],
                         ["stage", "p5", "p50", "p95", "max"], orient="row")  # fmt: skip
    return list(ElementTree.fromstring(bands.picture(table)).iter())


def test_marks_are_where_the_axis_has_their_values() -> None:
    result = elements(3)
    axis = [(float(e.text or ""), float(e.get("y", "")) - 4) for e in result if e.get("text-anchor") == "end"]
    assert 4 <= len(axis) <= 8
    (zero, bottom), (top, above) = axis[0], axis[-1]
    assert zero == 0 and top >= 4.2 and above < bottom

    def y(value: float) -> object:
        return pytest.approx(bottom + (above - bottom) * value / top, abs=0.11)  # coordinates have one decimal

    assert [at for _, at in axis] == [y(value) for value, _ in axis]
    bars = [e for e in result if e.tag == "rect"]
    assert [float(e.get("y", "")) for e in bars] == [y(3 + n / 10) for n in range(3)]
    assert [float(e.get("y", "")) + float(e.get("height", "")) for e in bars] == [y(1 + n / 10) for n in range(3)]
    lines = [e.get("d", "") for e in result if e.get("class") == "middle"]
    assert [float(line.split()[1].partition("h")[0]) for line in lines] == [y(2 + n / 10) for n in range(3)]
    assert [float(e.get("cy", "")) for e in result if e.tag == "circle"] == [y(4 + n / 10) for n in range(3)]
    left = float(next(e.get("d", "") for e in result if e.get("class") == "grid").partition(" ")[0].removeprefix("M"))
    third = (float(result[0].get("viewBox", "").split()[2]) - left) / 3  # a third of the axis for each stage
    centres = [float(e.get("cx", "")) for e in result if e.tag == "circle"]
    assert centres == pytest.approx([left + third * share for share in (0.5, 1.5, 2.5)], abs=0.11)


def test_of_many_stages_some_are_numbered() -> None:
    for stages, numbered in ((24, range(24)), (25, range(0, 25, 2)), (60, range(0, 60, 3))):
        result = elements(stages)
        assert [int(e.text or "") for e in result if e.get("text-anchor") == "middle"] == list(numbered)
        assert sum(e.tag == "rect" for e in result) == stages


def test_no_stage_has_no_picture() -> None:
    assert bands.picture(pl.DataFrame(schema=["stage", "p5", "p50", "p95", "max"])) == ""
