"""The indexes of ranks on their machines."""

from __future__ import annotations

import pytest

from trace_export.sources.shared.local_ranks import local_ranks


@pytest.mark.parametrize(
    ("ranks_of_host", "indexes"),
    [
        ([[0, 1], [2, 3]], [[0, 1], [0, 1]]),
        ([[1, 2, 3, 4, 5, 6, 7], [9, 15]], [[1, 2, 3, 4, 5, 6, 7], [1, 7]]),  # rank 0 was not recorded: blocks of 8
        ([[12, 13, 14, 15]], [[0, 1, 2, 3]]),
        ([[5, 6, 7]], [[1, 2, 3]]),
        ([[6, 7, 8, 9, 10, 11], [0, 1, 2, 3, 4, 5]], [[0, 1, 2, 3, 4, 5], [0, 1, 2, 3, 4, 5]]),
        ([[0, 2, 4], [1, 3, 5]], [[0, 1, 2], [0, 1, 2]]),  # no blocks: counted in order
        ([[3, 1]], [[3, 1]]),
        ([[None, None], [0, 1]], [[0, 1], [0, 1]]),
        ([], []),
    ],
)
def test_indexes(ranks_of_host: list[list[int | None]], indexes: list[list[int]]) -> None:
    pairs = [(f"node{n}", rank) for n, ranks in enumerate(ranks_of_host) for rank in ranks]
    found = local_ranks([host for host, _ in pairs], [rank for _, rank in pairs])
    assert found == [index for of_host in indexes for index in of_host]
