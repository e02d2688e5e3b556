"""The answer in three to five sentences: what is wrong, how long a step is, what the schedule costs, how sure it is.

Facts come first (a code and numbers, see `findings`), sentences are made of them last.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import polars as pl

from trace_export.analysis.findings import Evidence, Finding, findings, middle, numbers
from trace_export.analysis.summary import host_share, outside_share
from trace_export.analysis.theory import why_unknown
from trace_export.analysis.whole_steps import counted
from trace_export.model import WORK_KINDS, Profile, Recognition
from trace_export.pipeline.completeness import Absent, absent
from trace_export.schedules.catalogue import TITLES
from trace_export.units import duration

CAUSES_SHOWN = 2
LEAST = 0.0005
"""A smaller share of the step is none."""


@dataclass(frozen=True)
class Sentence:
    """A statement: its `code` is the same in every version, `facts` are the numbers, `text` says them."""

    code: str
    facts: dict[str, Any]
    text: str


def verdict(evidence: Evidence, profile: Profile) -> tuple[Sentence, ...]:
    """The sentences on a run, the most important first. `evidence` is that of whole steps, `profile` the whole run."""
    if evidence.steps.is_empty():
        return ()
    causes = [_cause(each, evidence.step_ns) for each in findings(evidence)]
    lacking = list(_missing(profile))
    first = (lacking + causes)[:CAUSES_SHOWN]
    made = [*first[:1], _step(evidence), *_schedule(evidence), *(first[1:] or _nothing_else(evidence, first))]
    return (*made, _certainty(evidence, profile, with_causes=bool(causes)))


def _missing(profile: Profile) -> Iterator[Sentence]:
    """Ranks without a profile come first where they make the picture incomplete: what is said is about the others."""
    warned = {note.code for note in profile.notes if note.level == "warning"}
    if not warned & {"stages-missing", "stages-uneven", "ranks-missing"}:
        return
    lacks = absent(profile)
    facts = {"ranks": str(lacks.ranks), "world": lacks.world, "stages": str(lacks.stages), "of": lacks.stage_count}
    yield Sentence("missing-ranks", facts, _missing_text(lacks))


def _missing_text(lacks: Absent) -> str:
    stages = f"stage{'s' * (lacks.stages.count() > 1)} {lacks.stages} of {lacks.stage_count}"
    ranks = f"rank{'s' * (lacks.ranks.count() > 1)} {lacks.ranks}"
    if lacks.ranks.ranges:
        whole = f", among them all of {stages}" if lacks.stages.ranges else ""
        have = "has" if lacks.ranks.count() == 1 else "have"
        what = f"{lacks.ranks.count()} of {lacks.world} ranks {have} no profile here ({ranks}{whole})"
    elif lacks.stages.ranges:
        what = f"No rank of {stages} has a profile here"
    else:
        stage, count, most = lacks.uneven[0]
        what = f"Stage {stage} has {count} ranks here and other stages have {most}: profiles are missing"
    return f"{what}; all that follows is about the others."


def _cause(found: Finding, step_ns: float) -> Sentence:
    share = found.saves_ns / step_ns
    facts = {**found.facts, "saves_ns": found.saves_ns, "saves": share}
    most = "" if found.facts.get("simulated") else "up to "
    gain = f"a step would be {most}{duration(found.saves_ns)} ({share:.1%}) shorter"
    if share < LEAST:
        gain = "a step would be no shorter"
    return Sentence(found.code, facts, TEXTS[found.code](found.facts, gain))


def _slow_stage(facts: dict[str, Any], gain: str) -> str:
    ranks = f"rank{'s' * (len(facts['ranks']) > 1)} {numbers(facts['ranks'])}"
    slow = f"it takes {facts['ratio']:.2f} × as long per micro-batch as the median stage"
    return f"Stage {facts['stage']} is slow ({_place(ranks, *facts['hosts'])}): {slow}; as fast as that, {gain}."


def _slow_rank(facts: dict[str, Any], gain: str) -> str:
    place = _place(f"stage {facts['stage']}", facts["host"])
    slow = f"its blocks take {facts['ratio']:.2f} × as long as on the other ranks of its stage"
    return f"Rank {facts['rank']} is slow ({place}): {slow}; at their speed, {gain}."


def _slow_link(facts: dict[str, Any], gain: str) -> str:
    what = {"F": "activations", "B": "gradients"}.get(facts["direction"], "data")
    ends = (_place(f"rank {facts[f'{end}_rank']}", facts[f"{end}_host"]) for end in ("src", "dst"))
    times = f"{duration(facts['median_ns'])} instead of {duration(facts['peers_ns'])}"
    slow = f"a transfer of {what} takes {facts['ratio']:.1f} × as long as on like links ({times})"
    return f"The link from {' to '.join(ends)} is slow: {slow}; at their speed, {gain}."


def _slow_collective(facts: dict[str, Any], gain: str) -> str:
    return (
        f"The {facts['cause']}: {facts['ratio']:.1f} × as long as that of the other stages; as fast as those, {gain}."
    )


def _late_collective(facts: dict[str, Any], gain: str) -> str:
    where = f" on {facts['host']}" * bool(facts["host"])
    return f"The {facts['cause']}{where}, so that all replicas wait for it; without that, {gain}."


def _late(facts: dict[str, Any], gain: str) -> str:
    worst = f"of a step on rank {facts['rank']}"
    who = f"Host {facts['host']} (rank{'s' * (len(facts['ranks']) > 1)} {numbers(facts['ranks'])})"
    return f"{who} {_starts_late(facts)} {worst}; without it, {gain}."


def _late_rank(facts: dict[str, Any], gain: str) -> str:
    return f"Rank {_place(str(facts['rank']), facts['host'])} {_starts_late(facts)} of a step; without it, {gain}."


def _starts_late(facts: dict[str, Any]) -> str:
    return f"starts its blocks late, with their input there (CPU, data loader, scheduler): {duration(facts['late_ns'])}"


def _long_optimizer(facts: dict[str, Any], gain: str) -> str:
    where = _place(f"rank {facts['rank']}", facts["host"])
    long = f"it takes {duration(facts['optimizer_ns'])} ({facts['share']:.0%} of the step), longest on {where}"
    return f"The optimizer is long: {long}; in half the time, {gain}."


def _long_pause(facts: dict[str, Any], gain: str) -> str:
    what = "gradient reduction, data loading, checkpoints"
    if not facts["optimizer_recorded"]:
        what = f"optimizer (not recorded), {what}"
    long = f"{duration(facts['pause_ns'])} ({facts['share']:.0%} of the step)"
    return f"Between the steps no stage works for {long}: {what}; in half the time, {gain}."


TEXTS: dict[str, Callable[[dict[str, Any], str], str]] = {
    "slow-stage": _slow_stage, "slow-rank": _slow_rank, "slow-link": _slow_link,
    "slow-collective": _slow_collective, "late-collective": _late_collective, "late-host": _late,
    "late-rank": _late_rank, "long-optimizer": _long_optimizer, "long-pause": _long_pause,
}  # fmt: skip
"""How a finding of this code is said: from its facts, and what fixing it gives."""


def _place(*words: str) -> str:
    return ", ".join(filter(None, words))


def _step(evidence: Evidence) -> Sentence:
    steps = counted(evidence.steps)
    step, pipeline, bubble = (middle(steps[c]) for c in ("step_ns", "pipeline_ns", "bubble"))
    facts = {"step_ns": step, "pipeline_ns": pipeline, "bubble": bubble, "steps": steps.height}
    whole = duration(pipeline or 0)
    time = f"A step takes {duration(step)} from start to start (pipeline time {whole})" if step is not None else ""
    time = time or f"The pipeline time of a step is {whole}"
    idle = "" if bubble is None else f"; the ranks are idle for {bubble:.1%} of the pipeline time (bubble)"
    whose = ", in times of the host and not of the device" if host_share(evidence.profile) else ""
    return Sentence("step", facts, f"{time}{idle}{whose}.")


def _schedule(evidence: Evidence) -> Iterator[Sentence]:
    found, levels = evidence.theory.recognition, evidence.theory.levels
    if evidence.profile.declared.deeper:
        text = (
            "How many stages the pipeline has is not known (give --pp), so what the schedule itself costs is not known."
        )
        yield Sentence("schedule-unknown", {"distance": None}, text)
        return
    if found.plan is None or levels.is_empty():
        why = why_unknown(found if found.named is None else Recognition(), evidence.ranks["stage"].n_unique())
        text = f"{why[0].upper()}{why[1:]}, so what the schedule itself costs is not known."
        yield Sentence("schedule-unknown", {"distance": found.distance}, text)
        return
    itself, stages, blocks, measured = levels["bubble"].to_list()
    above = {"stages": stages - itself, "jitter": blocks - stages, "transfers": measured - blocks}
    plan, points = found.plan, {name: 100 * share for name, share in above.items()}
    facts = {"schedule": plan.name, "bubble": itself, "on_top": measured - itself, **above}
    size = f"{plan.stages} stages, {plan.microbatches} micro-batches"
    parts = f": {points['stages']:.1f} from unequal stages, {points['jitter']:.1f} from jitter"
    parts += f", {points['transfers']:.1f} from transfers and late starts"
    if evidence.ranks["stage"].n_unique() < plan.stages:
        parts = ", of which nothing more can be said without the blocks of all stages"
    text = f"{TITLES[plan.name]} itself costs {itself:.1%} ({size}); on top come {100 * (measured - itself):.1f} points"
    yield Sentence("schedule", facts, f"{text}{parts}.")


def _nothing_else(evidence: Evidence, first: list[Sentence]) -> Iterator[Sentence]:
    """That nothing stands out, and what another schedule would give."""
    if first:
        return
    text = "Nothing stands out: no stage, rank or link is slow, no host starts late, the optimizer is not long"
    others = evidence.theory.changes.slice(1).filter(~pl.col("change").str.starts_with("stage "))
    facts: dict[str, Any] = {}
    if others.height and others["saved"].max() > 0:  # type: ignore[operator]
        facts = others.sort("saved", descending=True).select("change", "saved").row(0, named=True)
        text += f"; the largest saving in the model is {facts['change']}: {facts['saved']:.1%} of the time"
    yield Sentence("nothing-stands-out", facts, f"{text}.")


def _certainty(evidence: Evidence, profile: Profile, *, with_causes: bool) -> Sentence:
    drawn = profile.ranks.join(profile.spans.select("rank"), on="rank", how="semi")
    errors, statuses = profile.clocks["sd_ns"].drop_nulls().to_list(), set(profile.clocks["status"])
    hosts = 1 if statuses == {"single-host"} else drawn["host"].n_unique()  # so of a table, whatever hosts it names
    work = profile.spans.lazy().filter(pl.col("kind").is_in(WORK_KINDS)).select("labels", "origin").collect()
    facts = {
        "hosts": hosts,
        "clock_sd_ns": max(errors, default=None),
        "stages_inferred": int(drawn["stage_origin"].is_in(["inferred", "assumed"]).sum()),
        "labels_inferred": float((work["labels"] == "inferred").fill_null(False).mean() or 0),  # type: ignore[arg-type]
        "blocks_inferred": float((work["origin"] == "inferred").fill_null(False).mean() or 0),  # type: ignore[arg-type]
        "blocks_host": host_share(profile),
        "outside": outside_share(profile),
        "whole_steps": int(evidence.steps["whole"].sum()),
        "steps": int(profile.steps.height or evidence.steps.height),
        "unexplained": evidence.unexplained,
    }
    return Sentence("certainty", facts, "; ".join(_sure(facts, with_causes=with_causes)) + ".")


def _of_ranks(count: int) -> str:
    """Whose stages are inferred; nothing where those of none are."""
    return {0: "", 1: "the stage of 1 rank"}.get(count, f"the stages of {count} ranks")


def _blocks(share: float) -> str:
    return "all blocks" if share == 1 else f"{share:.1%} of the blocks"


def _sure(facts: dict[str, Any], *, with_causes: bool) -> Iterator[str]:
    if facts["hosts"] < 2:
        yield "How sure: all ranks are on one clock"
    elif facts["clock_sd_ns"] is None:
        yield f"How sure: how well the clocks of {facts['hosts']} hosts agree is not known, so waits may be wrong"
    else:
        yield f"How sure: the clocks of {facts['hosts']} hosts agree to about ±{duration(facts['clock_sd_ns'])}"
    inferred = [
        _of_ranks(facts["stages_inferred"]),
        f"the micro-batch of {_blocks(facts['labels_inferred'])}" if facts["labels_inferred"] else "",
        f"{_blocks(facts['blocks_inferred'])} themselves" if facts["blocks_inferred"] else "",
    ]
    words = ", ".join(filter(None, inferred))
    yield f"inferred and not recorded: {words}" if words else "nothing is inferred"
    if facts["blocks_host"]:
        yield f"{_blocks(facts['blocks_host'])} have times of the host, which issued their work, not of the device"
    if facts["outside"]:
        yield f"GPUs compute for up to {facts['outside']:.0%} of their time outside all blocks, which counts as idle"
    if facts["whole_steps"] < facts["steps"]:
        yield f"{facts['whole_steps']} of {facts['steps']} steps are whole"
    if facts["unexplained"] is not None and with_causes:
        share = f"only {1 / facts['unexplained']:.0%} of the step time"
        yield f"blocks and transfers account for {share}, so what fixing a cause gives is a rough estimate"
