"""The collectives of a step as operations: who takes part, and what waits for them.

The ranks whose parts share (group, op, sequence) are a group; that they have is checked, for no part ends before the
last one has started. Only those are taken that tie replicas or stages together: of all replicas of a stage
(reductions of gradients, gatherings of parameters), of the first and the last stage of a replica, of all stages. What
lies inside a block belongs to the block.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import polars as pl

from trace_export.model import Profile
from trace_export.pipeline.operations import LeftOut, Part
from trace_export.pipeline.stages import depth
from trace_export.pipeline.transfer_operations import POSTED_NS, QUEUED_NS
from trace_export.schedules.operation_types import AG, CLIP, EMB, OPT, RS, F
from trace_export.schedules.step_graph import Ints, Waits

if TYPE_CHECKING:
    from trace_export.pipeline.block_operations import Blocks

EARLY_NS = 1_000_000
"""A part that ends so long before the last one has started is of another collective, whatever the clocks' error."""


@dataclass(frozen=True)
class Parts:
    """`table`: a row for each part of the collectives that tie replicas or stages together: type, members (the dense
    stages that take part, as text), synced (whether all replicas do, or each by itself), nth (in the step, of those
    alike), stage and replica (dense), at (the number of the step), start_ns, end_ns."""

    table: pl.DataFrame
    left_out: tuple[LeftOut, ...]


@dataclass(frozen=True)
class Collectives:
    """Those of steps with the same operations; `without`: what is recorded and not among them."""

    part: Part
    without: tuple[LeftOut, ...] = ()

    def connect(self, waits: Waits, first: int, blocks: Blocks, streams: list[list[int]]) -> dict[int, list[int]]:
        """Adds what these operations, the first of which has the number `first`, wait for, and the forwards that wait
        for gathered parameters. Returns the numbers of those that each optimizer waits for.

        A collective waits for the one before on its rank, and for the block of its rank that ended last before.
        """
        start, end = self.part.start_ns, self.part.end_ns
        reduced: dict[int, list[int]] = {}
        before: dict[int, int] = {}
        for i in np.argsort(start[:, 0, 0], kind="stable").tolist() if len(self.part) else ():
            stage, stream = int(self.part.stage[i]), streams[int(self.part.stage[i])]
            last = before.get(stage)
            if last is not None and (start[i] >= end[last] - QUEUED_NS).all():
                waits.add(first + i, first + last)
            before[stage] = i
            waits.add(first + i, *self._posted(i, blocks, stream))
            awaited = F if self.part.types[i] == AG else OPT
            consumers = [
                k for k in np.flatnonzero(blocks.stage == stage).tolist()
                if blocks.types[k] == awaited and (blocks.start[k] >= end[i] - QUEUED_NS).all()
            ]  # fmt: skip
            if not consumers:
                continue
            consumer = min(consumers, key=lambda k: int(blocks.start[k, 0, 0]))
            if awaited == OPT:
                reduced.setdefault(consumer, []).append(first + i)
            else:
                waits.add(consumer, first + i)
        return reduced

    def joins_all(self, first: int, reduced: dict[int, list[int]], stages: int) -> bool:
        """Whether all ranks meet in one of these before their optimizers; arguments as of `connect`."""
        waited = {i for numbers in reduced.values() for i in numbers}
        alone = self.part.start_ns.shape[1] == 1
        return any(
            len(group) == stages and (synced or alone) and waited.issuperset(first + i for i in group)
            for group, synced in zip(self.part.groups, self.part.synced, strict=True)
        )

    def _posted(self, i: int, blocks: Blocks, stream: list[int]) -> list[int]:
        """The block of `stream` that ended last before this one started, in every replica and step."""
        ended = blocks.end[stream] <= self.part.start_ns[i] + POSTED_NS
        place = int(np.logical_and.accumulate(ended, axis=0).sum(axis=0).min())
        return stream[place - 1 : place] if place else []


FAMILY = ["type", "members", "synced"]
INSTANCE = ["group", "op", "sequence"]


def collective_parts(profile: Profile, places: pl.DataFrame, blocks: pl.DataFrame) -> Parts:
    """The parts of all collectives. `places`: rank, stage, replica; `blocks`: stage, replica, at, start_ns, of all
    steps, with dense numbers. Who takes part is seen from all ranks that were read, also from those without blocks."""
    stages = profile.ranks.select("rank", real="stage").drop_nulls()
    rows = profile.collectives.join(stages, on="rank").drop_nulls(["start_ns", "end_ns"])
    named = rows.drop_nulls(["group", "sequence"])
    placed = _in_steps(named.join(places, on="rank"), blocks)
    members = _members(named, depth(profile.ranks, profile.declared))
    found = _instances(placed, places["replica"].n_unique()).join(members, on=INSTANCE)
    typed = found.drop_nulls("type").filter(pl.col("ranks") > 1)
    late = (pl.col("first_end") + EARLY_NS < pl.col("last_start")).any().over(FAMILY)
    left_out = [
        *_counted(rows.filter(pl.col("group").is_null() | pl.col("sequence").is_null()), pl.len(), UNKNOWN),
        *_counted(found.filter(pl.col("ranks") == 1), pl.col("parts").sum(), ALONE),
        *_counted(typed.filter(~pl.col("tied")), pl.col("parts").sum(), PARTIAL),
        *_counted(typed.filter(pl.col("tied")).filter(late), pl.col("parts").sum(), EARLY),
    ]
    begun = blocks.group_by("at").agg(step_start=pl.col("start_ns").min())
    sound = typed.filter("tied").filter(~late).join(begun, on="at").filter(pl.col("start") >= pl.col("step_start"))
    nth = pl.int_range(pl.len()).over(*FAMILY, "at", "one_replica")
    numbered = sound.sort("at", "start").select(*INSTANCE, *FAMILY, "at", nth=nth)
    table = placed.drop("at").join(numbered, on=INSTANCE)
    return Parts(table.select(*FAMILY, "nth", "stage", "replica", "at", "start_ns", "end_ns"), tuple(left_out))


UNKNOWN = "who takes part was not recorded"
ALONE = "no other rank that takes part was read"
PARTIAL = "not all replicas take part, or their blocks are of different steps"
EARLY = "parts with one number end before others have started"


def _counted(parts: pl.DataFrame, count: pl.Expr, reason: str) -> Iterator[LeftOut]:
    for op, number in parts.group_by("op").agg(count.alias("parts")).sort("op").iter_rows():
        yield LeftOut(op, number, reason)


def _members(parts: pl.DataFrame, stages: int) -> pl.DataFrame:
    """`INSTANCE`, ranks (how many took part, of those that were read), start, last_start, first_end, and the type that
    their stages and the name of the operator make it; null for what ties neither replicas nor stages together."""
    found = parts.group_by(INSTANCE).agg(
        start=pl.col("start_ns").min(), last_start=pl.col("start_ns").max(), first_end=pl.col("end_ns").min(),
        ranks=pl.col("rank").n_unique(), wide=pl.col("real").n_unique(),
        ends=(pl.col("real").min() == 0) & (pl.col("real").max() == stages - 1),
    )  # fmt: skip
    reduces, gathers = (pl.col("op").str.contains(f"(?i){word}") for word in ("reduce|scatter", "gather"))
    one, two = pl.col("wide") == 1, (pl.col("wide") == 2) & (pl.col("ranks") == 2) & pl.col("ends")
    kind = (
        pl.when(one & gathers).then(pl.lit(AG)).when(one & reduces).then(pl.lit(RS))
        .when(two & reduces).then(pl.lit(EMB))
        .when((pl.col("wide") == stages) & (reduces | gathers)).then(pl.lit(CLIP))
    )  # fmt: skip
    return found.select(*INSTANCE, "start", "last_start", "first_end", "ranks", kind.alias("type"))


def _in_steps(parts: pl.DataFrame, blocks: pl.DataFrame) -> pl.DataFrame:
    """`parts` with the step (`at`) of the block of their rank that started last before; a gathering of parameters with
    that of the next block, which it is for."""
    lane = ["stage", "replica"]
    begun = (blocks if parts.height else blocks.clear()).select(*lane, "at", "start_ns").sort("start_ns")
    sides = parts.sort("start_ns")
    for strategy, name in (("backward", "before"), ("forward", "after")):
        sides = sides.join_asof(
            begun.rename({"at": name}), on="start_ns", by=lane, strategy=strategy, check_sortedness=False  # type: ignore[arg-type]
        )  # fmt: skip
    at = pl.when(pl.col("op").str.contains("(?i)gather")).then("after").otherwise("before")
    return sides.with_columns(at=at).drop_nulls("at").drop("before", "after")


def _instances(parts: pl.DataFrame, replicas: int) -> pl.DataFrame:
    """The collectives of ranks with blocks: `INSTANCE`, members and synced (see `Parts`), at, parts, one_replica (-1:
    all), tied (whether the members are a set of stages in one step, in all replicas or in one)."""
    found = parts.group_by(INSTANCE).agg(
        pl.col("stage").unique().sort().cast(pl.String).str.join(",").alias("members"),
        pl.col("at").first(), pl.len().alias("parts"), steps=pl.col("at").n_unique(),
        lanes=pl.struct("stage", "replica").n_unique(), wide=pl.col("stage").n_unique(),
        deep=pl.col("replica").n_unique(), some=pl.col("replica").first(),
    )  # fmt: skip
    all_cells = (pl.col("parts") == pl.col("lanes")) & (pl.col("lanes") == pl.col("wide") * pl.col("deep"))
    synced = pl.col("deep") == replicas
    return found.select(
        *INSTANCE, "members", "at", "parts",
        synced=synced & (replicas > 1), one_replica=pl.when(synced).then(-1).otherwise("some"),
        tied=all_cells & (pl.col("steps") == 1) & (synced | ((pl.col("deep") == 1) & (pl.col("wide") > 1))),
    )  # fmt: skip


def collectives(parts: Parts, blocks: Blocks, steps: Ints) -> Collectives:
    """Those of `steps`, which have `blocks`.

    Of a kind of collective that is not in every replica and step as often there are none; none are inside a block, or
    begin after the optimizer.
    """
    _, replicas, count = blocks.start.shape
    table = parts.table.join(pl.DataFrame({"at": steps, "step": np.arange(count)}), on="at")
    cells = table.group_by(*FAMILY, "stage", "replica", "step").len("times")
    regular = cells.group_by(FAMILY).agg(
        even=(pl.col("times").n_unique() == 1) & (pl.len() == pl.col("stage").n_unique() * replicas * count)
    )
    uneven = table.join(regular.filter(~pl.col("even")), on=FAMILY).group_by("type").len().sort("type")
    kept = table.join(regular.filter("even"), on=FAMILY).sort(*FAMILY, "nth", "stage", "replica", "step")
    shape = (kept.height // (replicas * count), replicas, count)
    start, end = (kept[c].to_numpy().reshape(shape) for c in ("start_ns", "end_ns"))
    first = kept.gather_every(replicas * count)
    group = first.select(pl.struct(*FAMILY, "nth").rle_id()).to_series().to_numpy()
    out = group[_elsewhere(first["stage"].to_list(), start[:, 0, 0], end[:, 0, 0], blocks)]
    numbers = np.flatnonzero(~np.isin(group, out))
    operations, group = first[numbers], group[numbers]
    groups = [np.flatnonzero(group == n).tolist() for n in dict.fromkeys(group.tolist())]
    synced = operations["synced"].gather([members[0] for members in groups]).to_list()
    stage, nth = (operations[c].to_numpy().astype(np.int64) for c in ("stage", "nth"))
    found = Part(
        operations["type"].to_list(), stage, start[numbers], end[numbers], {"sequence": nth}, groups, synced
    )  # fmt: skip
    reason = "their number differs between the steps or the replicas"
    without = [*parts.left_out, *(LeftOut(name, count, reason) for name, count in uneven.iter_rows())]
    return Collectives(found, tuple(without))


def no_collectives(blocks: Blocks) -> Collectives:
    """For steps that have none."""
    none = np.zeros((0, *blocks.start.shape[1:]), np.int64)
    return Collectives(Part([], np.zeros(0, np.int64), none, none))


def _elsewhere(stages: list[int], start: Ints, end: Ints, blocks: Blocks) -> npt.NDArray[np.bool_]:
    """Whether each collective lies inside a block, or after the last optimizer, in the first replica and step."""
    found = np.zeros(len(stages), np.bool_)
    optimizer = np.array([name == OPT for name in blocks.types])
    for n, stage in enumerate(stages):
        here = blocks.stage == stage
        begun, ended = blocks.start[here, 0, 0], blocks.end[here, 0, 0]
        found[n] = ((begun <= start[n]) & (end[n] <= ended)).any()
        if optimizer[here].any():
            found[n] |= start[n] >= ended[optimizer[here]].max()
    return found
