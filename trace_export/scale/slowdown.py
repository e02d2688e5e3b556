"""How much slower each worker makes the run (`analysis.what_if`), from what comes back of its parts.

Each part measures how long the operations of its replicas were. Replicas whose steps are the same graph are then
simulated together, each by itself and to its last block: what replicas wait for in each other, the collectives and then
the optimizers, is in no part as a whole.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import Any

import numpy as np
import polars as pl

from trace_export.analysis.step_simulation import Lengths, ideal_lengths, measured_lengths
from trace_export.analysis.what_if import Slowdown, slowdown
from trace_export.model import INT, REAL, STEP_KEY, TEXT, WORK_KINDS, Profile, Schema, conform, empty
from trace_export.pipeline.operations import Operations
from trace_export.pipeline.step_operations import step_operations
from trace_export.schedules.longest_path import Floats
from trace_export.schedules.step_graph import Ints, StepGraph
from trace_export.selection import Selection, select

MOST_LENGTHS = 8_000_000
"""Of all operations in all replicas and steps: of more, the first steps are taken. Each takes 4 bytes."""

_NUMBERS = pl.List(pl.Int64())
GRAPHS: Schema = {
    "graph": TEXT, "level": TEXT, "types": pl.List(TEXT), "stage": _NUMBERS, "chunk": _NUMBERS, "microbatch": _NUMBERS,
    "sequence": _NUMBERS, "needed": _NUMBERS, "first": _NUMBERS, "groups": pl.List(_NUMBERS), "loss_stages": _NUMBERS,
}  # fmt: skip
"""The operations of a step as in `pipeline.operations.Operations`, and what they wait for as in `StepGraph`; `graph`
is a digest of these."""
LENGTHS: Schema = {
    "graph": TEXT, "replica": INT, "run": INT, "step": INT, "observed_ns": REAL, "length_ns": pl.List(pl.Float32()),
}  # fmt: skip
"""How long a step of a replica and each of its operations was."""
WORKERS: Schema = {"replica": INT, "stage": INT, "rank": INT, "slowdown": REAL}
"""The slowdown by each worker, a stage of a replica, named by its first rank."""


def measured(profile: Profile, selection: Selection, replicas: int) -> tuple[pl.DataFrame, pl.DataFrame]:
    """`GRAPHS` and `LENGTHS` of an interpreted profile on aligned clocks, with some of so many `replicas`; empty where
    its steps cannot be simulated, as where a stage is missing."""
    blocks = profile.spans.filter(pl.col("kind").is_in(WORK_KINDS))
    alone = replace(profile, spans=blocks, collectives=profile.collectives.clear())
    found = _measured(alone, selection, replicas)
    numbers = profile.ranks["dp"].drop_nulls().unique().sort().to_list()
    if not found and len(numbers) > 1:  # of replicas with different settings no step is the same in all
        found = [tables for number in numbers for tables in _measured(_of_replica(alone, number), selection, replicas)]
    graphs = pl.concat([empty(GRAPHS), *(graph for graph, _ in found)]).unique(
        "graph", keep="first", maintain_order=True
    )
    return graphs, pl.concat([empty(LENGTHS), *(lengths for _, lengths in found)])


def _of_replica(profile: Profile, number: int) -> Profile:
    ranks = profile.ranks.filter(pl.col("dp") == number)
    return replace(profile, ranks=ranks, spans=profile.spans.join(ranks, on="rank", how="semi", maintain_order="left"))


def _measured(profile: Profile, selection: Selection, replicas: int) -> list[tuple[pl.DataFrame, pl.DataFrame]]:
    """The tables of the steps that most are like, none or one of each."""
    usual = step_operations(profile).usual
    if usual is None:
        return []
    chosen = set(select(profile, selection).spans.select(STEP_KEY).unique().rows())
    steps = [step for step in usual.steps if step in chosen][: max(1, MOST_LENGTHS // (len(usual.types) * replicas))]
    if not steps:
        return []
    usual = usual.of_steps(steps)
    length = measured_lengths(usual).length
    graph = _graph(usual)
    observed = usual.end_ns.max(axis=0) - usual.start_ns.min(axis=0)
    rows = [
        (graph["graph"][0], replica, run, step, observed[a, n], length[:, a, n].astype(np.float32))
        for a, replica in enumerate(usual.replicas)
        for n, (run, step) in enumerate(usual.steps)
    ]
    columns = dict(zip(LENGTHS, zip(*rows, strict=True), strict=True))
    return [(graph, conform(pl.DataFrame(columns), LENGTHS))]


def _graph(operations: Operations) -> pl.DataFrame:
    graph = operations.graph
    values: dict[str, list[Any]] = {
        "level": [operations.level], "types": [operations.types],
        **{name: [getattr(operations, name).tolist()] for name in ("stage", "chunk", "microbatch", "sequence")},
        "needed": [graph.needed.tolist()], "first": [graph.first.tolist()],
        "groups": [[list(group) for group in graph.groups]], "loss_stages": [list(operations.loss_stages)],
    }  # fmt: skip
    digest = hashlib.sha256(repr(values).encode()).hexdigest()[:16]
    return conform(pl.DataFrame({"graph": [digest], **values}, {"graph": TEXT, **GRAPHS}), GRAPHS)


def of_workers(graphs: pl.DataFrame, lengths: pl.DataFrame, stages: int | None) -> Slowdown | None:
    """The slowdown of the replicas of which most have the same graph, in the steps that most of them have; None where
    there is none, or fewer than the `stages` of the run, which are not seen in a part, were read."""
    if lengths.is_empty():
        return None
    usual = lengths.group_by("graph").agg(pl.len()).sort("len", "graph", descending=True)["graph"][0]
    rows = lengths.filter(pl.col("graph") == usual)
    counts = rows.group_by(STEP_KEY).len()
    steps = counts.filter(2 * pl.col("len") > pl.lit(rows["replica"].n_unique())).select(STEP_KEY).sort(STEP_KEY)
    rows = rows.join(steps, on=STEP_KEY, how="semi", nulls_equal=True)
    rows = rows.filter(pl.len().over("replica") == len(steps)).sort("replica", *STEP_KEY)
    if rows.is_empty():
        return None
    (definition,) = graphs.filter(pl.col("graph") == usual).to_dicts()
    if max(definition["stage"]) + 1 < (stages or 0):
        return None
    replicas = rows["replica"].unique(maintain_order=True).to_list()
    shape = len(replicas), len(steps)
    flat = rows["length_ns"].explode().to_numpy().reshape(*shape, -1)
    length: Floats = np.ascontiguousarray(flat.transpose(2, 0, 1))
    observed = rows["observed_ns"].to_numpy().reshape(shape).max(axis=0)
    operations = _operations(definition, replicas, steps)
    known = Lengths(length, length[:0], ideal_lengths(operations, length), observed)
    return slowdown(operations, known)


def _operations(definition: dict[str, Any], replicas: list[int], steps: pl.DataFrame) -> Operations:
    """Without times, of which the lengths are known already."""
    names = ("stage", "chunk", "microbatch", "sequence", "needed", "first")
    stage, chunk, microbatch, sequence, needed, first = (np.array(definition[name], np.int64) for name in names)
    none: Ints = np.zeros((0, len(replicas), len(steps)), np.int64)
    places = np.arange(len(replicas) * (int(stage.max()) + 1)).reshape(len(replicas), -1)
    graph = StepGraph(needed, first, definition["groups"], [False] * len(definition["groups"]))
    return Operations(
        types=definition["types"], stage=stage, chunk=chunk, microbatch=microbatch, sequence=sequence, start_ns=none,
        end_ns=none, origin_ns=none, span=none, peer=none, ranks=places, replicas=replicas, steps=steps.rows(),
        graph=graph, loss_stages=tuple(definition["loss_stages"]), level=definition["level"],
    )  # fmt: skip


def worker_table(found: Slowdown | None, ranks: pl.DataFrame) -> pl.DataFrame:
    """The table `WORKERS`; `ranks` as in `summary.RANKS`."""
    if found is None:
        return empty(WORKERS)
    each = found.workers
    names = ranks.group_by("replica", "stage").agg(pl.col("rank").min())
    stages = ranks["stage"].drop_nulls().unique().sort().to_list()
    table = pl.DataFrame({
        "replica": np.repeat(found.replicas, each.shape[1]),
        "stage": np.tile(stages[: each.shape[1]], each.shape[0]),
        "slowdown": each.reshape(-1),
    })  # fmt: skip
    typed = table.cast({"replica": INT, "stage": INT})
    return conform(typed.join(names, on=["replica", "stage"], how="left", maintain_order="left"), WORKERS)
