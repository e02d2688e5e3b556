"""GPU work joined with its launches, of a process in which no pass is named."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import polars as pl

from trace_export.inference.kernel_names import COMMUNICATION, GENERIC, GRAPH, SENDS, Bools, Codes, KernelNames
from trace_export.stream_order import begins_too_early, possible_ends

Ints = npt.NDArray[np.int64]

COMPUTE, TRANSFER, OTHER = range(3)
"""Roles of device work: kernels and graphs; kernels that send or receive; the rest."""

CALLS = {
    "start": pl.Int64(), "thread": pl.Int64(), "correlation": pl.Int64(), "waits": pl.Boolean(),
    "launches": pl.Boolean(),
}  # fmt: skip
"""Calls that concern the device, of any thread. `waits`: whether the call waits for the device; `launches`: whether it
launches a kernel, false of all where graphs run, into which kernels are captured that never run themselves."""
TASKS = {
    "correlation": pl.Int64(), "start": pl.Int64(), "end": pl.Int64(), "stream": pl.Int64(), "name": pl.Int32(),
    "role": pl.Int8(),
}  # fmt: skip
"""Device work: `name` is a row of the names beside it, `role` one of those above."""


LONGEST = 4000
"""Characters of a kernel's name with its template arguments, in which PyTorch names the functor."""
DEVICE_CALLS = ("*Launch*", "*Memcpy*", "*Memset*", "*StreamWaitEvent*", "*Synchronize*")
"""How calls of CUDA and HIP are named that give the device something to do or to wait for, or wait for it, after their
`cu` or `hip`."""


class Counts(NamedTuple):
    """Numbers of device work of a process: all `tasks`; `orphans` without a call; `early`: calls whose work began
    before them and was left out; `cut`: calls whose work ended after the next work of its stream had begun, and now
    ends there; `lost`: kernels that were launched and are not in the file."""

    tasks: int = 0
    orphans: int = 0
    early: int = 0
    cut: int = 0
    lost: int = 0


@dataclass(frozen=True)
class Work:
    """The device work of one process, one row for each call that launched any, in order of launch: when and by which
    `thread` it was launched, its first start and last end on the device. `names`: the texts of the codes in `name`.
    `calls` are the calls of the process that concern the device: start, thread, waits."""

    launch: Ints
    thread: Ints
    start: Ints
    end: Ints
    stream: Ints
    name: Codes
    role: npt.NDArray[np.int8]
    names: KernelNames
    calls: pl.DataFrame
    counts: Counts = Counts()


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


def join(calls: pl.DataFrame, tasks: pl.DataFrame, names: KernelNames) -> Work:
    """The work of `tasks` (schema TASKS, `name` is a row of `names`) by the call among `calls` (CALLS) that launched
    it. Tasks without a call are left out. Several tasks of one call are the nodes of a graph: one row. The order of the
    rows means nothing."""
    if (np.diff(calls["start"].to_numpy()) <= 0).any():
        calls = calls.sort("start", "correlation", "thread")
    correlation, start, end, stream, name, role = (tasks[c].to_numpy() for c in TASKS)
    order = np.argsort(correlation, kind="stable")
    ids = correlation[order]
    begins = np.append(True, ids[1:] != ids[:-1])[: len(ids)]
    if not begins.all():
        order = np.lexsort((name, start, correlation))
    first = np.flatnonzero(begins)
    caller = _callers(calls["correlation"].to_numpy(), ids[first])
    launched = np.flatnonzero(caller >= 0)
    launched = launched[np.argsort(caller[launched], kind="stable")]
    by, at = caller[launched], order[first[launched]]
    sizes = np.diff(np.append(first, len(ids)))[launched]
    several = sizes > 1
    if several.any():
        start = np.minimum.reduceat(start[order], first)[launched]
        end = np.maximum.reduceat(end[order], first)[launched]
    else:
        start, end = start[at], end[at]
    names, codes = _with_graphs(names, name[at], several)
    launch, thread = (calls[column].to_numpy()[by] for column in ("start", "thread"))
    stream, role = stream[at], role[at]
    later: Bools = ~begins_too_early(start - launch)
    early = len(later) - int(np.count_nonzero(later))
    if early:
        by, launch, thread = by[later], launch[later], thread[later]
        start, end, stream = start[later], end[later], stream[later]
        codes, role = codes[later], role[later]
    ends, _ = possible_ends(stream, by, start, end, role == COMPUTE)
    cut = 0 if ends is end else int(np.count_nonzero(ends != end))
    counts = Counts(len(ids), len(ids) - int(sizes.sum()), early, cut)
    concerning = calls.select("start", "thread", "waits")
    return Work(launch, thread, start, ends, stream, codes, role, names, concerning, counts)


def _callers(correlations: Ints, wanted: Ints) -> Ints:
    """For each of the `wanted` ids, sorted, the row of the first call that has it; -1 where none does."""
    rows = np.full(len(wanted), -1)
    if len(wanted):
        at = np.minimum(np.searchsorted(wanted, correlations), len(wanted) - 1)
        matching = np.flatnonzero(wanted[at] == correlations)[::-1]
        rows[at[matching]] = matching
    return rows


def _with_graphs(names: KernelNames, codes: Codes, several: Bools) -> tuple[KernelNames, Codes]:
    """The names and codes, where launches of `several` kernels are graphs named by their first kernel."""
    if not several.any():
        return names, codes
    graphs = np.unique(codes[several])
    first = names.texts
    texts = pl.concat([first, (GRAPH + "of " + first.gather(graphs)).rename(first.name)])
    moved = np.where(several, len(first) + np.searchsorted(graphs, codes), codes)
    return KernelNames(texts), moved.astype(np.int32)


def pipeline_transfers(work: Work, main: int) -> Ints:
    """The rows of `work` that are the pipeline's sends and receives.

    The all-to-all of experts and the ring of context parallelism are the same kernels, but they run in backwards too:
    a stream on which another thread launches one is not the pipeline's.

    Example: main sends on streams 20 and 30, the engine on 30: those on 20.
    """
    sends = np.flatnonzero(work.role == TRANSFER)
    on_main, stream = work.thread[sends] == main, work.stream[sends]
    transfers: Ints = sends[on_main & ~np.isin(stream, stream[~on_main])]
    return transfers


def _rows_with(kind: str) -> cached_property[Bools]:
    """A property of Timeline: the rows whose names are of a kind, a property of KernelNames. Most kinds have none."""

    def rows(timeline: Timeline) -> Bools:
        names: Bools = getattr(timeline.names, kind)
        return names[timeline.name] if names.any() else np.zeros(len(timeline.name), bool)

    return cached_property(rows)


@dataclass(frozen=True)
class Timeline:
    """The computing that two threads of a process launched, in order of launch: `main` says which rows are the calling
    thread's, the others are the autograd engine's. `calls` and `waits`: when the calling thread called the driver, and
    when it waited for the device, `transfers` when it launched one of the pipeline; sorted. Passes are ranges of rows,
    [begin, end)."""

    launch: Ints
    start: Ints
    end: Ints
    main: Bools
    name: Codes
    names: KernelNames
    calls: Ints
    waits: Ints
    transfers: Ints

    @staticmethod
    def of(work: Work, main: int, autograd: frozenset[int]) -> Timeline:
        on_main = work.thread == main
        rows = np.flatnonzero((work.role == COMPUTE) & (on_main | np.isin(work.thread, list(autograd))))
        start, thread, waits = (work.calls[name].to_numpy() for name in ("start", "thread", "waits"))
        return Timeline(
            work.launch[rows],
            work.start[rows],
            work.end[rows],
            on_main[rows],
            work.name[rows],
            work.names,
            start[thread == main],
            start[waits & (thread == main)],
            np.sort(work.launch[pipeline_transfers(work, main)]),
        )

    @cached_property
    def _busy(self) -> Ints:
        return np.append(0, np.cumsum(self.end - self.start))

    def time(self, begin: int, end: int) -> int:
        """How long the device worked for these rows, in ns."""
        return int(self._busy[end] - self._busy[begin])

    @cached_property
    def stem(self) -> Codes:
        return self.names.stem[self.name]

    sum, own_sum, fill, counter, _backward = map(_rows_with, ("sum", "own_sum", "fill", "counter", "backward"))

    @cached_property
    def engine_multiplies(self) -> bool:
        """Whether the engine launches matrix products, or graphs, which may hold some."""
        return bool(self._multiplies[~self.main].any())

    def multiplies(self, begin: int, end: int) -> bool:
        """Whether these rows hold matrix products, or graphs."""
        return bool(self._products[end] > self._products[begin])

    def leading(self, begin: int, end: int) -> int:
        """How many products and sums (weight gradients are nothing else) these rows begin with."""
        return int(min(self._heavy_until[begin], end)) - begin if begin < end else 0

    def is_weight(self, begin: int, end: int) -> bool:
        """Whether these rows consist only of parts of weight gradients."""
        return begin >= end or bool(self._weight_until[begin] >= end)

    def backward_time(self, begin: int, end: int) -> int:
        """How long the device worked for kernels of backwards among these rows, in ns."""
        return int(self._busy_backwards[end] - self._busy_backwards[begin])

    @cached_property
    def _multiplies(self) -> Bools:
        return (self.names.product | self.names.graph)[self.name]

    @cached_property
    def _products(self) -> Codes:
        return np.append(np.int32(0), np.cumsum(self._multiplies, dtype=np.int32))

    @cached_property
    def _heavy_until(self) -> Codes:
        return _until((self.names.product | self.names.sum)[self.name])

    @cached_property
    def _weight_until(self) -> Codes:
        return _until(self.names.weight[self.name])

    @cached_property
    def _busy_backwards(self) -> Ints:
        if not self.names.backward.any():
            return np.zeros(len(self.name) + 1, np.int64)
        return np.append(0, np.cumsum((self.end - self.start) * self._backward))

    def after_counters(self, begin: int) -> int:
        """The first row from `begin` on that is not a counter of tokens."""
        return int(self._counted_until[begin])

    @cached_property
    def _counted_until(self) -> Codes:
        return _until(self.counter)


def _until(rows: Bools) -> Codes:
    """For each row the first one from it on that is not among the `rows`: of `x x . x` 2 2 2 4."""
    others = np.arange(len(rows), dtype=np.int32)
    if not rows.any():
        return others
    others[rows] = len(rows)
    return np.minimum.accumulate(others[::-1])[::-1]
