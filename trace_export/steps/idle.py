"""The causes of the idle time between a rank's blocks. They are read off a walk like that of the critical path, one
wait further back each time.

The walk starts at the block that ends an idle stretch: its delay, then the operation that made it ready. A transfer has
its time on the wire, the delay of its last member, and before that the wait for the data; a collective has the same,
and the wait for the other ranks.
"""

from __future__ import annotations

import numpy as np
import polars as pl

from trace_export.model import INT, RANK_STEP_KEY, STEP_KEY, TIME, Schema
from trace_export.ordering import is_ordered, packed, rows_of
from trace_export.steps.graph import COLLECTIVE, POINT, TRANSFER, WORK, Graph, Ints, Times

CAUSES = {
    "warm_up": "warm-up",
    "forward": "waiting for forward",
    "backward": "waiting for backward",
    "transfer": "exposed transfer",
    "collective": "exposed collective",
    "others": "waiting for other ranks",
    "late": "late start",
    "unknown": "unknown cause",
    "optimizer": "optimizer tail",
    "cool_down": "cool-down",
}
"""What idle time is due to, by the stem of its column (`warm_up_ns`):

warm-up: before the rank's first block; cool-down: after its last; optimizer tail: the part of that in which its
optimizer runs; waiting for forward, for backward: the block of another rank on which the next one depends, and which
passes on activations or gradients, has not ended yet; exposed transfer, exposed collective: it has, and nothing runs
until the data are here; waiting for other ranks: they have not come to a collective or a barrier yet; late start:
nothing is missing, but a block, send or receive does not start (host, scheduler, data loader); unknown: the block
before was not read, or has no number."""

NAMES = tuple(CAUSES)
INNER = tuple(cause for cause in CAUSES if cause not in ("warm_up", "optimizer", "cool_down"))
"""The causes between a rank's blocks."""

IDLE: Schema = {
    "rank": INT, "run": INT, "step": INT, "start_ns": TIME, "end_ns": TIME, "cause": pl.Enum(list(CAUSES)),
    "waits_for": INT,
}  # fmt: skip
"""A stretch between the blocks of a rank in a step, with its cause (a key of `CAUSES`), and the rank that is waited
for, where it is another one. The stretches of a gap add up to it."""


def idle(graph: Graph) -> pl.DataFrame:
    """The table `IDLE` of all steps."""
    one_by_one = [np.stack(column, axis=1).ravel() for column in zip(*_parts(graph), strict=True)]
    lasting = one_by_one[2] > one_by_one[1]
    return _table(graph, *(column[lasting] for column in one_by_one))


def idle_by_cause(graph: Graph) -> pl.DataFrame:
    """run, step, rank, and a column per cause of `INNER` such as `forward_ns`: the sums of `idle` of each rank in each
    step, without the table, which is larger than the graph."""
    steps, ranks = graph.recorded.steps, graph.recorded.ranks["rank"].sort()
    shape = len(ranks), len(steps)
    size = shape[0] * shape[1]
    sums = {cause: np.zeros(size) for cause in INNER}
    for block, since, until, cause, _ in _parts(graph):
        key, lasts = rows_of(ranks.to_numpy(), graph.rank[block]) * shape[1] + graph.step[block], until - since
        for number in np.unique(cause).tolist():
            of = cause == number
            sums[NAMES[number]] += np.bincount(key[of], lasts[of], size)
    table = pl.DataFrame({f"{cause}_ns": ns.astype(np.int64) for cause, ns in sums.items()}).with_columns(
        ranks[np.repeat(np.arange(shape[0]), shape[1])], *steps.select(STEP_KEY)[np.tile(np.arange(shape[1]), shape[0])]
    )
    idles = pl.any_horizontal(pl.col(f"{cause}_ns") > 0 for cause in INNER)
    return table.filter(idles).select(*STEP_KEY, "rank", *(f"{cause}_ns" for cause in INNER))


def _parts(graph: Graph) -> list[tuple[Ints, Times, Times, Ints, Ints]]:
    """The idle time before each block in four successive parts, some of no length: the block, start and end, the number
    of the cause in `CAUSES`, and the rank that is waited for, or -1."""
    block, since = _gaps(graph)
    start = graph.start[block]
    ready = np.clip(graph.ready[block] - graph.launch(block), since, start)
    wait = graph.binding[block]
    waited = (wait >= 0) & (ready > since)
    on = np.where(waited, graph.waits.on[wait], 0)
    sort = np.where(waited, graph.sort[on], -1)
    met = np.isin(sort, (TRANSFER, COLLECTIVE))
    begun = np.where(met, np.clip(graph.start[on], since, ready), np.where(sort == POINT, ready, since))
    needed = np.where(met, np.clip(graph.ready[on] - graph.launch(on), since, begun), begun)
    forward = graph.kinds.index("T:F") if "T:F" in graph.kinds else -1
    source = np.where(sort == TRANSFER, graph.src[on], np.where(sort == COLLECTIVE, graph.rank[on], -1))
    code = {cause: np.int8(number) for number, cause in enumerate(NAMES)}
    nobody = np.full(len(block), -1, source.dtype)
    of_pass = np.where(graph.kind[on] == forward, code["forward"], code["backward"])
    input_of = np.where(sort == TRANSFER, of_pass, code["others"])
    delay = np.where(graph.blind[block], code["unknown"], code["late"])
    inner = np.where(sort == TRANSFER, code["transfer"], code["unknown"])
    inner = np.where(sort == COLLECTIVE, code["collective"], inner)
    late = np.full(len(block), code["late"])
    return [
        (block, since, needed, input_of, source), (block, needed, begun, late, nobody),
        (block, begun, ready, inner, source), (block, ready, start, delay, nobody),
    ]  # fmt: skip


def _gaps(graph: Graph) -> tuple[Ints, Times]:
    """The blocks before which their rank was idle in their step, and since when."""
    rows = np.flatnonzero(graph.sort == WORK)
    number = packed(graph.rank[rows], graph.step[rows])  # the blocks of a rank in a step are in the order of time
    table = pl.DataFrame({"number": number, "operation": rows, "end": graph.end[rows]})
    before = table.select(pl.col("end").cum_max().shift(1).over("number"))["end"]
    there = before.is_not_null().to_numpy()
    rows, since = rows[there], before.drop_nulls().to_numpy()
    idles = graph.start[rows] > since
    return rows[idles], since[idles]


def _table(graph: Graph, block: Ints, since: Times, until: Times, cause: Ints, source: Ints) -> pl.DataFrame:
    """`cause`: the number of each in `CAUSES`."""
    zero, steps = graph.recorded.zero_ns, graph.recorded.steps
    named = steps.select(STEP_KEY)[graph.step[block]]
    table = pl.DataFrame({"rank": graph.rank[block], "start_ns": since + zero, "end_ns": until + zero})
    table = table.with_columns(cause=pl.Series(list(CAUSES), dtype=IDLE["cause"]).gather(cause))
    waits_for = pl.Series("waits_for", source)
    table = table.with_columns(waits_for=pl.when(waits_for >= 0).then(waits_for), run=named["run"], step=named["step"])
    table = table.select(pl.col(name).cast(dtype) for name, dtype in IDLE.items())
    order = [*RANK_STEP_KEY, "start_ns"]
    return table if is_ordered(table, *order) else table.sort(*order)
