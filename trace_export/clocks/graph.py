"""Graphs over hosts: connected components and shortest paths."""

from __future__ import annotations

import numpy as np

from trace_export.clocks.linalg import check_memory
from trace_export.clocks.observations import Floats, Ints

FEW_NODES = 64
"""For at most this many nodes finding the paths is faster than importing scipy."""


class NegativeCycleError(ValueError):
    """A cycle of negative length: there are no shortest paths."""


def components(one: Ints, other: Ints, nodes: int) -> Ints:
    """The smallest node of each node's connected component; the edges are `one` – `other`."""
    label = np.arange(nodes)
    while True:
        least = np.minimum(label[one], label[other])
        before = label.copy()
        np.minimum.at(label, one, least)
        np.minimum.at(label, other, least)
        label = label[label]
        if np.array_equal(label, before):
            return label


def shortest(source: Ints, target: Ints, length: Floats, nodes: int, rows: Ints) -> Floats:
    """The length of the shortest path from each of `rows` to each node, inf if there is none.

    Edges may be negative, and there is at most one from a node to another. Raises NegativeCycleError.
    """
    if nodes > FEW_NODES:
        check_memory()
        from scipy.sparse import csgraph, csr_matrix

        try:
            return np.asarray(
                csgraph.johnson(csr_matrix((length, (source, target)), shape=(nodes, nodes)), indices=rows)
            )
        except csgraph.NegativeCycleError as error:
            raise NegativeCycleError from error
    far = np.full((nodes, nodes), np.inf)
    far[source, target] = length
    np.fill_diagonal(far, 0.0)
    for through in range(nodes):  # Floyd and Warshall
        np.minimum(far, far[:, through, None] + far[None, through], out=far)
    if (far.diagonal() < 0).any():
        raise NegativeCycleError
    return far[rows]
