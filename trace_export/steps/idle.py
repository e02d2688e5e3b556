"""What the idle time between a rank's blocks is due to: the walk of the critical path, a wait further back each time.

From the block that ends an idle stretch: its delay, then what made it ready. Of a transfer that is its time on the
wire, the delay of its last member, and before that the wait for the data; of a collective the same, and the wait for
the other ranks.
"""

from __future__ import annotations

import numpy as np
import polars as pl

from trace_export.model import INT, RANK_STEP_KEY, STEP_KEY, TIME, Schema
from trace_export.ordering import is_ordered, ordered
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
    block, since = _gaps(graph)
    start = graph.start[block]
    ready = np.clip(graph.ready[block], since, start)
    wait = graph.binding[block]
    known = (wait >= 0) & (ready > since)
    on = np.where(known, graph.waits.on[wait], 0)
    sort = np.where(known, graph.sort[on], -1)
    met = np.isin(sort, (TRANSFER, COLLECTIVE))
    begun = np.where(met, np.clip(graph.start[on], since, ready), np.where(sort == POINT, ready, since))
    needed = np.where(met, np.clip(graph.ready[on], since, begun), begun)
    forward = graph.kinds.index("T:F") if "T:F" in graph.kinds else -1
    source = np.where(sort == TRANSFER, graph.src[on], np.where(sort == COLLECTIVE, graph.rank[on], -1))
    code, nobody = {cause: number for number, cause in enumerate(CAUSES)}, np.full(len(block), -1)
    of_pass = np.where(graph.kind[on] == forward, code["forward"], code["backward"])
    input_of = np.where(sort == TRANSFER, of_pass, code["others"])
    delay = np.where(graph.blind[block], code["unknown"], code["late"])
    inner = np.where(sort == TRANSFER, code["transfer"], code["unknown"])
    inner = np.where(sort == COLLECTIVE, code["collective"], inner)
    late = np.full(len(block), code["late"])
    parts = [
        (block, since, needed, input_of, source), (block, needed, begun, late, nobody),
        (block, begun, ready, inner, source), (block, ready, start, delay, nobody),
    ]  # fmt: skip
    one_by_one = [np.stack(column, axis=1).ravel() for column in zip(*parts, strict=True)]  # in the order of the gaps
    lasting = one_by_one[2] > one_by_one[1]
    return _table(graph, *(column[lasting] for column in one_by_one))


def _gaps(graph: Graph) -> tuple[Ints, Times]:
    """The blocks before which their rank was idle in their step, and since when."""
    rows = np.flatnonzero(graph.sort == WORK)
    columns = {name: getattr(graph, name)[rows] for name in ("rank", "step", "start", "end")}
    table = pl.DataFrame({"operation": rows, **columns})
    before = ordered(table, "rank", "step", "start", "end").with_columns(
        before=pl.col("end").cum_max().shift(1).over("rank", "step")
    )
    gaps = before.filter(pl.col("start") > pl.col("before"))
    return gaps["operation"].to_numpy(), gaps["before"].to_numpy()


def _table(graph: Graph, block: Ints, since: Times, until: Times, cause: Ints, source: Ints) -> pl.DataFrame:
    """`cause`: the place of each among `CAUSES`."""
    zero, steps = graph.recorded.zero_ns, graph.recorded.steps
    named = steps.select(STEP_KEY)[graph.step[block]]
    found = pl.DataFrame({"rank": graph.rank[block], "start_ns": since + zero, "end_ns": until + zero})
    found = found.with_columns(cause=pl.Series(list(CAUSES), dtype=IDLE["cause"]).gather(cause))
    waits_for = pl.Series("waits_for", source)
    found = found.with_columns(waits_for=pl.when(waits_for >= 0).then(waits_for), run=named["run"], step=named["step"])
    found = found.select(pl.col(name).cast(dtype) for name, dtype in IDLE.items())
    order = [*RANK_STEP_KEY, "start_ns"]
    return found if is_ordered(found, *order) else found.sort(*order)
