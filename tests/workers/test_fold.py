"""Reductions on this machine: the results of all items in their order; few are ever held."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.held import Held, failure, hold, join
from tests.support.worker_tasks import tasks
from trace_export.workers.sizing import Workers
from trace_export.workers.work import MOST, Fold, reduce


@given(st.integers(0, 300), st.randoms(use_true_random=False))
def test_results_in_any_order_are_merged_in_that_of_their_items(count: int, chance: object) -> None:
    """Each is begun when it may, and ends whenever it likes; at most `MOST` are there at a time, begun or merged."""
    fold, begun, running = Fold[list[int]](lambda parts: [n for part in parts for n in part], count), 0, []
    while begun < count or running:
        while begun < count and fold.may_begin(begun):
            running.append(begun)
            begun += 1
        index = running.pop(chance.randrange(len(running)))  # type: ignore[attr-defined]
        fold.put(index, [index])
        assert len(fold.waiting) + len(fold.merged) + len(running) <= MOST
    assert fold.result() == list(range(count))


@pytest.mark.parametrize("workers", [Workers(1), Workers(3)])
def test_no_process_holds_more_than_32_results(workers: Workers) -> None:
    """Although the first item ends late, and the merged result is one of them."""
    names = ["slow0.5", *(f"t{n}" for n in range(150))]
    before = Held.now
    Held.most = 0
    result = reduce(hold, tasks(*names), workers, join, failure)
    assert result.names == tuple(names)
    assert Held.most - before <= MOST


@pytest.mark.parametrize("workers", [Workers(1), Workers(2)])
def test_an_item_with_an_error_is_what_failed_makes_of_it(workers: Workers) -> None:
    result = reduce(hold, tasks("a", "refuse", "b"), workers, join, failure)
    assert result.names == ("a", "refuse failed", "b")


def test_a_process_that_dies_costs_its_item_only() -> None:
    result = reduce(hold, tasks("a", "killed", "b"), Workers(2), join, failure)
    assert result.names == ("a", "killed failed", "b")


def test_of_nothing_nothing_is_merged() -> None:
    assert reduce(hold, [], Workers(1), join, failure).names == ()
