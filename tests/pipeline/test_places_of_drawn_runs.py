"""Stages and replicas of runs that record neither: cut anywhere, in both orders of ranks, with a slow replica or a rank
missing. Each place is that of the simulated run, or a warning says that it may not be."""

import random
from dataclasses import dataclass, replace

import polars as pl
import pytest

from tests.support.rows import seeds
from trace_export import simulate
from trace_export.model import P2P, RANKS, Declared, Profile, conform, empty
from trace_export.pipeline.interpret import interpret

UNKNOWN = pl.lit(None, pl.Int32)
DOUBTS = {"stages-inferred", "stages-unknown", "stages-deeper", "ranks-absent"}


@dataclass(frozen=True)
class Drawn:
    """A profile without places, whose ranks have these: stage and data-parallel number."""

    profile: Profile
    stages: dict[int, int]
    replicas: dict[int, int]
    cut: bool
    missing: bool


def drawn(seed: int) -> Drawn:
    draw = random.Random(seed)
    schedule = draw.choice(["1f1b", "1f1b", "interleaved", "gpipe", "zb-h1", "eager-1f1b"])
    pp, dp, tp, steps = (
        draw.choice([2, 3, 4, 8]),
        draw.choice([1, 1, 2, 4]),
        draw.choice([1, 1, 2]),
        draw.choice([1, 2, 3]),
    )
    one = simulate(schedule, pp, pp * draw.choice([1, 2, 3])).profile
    length, unit = (
        int(one.spans["end_ns"].to_numpy().max()),
        int((one.spans["end_ns"] - one.spans["start_ns"]).min() or 0),
    )
    megatron, slow = draw.random() < 0.5, draw.choice([-1, -1, draw.randrange(dp)])
    stages, replicas, frames = {}, {}, []
    for stage, copy, member in ((s, d, t) for s in range(pp) for d in range(dp) for t in range(tp)):
        rank = ((stage * dp + copy) if megatron else (copy * pp + stage)) * tp + member
        stages[rank], replicas[rank] = stage, copy
        late, times = draw.randrange(-unit // 50, unit // 50), 1.3 if copy == slow else 1.0
        for step in range(steps):
            moved = (pl.col("start_ns", "end_ns") * times).cast(pl.Int64) + int(step * length * 1.5) + late
            frames.append(
                one.spans.filter(rank=stage).with_columns(
                    moved, rank=pl.lit(rank, pl.Int32), step=pl.lit(step, pl.Int32)
                )
            )
    spans = pl.concat(frames)
    plain = [
        "pair",
        *([] if draw.random() < 0.5 else ["microbatch", "chunk"]),
        *([] if draw.random() < 0.7 else ["step"]),
    ]
    spans = spans.with_columns(**dict.fromkeys(plain, UNKNOWN), labels=pl.lit(None, pl.String)).sort("rank", "start_ns")
    begin = draw.choice([-1.0, -1.0, draw.uniform(0, 0.6)])
    gone = draw.choice(sorted(stages)) if draw.random() < 0.3 and len(stages) > 2 else None
    spans = spans.filter(pl.col("start_ns") >= begin * length, pl.col("rank") != (-1 if gone is None else gone))
    hosts = [{"rank": rank, "host": f"h{rank // 8}", "source": f"s{rank}"} for rank in sorted(stages) if rank != gone]
    bare = replace(
        one, spans=spans, ranks=conform(pl.DataFrame(hosts), RANKS), p2p=empty(P2P), messages=one.messages.clear(),
        declared=Declared(), interpretation=None,
    )  # fmt: skip
    return Drawn(bare, stages, replicas, begin >= 0, gone is not None)


@pytest.mark.parametrize("seed", seeds(12, 90))
def test_places_are_right_or_in_doubt(seed: int) -> None:
    run = drawn(seed)
    result = interpret(run.profile, Declared())
    ranks = result.ranks
    doubts = {note.code for note in result.notes if note.level == "warning"} & DOUBTS
    right = all(run.stages[rank] == stage for rank, stage in ranks.select("rank", "stage").iter_rows())
    assert right or doubts
    assert right or run.cut or run.missing
    pipelines = ranks.select("replica", copy=pl.col("rank").replace_strict(run.replicas)).unique()
    assert not right or pipelines["replica"].is_unique().all()
