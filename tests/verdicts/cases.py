"""Jobs with planted causes: what is planted, where, and what the step takes less without it, by a paired simulation."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from samples.generators.data_parallel import GATHER, REDUCE, Job, simulate
from samples.generators.pipeline import MS, US


@dataclass(frozen=True)
class Case:
    """`job` with what is planted, and `sound`, the same job without it. `place`: the facts of a sentence that names the
    cause, each as good as the others. `form`: how it is written."""

    name: str
    form: str
    job: Job
    sound: Job
    place: Mapping[str, Any]

    @cached_property
    def gain_ns(self) -> float:
        """In the mean over the steps after a warm-up, which takes twice as long as they."""
        warm = sum(factor >= 2 for factor in self.job.warm_up)
        slow, sound = (np.diff(simulate(job).begins)[warm:].mean() for job in (self.job, self.sound))
        return float(slow - sound)

    @property
    def planted(self) -> str:
        name, place = next(iter(self.place.items()))
        return f"{self.name} ({self.form}) {name} {place}"


Draw = random.Random
Planted = tuple[dict[str, Any], Mapping[str, Any]]
"""Fields of the job, and the place."""


def _of(ranks: list[int], **more: Any) -> dict[str, Any]:
    return {"ranks": sorted(ranks), **more}


def _factor(draw: Draw) -> float:
    return draw.uniform(1.2, 1.6)


def slow_stage(job: Job, draw: Draw) -> Planted:
    stage = draw.randrange(job.stages)
    ranks = [rank for a in range(job.replicas) for rank in job.lane(a, stage)]
    factor = _factor(draw)
    return {"slow": {(a, stage): factor for a in range(job.replicas)}}, {"stage": stage, **_of(ranks)}


def slow_replica(job: Job, draw: Draw) -> Planted:
    replica, factor = draw.randrange(job.replicas), _factor(draw)
    ranks = [rank for s in range(job.stages) for rank in job.lane(replica, s)]
    return {"slow": {(replica, s): factor for s in range(job.stages)}}, {"replica": replica, **_of(ranks)}


def slow_rank(job: Job, draw: Draw) -> Planted:
    """A slow rank of a tensor group slows all of the group: the group is named."""
    rank = draw.randrange(job.ranks)
    replica, stage, _ = job.place(rank)
    return {"slow_ranks": {rank: _factor(draw)}}, _of(job.lane(replica, stage), rank=rank)


def one_of_group(job: Job, draw: Draw) -> Planted:
    """A slow rank of a tensor group whose collectives say who waits for whom."""
    fields, place = slow_rank(job, draw)
    return fields, _of([place["rank"]], rank=place["rank"])


def slow_host(job: Job, draw: Draw) -> Planted:
    host, factor = draw.randrange(job.hosts), _factor(draw)
    return {"slow_ranks": dict.fromkeys(job.of_host(host), factor)}, _of(job.of_host(host), host=host)


def slow_link(job: Job, draw: Draw) -> Planted:
    stage, replica = draw.randrange(job.stages - 1), draw.randrange(job.replicas)
    ends = job.rank(replica, stage), job.rank(replica, stage + 1)
    ends = ends if draw.random() < 0.5 else ends[::-1]
    return {"links": {ends: draw.choice((4, 6, 9)) * MS}}, {"src_rank": ends[0], "dst_rank": ends[1]}


def long_collective(job: Job, draw: Draw) -> Planted:
    stage = draw.randrange(job.stages)
    ranks = [rank for a in range(job.replicas) for rank in job.lane(a, stage)]
    return {"longer": {(REDUCE, stage): draw.randrange(15, 40) * MS}}, {"stage": stage, **_of(ranks)}


def late_rank(job: Job, draw: Draw) -> Planted:
    replica, stage = draw.randrange(job.replicas), draw.randrange(job.stages)
    late = {(REDUCE, replica, stage): draw.randrange(15, 40) * MS}
    return {"late": late}, _of(job.lane(replica, stage), rank=job.rank(replica, stage))


def late_gather(job: Job, draw: Draw) -> Planted:
    replica, stage = draw.randrange(job.replicas), draw.randrange(1, job.stages)
    late = {(GATHER, replica, stage): draw.randrange(25, 60) * MS}
    return {"late": late}, _of(job.lane(replica, stage), rank=job.rank(replica, stage))


def held_host(job: Job, draw: Draw) -> Planted:
    """The host of some ranks hands out each block late."""
    host, by = draw.randrange(job.hosts), draw.choice((2, 3, 4)) * MS
    cells = {job.place(rank)[:2]: by for rank in job.of_host(host)}
    return {"held": cells}, _of(job.of_host(host), host=host)


def loss_head(job: Job, draw: Draw) -> Planted:
    """The last chunk of the model, on the last stage, has the loss."""
    ranks = [rank for a in range(job.replicas) for rank in job.lane(a, job.stages - 1)]
    return {"head": draw.uniform(2, 4)}, {"stage": job.stages - 1, **_of(ranks)}


def pause(job: Job, draw: Draw) -> Planted:
    return {"pause": draw.randrange(20, 60) * MS}, {"code": "pause"}


def data_loading(job: Job, draw: Draw) -> Planted:
    replica = draw.randrange(job.replicas)
    return {"loading": {replica: draw.randrange(20, 60) * MS}}, _of(job.lane(replica, 0), code="loading")


def late_microbatches(job: Job, draw: Draw) -> Planted:
    """The data loader of a replica is slow: it hands out each micro-batch late."""
    replica = draw.randrange(job.replicas)
    return {"fed": {replica: draw.choice((3, 4, 5)) * MS}}, _of(job.lane(replica, 0))


def unequal_microbatches(job: Job, draw: Draw) -> Planted:
    return {"uneven": draw.uniform(0.15, 0.3)}, {"code": "unequal"}


def long_optimizer(job: Job, draw: Draw) -> Planted:
    rank = draw.randrange(job.ranks)
    return {"optimizers": {rank: draw.uniform(6, 12)}}, _of([rank], rank=rank)


def late_opening(job: Job, draw: Draw) -> Planted:
    """A long optimizer of a rank whose first block needs a transfer."""
    rank = job.rank(0, draw.randrange(1, job.stages))
    return {"optimizers": {rank: draw.uniform(6, 12)}}, _of([rank], rank=rank)


def slow_at_times(job: Job, draw: Draw) -> Planted:
    """In every third step, or in a half of the steps."""
    fields, place = slow_rank(job, draw)
    steps = draw.choice((range(draw.randrange(3), job.steps, 3), range(job.steps // 2, job.steps)))
    return {**fields, "during": frozenset(steps)}, place


def slow_stage_later(job: Job, draw: Draw) -> Planted:
    """From a step in the middle on: no other rank of its stage tells that only this stage changes."""
    fields, place = slow_stage(job, draw)
    return {**fields, "during": frozenset(range(draw.randrange(1, job.steps - 1), job.steps))}, place


def throttled_rank(job: Job, draw: Draw) -> Planted:
    replica, stage = draw.randrange(job.replicas), draw.randrange(job.stages)
    return {"throttled": {(replica, stage): draw.uniform(1.4, 2)}}, _of([job.rank(replica, stage)])


def collecting_rank(job: Job, draw: Draw) -> Planted:
    """Its process stops at random, to collect garbage."""
    rank = draw.randrange(job.ranks)
    return {"collected": {rank: draw.choice((10, 20, 40)) * MS}}, _of([rank], rank=rank)


def held_stage(job: Job, draw: Draw) -> Planted:
    """A stage whose host hands out each block late."""
    stage, by = draw.randrange(1, job.stages), draw.choice((2, 3, 4)) * MS
    ranks = [job.rank(a, stage) for a in range(job.replicas)]
    return {"held": {(a, stage): by for a in range(job.replicas)}}, {"stage": stage, **_of(ranks)}


def held_last(job: Job, draw: Draw) -> Planted:
    """The last stage, whose host takes long to hand out each block: it waits for its first backward, too."""
    stage, by = job.stages - 1, draw.choice((4, 5)) * MS
    ranks = [job.rank(a, stage) for a in range(job.replicas)]
    return {"held": {(a, stage): by for a in range(job.replicas)}}, {"stage": stage, **_of(ranks)}


AWAITED = {"schedule": "interleaved", "rendezvous": True, "receives": "at once"}
"""Fields of a job whose ranks wait for their sends."""

IN_PARTS = {"replicas": 3, "buckets": 6, "backward": 20 * MS, "reduce": 18 * MS}
"""Fields of a job that reduces its gradients while the last backward goes on."""

SHOWN_LAUNCHES: dict[str, Any] = {"lead": 30 * US, "launch": 270 * US, "gap": 200 * US, "backward": 4 * MS}
"""Fields of a job whose blocks start later after another block of their rank than after a transfer."""

UNSTEADY: dict[str, Any] = {
    "lead": 30 * US, "launch": 400 * US, "unsteady": 0.2, "forward": MS, "backward": 2 * MS, "weight": MS, "gap": MS,
}  # fmt: skip
"""Fields of a job of short blocks, which take long and varying times to be launched after another."""

LONG = {"steps": 12, "stages": 2, "replicas": 3, "microbatches": 6, "tensor": 1, "jitter": 0.02}

PLANTED: dict[str, tuple[Callable[[Job, Draw], Planted], dict[str, Any], tuple[str, ...]]] = {
    "slow stage": (slow_stage, {}, ("nsys", "kineto", "ascend", "paddle", "table")),
    "slow replica": (slow_replica, {"replicas": 3}, ("nsys", "kineto", "paddle", "table")),
    "slow rank": (slow_rank, {"replicas": 3}, ("nsys", "kineto", "ascend", "paddle", "table")),
    "slow host": (slow_host, {"stages": 4, "replicas": 4, "hosts": 8}, ("nsys", "paddle", "table")),
    "slow link": (slow_link, {"replicas": 3}, ("nsys", "kineto", "ascend", "paddle")),
    "long collective": (long_collective, {"replicas": 2}, ("nsys", "kineto", "ascend", "table")),
    "late rank": (late_rank, {"replicas": 3}, ("nsys", "kineto", "ascend", "table")),
    "late gather": (late_gather, {"replicas": 3}, ("nsys", "kineto", "ascend")),
    "held host": (held_host, {"stages": 4, "replicas": 4, "hosts": 8}, ("nsys", "kineto")),
    "pause": (pause, {"gap": 200 * US}, ("nsys", "kineto", "ascend", "paddle", "table")),
    "data loading": (data_loading, {"replicas": 3}, ("nsys", "kineto", "table")),
    "unequal micro-batches": (unequal_microbatches, {}, ("nsys", "kineto", "paddle", "table")),
    "long optimizer": (long_optimizer, {"replicas": 3}, ("nsys", "kineto", "paddle", "table")),
    "slow rank, few micro-batches": (
        slow_rank, {"stages": 8, "microbatches": 4, "replicas": 3, "tensor": 1}, ("nsys", "paddle")
    ),
    "long collective, stages apart": (
        long_collective, {"replicas": 2, "stages": 4, "clipped": False, "tensor": 1}, ("nsys", "kineto", "ascend")
    ),
    "slow link, two chunks": (
        slow_link, {"replicas": 3, "schedule": "interleaved", "receives": "at once"}, ("kineto", "paddle")
    ),
    "slow rank, some steps": (slow_at_times, LONG, ("nsys", "kineto", "paddle", "table")),
    "throttled rank": (throttled_rank, LONG, ("nsys", "kineto", "table")),
    "collecting rank": (collecting_rank, {**LONG, "stages": 4}, ("nsys", "kineto")),
    "held stage": (held_stage, {"tensor": 1}, ("nsys", "kineto")),
    "slow rank, warm-up": (
        slow_rank, {"replicas": 3, "steps": 6, "warm_up": (5.0, 1.5, 1.2)}, ("nsys", "kineto", "ascend", "paddle")
    ),
    "unequal, few micro-batches": (
        unequal_microbatches, {"stages": 3, "microbatches": 2, "replicas": 2, "steps": 8, "gap": 200 * US},
        ("nsys", "kineto", "table"),
    ),
    "slow replica, uneven stages": (
        slow_replica, {"stages": 4, "replicas": 3, "costs": (1.0, 1.1, 0.95, 1.25)}, ("nsys", "kineto", "table")
    ),
    "slow rank, deep": (
        slow_rank, {"stages": 16, "microbatches": 16, "replicas": 2, "steps": 3, "tensor": 1}, ("nsys", "table")
    ),
    "slow rank, many micro-batches": (
        slow_rank, {"stages": 2, "microbatches": 64, "replicas": 2, "steps": 3, "tensor": 1}, ("nsys", "table")
    ),
    "collecting rank, blocks alone": (collecting_rank, {**LONG, "stages": 4}, ("paddle", "table")),
    "slow link, blocks alone": (slow_link, {"replicas": 3}, ("table",)),
    "slow replica, blocks alone": (slow_replica, {"replicas": 3, "tensor": 1}, ("paddle", "table")),
    "loss, sends awaited": (loss_head, AWAITED, ("paddle", "table")),
    "slow rank, launches show": (
        slow_rank, {"schedule": "interleaved", "replicas": 3, **SHOWN_LAUNCHES}, ("nsys", "kineto", "paddle")
    ),
    "slow rank, short blocks": (
        slow_rank, {"schedule": "interleaved", "replicas": 2, "tensor": 1, **UNSTEADY}, ("nsys", "kineto")
    ),
    "slow rank in its group": (one_of_group, {"tensor": 2, "exchanges": 4}, ("kineto", "table")),
    "collecting rank, few steps": (collecting_rank, {**LONG, "steps": 3, "stages": 4}, ("nsys", "kineto")),
    "data loading, blocks alone": (data_loading, {"replicas": 3, "tensor": 1}, ("paddle", "work")),
    "data loading, one step boundary": (data_loading, {"replicas": 3, "tensor": 1, "steps": 2}, ("paddle", "work")),
    "held host, blocks alone": (
        held_host, {"stages": 4, "replicas": 4, "tensor": 1, "hosts": 4}, ("paddle", "work")
    ),
    "long optimizer, all wait": (long_optimizer, {"replicas": 3, "tensor": 1, "together": True}, ("paddle",)),
    "long collective, two steps": (
        long_collective, {"replicas": 2, "stages": 4, "steps": 2, "tensor": 2}, ("nsys", "kineto", "table")
    ),
    "long optimizer, not recorded": (late_opening, {"replicas": 1, "tensor": 1}, ("work",)),
    "long optimizer, all wait for gathers": (
        long_optimizer, {"replicas": 3, "tensor": 1, "together": True}, ("table",)
    ),
    "held last stage, two chunks": (held_last, {"schedule": "interleaved", "tensor": 1}, ("paddle", "table")),
    "late micro-batches": (late_microbatches, {"replicas": 3, "tensor": 1}, ("nsys", "kineto", "table", "work")),
    "slow stage, later steps": (
        slow_stage_later, {"stages": 2, "steps": 6}, ("nsys", "kineto", "paddle", "table")
    ),
    "pause, loaders vary": (
        pause, {"gap": 200 * US, "replicas": 4, "loads": 0.15}, ("nsys", "kineto", "paddle", "table")
    ),
    "collecting rank, in its blocks": (
        collecting_rank, {**LONG, "stages": 4, "inside": True}, ("nsys", "kineto", "paddle", "work")
    ),
}  # fmt: skip
"""Each cause: what plants it, what a job needs that has it, and the forms in which it can be seen."""


def sound_job(draw: Draw) -> Job:
    """A job without a planted cause, its sizes, orders and posting of receives by chance."""
    return Job(
        stages=draw.choice((2, 3, 4)),
        microbatches=draw.choice((6, 8, 12)),
        replicas=draw.choice((1, 2, 4)),
        steps=draw.choice((4, 5, 6)),
        tensor=draw.choice((1, 1, 2)),
        stages_first=draw.random() < 0.5,
        schedule=draw.choice(("1f1b", "1f1b", "1f1b", "zb-h1", "gpipe", "interleaved", "vee")),
        receives=draw.choice(("early", "at once", "late", "random")),
        jitter=draw.uniform(0, 0.03),
        seed=draw.randrange(1 << 30),
    )


def _fits(job: Job, form: str) -> Job:
    """`job` as far as the form's writer can say it."""
    schedules = {"ascend": ("1f1b", "gpipe"), "table": ("1f1b", "zb-h1", "gpipe", "interleaved", "vee")}
    schedules["work"] = schedules["table"]
    if job.schedule not in schedules.get(form, ("1f1b", "zb-h1", "gpipe", "interleaved")):
        job = replace(job, schedule="1f1b")
    if job.schedule == "interleaved":
        job = replace(job, microbatches=-(-job.microbatches // job.stages) * job.stages)
    return replace(job, tensor=1) if form == "ascend" else job


LEAST = 0.03
"""A planted cause costs at least so much of the step; what costs less may be passed over."""


def drawn(seed: int, name: str | None = None, form: str | None = None, **more: Any) -> Case:
    """A case by chance; `name` and `form` where they are wanted, and `more` fields of the job."""
    draw = random.Random(seed)
    name = name or draw.choice(sorted(PLANTED))
    plant, needs, forms = PLANTED[name]
    form = form or draw.choice(forms)
    while True:
        sound = _fits(replace(sound_job(draw), **{**needs, **more}), form)
        fields, place = plant(sound, draw)
        case = Case(name, form, replace(sound, **fields), sound, place)
        if case.gain_ns >= LEAST * simulate(case.job).step_ns:
            return case


def drawn_sound(seed: int, spread: float = 0.0) -> tuple[Job, str]:
    """A job in which nothing is planted, and the form in which it is written."""
    draw = random.Random(seed)
    form = draw.choice(("ascend", "kineto", "nsys", "paddle", "table"))
    return _fits(replace(sound_job(draw), spread=spread), form), form


def drawn_nested(seed: int) -> tuple[Job, str, list[Case]]:
    """A job with a slow rank in a slow stage, the form in which it is written, and each of both as a case of its own:
    the stage is slow beside the others, as one with the loss is, and the rank beside the other ranks of it."""
    draw = random.Random(seed)
    while True:
        form = draw.choice(("nsys", "kineto", "paddle", "table"))
        sound = _fits(replace(sound_job(draw), replicas=draw.choice((2, 3, 4)), stages=4, spread=0.0), form)
        (stage, at_stage), (rank, at_rank) = slow_stage(sound, draw), slow_rank(sound, draw)
        both = replace(sound, **stage, **rank)
        cases = [
            Case("slow stage", form, both, replace(sound, **rank), at_stage),
            Case("slow rank", form, both, replace(sound, **stage), at_rank),
        ]
        inside = set(at_rank["ranks"]) < set(at_stage["ranks"])
        if inside and all(case.gain_ns >= LEAST * simulate(both).step_ns for case in cases):
            return both, form, cases


def drawn_late(seed: int) -> tuple[Job, str, list[Case]]:
    """A job whose first stage hands out each block late, and one rank of it waits for data before each step."""
    draw, form = random.Random(seed), "nsys"
    sound = _fits(replace(sound_job(draw), replicas=4, stages=4, tensor=1), form)
    stage: dict[str, Any] = {"held": {(a, 0): MS for a in range(sound.replicas)}}
    loading, at = data_loading(sound, draw)
    both, ranks = replace(sound, **stage, **loading), [sound.rank(a, 0) for a in range(sound.replicas)]
    return both, form, [
        Case("held stage", form, both, replace(sound, **loading), {"stage": 0, **_of(ranks)}),
        Case("data loading", form, both, replace(sound, **stage), at),
    ]  # fmt: skip


def drawn_hidden(seed: int) -> Case:
    """A slow rank in one replica and a slow rank or link in another, which wait for each other at the end of a step:
    without one of them it gains little. The case is that of both, `place` all of their ranks."""
    draw = random.Random(seed)
    while True:
        form = draw.choice(("nsys", "kineto"))
        sound = _fits(replace(sound_job(draw), replicas=3, stages=4, tensor=1, jitter=0.01), form)
        (first, at_first), (second, at_second) = (
            slow_rank(sound, draw),
            draw.choice((slow_rank, slow_link))(sound, draw),
        )
        ranks = [at_first["rank"], *(at_second.get(name) for name in ("rank", "src_rank", "dst_rank"))]
        ranks = sorted(rank for rank in ranks if rank is not None)
        fields: dict[str, Any] = {name: {**first.get(name, {}), **second.get(name, {})} for name in {*first, *second}}
        case = Case("hidden", form, replace(sound, **fields), sound, {"ranks": ranks})
        alone = [simulate(case.job).step_ns - simulate(replace(sound, **one)).step_ns for one in (first, second)]
        apart = len({sound.place(rank)[0] for rank in (ranks[0], ranks[-1])}) == 2
        if apart and case.gain_ns >= max(sum(alone), 0) + LEAST * simulate(case.job).step_ns:
            return case


def drawn_two(seed: int) -> tuple[Job, list[Case]]:
    """A job with a slow rank and a slow link elsewhere in its replica, and each of both as a case of its own. In
    different replicas the slower one would hide the other."""
    draw = random.Random(seed)
    while True:
        sound = replace(_fits(sound_job(draw), "nsys"), replicas=3, stages=4, tensor=1, schedule="1f1b")
        (rank, at_rank), (link, at_link) = slow_rank(sound, draw), slow_link(sound, draw)
        both = replace(sound, **rank, **link)
        cases = [
            Case("slow rank", "nsys", both, replace(sound, **link), at_rank),
            Case("slow link", "nsys", both, replace(sound, **rank), at_link),
        ]
        ends = at_link["src_rank"], at_link["dst_rank"]
        same = sound.place(at_rank["rank"])[0] == sound.place(ends[0])[0]
        if (
            same
            and at_rank["rank"] not in ends
            and all(case.gain_ns >= LEAST * simulate(both).step_ns for case in cases)
        ):
            return both, cases
