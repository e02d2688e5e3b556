"""A heat map of ranks and steps as data for a page: two bytes for each value, in base64."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from math import floor, log10
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from trace_export.errors import printable

MOST_BYTES = 3_000_000
"""Of all values and row numbers; in base64 they take a third more, and the page is to stay below 5 MB."""
MOST_COLUMNS = 1000
"""Of more steps several share a column; a screen has no more pixels."""
DIGITS = 4
"""That the largest value is shown with; all values are kept as whole numbers of its last digit."""
MISSING = 65535


@dataclass(frozen=True)
class Quantity:
    """A column of the table of cells as something to show: `scale` makes a number of `unit` of it. `least`: what the
    colours cover at least, so that noise does not look like a difference."""

    column: str
    name: str
    unit: str
    scale: float = 1.0
    least: tuple[float, float] | None = None


@dataclass(frozen=True)
class HeatMap:
    """What the script draws. A cell is the largest value of `fold` ranks and `columns_fold` steps. `rows`: the row of
    each rank and its replica."""

    data: dict[str, Any]
    fold: int
    columns_fold: int
    rows: pl.DataFrame

    def of_rank(self, rank: int) -> tuple[int, int] | None:
        """The rows of a rank: the first, and the one after the last; None where it is not in the map."""
        return self._extent(pl.col("rank") == rank)

    def of_replica(self, replica: int) -> tuple[int, int] | None:
        """The same of a replica."""
        return self._extent(pl.col("replica") == replica)

    def _extent(self, which: pl.Expr) -> tuple[int, int] | None:
        rows = self.rows.filter(which)["row"]
        return None if rows.is_empty() else (int(rows[0]), int(rows[-1]) + 1)


def heat_map(cells: pl.DataFrame, ranks: pl.DataFrame, quantities: Sequence[Quantity]) -> HeatMap:
    """The map of `cells` (rank, run, step, replica, stage and the quantities' columns; sorted by rank as it is to be
    shown, then by step); `ranks` has the host of each rank."""
    shown = [q for q in quantities if cells[q.column].null_count() < len(cells)]
    rows = cells.select("rank", "replica", "stage").unique(maintain_order=True).with_row_index("row")
    steps = cells.select("run", "step").unique().sort("run", "step").with_row_index("column")
    columns_fold = -(-len(steps) // MOST_COLUMNS)
    columns = -(-len(steps) // columns_fold)
    fold = max(1, -(-len(rows) * (2 * columns * len(shown) + 14) // MOST_BYTES))
    at = cells.join(rows, on="rank", how="left", maintain_order="left").join(
        steps, on=["run", "step"], how="left", nulls_equal=True, maintain_order="left"
    )
    cell = at["row"].to_numpy() // fold, at["column"].to_numpy() // columns_fold
    size = -(-len(rows) // fold), columns
    first = rows.gather_every(fold).join(ranks.select("rank", "host"), on="rank", how="left", maintain_order="left")
    hosts = first["host"].unique(maintain_order=True).to_frame().with_row_index("n")
    numbers = first.join(hosts, on="host", how="left", nulls_equal=True, maintain_order="left")
    of_row = {name: numbers[name].fill_null(-1) for name in ("rank", "replica", "stage")} | {"host": numbers["n"]}
    data = {
        "rows": size[0], "columns": _names(steps, columns_fold), "fold": fold,
        "quantities": [_quantity(q, _grid(cells[q.column].to_numpy() * q.scale, cell, size)) for q in shown],
        **{name: _packed(values.to_numpy().astype(np.int32)) for name, values in of_row.items()},
        "hosts": [printable(host or "") for host in hosts["host"]],
    }  # fmt: skip
    return HeatMap(data, fold, columns_fold, rows.select("rank", "replica", pl.col("row") // fold))


def _names(steps: pl.DataFrame, fold: int) -> list[str]:
    several = steps["run"].n_unique() > 1
    names = [f"{run}: {step}" if several else str(step) for run, step in steps.select("run", "step").iter_rows()]
    return [
        name if fold == 1 else f"{name} … {names[min(at * fold + fold, len(names)) - 1]}"
        for at, name in enumerate(names[::fold])
    ]


def _grid(
    values: NDArray[np.float64], cell: tuple[NDArray[Any], NDArray[Any]], size: tuple[int, int]
) -> NDArray[np.float64]:
    """The largest value of each cell, NaN where there is none."""
    grid = np.full(size, -np.inf)
    measured = ~np.isnan(values)
    np.maximum.at(grid, (cell[0][measured], cell[1][measured]), values[measured])
    grid[np.isneginf(grid)] = np.nan
    return grid


def _quantity(quantity: Quantity, grid: NDArray[np.float64]) -> dict[str, Any]:
    """Its values from the least on, as whole numbers of the last digit of the largest: so what is shown of a value is
    the value, rounded."""
    low, high = float(np.nanmin(grid)), float(np.nanmax(grid))
    if quantity.least is not None:
        low, high = min(low, quantity.least[0]), max(high, quantity.least[1])
    decimals = DIGITS - 1 - floor(log10(max(abs(low), abs(high), 1e-3)))
    first, last = (round(end * 10.0**decimals) for end in (low, high))
    steps = np.nan_to_num(grid * 10.0**decimals).round() - first
    codes = np.where(np.isnan(grid), MISSING, steps).astype("<u2")
    return {
        "name": quantity.name, "unit": quantity.unit, "decimals": decimals, "first": first, "last": last,
        "values": _packed(codes),
    }  # fmt: skip


def _packed(values: NDArray[Any]) -> str:
    return base64.b64encode(np.ascontiguousarray(values).tobytes()).decode()
