"""Calls of the autograd engine and the forwards that made their nodes, by sequence numbers."""

import numpy as np
import polars as pl

from tests.support.launches import ENGINE, MAIN
from trace_export.inference.sequence_numbers import OPERATORS, backward_calls, forward_ranges, numbered_passes
from trace_export.inference.threads import ENGINE_NODE, engine_threads

NODE = f"{ENGINE_NODE}: MmBackward0"


def operators(*rows: tuple[int, int, int, str, int | None]) -> pl.DataFrame:
    """thread, start, end, name, seq."""
    return pl.DataFrame(list(rows), OPERATORS, orient="row").sort("start", "end", descending=[False, True])


def nodes(*numbers: int | None, start: int = 0) -> list[tuple[int, int, int, str, int | None]]:
    return [(ENGINE, start + 10 * n, start + 10 * n + 5, NODE, number) for n, number in enumerate(numbers)]


def intervals(calls: pl.DataFrame) -> list[tuple[int, int]]:
    return calls.select("low", "high").rows()


def test_calls_of_the_engine_end_at_operators_and_at_higher_numbers() -> None:
    rows = [*nodes(9, 8, 7), (MAIN, 100, 105, "aten::add", None), *nodes(4, 5, 3, start=200)]
    assert intervals(backward_calls(operators(*rows), MAIN, np.zeros(0, np.int64))) == [(7, 9), (4, 4), (3, 5)]


def test_a_call_of_the_driver_separates_two_calls_of_the_engine() -> None:
    both = operators(*nodes(9, 8), *nodes(7, 6, start=200))
    assert intervals(backward_calls(both, MAIN, np.zeros(0, np.int64))) == [(6, 9)]
    assert intervals(backward_calls(both, MAIN, np.array([150]))) == [(8, 9), (6, 7)]


def test_nodes_without_a_number_say_nothing_and_calls_of_them_are_none() -> None:
    rows = [*nodes(None, 9, None, 8), (MAIN, 100, 105, "aten::add", None), *nodes(None, start=200)]
    assert intervals(backward_calls(operators(*rows), MAIN, np.zeros(0, np.int64))) == [(8, 9)]


def test_the_number_of_an_nvtx_node_is_that_of_its_function_inside() -> None:
    rows = [
        (ENGINE, 0, 50, NODE, None), (ENGINE, 5, 45, "MmBackward0", 12), (ENGINE, 10, 20, "aten::mm", 99),
        (ENGINE, 60, 90, NODE, None), (ENGINE, 65, 70, "MmBackward0", 11),
    ]  # fmt: skip
    assert intervals(backward_calls(operators(*rows), MAIN, np.zeros(0, np.int64))) == [(11, 12)]


def test_a_recomputation_inside_a_node_is_part_of_it() -> None:
    inside = [(ENGINE, 12, 13, "aten::mm", 500), (ENGINE, 13, 14, NODE, 501)]
    assert intervals(backward_calls(operators(*nodes(9, 8), *inside), MAIN, np.zeros(0, np.int64))) == [(8, 9)]


def test_a_forward_begins_with_the_last_operator_of_its_lowest_number() -> None:
    numbers = [6, 6, 7, 8, 9]
    rows = [(MAIN, 10 * n, 10 * n + 5, "aten::linear", number) for n, number in enumerate(numbers)]
    inner = (MAIN, 21, 23, "aten::mm", 7)
    comm = (MAIN, 11, 400, "c10d::send", 8)  # closed by another thread
    result = forward_ranges(operators(*rows, inner, comm), [(6, 8)])
    assert result.rows() == [("F", 10, 35, 0)]


def test_a_weight_gradient_extends_the_numbers_of_its_backward() -> None:
    """A module that is one product: the input gradient does not need the node of the transposed weight, whose number
    the product's operator has, too."""
    rows = [
        (MAIN, 0, 9, "aten::linear", 4), (MAIN, 1, 2, "aten::t", 4), (MAIN, 3, 8, "aten::addmm", 5),
        *nodes(5, start=100), (MAIN, 200, 205, "aten::detach_", 6), *nodes(5, 4, start=300),
    ]  # fmt: skip
    result = numbered_passes(operators(*rows), MAIN, np.zeros(0, np.int64))
    assert result is not None
    assert result.sort("start").select("kind", "start", "pair").rows() == [("F", 0, 0), ("B", 100, 0), ("W", 300, 0)]


def test_engine_threads_are_those_of_nodes_but_the_one_of_the_operators() -> None:
    rows = [(MAIN, 0, 5, "aten::mm", 3), (MAIN, 10, 15, NODE, 3), *nodes(2, 1)]
    assert engine_threads(operators(*rows)) == frozenset({ENGINE})
    assert engine_threads(operators()) == frozenset()
