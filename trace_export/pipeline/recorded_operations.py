"""The operations of a run whose source recorded every one of them (`Declared.every_operation`)."""

from __future__ import annotations

import numpy as np
import polars as pl

from trace_export.model import STEP_KEY, Profile
from trace_export.pipeline.operation_matrix import Numbers, matrices, sequence_numbers
from trace_export.pipeline.operation_rules import Reference, graph_of
from trace_export.pipeline.operations import Operations, Step, Times
from trace_export.pipeline.stages import depth
from trace_export.schedules.operation_types import AG, BLOCKS, CLIP, COLLECTIVE, EMB, GC, LN, OPT, RS, TRANSFERS
from trace_export.schedules.step_graph import Ints

TYPES = (*BLOCKS, GC, *TRANSFERS, *COLLECTIVE)
NUMBERS = ("chunk", "microbatch")
FAR_NS = 10**12
"""A step does not begin so long after its zero: then that is the zero of another step of this number."""


def recorded_operations(profile: Profile) -> Operations | str:
    """The operations, with the graph of the straggler study's rules; or why there are none.

    Raises IncompleteOperationsError (a ValueError) where the rules find no graph.
    """
    rows, steps = _rows(profile)
    ranks = profile.ranks.select("rank", "stage", "replica").drop_nulls().sort("replica", "stage")
    if rows.is_empty() or ranks.is_empty():
        return "the ranks have no stage, or no operation"
    stages, replicas = int(ranks["stage"].to_numpy().max()) + 1, ranks["replica"].unique().sort()
    if stages < depth(ranks, profile.declared):
        return f"stage {stages} was not read"
    if ranks.height != stages * len(replicas):
        return f"{ranks.height} ranks were read of {len(replicas)} pipelines with {stages} stages"
    key, width, replica, step = _keys(rows, ranks, stages, replicas)
    rows = rows.select("start_ns", "end_ns", "row", *NUMBERS)
    kinds, odd = matrices(key, replica, step)
    del key, replica, step
    if not kinds:
        return "no step has the same operations in all pipelines"
    found = kinds[0]
    left_out = np.sort(np.concatenate([odd, *(other.steps for other in kinds[1:])]))
    starts, ends = (rows[side].to_numpy()[found.row] for side in ("start_ns", "end_ns"))
    origin = starts.min(axis=(0, 1))
    for times in (starts, ends):
        times -= origin
    types = [TYPES[n] for n in (found.keys // (width * stages)).tolist()]
    chunk, microbatch = (rows[c].fill_null(0).to_numpy().astype(np.int64)[found.row[:, 0, 0]] for c in NUMBERS)
    sequence, stage = found.keys // stages % width, found.keys % stages
    named = steps.select(STEP_KEY).rows()
    zero = _recorded_from(profile, [named[n] for n in found.steps.tolist()], origin)
    begun, taken = (seconds(part[:, 0, 0]) for part in (starts - zero, ends - starts))
    reference = Reference(types, sequence, stage, chunk, begun, begun + taken)
    return Operations(
        types=types, stage=stage, chunk=chunk, microbatch=microbatch, sequence=sequence, start_ns=starts, end_ns=ends,
        origin_ns=origin,
        span=rows["row"].fill_null(-1).to_numpy().astype(np.int64)[found.row], peer=_peers(types, stage, stages),
        ranks=ranks["rank"].to_numpy().astype(np.int64).reshape(len(replicas), stages),
        replicas=replicas.to_list(), steps=[named[n] for n in found.steps.tolist()], graph=graph_of(reference),
        loss_stages=(stages - 1,),
        recorded_from_ns=zero, level="operations",
        left_out=tuple((*named[n], "its operations are not those of the other steps") for n in left_out.tolist()),
        missing=not_recorded(profile),
    )  # fmt: skip


def _keys(
    rows: pl.DataFrame, ranks: pl.DataFrame, stages: int, replicas: pl.Series
) -> tuple[Ints, int, Numbers, Numbers]:
    """A number for each operation, (type · width + sequence number) · stages + stage; the width; and of each row the
    replica and the step."""
    lookup = np.zeros((2, int(ranks["rank"].to_numpy().max()) + 1), np.int32)
    lookup[:, ranks["rank"].to_numpy()] = (
        ranks["stage"].to_numpy(), np.searchsorted(replicas.to_numpy(), ranks["replica"].to_numpy())
    )  # fmt: skip
    stage, replica = lookup[:, rows["rank"].to_numpy()]
    kind, step = rows["type"].to_numpy(), rows["at"].to_numpy().astype(np.int32)
    lane = step.astype(np.int64)
    for part, size in ((replica, len(replicas)), (stage, stages), (kind, len(TYPES))):
        lane *= size
        lane += part
    sequence = sequence_numbers(lane, rows["order"].to_numpy())
    width = int(sequence.max()) + 1
    key = lane
    np.multiply(kind, width, out=key, casting="unsafe", dtype=np.int64)
    key += sequence
    key *= stages
    key += stage
    return key, width, replica, step


def _recorded_from(profile: Profile, steps: list[Step], origin: Times) -> Times:
    """Where the recorded times of each step count from, from its `origin`."""
    zeros: dict[int | None, int] = dict(profile.declared.step_zeros or ())
    found = np.array([zeros.get(step, at) for (_, step), at in zip(steps, origin.tolist(), strict=True)], np.int64)
    return np.where(np.abs(found - origin) < FAR_NS, found - origin, 0)


def lacks_transfers(profile: Profile) -> bool:
    """Whether the transfers of a direction between stages were not recorded at all, or one side of them."""
    return profile.ranks["stage"].n_unique() > 1 and bool(set(TRANSFERS) - set(profile.p2p["op"].unique()))


def not_recorded(profile: Profile) -> tuple[str, ...]:
    """The types of operations that a step of the study has and no step here, and the number of missing replicas."""
    replicas, several = profile.ranks["replica"].n_unique(), profile.ranks["stage"].n_unique() > 1
    there = {*profile.p2p["op"].unique(), *profile.collectives["op"].unique(), *profile.spans["marker"].unique()}
    expected = [GC, LN, EMB, CLIP, OPT, *(TRANSFERS if several else ()), *((AG, RS) if replicas > 1 else ())]
    lacking = [name for name in expected if name not in there]
    for name in (AG, RS):
        having = profile.ranks.join(profile.collectives.filter(pl.col("op") == name), on="rank", how="semi")["stage"]
        without = profile.ranks.filter(~pl.col("stage").is_in(having.implode()))["stage"].drop_nulls().unique().sort()
        lacking += [f"{name} of stage {stage}" for stage in without if len(having)]
    declared = profile.declared.dp or 0
    if replicas < declared:
        lacking.append(f"{declared - replicas} of {declared} replicas")
    return tuple(lacking)


def seconds(times: Ints) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    """Nanoseconds as the 32-bit seconds that were recorded."""
    return (times * 1e-9).astype(np.float32)


def _peers(types: list[str], stage: Ints, stages: int) -> Ints:
    """The stage on the other side of each transfer, -1 elsewhere."""
    onward = {name: 1 if (role == "send") == (way == "F") else -1 for name, (role, way) in TRANSFERS.items()}
    there = [
        (s + onward[name]) % stages if name in onward else -1 for name, s in zip(types, stage.tolist(), strict=True)
    ]
    return np.array(there, np.int64)


def _rows(profile: Profile) -> tuple[pl.DataFrame, pl.DataFrame]:
    """All operations of steps, as rank, type, chunk, microbatch, start_ns, end_ns, order (among those of their type and
    rank), row (in `spans`), at (the number of the step); and the steps: run, step.

    A transfer or collective belongs to the step that is nearest in time.
    """
    number = {name: n for n, name in enumerate(TYPES)}
    by_kind = {kind: number[name] for name, kind in BLOCKS.items()}
    kind = pl.col("kind").replace_strict(by_kind, default=number[GC], return_dtype=pl.Int8)
    blocks = (
        profile.spans.lazy()
        .with_row_index("row")
        .filter(pl.col("kind").is_not_null() | (pl.col("marker") == GC), pl.col("step").is_not_null())
        .select("rank", kind.alias("type"), "chunk", "microbatch", "start_ns", "end_ns", "row", *STEP_KEY)
        .collect()
    )
    steps = blocks.group_by(STEP_KEY).agg(first=pl.col("start_ns").min(), last=pl.col("end_ns").max()).sort("first")
    steps = steps.with_row_index("at")
    spans = blocks.join(steps.select(*STEP_KEY, "at"), on=STEP_KEY, maintain_order="left")
    spans = spans.drop(STEP_KEY).with_columns(order="start_ns")
    by_name = pl.col("op").replace_strict(number, default=None, return_dtype=pl.Int8)
    group = pl.col("group").rank("dense").over("rank", "op").cast(pl.Int32) - 1  # one for each chunk
    tables = ((profile.p2p, pl.lit(None, pl.Int32)), (profile.collectives, group))
    others = pl.concat(
        table.lazy()
        .select(
            "rank",
            by_name.alias("type"),
            "start_ns",
            "end_ns",
            chunk=chunk,
            microbatch=pl.lit(None, pl.Int32),
            order=pl.coalesce("sequence", "start_ns"),
        )
        .drop_nulls("type")
        .collect()
        for table, chunk in tables
    )
    between = (steps["last"].to_numpy()[:-1] + steps["first"].to_numpy()[1:]) // 2
    at = pl.Series(np.searchsorted(between, others["start_ns"].to_numpy())).cast(pl.UInt32)
    return pl.concat([spans, others.with_columns(at=at, row=pl.lit(None, pl.UInt32)).select(spans.columns)]), steps
