"""The critical path of each step: from its end back through the wait that made each operation ready."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from itertools import pairwise

import numpy as np
import polars as pl

from trace_export.model import INT, SPAN_ID, STEP_KEY, TEXT, TIME, Schema
from trace_export.steps.graph import COLLECTIVE, OPTIMIZER, POINT, TRANSFER, Graph, Ints, Times
from trace_export.steps.replay import Windows

PARTS: Schema = {
    "run": INT, "step": INT, "position": INT, "part": TEXT, "kind": TEXT, "rank": INT, "stage": INT, "from_rank": INT,
    "from_stage": INT, "microbatch": INT, "chunk": INT, "id": SPAN_ID, "start_ns": TIME, "end_ns": TIME, "ns": TIME,
}  # fmt: skip
"""A part of the critical path of a step; `position` counts from its start. `part`: `work` (a block of `kind` F, B, W,
FB or OPT, with the `id` of its span), `wire` (a transfer of direction `kind` from `from_rank`), `collective` (its name
is `kind`; from the last rank to come), `delay` (an operation of `kind` on `rank` has not started although nothing
recorded is missing), `pause` (the same before the first block of a rank in a step), `overlap` (negative: an operation
began before what it waited for had ended). `ns` is end_ns - start_ns; the parts of a step add up to its length."""

STEPS: Schema = {"run": INT, "step": INT, "start_ns": TIME, "length_ns": TIME, "negative_ns": TIME}
"""`length_ns`: from the first block of the step to that of the next; `negative_ns` the sum of its negative parts."""

SLACK: Schema = {"id": SPAN_ID, "rank": INT, "run": INT, "step": INT, "slack_ns": TIME}
"""How much longer each block could have taken without making a step longer; 0 on the critical path. Null if nothing
recorded waits for it."""

_WORK, _DELAY, _OVERLAP = range(3)


class CriticalPath:
    """The critical path of the steps that have a length: `parts`, `steps` and `slack` have the columns of `PARTS`,
    `STEPS` and `SLACK`, sorted by run and step. Each is worked out when it is first asked for."""

    def __init__(self, graph: Graph, windows: Windows) -> None:
        self._graph, self._windows = graph, windows

    @cached_property
    def parts(self) -> pl.DataFrame:
        return _parts(self._graph, self._longest, _walk(self._graph, self._longest))

    @property
    def optimizer_ns(self) -> float:
        """The optimizer's part of a mean step, without the table of all parts."""
        total = 0
        if (self._graph.sort == OPTIMIZER).any():
            for _, operation, what, start, end in _walk(self._graph, self._longest):
                total += int((end - start)[(what == _WORK) & (self._graph.sort[operation] == OPTIMIZER)].sum())
        return total / max(len(self._longest), 1)

    @cached_property
    def steps(self) -> pl.DataFrame:
        return _steps(self._graph, self._longest, self.parts)

    @cached_property
    def _longest(self) -> Windows:
        return self._windows.longest(self._graph)

    @cached_property
    def slack(self) -> pl.DataFrame:
        return _slack(self._graph, self._windows)


_Rows = tuple[Ints, Ints, Ints, Times, Times]
"""Of some parts the row of their window, the operation, what they are, start and end."""


def _walk(graph: Graph, windows: Windows) -> Iterator[_Rows]:
    """The parts from the end of each step on. All steps are walked at once."""
    begin, at, operation, starting = _ends(graph, windows)
    window = np.arange(len(windows))
    while len(window):
        first = begin[window]
        now = np.where(starting, at, np.maximum(graph.start[operation], first))
        yield window, operation, np.full(len(window), _WORK), now, at
        there = graph.ready[operation] - graph.launch(operation)
        ready = np.where(there < graph.start[operation], np.maximum(there, first), now)
        ready = np.where(now > first, ready, now)
        yield window, operation, np.full(len(window), _DELAY), ready, now
        wait = graph.binding[operation]
        on = (ready > first) & (wait >= 0)
        window, operation, wait, ready = window[on], operation[on], wait[on], ready[on]
        before = graph.waits.on[wait]
        at = np.where(graph.waits.whole[wait], graph.end[before], graph.start[before])
        yield window, operation, np.full(len(window), _OVERLAP), at, ready
        operation, starting = before, ~graph.waits.whole[wait]


def _ends(graph: Graph, windows: Windows) -> tuple[Times, Times, Ints, np.ndarray]:
    """For each step its begin and end, the operation that ends it, and whether it does so by its start."""
    begin = np.array([graph.start[since].min() for since in windows.since], np.int64)
    last, at, starting = [], [], []
    for until, ends in zip(windows.until, windows.ends, strict=True):
        rows, times = (until, graph.start) if len(until) else (ends, graph.end)
        operation = rows[int(times[rows].argmin() if len(until) else times[rows].argmax())]
        last.append(operation)
        at.append(times[operation])
        starting.append(bool(len(until)))
    return begin, np.array(at, np.int64), np.array(last, np.int64), np.array(starting, np.bool_)


def _parts(graph: Graph, windows: Windows, walked: Iterator[_Rows]) -> pl.DataFrame:
    """The table `PARTS`."""
    rows = list(walked)
    if not rows:
        return pl.DataFrame(schema=PARTS)
    window, operation, what, start, end = (np.concatenate(column) for column in zip(*rows, strict=True))
    order = np.arange(len(window))
    some = end != start
    window, operation, what, start, end, order = (x[some] for x in (window, operation, what, start, end, order))
    sort = graph.sort[operation]
    delay = what == _DELAY
    part = np.select(
        [what == _OVERLAP, delay & graph.pause[operation], delay, sort == TRANSFER, sort == COLLECTIVE],
        ["overlap", "pause", "delay", "wire", "collective"], "work",
    )  # fmt: skip
    kinds = np.array([kind.split(":", 1)[-1] for kind in graph.kinds])
    rank, source = graph.rank[operation], np.where((sort == TRANSFER) & (what == _WORK), graph.src[operation], -1)
    rank = np.where((sort == TRANSFER) & (what == _WORK), graph.dst[operation], rank)
    names = graph.recorded.steps[windows.step][window]
    block = sort <= OPTIMIZER
    of_block = graph.recorded.blocks.select("span", "microbatch", "chunk")[np.where(block, operation, 0)]
    is_work = pl.Series(block & (what == _WORK))
    stage_of = graph.recorded.ranks.select("rank", "stage")
    frame = pl.DataFrame(
        {"order": order, "part": part, "kind": kinds[graph.kind[operation]], "rank": rank, "from_rank": source}
    ).with_columns(
        run=names["run"], step=names["step"], id=pl.when(is_work).then(of_block["span"]),
        microbatch=pl.when(is_work).then(of_block["microbatch"]), chunk=pl.when(is_work).then(of_block["chunk"]),
        start_ns=pl.Series(start) + graph.recorded.zero_ns, end_ns=pl.Series(end) + graph.recorded.zero_ns,
        ns=pl.Series(end - start), point=pl.Series(sort == POINT),
    ).with_columns(
        pl.when(pl.col(c) >= 0).then(c).cast(INT).alias(c) for c in ("rank", "from_rank")
    ).join(stage_of, on="rank", how="left", maintain_order="left").join(
        stage_of.rename({"rank": "from_rank", "stage": "from_stage"}), on="from_rank", how="left", maintain_order="left"
    )  # fmt: skip
    ordered = frame.sort(*STEP_KEY, "order", descending=[False, False, True])
    return ordered.with_columns(position=pl.int_range(pl.len(), dtype=INT).over(STEP_KEY)).select(
        pl.col(name).cast(dtype) for name, dtype in PARTS.items()
    )


def _steps(graph: Graph, windows: Windows, parts: pl.DataFrame) -> pl.DataFrame:
    sums = parts.group_by(STEP_KEY).agg(length_ns=pl.col("ns").sum(), negative_ns=pl.col("ns").clip(None, 0).sum())
    begin = [int(graph.start[since].min()) + graph.recorded.zero_ns for since in windows.since]
    named = graph.recorded.steps[windows.step].select(*STEP_KEY).with_columns(start_ns=pl.Series(begin, dtype=TIME))
    steps = named.join(sums, on=STEP_KEY, how="left", nulls_equal=True, maintain_order="left").sort(STEP_KEY)
    return steps.with_columns(pl.col("length_ns", "negative_ns").fill_null(0)).select(
        pl.col(name).cast(dtype) for name, dtype in STEPS.items()
    )


def _slack(graph: Graph, windows: Windows) -> pl.DataFrame:
    """The table `SLACK` of all blocks. The end of each step that has a length may not move."""
    never = np.int64(1) << 61
    late = np.full(len(graph), never)
    for until, ends in zip(windows.until, windows.ends, strict=True):
        rows = until[[int(graph.start[until].argmin())]] if len(until) else ends
        late[rows] = graph.end[rows] if len(until) else graph.end[ends].max()
    last = _last_steps(graph, windows)
    late[last] = np.minimum(late[last], graph.end[last].max() if len(last) else never)
    takes = graph.length
    least = takes + graph.delay
    levels = graph.levels
    for a, b in pairwise(levels.turns[levels.first_turn][::-1].tolist()):
        of, on, whole = graph.waits.of[b:a], graph.waits.on[b:a], graph.waits.whole[b:a]
        limit = late[of] - least[of] - graph.waits.lag[b:a] + np.where(whole, 0, takes[on])
        np.minimum.at(late, on, limit)
    blocks = graph.recorded.blocks
    count = len(blocks)
    free = np.where(late[:count] > never // 2, -1, late[:count] - graph.end[:count])
    named = graph.recorded.steps.select(STEP_KEY)[graph.step[:count]].with_columns(
        blocks["span"].alias("id"), rank=pl.Series(graph.rank[:count]), slack_ns=pl.Series(free)
    )
    measured = named.with_columns(slack_ns=pl.when(pl.col("slack_ns") >= 0).then("slack_ns"))
    return measured.select(pl.col(name).cast(dtype) for name, dtype in SLACK.items()).sort(*STEP_KEY, "rank", "id")


def _last_steps(graph: Graph, windows: Windows) -> Ints:
    """The blocks of the steps without a length: nothing later says how long they may be."""
    has_length = np.zeros(len(graph.recorded.steps) + 1, np.bool_)
    has_length[windows.step] = True
    return np.flatnonzero((graph.sort <= OPTIMIZER) & ~has_length[graph.step])
