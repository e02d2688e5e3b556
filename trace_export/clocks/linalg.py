"""Matrices of the clock fit: dense for a few hosts, where a sparse one is nothing but overhead, sparse for many.

Dense and sparse ones know the same operators (+, -, @, .T). scipy is imported only where there is a sparse one.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from trace_export.clocks.observations import Floats, Ints

Matrix = Any
"""A dense array or a sparse array of scipy."""

BLAS_BUFFER_BYTES = 32 << 20


def matrix(rows: Ints, columns: Ints, values: Floats, shape: tuple[int, int], *, dense: bool) -> Matrix:
    """The matrix with `values` at (`rows`, `columns`), summed where several meet."""
    if dense:
        flat = np.bincount((rows * shape[1] + columns).ravel(), values.ravel(), shape[0] * shape[1])
        return flat.reshape(shape)
    check_room()
    import scipy.sparse as sparse

    return sparse.csr_matrix((values.ravel(), (rows.ravel(), columns.ravel())), shape=shape)


def bordered(inner: Matrix, border: Matrix, diagonal: Floats) -> Matrix:
    """The symmetric sparse matrix [[inner, borderᵀ], [border, diagonal]]."""
    import scipy.sparse as sparse

    return sparse.bmat([[inner, border.T], [border, sparse.diags(diagonal)]])


def solver(symmetric: Matrix) -> Callable[[Floats], Floats]:
    """The function that solves `symmetric` @ x = right, for one right side or for several as columns."""
    if isinstance(symmetric, np.ndarray):
        return lambda right: np.asarray(np.linalg.solve(symmetric, right))
    from scipy.sparse.linalg import splu

    factors = splu(symmetric.tocsc(), permc_spec="MMD_AT_PLUS_A", options={"SymmetricMode": True})
    return lambda right: np.asarray(factors.solve(right))


def check_room() -> None:
    """Raises MemoryError where there is no room for scipy: the OpenBLAS in it takes a buffer for each of its threads,
    and where there is no memory for one it asks for ever."""
    threads = int(os.environ.get("OPENBLAS_NUM_THREADS") or os.cpu_count() or 1)
    np.empty((threads + 2) * BLAS_BUFFER_BYTES, np.uint8)
