"""The device work of processes without named passes, as inference wants it: the same for all profilers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import polars as pl

from trace_export.inference.kernel_names import KernelNames
from trace_export.inference.work import COMPUTE, OTHER, TRANSFER, Work, join
from trace_export.sources.shared.names import COMMUNICATION, GENERIC, SENDS

LONGEST = 4000
"""Characters of a kernel's name with its template arguments, in which PyTorch names the functor."""
DEVICE_CALLS = ("*Launch*", "*Memcpy*", "*Memset*", "*StreamWaitEvent*", "*Synchronize*")
"""How calls of CUDA and HIP are named that give the device something to do or to wait for, or wait for it, after their
`cu` or `hip`."""


def work_of(calls: pl.DataFrame, tasks: pl.DataFrame, names: KernelNames, between: pl.Series | None = None) -> Work:
    """The work of a process: its `calls` (CALLS) and `tasks` (TASKS but `role`; `name` is a row of `names`).

    The role of a task follows from its name, and for NCCL's from `between`: whether the framework, or the call before
    the launch, says that it is between two ranks (null, or None for all: nothing says it).

    | name | between two ranks | otherwise | nothing says it |
    |---|---|---|---|
    | of no communication | compute | compute | compute |
    | of a send or receive | transfer | left out | transfer |
    | RCCL's for most operations | transfer | left out | left out |
    | of another collective | left out | left out | left out |
    """
    codes = tasks["name"].to_numpy()
    moves, sends, generic = (names.texts.str.contains(p).to_numpy()[codes] for p in (COMMUNICATION, SENDS, GENERIC))
    if between is not None:
        said, unsaid = between.fill_null(False).to_numpy(), between.is_null().to_numpy()
        sends = (sends & unsaid) | ((sends | generic) & said)
    role = np.where(moves, np.where(sends, TRANSFER, OTHER), COMPUTE).astype(np.int8)
    kept = tasks.with_columns(pl.Series("role", role))
    work = join(calls, kept.filter(role != OTHER) if (role == OTHER).any() else kept, names)
    return replace(work, counts=work.counts._replace(lost=_lost(calls, tasks)))


def _lost(calls: pl.DataFrame, tasks: pl.DataFrame) -> int:
    """How many kernels were launched before the last one that is there, and are not."""
    ran = pl.col("correlation").is_in(tasks["correlation"].implode())
    launches = calls.filter("launches", pl.col("correlation") >= 0).select("start", ran=ran)
    last = pl.col("start").filter("ran").max()
    return int(launches.select((~pl.col("ran") & (pl.col("start") < last)).sum()).item())


def coded(names: pl.Series) -> tuple[pl.Series, pl.Series]:
    """The distinct names in order, and the row there of each."""
    distinct = names.unique().sort()
    codes = distinct.search_sorted(names) if len(distinct) else pl.Series([])
    return distinct, codes.cast(pl.Int32).alias("name")
