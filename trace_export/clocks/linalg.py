"""Matrices of the clock fit: dense for a few hosts, sparse for many.

Dense and sparse ones have the same operators (+, -, @, .T). scipy is imported only where there is a sparse one, because
its import takes longer than the fit of a few hosts.
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
"""OpenBLAS allocates this much for each of its threads when it is loaded."""


def matrix(rows: Ints, columns: Ints, values: Floats, shape: tuple[int, int], *, dense: bool) -> Matrix:
    """The matrix with `values` at (`rows`, `columns`), summed where several meet."""
    if dense:
        flat = np.bincount((rows * shape[1] + columns).ravel(), values.ravel(), shape[0] * shape[1])
        return flat.reshape(shape)
    check_memory()
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


def check_memory() -> None:
    """Raises MemoryError where there is no memory for the buffers of the OpenBLAS in scipy.

    OpenBLAS repeats a failed allocation without end, so that under a memory limit the program would hang in the import
    of scipy instead of failing (tests/faults/test_memory.py shows both). Allocating as much first makes it fail.
    """
    threads = int(os.environ.get("OPENBLAS_NUM_THREADS") or os.cpu_count() or 1)
    np.empty((threads + 2) * BLAS_BUFFER_BYTES, np.uint8)
