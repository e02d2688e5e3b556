"""Numbers of a column have the same decimals, and no more than they were rounded to."""

import polars as pl
import pytest

from trace_export.units import cells_of


@pytest.mark.parametrize(
    ("name", "values", "shown"),
    [
        ("busy ms", [147.5, 7.25], ["147.5", "7.2"]),
        ("late ms", [0.144, 0.0, None], ["0.144", "0.000", "–"]),
        ("change %", [-0.69, 0.07], ["-0.69", "0.07"]),
        ("change %", [1668.94, 4.3], ["1668.9", "4.3"]),
        ("ratio", [1.0443, 0.5], ["1.044", "0.500"]),
        ("ratio", [0.0004321, 0.0], ["0.000432", "0.000000"]),
    ],
)
def test_floats(name: str, values: list[float | None], shown: list[str]) -> None:
    assert cells_of(pl.Series(name, values)) == shown


def test_truth_and_text() -> None:
    assert cells_of(pl.Series("slow", [True, False, None]), no="") == ["yes", "", "–"]
