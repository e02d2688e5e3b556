"""Which stages and ranks of the job are not in the data, by the sizes of the run and beside the other stages."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import polars as pl

from trace_export.model import WORK_KINDS, Note, Profile
from trace_export.selection import Numbers


@dataclass(frozen=True)
class Absent:
    """The stages and ranks of the job that are not in the data. `stages` of `stage_count` have no rank; `uneven`:
    stages with fewer ranks than others, as (stage, its ranks, the most); `ranks` of a job of `world` ranks, which is 0
    where it is unknown: then they are the numbers below the highest that no rank has, if these are as many as the
    stages lack; `count`: how many ranks there are of these, or else by the stage that has most."""

    stages: Numbers
    stage_count: int
    uneven: tuple[tuple[int, int, int], ...]
    ranks: Numbers
    world: int
    count: int


def absent(profile: Profile) -> Absent:
    """The stages and ranks that have no block, by the sizes of the run and beside the other stages."""
    busy = profile.spans.select(pl.col("rank").filter(pl.col("kind").is_in(WORK_KINDS)).unique())["rank"]
    ranks = profile.ranks.filter(pl.col("rank").is_in(busy.implode())).drop_nulls("stage")
    if ranks.is_empty():
        return Absent(Numbers(()), 0, (), Numbers(()), 0, 0)
    declared = profile.declared
    stages = max(declared.pp or 0, int(ranks["stage"].max()) + 1)  # type: ignore[arg-type]
    size = ranks.group_by("stage").len("ranks").sort("stage")
    few = size.with_columns(most=pl.col("ranks").max()).filter(pl.col("ranks") < pl.col("most"))
    sizes = (declared.pp, declared.tp, declared.dp, declared.cp or 1)
    world = declared.world or (prod(s for s in sizes if s) if all(sizes) else 0)
    highest = world - 1 if world else int(ranks["rank"].max())  # type: ignore[arg-type]
    lacking = Numbers(((0, highest),)).without(Numbers.of(ranks["rank"]))
    count = lacking.count() if world else stages * int(size["ranks"].max()) - ranks.height  # type: ignore[arg-type]
    return Absent(
        stages=Numbers(((0, stages - 1),)).without(Numbers.of(ranks["stage"])),
        stage_count=stages,
        uneven=tuple(few.rows()),
        ranks=lacking if lacking.count() == count else Numbers(()),
        world=world,
        count=count,
    )


def notes(profile: Profile) -> list[Note]:
    """A note on the ranks of the job that are not in the data, or where its ranks are unknown on the stages."""
    lacks = absent(profile)
    stages = f"{lacks.stages.named('stage')} of {lacks.stage_count}"
    if lacks.ranks.ranges and lacks.world:
        whole = f", nor of any rank of {stages}" if lacks.stages.ranges else ""
        text = f"no blocks of {lacks.ranks.named('rank')} are in the data{whole}; the job has {lacks.world} ranks"
        incomplete = bool(lacks.stages.ranges or lacks.uneven)
        return [Note("ranks-missing", "warning" if incomplete else "note", text, count=lacks.ranks.count())]
    if lacks.stages.ranges:
        return [Note("stages-missing", "warning", f"no rank of {stages} is in the data", count=lacks.stages.count())]
    if lacks.uneven:
        stage, count, most = lacks.uneven[0]
        which = f" ({lacks.ranks.named('rank')} missing)" if lacks.ranks.ranges else ""
        text = f"stage {stage} has {count} rank{'s' * (count > 1)} in the data, other stages have {most}{which}"
        return [Note("stages-uneven", "warning", text, count=len(lacks.uneven))]
    return []
