"""Collectives as operations of a step: who takes part, what waits for them, and what is left out."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import polars as pl
import pytest

from tests.support.profiles import ORIGIN, concluded, span, table
from trace_export.analysis.what_if import Slowdown, what_if
from trace_export.model import COLLECTIVES, HOSTS, RANKS, SPANS, Declared, Profile, conform
from trace_export.pipeline.operations import Operations
from trace_export.pipeline.step_operations import step_operations
from trace_export.schedules.operation_types import AG, CLIP, EMB, RS, TAIL

MS = 1_000_000
REPLICAS, STEPS = 2, 3
STEP_MS = 1000
Part = tuple[str, str | None, int, int, float, float]
"""A rank's part of a collective: op, group, rank, number in the step, start and end in ms in each step."""


def blocks(slow: float = 1.0) -> list[dict[str, Any]]:
    """Two stages, one micro-batch of 10 and 20 ms, in two replicas of which the second is slower by a factor; ranks
    0, 1 are the stages of replica 0. Gradients are reduced over the replicas of a stage, then comes the optimizer."""
    rows = []
    for step in range(STEPS):
        for replica in range(REPLICAS):
            f, b = (length * (slow if replica else 1) for length in (10, 20))
            first, last = 2 * replica, 2 * replica + 1
            times = [(first, "F", 0, f), (last, "F", f, 2 * f), (last, "B", 2 * f, 2 * f + b)]
            times += [(first, "B", 2 * f + b, 2 * f + 2 * b)]
            done = (2 * 10 + 2 * 20) * max(slow, 1)
            times += [(rank, "OPT", done + 6, done + 9) for rank in (first, last)]
            for rank, kind, start, end in times:
                at = [round((step * STEP_MS + time) * MS) for time in (start, end)]
                rows.append(span(rank, kind, None if kind == "OPT" else 0, *at, chunk=0, step=step))
    return rows


def made(parts: list[Part], slow: float = 1.0) -> Profile:
    ranks = pl.DataFrame({"rank": range(4)}).with_columns(
        stage=pl.col("rank") % 2, dp=pl.col("rank") // 2, tp=0, cp=0, host=pl.lit("a")
    )
    rows = []
    for step in range(STEPS):
        for op, group, rank, number, *times in parts:
            start, end = (ORIGIN + round((step * STEP_MS + time) * MS) for time in times)
            named = {"rank": rank, "group": group, "op": op, "sequence": 10 * step + number}
            rows.append({**named, "start_ns": start, "end_ns": end})
    hosts = pl.DataFrame({"host": ["a"], "machine": [0], "label": ["a"]})
    profile = Profile(
        hosts=conform(hosts, HOSTS), ranks=conform(ranks, RANKS), spans=table(blocks(slow), SPANS),
        declared=Declared(pp=2, dp=2),
    )  # fmt: skip
    return concluded(replace(profile, collectives=table(rows, COLLECTIVES)))


def reductions(slow: float = 1.0, took: tuple[float, float] = (6, 6)) -> list[Part]:
    """That of a stage starts on a rank with the end of its backward, and ends so long after the last has started."""
    parts: list[Part] = []
    for rank in range(4):
        stage, done = rank % 2, 40 if rank % 2 else 60
        start, end = done * (slow if rank > 1 else 1), done * max(slow, 1) + took[stage]
        parts.append(("reduceScatter", f"dp of stage {stage}", rank, 0, start, end))
    return parts


def usual(profile: Profile) -> Operations:
    found = step_operations(profile).usual
    assert found is not None
    assert len(found.steps) == STEPS
    return found


def waits(operations: Operations, name: str) -> set[tuple[str, int]]:
    """Type and stage of all that operations of a type wait for."""
    needed = {w for i, own in enumerate(operations.types) if own == name for w in operations.graph.waits[i]}
    return {(operations.types[w], int(operations.stage[w])) for w in needed}


def test_gradients_are_reduced_over_the_replicas_of_a_stage() -> None:
    found = usual(made(reductions()))
    rows = [i for i, name in enumerate(found.types) if name == RS]
    assert [int(found.stage[i]) for i in rows] == [0, 1]
    groups = [list(group) for group in found.graph.groups if found.types[group[0]] == RS]
    assert sorted(groups) == [[i] for i in rows]
    assert [found.graph.synced[g] for g, group in enumerate(found.graph.groups) if group[0] in rows] == [True, True]
    assert waits(found, RS) == {("backward-compute", 0), ("backward-compute", 1)}
    assert {(RS, 0), (RS, 1)} <= waits(found, "optimizer") | waits(found, TAIL)
    assert found.without == ()


def slowdown(profile: Profile) -> Slowdown:
    return what_if(usual(profile))


def test_a_slow_reduction_is_its_stage_s_and_everybody_s() -> None:
    """The reduction of stage 0 lasts 46 ms on all ranks; the median of both stages is 26. Each replica by itself has
    the whole slowdown, for both take part."""
    parts = reductions(took=(46, 6))
    spans = pl.col("start_ns", "end_ns") + pl.when(pl.col("kind") == "OPT").then(40 * MS).otherwise(0)
    profile = made(parts)
    found = slowdown(replace(profile, spans=profile.spans.with_columns(spans)))
    assert found.simulated_ns == pytest.approx([(60 + 46 + 3) * MS] * STEPS)
    assert found.ideal_ns == pytest.approx([(60 + 26 + 3) * MS] * STEPS)
    assert found.total == pytest.approx(109 / 89)
    assert found.part(found.by_type[RS]) == pytest.approx(109 / 89)
    assert found.part(found.by_stage[0]) == pytest.approx(109 / 89)
    assert [found.part(times) for times in found.by_dp.values()] == pytest.approx([109 / 89, 109 / 89])
    assert found.collectives == [RS]


def without(profile: Profile) -> dict[str, int]:
    found = usual(profile)
    assert not {RS, AG, EMB, CLIP} & set(found.types)
    return {each.reason: each.parts for each in found.without}


def test_a_group_that_is_not_known_is_not_guessed() -> None:
    unknown: list[Part] = [(op, None, *rest) for op, _, *rest in reductions()]
    assert without(made(unknown)) == {"who takes part was not recorded": 12}


def test_one_name_for_two_groups_is_noticed() -> None:
    """Two collectives of one replica each would share the name of their group: the second begins after the first has
    ended."""
    parts: list[Part] = [("allReduce", "1", rank, 0, at, at + 1) for rank, at in ((0, 61), (2, 64))]
    assert without(made(parts)) == {"parts with one number end before others have started": 6}


def test_a_rank_alone_is_no_group() -> None:
    assert without(made([("allReduce", "tp", 0, 0, 61, 62)])) == {"no other rank that takes part was read": 3}


def test_what_is_not_in_every_step_is_left_out() -> None:
    """The first step lacks the reduction of stage 0; that of stage 1 is there."""
    profile = made(reductions())
    found = usual(
        replace(profile, collectives=profile.collectives.filter((pl.col("rank") % 2 == 1) | (pl.col("sequence") > 0)))
    )
    assert [int(found.stage[i]) for i, name in enumerate(found.types) if name == RS] == [1]
    assert [(each.op, each.parts) for each in found.without] == [(RS, 4)]


def test_what_lies_inside_a_block_belongs_to_it() -> None:
    parts = [
        ("allReduce", f"dp {rank % 2}", rank, 0, 22 if rank % 2 else 42, 24 if rank % 2 else 44) for rank in range(4)
    ]
    assert without(made(parts)) == {}


def test_collectives_of_stages() -> None:
    """The embedding's gradients of the first and the last stage of each replica, then the norm over all ranks, after
    which no other wait for the optimizer is left."""
    embedding: list[Part] = [("allReduce", f"embedding {rank // 2}", rank, 0, 60, 62) for rank in range(4)]
    norm: list[Part] = [("allReduce", "world", rank, 0, 62, 66) for rank in range(4)]
    found = usual(made(embedding + norm))
    count = {name: found.types.count(name) for name in (EMB, CLIP, TAIL)}
    assert count == {EMB: 2, CLIP: 2, TAIL: 0}
    synced = {found.types[group[0]]: found.graph.synced[g] for g, group in enumerate(found.graph.groups)}
    assert (synced[EMB], synced[CLIP]) == (False, True)
    assert waits(found, CLIP) == {(EMB, 0), (EMB, 1), ("backward-compute", 0), ("backward-compute", 1)}
    assert waits(found, "optimizer") >= {(CLIP, 0), (CLIP, 1)}


def test_a_forward_waits_for_gathered_parameters() -> None:
    """Those of stage 1 end when its forward starts, after those of stage 0, which lie before the step."""
    gathers: list[Part] = [("allGather", f"dp {rank % 2}", rank, 0, 2, 10) for rank in (1, 3)]
    gathers += [("allGather", f"dp {rank % 2}", rank, 0, -5, 0) for rank in (0, 2)]
    found = usual(made(gathers))
    assert [int(found.stage[i]) for i, name in enumerate(found.types) if name == AG] == [1]
    assert (AG, 1) in waits(found, "forward-compute")
