"""Timelines of launches, written as a row of tokens, for tests of the rules that find passes in them.

A small letter is a kernel of the calling thread, a capital one of the autograd engine's, each of 10 us; a figure after
it multiplies that. `+` is a sum of the calling thread, `1` its fill, `.` a wait of it, `,` another call, `|` a
transfer. `u` updates parameters, `g` and `G` are matrix products, `Q` is named like a kernel of a backward.
"""

import re

import numpy as np
import polars as pl

from trace_export.inference.kernel_names import KernelNames
from trace_export.inference.pieces import Cuts
from trace_export.inference.work import COMPUTE, TRANSFER, Work

MAIN, ENGINE = 1, 2
NAMES = {"+": "CUDAFunctor_add<float>", "1": "FillFunctor<float>", "u": "FusedAdam", "g": "gemm", "G": "gemm_wide",
         "n": "CUDAFunctor_add<int>", "Q": "norm_bwd"}  # fmt: skip
UNIT = 10_000


def work(text: str) -> Work:
    """The work of a process that launches what `text` says, one launch each 1,000 ns."""
    rows, calls = [], []
    for at, token in enumerate(text.split()):
        time = 1_000 * (at + 1)
        thread = ENGINE if token[0].isupper() else MAIN
        calls.append((time, thread, token == "."))
        if token in ".,":
            continue
        name, factor = re.fullmatch(r"(\D|1)(\d*)", token).groups()  # type: ignore[union-attr]
        length = UNIT * int(factor or 1)
        role, stream = (TRANSFER, 20) if token == "|" else (COMPUTE, 7)
        rows.append((time, thread, 10 * time, 10 * time + length, stream, NAMES.get(name, name), role))
    columns = list(zip(*rows, strict=True)) or [()] * 7
    names = list(dict.fromkeys(columns[5]))
    numbers = [np.array(column, np.int64) for column in columns[:5]]
    return Work(
        *numbers,
        np.array([names.index(name) for name in columns[5]], np.int32),
        np.array(columns[6], np.int8),
        KernelNames(pl.Series(names, dtype=pl.String)),
        pl.DataFrame(calls, {"start": pl.Int64, "thread": pl.Int64, "waits": pl.Boolean}, orient="row"),
    )


def cuts(text: str) -> Cuts:
    """The transfers in the text."""
    at = [1_000 * (n + 1) for n, token in enumerate(text.split()) if token == "|"]
    return Cuts("transfers", np.array(at, np.int64))
