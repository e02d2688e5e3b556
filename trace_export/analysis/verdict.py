"""The answer in a few sentences: what is wrong, how long a step is and what it is made of, and how sure that is.

Facts come first (a code and numbers, rows of `explanation`), sentences are made of them last.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import polars as pl

from trace_export.analysis import cause_words
from trace_export.analysis.bubbles import Bubbles
from trace_export.analysis.clock_words import conditions, of_blocks_ns, unconnected
from trace_export.analysis.counted_steps import UNEVEN, WARM_UP, counted, far_longer
from trace_export.analysis.explanation import Explanation
from trace_export.analysis.summary import OF_HOST, host_share, outside_share
from trace_export.analysis.theory import HALVES, Theory, why_unknown
from trace_export.answer import Sentence
from trace_export.model import STEP_KEY, WORK_KINDS, Profile
from trace_export.pipeline.missing_ranks import Absent, absent
from trace_export.schedules.catalogue import TITLES
from trace_export.selection import Numbers
from trace_export.steps.graph import OPTIMIZER
from trace_export.steps.recorded import MISSING, ODD, PARTIAL, UNKNOWN
from trace_export.units import duration, times

SMALL = 0.01
"""A part that adds a smaller share to a step is not named by itself."""
UNSEEN = 0.001
"""A smaller share of a step is below the digits in which a step is given."""
EXPLAINS = 0.5
"""A cause makes steps long if it gains at least this share of the time that they add to the mean."""

LEVELS = {
    "work": "the work of a rank", "schedule": "waits of the schedule itself", "stages": "unequal stages",
    "ranks": "unequal ranks (and replicas that wait)", "microbatches": "unequal micro-batches", "jitter": "jitter",
    "transfers": "transfers", "collectives": "collectives", "pause": "the pause between steps",
    "delays": "ordinary delays", "late": "late starts",
}  # fmt: skip
"""The levels of `explanation.LEVELS` in words."""


def verdict(explanation: Explanation, measured: Bubbles, theory: Theory) -> tuple[Sentence, ...]:
    """The sentences on a run, the most important first. The steps are those of `measured`, the causes of the run."""
    if measured.steps.is_empty():
        text = "No step has a forward, a backward or a weight block, so nothing can be said of its time."
        return (Sentence("no-steps", {}, text, "check what the profiles hold: trace-export inspect DIR"),)
    first = causes(explanation.causes) or [_nothing(explanation, theory, measured.profile)]
    whole, host = measured.whole, bool(host_share(measured.whole))
    times = measured.step_ns, measured.pipeline_ns, measured.bubble
    said, facts = _made_of(explanation, theory, whole)
    length, of_run = measured.step_ns or measured.pipeline_ns or 0.0, explanation.step_ns
    if said.startswith(":") and abs(of_run - length) > SMALL * length:
        explained = explanation._graph.recorded.steps[explanation._windows.step]
        if explained.join(measured.steps, on=STEP_KEY, how="anti", nulls_equal=True).height:  # only a part is shown
            said = f"; a step of the run takes {duration(of_run)}{said}"
        elif measured.step_ns is None:
            said = f", with the rest of the step {duration(of_run)}{said}"
        elif explanation.steps == 1:
            said = f"; the one step that is explained takes {duration(of_run)}{said}"
        else:  # some steps are followed by none that tells how long they take
            said = f"; the {explanation.steps} steps that are explained take {duration(of_run)} in the mean{said}"
    step = step_sentence(measured.steps, *times, host=host, made_of=(said, facts))
    ahead = warm_up(measured.steps) or _slow_steps(measured.steps, explanation)
    if ahead:
        step = replace(step, next="")
    return (*_missing(whole), *ahead, *first, step, _certainty(explanation, whole))


def causes(explanation: pl.DataFrame) -> list[Sentence]:
    """The sentences on the causes (`explanation.CAUSES`) that are worth one."""
    rows = explanation.filter("sentence").iter_rows(named=True)
    return [Sentence(row["code"], _facts(row), cause_words.sentence(row), cause_words.next_step(row)) for row in rows]


def _facts(row: cause_words.Row) -> dict[str, Any]:
    """The values of a row, without nulls."""
    return {name: value for name, value in row.items() if value is not None and name not in ("code", "sentence")}


def _missing(profile: Profile) -> Iterator[Sentence]:
    """Ranks without a profile come first if they make the picture incomplete: all sentences are about the others."""
    warned = {note.code for note in profile.notes if note.level == "warning"}
    if not warned & MISSING:
        return
    lacks = absent(profile)
    facts = {
        "ranks": str(lacks.ranks), "missing": lacks.count, "world": lacks.world, "stages": str(lacks.stages),
        "of": lacks.stage_count,
    }  # fmt: skip
    alone = any(note.code == "machine-alone" for note in profile.notes)
    missing = "add their profiles to DIR, read the folder that holds all, or mend those that errors and warnings name"
    then = "read the folder above DIR, which holds all machines" if alone else missing
    yield Sentence("missing-ranks", facts, _missing_text(lacks), then)


def _missing_text(lacks: Absent) -> str:
    stages = f"{lacks.stages.named('stage')} of {lacks.stage_count}"
    which = f" ({lacks.ranks.named('rank')})" if lacks.ranks.ranges else ""
    if lacks.world and which:
        whole = f", including all of {stages}" if lacks.stages.ranges else ""
        count = lacks.ranks.count()
        have = "have" if count > 1 else "has"
        what = f"{count} of {lacks.world} ranks {have} no blocks here ({lacks.ranks.named('rank')}{whole})"
    elif lacks.stages.ranges:
        what = f"No rank of {stages} has a profile here"
    else:
        stage, count, most = lacks.uneven[0]
        what = (
            f"Stage {stage} has {count} rank{'s' * (count > 1)} here and other stages have {most}: profiles are"
            f" missing{which}"
        )
    return f"{what}; all that follows is about the ranks that were read."


def step_sentence(
    steps: pl.DataFrame,
    step: float | None,
    pipeline: float | None,
    bubble: float | None,
    *,
    host: bool,
    made_of: tuple[str, dict[str, Any]] = ("", {}),
) -> Sentence:
    """How long a step takes, what it is made of (as text, and facts), and how much of it is bubble: as means over
    those of `steps` (step_ns, pipeline_ns, counts) that count. `host`: whether times are those of the host."""
    steps = counted(steps)
    column = "step_ns" if step is not None else "pipeline_ns"
    each = steps[column].drop_nulls()
    least, most = (float(x) for x in (each.min() or 0, each.max() or 0))  # type: ignore[arg-type]
    facts: dict[str, Any] = {
        "step_ns": step, "pipeline_ns": pipeline, "bubble": bubble, "steps": steps.height, "shortest_ns": least,
        "longest_ns": most,
    }  # fmt: skip
    what, length = ("A step", step) if step is not None else ("The pipeline of a step", pipeline or 0)
    time = f"{what} takes {duration(length)}"
    if least > 0 and most > UNEVEN * least:
        time += f" (from {duration(least)} to {duration(most)})"
    said, more = made_of
    idle = "" if bubble is None else f"; ranks are idle for {bubble:.1%} of the pipeline time (the bubble)"
    whose = OF_HOST if host else ""
    return Sentence("step", {**facts, **more}, f"{time}{said}{idle}{whose}.", _apart(*_far_longer(steps, column)))


def warm_up(steps: pl.DataFrame) -> list[Sentence]:
    """Says which of `steps` (step, step_ns, pipeline_ns, whole, counts) are left out as a warm-up, if others are
    shown."""
    left_out, others = steps.filter(WARM_UP), steps.filter("counts")
    if left_out.is_empty() or others.is_empty():
        return []
    known = all(some["step_ns"].drop_nulls().len() for some in (left_out, others))
    return [_slow("step_ns" if known else "pipeline_ns", left_out, others, "to warm up; what follows is of the others")]


def _slow_steps(steps: pl.DataFrame, explanation: Explanation) -> list[Sentence]:
    """Says that some steps are far longer than the others, if no cause is most of the time that they add to the
    mean."""
    steps = counted(steps)
    longer, usual = (steps.filter(pl.col("step").is_in(those)) for those in _far_longer(steps, "step_ns"))
    if not longer["step_ns"].count() or not usual["step_ns"].count():  # nobody knows how long the others take
        return []
    mean, least = (float(each.mean()) for each in (steps["step_ns"], usual["step_ns"]))  # type: ignore[arg-type]
    if (explanation.causes["gain_ns"].max() or 0) > EXPLAINS * (mean - least):  # type: ignore[operator]
        return []
    return [_slow("step_ns", longer, usual, "because of a stop; what follows is a mean over all steps")]


def _slow(length: str, slow: pl.DataFrame, others: pl.DataFrame, why: str) -> Sentence:
    """Says by how much some steps are longer than others by the column `length`, and perhaps `why`."""
    long, usual = (float(steps[length].mean()) for steps in (slow, others))  # type: ignore[arg-type]
    which, rest = (steps["step"].drop_nulls().to_list() for steps in (slow, others))
    facts = {"steps": which, "slow_ns": long, "others_ns": usual, "ratio": long / usual}
    take = "takes" if len(which) == 1 else "take"
    text = (
        f"{Numbers.of(which).named('Step')} {take} {duration(long)}, {times(long / usual)} as long as the others"
        f" ({duration(usual)}), perhaps {why}."
    )
    return Sentence("slow-steps", facts, text, _apart(which, rest))


def _apart(slow: list[int], others: list[int]) -> str:
    """How to see what the slow steps have that the others have not."""
    which = Numbers.of(slow).named("step")
    compared = f"trace-export compare DIR --steps-a {Numbers.of(others)} --steps-b {Numbers.of(slow)}"
    return f"to see why {which} took longer: {compared}" if slow else ""


def _far_longer(steps: pl.DataFrame, length: str) -> tuple[list[int], list[int]]:
    """The steps whose `length` (a column) is far above the median, such as the first ones of a job, and the others;
    none where a number names several steps."""
    slow = steps.filter(far_longer(steps[length]))["step"].to_list()
    others = sorted(set(steps["step"].drop_nulls()) - set(slow))
    few = len(slow) <= len(others) and steps["step"].n_unique() == steps.height
    return (slow, others) if few else ([], [])


def _made_of(explanation: Explanation, theory: Theory, profile: Profile) -> tuple[str, dict[str, Any]]:
    """The parts of a step, and the schedule that it follows: as a part of a sentence, and as facts."""
    named = theory.recognition.named
    parts = [(row["level"], row["adds_ns"], row["share"]) for row in explanation.levels.iter_rows(named=True)]
    adds = {f"{level}_ns": adds for level, adds, _ in parts}
    if profile.declared.deeper:
        why = "the number of stages is not known (give --pp), so what the schedule costs is not known either"
        return f"; {why}", {"schedule": None, "distance": None}
    facts: dict[str, Any] = {"schedule": named and named.name, "distance": theory.recognition.distance, **adds}
    if named is None:
        why = f" ({why_unknown(theory.recognition, profile.ranks['stage'].n_unique())})"
        who = "the schedule"
    else:
        why = ""
        who = f"{TITLES[named.name]} ({named.stages} stages, {named.microbatches} micro-batches)"
    if explanation.incomplete:
        return f"; how long {who} waits is not known {_unread(explanation)}{why}", facts
    if not parts:
        return (f"; the schedule is {who}" if named else f"; {who} cannot be compared with a model{why}"), facts
    times, partial = {level: adds for level, adds, _ in parts}, explanation._graph.recorded.partial
    large = [level for level, _, share in parts[2:] if abs(share) >= SMALL]
    optimizer = " with the optimizer" if (explanation._graph.sort == OPTIMIZER).any() else ""  # no part of a bubble
    said, told = [f"{duration(times['work'])} of work{optimizer}"], {"work", *large}
    if profile.ranks["stage"].n_unique() > 1:
        much = "next to no"
        if parts[1][2] >= SMALL:
            much, told = f"{duration(times['schedule'])} of", told | {"schedule"}
        said.append(f"{much} waits that {who} has even if all blocks are equal{why}")
    facts["smaller_ns"] = sum(adds for level, adds in times.items() if level not in told)
    words = {**LEVELS, "delays": "ordinary delays and waits for ranks that were not read"} if partial else LEVELS
    named_parts = sorted(((times[level], words[level]) for level in large), reverse=True)
    if abs(facts["smaller_ns"]) >= UNSEEN * explanation.step_ns:
        named_parts.append((facts["smaller_ns"], "smaller parts"))
    said += [f"{duration(adds)} from {words}" for adds, words in named_parts if adds > 0]
    less = [f"{duration(-adds)} from {words}" for adds, words in named_parts if adds < 0]
    return f": {cause_words.listed(said)}{', less ' * bool(less)}{' and '.join(less)}", facts


def _unread(explanation: Explanation) -> str:
    return "without the other ranks" if explanation._graph.recorded.partial else "because not everything was recorded"


def _nothing(explanation: Explanation, theory: Theory, profile: Profile) -> Sentence:
    """Says that nothing stands out, and what another schedule would give; or why that is unknown."""
    recorded = explanation._graph.recorded
    if recorded.incomplete:
        codes = (PARTIAL | UNKNOWN) - MISSING
        noted = [note for note in profile.notes if note.code in codes and note.level != "detail"]
        why = "; ".join(note.text.split("; give")[0] for note in noted)
        text = f"What makes the steps long cannot be told without all stages of the pipeline{why and f': {why}'}."
        return Sentence("causes-unknown", {}, text, "read the profiles of all ranks of a pipeline")
    if explanation.trust.unrecorded:
        text = f"What makes the steps long cannot be told: {cause_words.listed(explanation.trust.doubts)}."
        return Sentence("causes-unknown", {}, text, _look(explanation))
    beside = "no stage, rank, host or link is slower or later than its peers"
    if recorded.ranks.height == 1:
        beside = "one rank has no peers that it could be compared with"
    if recorded.partial:
        text = f"Nothing stands out among the ranks that were read: {beside}. They may wait for ranks that were not."
        return Sentence("nothing-stands-out", {}, text, "read the profiles of all ranks")
    text = f"Nothing stands out: {beside}."
    others = theory.changes.slice(1) if explanation.trust.gains else theory.changes.clear()
    faster = others.filter(pl.col("saved") > 0)
    if faster.is_empty():
        none = "" if others.is_empty() else "no schedule of the model is faster; "
        return Sentence("nothing-stands-out", {}, text, none + _look(explanation))
    best = faster.sort("saved", descending=True)
    facts = best.select("change", "saved", "in_flight", "band").row(0, named=True)
    change, halves, _ = facts["change"].partition(HALVES)
    split = ", if weight gradients are half of a backward" if halves else ""
    then = (
        f"if this is too slow, change the schedule: in the model, {change} would save {facts['saved']:.1%} of the"
        f" pipeline time, ± {100 * facts['band']:.1f} points{split}; trace-export report DIR --full lists others"
    )
    return Sentence("nothing-stands-out", facts, text, then)


def _look(explanation: Explanation) -> str:
    """Where to look for the time of a step, where no schedule is known to be faster: the level that adds most."""
    if explanation.trust.unrecorded and not explanation._graph.recorded.partial:
        return "record all blocks and transfers of all ranks"
    if explanation.incomplete:
        return "read the profiles of all ranks: most of what these wait for is in the others"
    levels = explanation.levels.slice(2).sort("adds_ns", descending=True).filter(pl.col("share") >= SMALL)
    if levels.is_empty():
        command = "trace-export export DIR --detail kernels"
        return f"make the blocks themselves faster; to see what they run, where kernels were recorded: {command}"
    return f"if this is too slow, begin with {LEVELS[levels['level'][0]]}, {duration(levels['adds_ns'][0])} of a step"


def _certainty(explanation: Explanation, profile: Profile) -> Sentence:
    drawn = profile.ranks_with_blocks
    errors, statuses = profile.clocks["sd_ns"].drop_nulls().to_list(), set(profile.clocks["status"])
    hosts = 1 if statuses == {"single-host"} else drawn["host"].n_unique()  # so of a table, whatever hosts it names
    clocks = profile.clocks.join(drawn, on="host", how="semi")
    work = profile.spans.lazy().filter(pl.col("kind").is_in(WORK_KINDS)).select("labels", "origin").collect()
    steps, chosen = explanation._graph.recorded.steps, any(note.code == "ranks-chosen" for note in profile.notes)
    facts = {
        "hosts": hosts,
        "clock_sd_ns": max(errors, default=None),
        "clock_bound_ns": of_blocks_ns(clocks),
        "clock_unseen_ns": profile.clocks["unseen_step_ns"].max(),
        "clock_groups": unconnected(clocks) if hosts > 1 else 0,
        "wall_clocks": int((clocks["status"] == "wall").sum()) if hosts > 1 else 0,
        "contradicted": sum(note.count for note in profile.notes if note.code == "stages-contradict"),
        "ranks_assumed": int((drawn["rank_origin"] == "assumed").sum()),
        "stages_inferred": int(drawn["stage_origin"].is_in(["inferred", "assumed"]).sum()),
        "labels_inferred": float((work["labels"] == "inferred").fill_null(False).mean() or 0),  # type: ignore[arg-type]
        "blocks_inferred": float((work["origin"] == "inferred").fill_null(False).mean() or 0),  # type: ignore[arg-type]
        "chosen": cause_words.numbers(drawn["rank"].to_list()) if chosen else None,
        "blocks_host": host_share(profile),
        "outside": outside_share(profile),
        "whole_steps": int(profile.steps["whole"].sum()) if profile.steps.height else steps.height,
        "steps": int(profile.steps.height or steps.height),
        "odd_steps": len(explanation._graph.recorded.odd),
    }
    clauses = list(_clauses(facts, explanation, conditions(clocks)))
    facts["doubts"] = [clause for clause, is_doubt in clauses if is_doubt]
    return Sentence("certainty", facts, f"How sure: {'; '.join(clause for clause, _ in clauses)}.")


def _of_ranks(numbers: int, stages: int) -> Iterator[str]:
    """Of how many ranks the numbers, and of how many the stages, are inferred."""
    of = {("number", "stage"): stages} if numbers == stages else {("number",): numbers, ("stage",): stages}
    for words, count in of.items():
        many = "s" * (count != 1)
        if count:
            yield f"the {' and '.join(word + many for word in words)} of {count} rank{many}"


def _blocks(share: float) -> str:
    return "all blocks" if share == 1 else f"{share:.1%} of the blocks"


def _clauses(facts: dict[str, Any], explanation: Explanation, unless: str) -> Iterator[tuple[str, bool]]:
    """How sure the figures are, and whether that is a doubt, which the user must know even if nothing is wrong."""
    if facts["hosts"] < 2:
        yield "all ranks are on one clock", False
    elif facts["clock_sd_ns"] is None:
        yield f"the error of the clocks of {facts['hosts']} hosts is not known, so waits may be wrong", True
    elif facts["clock_groups"] > 1:
        yield f"nothing connects {facts['clock_groups']} groups of hosts, each on its own time axis", True
        yield f"the clocks within a group agree to about ±{duration(facts['clock_sd_ns'])}{unless}", False
    else:
        aligned = facts["hosts"] - facts["wall_clocks"]
        yield f"the clocks of {aligned} hosts agree to about ±{duration(facts['clock_sd_ns'])}{unless}", False
    if facts["wall_clocks"] and facts["clock_sd_ns"] is not None:
        who, whom = ("1 host", "it") if facts["wall_clocks"] == 1 else (f"{facts['wall_clocks']} hosts", "them")
        yield f"{who} could not be aligned, so waits for {whom} may be wrong", True
    inferred = [
        *_of_ranks(facts["ranks_assumed"], facts["stages_inferred"]),
        f"the micro-batch numbers of {_blocks(facts['labels_inferred'])}" if facts["labels_inferred"] else "",
        f"{_blocks(facts['blocks_inferred'])} themselves" if facts["blocks_inferred"] else "",
    ]
    words = ", ".join(filter(None, inferred))
    yield f"inferred, not recorded: {words}" if words else "nothing is inferred", bool(facts["blocks_inferred"])
    for doubt in _doubts(facts, explanation):
        yield doubt, True


def _doubts(facts: dict[str, Any], explanation: Explanation) -> Iterator[str]:
    """The reasons why the figures are not those of the whole run, as clauses."""
    if contradicted := facts["contradicted"]:
        ranks = "1 rank" if contradicted == 1 else f"{contradicted} ranks"
        yield f"the stages contradict the order of the blocks on {ranks}, so all of this may be wrong"
    if facts["chosen"]:
        if facts["chosen"].isdigit():
            yield f"only rank {facts['chosen']} was read, so it is compared with no other"
        else:
            yield f"only ranks {facts['chosen']} were read, so they are compared with each other alone"
    if facts["blocks_host"]:
        yield f"{_blocks(facts['blocks_host'])} have times of the host, which issued their work, not of the device"
    if facts["outside"]:
        yield f"GPUs compute for up to {facts['outside']:.0%} of their time outside all blocks, which counts as idle"
    if facts["whole_steps"] < facts["steps"]:
        yield f"{facts['whole_steps']} of {facts['steps']} steps are whole"
    if odd := explanation._graph.recorded.odd:
        more = f" and {len(odd) - 1} more" if len(odd) > 1 else ""
        yield f"the parts of a step leave out step {odd[0][1]}{more}, over {ODD} times as long as most"
    recorded, doubts = explanation._graph.recorded, explanation.trust.doubts
    if recorded.incomplete:
        doubts.append("stages of the pipeline were not read")
    elif recorded.partial and not explanation.causes.is_empty():
        yield "gains are upper bounds, because ranks that were not read may hold the step"
    if explanation.trust.unrecorded and not recorded.incomplete and explanation.causes.is_empty():
        return  # the first sentence says why
    if doubts:
        given = explanation.trust.gains and not recorded.incomplete
        yield f"gains are {'rough' if given else 'not given'}: {cause_words.listed(doubts)}"
