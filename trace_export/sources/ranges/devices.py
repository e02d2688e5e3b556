"""Several devices of one process: each becomes a rank of its own, where its blocks ran on one device each.

The ranges of such a process are taken once for each device, as if a process of its own had recorded them (a part), and
the work of a device is attributed to its part. Then each part keeps the ranges in which its device worked.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

import polars as pl

from trace_export.errors import SourceError
from trace_export.model import Note, Profile
from trace_export.selection import Numbers
from trace_export.sources.ranges.attribution import GpuActivity
from trace_export.sources.ranges.by_launch import WHOLE, Parts
from trace_export.sources.ranges.ranges import COMMUNICATION, Ranges
from trace_export.sources.ranges.ranks import ByProcess, check_names, from_names

SECOND_DEVICE = 0.1
"""A process runs a second device if that has at least this part of the kernels of the main one."""
SPREAD = 0.1
"""At most this part of the blocks may have work on several devices; above it devices do not tell the blocks apart."""
SEVERAL = "one process runs several GPUs"


def runs_several(kernels: Mapping[int, int]) -> list[int]:
    """The devices that a process runs, in order, where they are several; `kernels`: how many ran on each device. A
    negative number is that of no device."""
    of_devices = {device: count for device, count in kernels.items() if device >= 0}
    most = max(of_devices.values(), default=0)
    used = sorted(device for device, count in of_devices.items() if count > SECOND_DEVICE * most)
    return used if len(used) > 1 else []


@dataclass(frozen=True)
class Devices:
    """The `parts` of the processes of a source that run several devices: process → device → part. `left_out`: how many
    sends and receives of them are of no known device. `idle`: the devices of processes that compute and run no block,
    which are not drawn."""

    parts: Parts = field(default_factory=dict)
    left_out: int = 0
    idle: Mapping[int, list[int]] = field(default_factory=dict)

    def without_names(self, ranges: Ranges) -> Ranges:
        """The ranges without the ranks and stages that names give to a process with several devices: they are those of
        its parts."""
        if not self.parts:
            return ranges
        split = pl.col("process").is_in(list(self.parts))
        names = [pl.when(~split).then(column).alias(column) for column in ("rank", "place")]
        return replace(ranges, frame=ranges.frame.with_columns(names))

    def ranks(self, ranks: pl.DataFrame, ranges: Ranges, path: Path) -> pl.DataFrame:
        """`ranks` (see ranks.assigned) with a row for each part in place of its process. Its rank is the one that the
        names of its ranges give, where those of each part give another one. Otherwise it is that of its process times
        the most devices of one, and its place among the devices; that of a lone process the number of the device.
        Raises SourceError where the names of one part are of several ranks."""
        if not self.parts:
            return ranks
        check_names(path, ranges, of="device")
        rows = ranks.to_dicts()
        most = max(len(devices) for devices in self.parts.values())
        recorded = all(row["rank_origin"] == "recorded" for row in rows)
        numbers = {row["process"]: row["rank"] if recorded else index for index, row in enumerate(rows)}
        named, stages = self._named(ranges), from_names(ranges, "place")
        made = []
        for row in rows:
            base = numbers[row["process"]] * most
            for index, (device, part) in enumerate(self.parts.get(row["process"], {-1: row["process"]}).items()):
                lone = base == 0 and len(rows) == 1 and device >= 0
                stage = stages.get(part, min(ranges.stages.get(part, []), default=None))
                fields = {"process": part, "rank": device if lone else base + index, "rank_origin": "inferred"}
                if part in named:
                    fields |= {"rank": named[part], "rank_origin": "recorded"}
                elif named and device < 0:
                    fields = {}
                if device >= 0:
                    fields |= {"device": device, "stage": stage, "stage_origin": None if stage is None else "recorded"}
                made.append(row | fields)
        return pl.DataFrame(made, ranks.schema).sort("rank")

    def _named(self, ranges: Ranges) -> ByProcess:
        """The rank of each part by the names of its ranges; empty if these do not tell all parts apart."""
        parts = {part for devices in self.parts.values() for part in devices.values()}
        names = {part: rank for part, rank in from_names(ranges).items() if part in parts}
        return names if len(names) == len(parts) == len(set(names.values())) else {}

    def placed(self, rows: pl.DataFrame) -> pl.DataFrame:
        """`rows` (process, device) with the part of their device as their process; those of other devices go."""
        if not self.parts:
            return rows
        parts = [(p, device, part) for p, devices in self.parts.items() for device, part in devices.items()]
        schema = {"process": pl.Int64, "device": pl.Int64, "part": pl.Int64}
        of_device = rows.with_columns(pl.col("device").cast(pl.Int64)).join(
            pl.DataFrame(parts, schema, orient="row"), on=["process", "device"], how="left", maintain_order="left"
        )
        split = pl.col("process").is_in(list(self.parts))
        return (
            of_device.with_columns(process=pl.when(split).then("part").otherwise("process"))
            .drop("part")
            .drop_nulls("process")
        )

    def restored(self, profile: Profile, path: Path) -> Profile:
        """The profile with the source's numbers of processes, and notes on the parts."""
        if self.idle:
            unused = Numbers.of(device for devices in self.idle.values() for device in devices)
            text = f"{SEVERAL}; no block is named on {unused.named('device')}, so what runs there is not drawn"
            profile = profile.with_notes([Note("devices-without-blocks", "warning", text, str(path), len(self.idle))])
        if not self.parts:
            return profile
        numbers = {part: process for process, devices in self.parts.items() for part in devices.values()}
        ranks = profile.ranks.with_columns(pl.col("process").replace(list(numbers), list(numbers.values())))
        devices = sum(len(parts) for parts in self.parts.values())
        recorded = (ranks["rank_origin"] == "recorded").all()
        number = "" if recorded else ", numbered by its place"
        text = f"{SEVERAL}; each of its {devices} devices is drawn as a rank of its own{number}"
        notes = [Note("ranks-of-devices", "note", text, str(path), len(self.parts))]
        if self.left_out:
            what = (
                "sends, receives and collectives of a process with several devices, left out: their device is unknown"
            )
            notes.append(Note("transfers-without-device", "note", what, str(path), self.left_out))
        return replace(profile, ranks=ranks, notes=(*profile.notes, *notes))


@dataclass(frozen=True)
class Attributed:
    """Ranges with the `activity` in them: the `ranges`, of parts where processes run several `devices`. `gpus`: the
    device of each process, of several the first. Without activity the ranges are drawn themselves."""

    ranges: Ranges
    activity: GpuActivity | None = None
    devices: Devices = Devices()
    gpus: Mapping[int, int] = field(default_factory=dict)

    @cached_property
    def worked(self) -> pl.DataFrame:
        """The ranges with the columns of `GpuActivity.frame`; no GPU work in any of them where there is no activity."""
        by_range = self.activity or GpuActivity.none(self.ranges.frame)
        return self.ranges.frame.join(by_range.frame(), on="id", maintain_order="left")


def attributed(path: Path, ranges: Ranges, attribute: Callable[[pl.DataFrame, Parts], GpuActivity]) -> Attributed:
    """The work in `ranges`, as `attribute` finds it for their frame, whose processes may be parts of others. Raises
    SourceError where a process runs several devices and its blocks are not of one each."""
    activity = attribute(ranges.frame, WHOLE)
    several = {process: used for process, kernels in activity.devices.items() if (used := runs_several(kernels))}
    gpus = {
        process: several[process][0] if process in several else kernels.most_common(1)[0][0]
        for process, kernels in activity.devices.items()
    }
    drawn = {process: several.get(process, [gpu]) for process, gpu in gpus.items()}
    idle = _without_blocks(activity, drawn)
    # A kernel of a device without blocks has no part in the block of another thread in which it seems to be launched.
    alone: Parts = {process: {gpus[process]: process} for process in idle if process not in several}
    if not several:
        return Attributed(ranges, attribute(ranges.frame, alone) if alone else activity, Devices(idle=idle), gpus)
    parts = _parts(ranges.frame, several)
    split = _split(ranges.frame, parts)
    worked = Attributed(replace(ranges, frame=split), attribute(split, {**parts, **alone})).worked
    blocks = _placed_blocks(path, worked)
    empty = {part for devices in parts.values() for part in devices.values()}.difference(blocks["process"])
    parts = {process: {d: part for d, part in parts[process].items() if part not in empty} for process in parts}
    kept, left_out = _kept(worked.filter(~pl.col("process").is_in(list(empty))), blocks)
    of_parts = ranges.with_frame(kept.select(ranges.frame.columns).sort("process", "id").with_columns(id=_number()))
    devices = Devices(parts, left_out, idle)
    return Attributed(of_parts, attribute(of_parts.frame, {**parts, **alone}), devices, gpus)


def _without_blocks(activity: GpuActivity, drawn: Mapping[int, list[int]]) -> dict[int, list[int]]:
    """The devices of each process that compute as others do, and are not among those that are `drawn`."""
    idle = {process: set(runs_several(activity.busy[process])) - set(drawn[process]) for process in drawn}
    return {process: sorted(devices) for process, devices in idle.items() if devices}


def _number() -> pl.Expr:
    return pl.int_range(pl.len(), dtype=pl.Int64)


def _parts(frame: pl.DataFrame, several: Mapping[int, list[int]]) -> Parts:
    """A number for each device of a process, which no process in `frame` has."""
    number = min(0, *frame["process"].unique().to_list())
    parts: dict[int, dict[int, int]] = {}
    for process, devices in sorted(several.items()):
        for device in devices:
            number -= 1
            parts.setdefault(process, {})[device] = number
    return parts


def _split(frame: pl.DataFrame, parts: Parts) -> pl.DataFrame:
    """The ranges once for each part of their process; `whole` is the id that they had."""
    rows = [(process, part) for process, devices in parts.items() for part in devices.values()]
    numbers = pl.DataFrame(rows, {"process": pl.Int64, "part": pl.Int64}, orient="row")
    both = frame.join(numbers, on="process", how="left", maintain_order="left_right")
    placed = both.with_columns(pl.coalesce("part", "process").alias("process"), whole="id").drop("part")
    return placed.sort("process", maintain_order=True).with_columns(id=_number())


def _placed_blocks(path: Path, worked: pl.DataFrame) -> pl.DataFrame:
    """The blocks, each in the part where most of the work of its thread ran, if each part has such a thread; else
    where nearly all of its own ran, those without work in any. Raises SourceError where there is no such part for many.

    While ranges of several threads are open, a launch of another thread (autograd's) may be given to any of them: what
    a thread does as a whole tells its device all the same.
    """
    every = worked.filter(pl.col("role") == "block")
    blocks = every.filter(pl.col("work_count") > 0)
    threads = blocks.group_by("thread", "process").agg(pl.col("work_count").sum())
    main = threads.filter(pl.col("work_count") > 0.5 * pl.col("work_count").sum().over("thread"))
    if set(main["process"]) == set(threads["process"]) and set(main["thread"]) == set(threads["thread"]):
        return every.join(main.select("thread", "process"), on=["thread", "process"], how="semi")
    share = pl.col("work_count") / pl.col("work_count").sum().over("whole")
    placed = blocks.filter(share >= 1 - SECOND_DEVICE)
    if placed.height < (1 - SPREAD) * blocks["whole"].n_unique() or placed.is_empty():
        what = f"{SEVERAL}, and its blocks work on more than one of them"
        raise SourceError(path, what, "name the passes of each GPU by itself, or run a process for each")
    empty = every.join(blocks, on="whole", how="anti").unique("whole", keep="first", maintain_order=True)
    return pl.concat([placed, empty])


def _kept(worked: pl.DataFrame, blocks: pl.DataFrame) -> tuple[pl.DataFrame, int]:
    """The ranges of each part, where its `blocks` are known, and how many sends, receives and collectives are of none.

    One with kernels of NCCL belongs to the part where these ran, one without to the part whose blocks have its stage,
    or else whose blocks alone its thread launches. The steps of a part are those of such a thread, else all.
    """
    stages = blocks.select("process", "stage").drop_nulls().unique()
    threads = blocks.select("process", "thread").unique()
    alone = threads.filter(pl.col("thread").is_unique())
    placed = worked.join(stages.with_columns(of_stage=True), on=["process", "stage"], how="left", maintain_order="left")
    alone = alone.with_columns(of_thread=True)
    placed = placed.join(alone, on=["process", "thread"], how="left", maintain_order="left")
    block, transfer = pl.col("role") == "block", pl.col("role").is_in(["p2p", COMMUNICATION])
    moved = pl.col("comm_count") > 0
    empty = pl.when(pl.col("stage").is_not_null()).then("of_stage").otherwise("of_thread").fill_null(False)
    moves = pl.when(moved.any().over("whole")).then(moved).otherwise(empty)
    of_block = pl.col("id").is_in(blocks["id"].implode())
    alone_in = pl.len().over("whole") == 1
    step, of_thread = pl.col("role") == "step", pl.col("of_thread").fill_null(False)
    steps = of_thread | ~(step & of_thread).any().over("process")
    decided = pl.when(alone_in).then(True).when(block).then(of_block).when(transfer).then(moves)
    keep = decided.when(step).then(steps).otherwise(True)
    placed = placed.with_columns(keep=keep)
    lost = placed.filter(transfer, ~pl.col("keep").any().over("whole"))["whole"].n_unique()
    return placed.filter("keep"), lost
