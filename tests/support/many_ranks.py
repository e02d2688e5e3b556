"""A made-up run of very many ranks as span tables, one for each host, with planted exceptions.

1F1B on every pipeline; at the end of a step the ranks of a stage that have the same place in their replicas reduce
their gradients together. Ranks are numbered tp fastest, then dp, then pp, and each host has the `tensor` ranks of one
stage of one replica. All pipelines are computed at once, a number per pipeline and block.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray

from samples.generators.pipeline import one_f_one_b

Floats = NDArray[np.float64]
MS, US = 1e6, 1e3
FIRST_NS = 1_760_000_000_000_000_000


@dataclass(frozen=True)
class Planted:
    """What is wrong: ranks whose blocks take 1.3 times as long; links (sender, receiver) that take four times as long
    in both directions; hosts whose clock runs 300 ppm fast; replicas with half as many micro-batches, each of twice the
    size."""

    ranks: tuple[int, ...] = ()
    links: tuple[tuple[int, int], ...] = ()
    hosts: tuple[str, ...] = ()
    replicas: tuple[int, ...] = ()


@dataclass(frozen=True)
class ManyRanks:
    """The sizes of the run, and what is planted in it."""

    stages: int = 16
    tensor: int = 8
    replicas: int = 782
    microbatches: int = 32
    steps: int = 2
    forward_ns: float = 9 * MS
    hop_ns: float = 300 * US
    planted: Planted = field(default_factory=Planted)
    seed: int = 1

    @property
    def ranks(self) -> int:
        return self.stages * self.tensor * self.replicas

    def rank(self, stage: int, replica: int, tensor: int) -> int:
        return tensor + self.tensor * (replica + self.replicas * stage)

    def place(self, rank: int) -> tuple[int, int, int]:
        """Stage, replica, tensor."""
        tensor, rest = rank % self.tensor, rank // self.tensor
        return rest // self.replicas, rest % self.replicas, tensor

    def host(self, stage: int, replica: int) -> str:
        return f"node{stage * self.replicas + replica:05}"

    def with_exceptions(self) -> ManyRanks:
        """The same run with seven slow ranks, two slow links, a host whose clock drifts and a replica with other
        settings, all in different replicas."""
        draw = np.random.default_rng(self.seed + 1)
        places = [int(n) for n in draw.permutation(self.replicas)[:11]]
        stage = [int(n) for n in draw.integers(0, self.stages - 1, 11)]
        tensor = [int(n) for n in draw.integers(0, self.tensor, 11)]
        spots = list(zip(stage, places, tensor, strict=True))
        planted = Planted(
            ranks=tuple(sorted(self.rank(*spot) for spot in spots[:7])),
            links=tuple((self.rank(s, r, t), self.rank(s + 1, r, t)) for s, r, t in spots[7:9]),
            hosts=(self.host(*spots[9][:2]),),
            replicas=(places[10],),
        )
        return ManyRanks(
            self.stages, self.tensor, self.replicas, self.microbatches, self.steps, self.forward_ns, self.hop_ns,
            planted, self.seed,
        )  # fmt: skip


def write(folder: Path, run: ManyRanks) -> None:
    """`folder/NODE/blocks.spans.parquet` for every host."""
    blocks, reduced = _simulated(run)
    draw = np.random.default_rng(run.seed + 2)
    for stage in range(run.stages):
        for replica in range(run.replicas):
            host = run.host(stage, replica)
            offset = draw.normal(0, 3 * MS)
            rate = draw.normal(0, 8e-6) + (300e-6 if host in run.planted.hosts else 0)
            pipelines = replica * run.tensor + np.arange(run.tensor)
            table = pl.concat([_rows(run, blocks[replica, stage], pipelines), _reduces(run, reduced, stage, pipelines)])
            late = [
                (pl.col(name) * (1 + rate) + offset).round().cast(pl.Int64) + FIRST_NS
                for name in ("start_ns", "end_ns")
            ]
            place = folder / host
            place.mkdir(parents=True)
            first = run.rank(stage, replica, 0)
            written = table.select(
                rank=pl.col("tp") + first, host=pl.lit(host), stage=pl.lit(stage, pl.Int32),
                dp=pl.lit(replica, pl.Int32), tp="tp", step="step", kind="kind", microbatch="microbatch",
                start_ns=late[0], end_ns=late[1], group="group", op="op", sequence="sequence",
            )  # fmt: skip
            with (place / "blocks.spans.parquet").open("wb") as file:  # which may have a name that is no UTF-8
                written.write_parquet(file)


@dataclass
class _Blocks:
    """The blocks of a stage: kind, micro-batch and step of each, and start and end for each pipeline, by block."""

    kind: list[str] = field(default_factory=list)
    microbatch: list[int | None] = field(default_factory=list)
    step: list[int] = field(default_factory=list)
    start: list[Floats] = field(default_factory=list)
    end: list[Floats] = field(default_factory=list)
    columns: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))


def _simulated(run: ManyRanks) -> tuple[dict[tuple[int, int], _Blocks], list[tuple[Floats, Floats]]]:
    """The blocks by replica and stage; for each step when the ranks (stage × pipeline) enter and leave the reduce."""
    draw = np.random.default_rng(run.seed)
    pipelines = run.replicas * run.tensor
    speed, hop = np.ones((run.stages, pipelines)), np.full((run.stages, pipelines), run.hop_ns)
    for rank in run.planted.ranks:
        stage, replica, tensor = run.place(rank)
        speed[stage, replica * run.tensor + tensor] = 1.3
    for sender, _ in run.planted.links:
        stage, replica, tensor = run.place(sender)
        hop[stage, replica * run.tensor + tensor] *= 4
    other = np.isin(np.arange(pipelines) // run.tensor, run.planted.replicas)
    groups = [(np.flatnonzero(~other), run.microbatches, 1.0), (np.flatnonzero(other), run.microbatches // 2, 2.0)]
    tables: dict[tuple[int, int], _Blocks] = {}
    stages = [[_Blocks(columns=columns) for _ in range(run.stages)] for columns, _, _ in groups]
    for (columns, _, _), of_group in zip(groups, stages, strict=True):
        for replica in sorted({int(c) // run.tensor for c in columns}):
            tables |= {(replica, stage): of_group[stage] for stage in range(run.stages)}
    free = np.zeros((run.stages, pipelines))
    reduced = []
    for step in range(run.steps):
        for (columns, microbatches, size), of_group in zip(groups, stages, strict=True):
            if len(columns):
                lengths = run.forward_ns * size * speed[:, columns]
                free[:, columns] = _step(of_group, step, microbatches, lengths, hop[:, columns], free[:, columns], draw)
        entered = free.copy()
        joined = entered.reshape(run.stages, run.replicas, run.tensor).max(axis=1) + 6 * MS
        left = np.repeat(joined[:, None, :], run.replicas, axis=1).reshape(entered.shape)
        left = left + draw.exponential(8 * US, left.shape)
        reduced.append((entered, left))
        free = left + 5 * MS
        for (columns, _, _), of_group in zip(groups, stages, strict=True):
            for stage, table in enumerate(of_group):
                _add(table, "OPT", None, step, left[stage, columns] + 0.1 * MS, free[stage, columns])
    return tables, reduced


def _step(
    tables: list[_Blocks], step: int, microbatches: int, forward: Floats, hop: Floats, free: Floats,
    draw: np.random.Generator,
) -> Floats:  # fmt: skip
    """Adds the blocks of a step to `tables`; returns when each rank has finished."""
    stages = len(tables)
    orders = [list(one_f_one_b(stage, stages, microbatches)) for stage in range(stages)]
    at, free = [0] * stages, free.copy()
    made: dict[tuple[str, int, int], Floats] = {}
    while any(n < len(order) for n, order in zip(at, orders, strict=True)):
        for stage, order in enumerate(orders):
            while at[stage] < len(order):
                kind, number = order[at[stage]].kind, order[at[stage]].microbatch
                source = stage - 1 if kind == "F" else stage + 1
                start = free[stage]
                if 0 <= source < stages:
                    if (kind, source, number) not in made:
                        break
                    there = made.pop((kind, source, number))
                    link = hop[min(source, stage)]
                    start = np.maximum(start, there + link + draw.exponential(20 * US, len(link)))
                length = forward[stage] * (1.0 if kind == "F" else 1.9)
                end = start + length * (1 + 0.004 * draw.standard_normal(len(start)))
                _add(tables[stage], kind, number, step, start, end)
                made[kind, stage, number] = free[stage] = end
                at[stage] += 1
    return free


def _add(table: _Blocks, kind: str, number: int | None, step: int, start: Floats, end: Floats) -> None:
    table.kind.append(kind)
    table.microbatch.append(number)
    table.step.append(step)
    table.start.append(start.copy())
    table.end.append(end.copy())


def _rows(run: ManyRanks, table: _Blocks, pipelines: NDArray[np.int64]) -> pl.DataFrame:
    at = np.searchsorted(table.columns, pipelines)
    count = len(table.kind)
    times = [np.array([t[at] for t in values]).T.reshape(-1) for values in (table.start, table.end)]
    none = {"group": pl.lit(None, pl.String), "op": pl.lit(None, pl.String), "sequence": pl.lit(None, pl.Int64)}
    return pl.DataFrame({
        "tp": pl.Series(np.repeat(np.arange(run.tensor), count), dtype=pl.Int32),
        "step": pl.Series(table.step * run.tensor, dtype=pl.Int32), "kind": table.kind * run.tensor,
        "microbatch": pl.Series(table.microbatch * run.tensor, dtype=pl.Int32),
        "start_ns": times[0], "end_ns": times[1],
    }).with_columns(**none)  # fmt: skip


def _reduces(
    run: ManyRanks, reduced: list[tuple[Floats, Floats]], stage: int, pipelines: NDArray[np.int64]
) -> pl.DataFrame:
    def parts() -> Iterator[pl.DataFrame]:
        for step, (entered, left) in enumerate(reduced):
            yield pl.DataFrame({
                "tp": pl.Series(np.arange(run.tensor), dtype=pl.Int32),
                "step": pl.Series([None] * run.tensor, dtype=pl.Int32),
                "kind": pl.Series([None] * run.tensor, dtype=pl.String),
                "microbatch": pl.Series([None] * run.tensor, dtype=pl.Int32),
                "start_ns": entered[stage, pipelines], "end_ns": left[stage, pipelines],
                "group": [f"dp of stage {stage}, tp {tensor}" for tensor in range(run.tensor)],
                "op": ["reduce-scatter"] * run.tensor,
                "sequence": pl.Series([step] * run.tensor, dtype=pl.Int64),
            })  # fmt: skip

    return pl.concat(parts())
