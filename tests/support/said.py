"""Which value of a JSON document each figure of a text is: the texts as templates, with the keys where the figures are.

A key is a fact of the sentence (`parts/0/ns`), or from `/` on, a way through the document: `/levels/-1/step_ns`, and in
a list of rows `/whole/what=busy/a`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from trace_export.analysis.verdict import LEVELS

UNITS = {"ns": 1.0, "µs": 1e-3, "ms": 1e-6, "s": 1e-9, "%": 100.0, "points": 100.0, "×": 1.0}
FIGURE = re.compile(rf"(?<![\w.])(\d+(?:\.\d+)?) ?({'|'.join(UNITS)})(?!\w)")
THINGS = "rank|host|stage|micro-batch|chunk|replica|step|block|link|clock|source"
COUNT = re.compile(
    rf"(?<![\w.,:×-])(\d[\d,]*)(?: of (?:the )?(\d[\d,]*))? (?:(?:slow|drifting) )?(?:{THINGS})(?:e?s)?\b"
)
LIMITS = ("0.01%", "0.5%", "1%", "3 %", "99%")
"""Figures that are of no run: bounds from which on something is named, and a level of confidence."""

TRUST = (
    "the replay takes {/trust/replayed_by_measured} of the measured time",
    "{/trust/overlap} of the work began before",
    "the ranks wait {/trust/unknown_waits} of the time",
)
CAUSE = (
    "{ratio} as long as", "a long one takes {ratio} the usual time", "no block starts for {late_ns}",
    "it takes {late_ns} of a step", ": {late_ns} a step after", "{gain_ns} ({gain}) shorter", "± {band} of that",
    "over all stages, a step would be {even_ns} shorter",
)  # fmt: skip
"""Of the sentences on causes, whatever their code."""
OF_CODE: Mapping[str, Sequence[str]] = {
    "step": (
        "A step takes {step_ns}", "The pipeline of a step takes {pipeline_ns}", "(from {shortest_ns} to {longest_ns})",
        "; a step of the run takes {/levels/-1/step_ns}", ", with the rest of the step {/levels/-1/step_ns}",
        "that are explained take {/levels/-1/step_ns} in the mean",
        "the one step that is explained takes {/levels/-1/step_ns}", "{work_ns} of work", "{schedule_ns} of waits",
        *(f"{{{level}_ns}} from {words}" for level, words in LEVELS.items()), "{smaller_ns} from smaller parts",
        "ranks are idle for {bubble} of the pipeline time", "is closest, {distance} differ",
    ),
    "slow-steps": ("{slow_ns}, {ratio} as long as the others ({others_ns})",),
    "certainty": (
        "agree to about ±{clock_sd_ns}", "(else two may be {clock_bound_ns} apart)", "by less than {clock_unseen_ns}",
        "micro-batch numbers of {labels_inferred}",
        "{blocks_inferred} of the blocks themselves", "{blocks_host} of the blocks have times",
        "for up to {outside} of their time", *TRUST,
    ),
    "causes-unknown": TRUST,
    "nothing-stands-out": ("would save {saved} of the pipeline time, ± {band} points",),
    "slow-blocks": ("take {more_ns} more in a step",),
    "profiler-cost": (
        "take {profiled_ns}, the others {plain_ns} ± {deviation_ns}", "the profiler adds {added}",
        "the bubble without it is {idle_bubble}, if none of it is, {work_bubble}", "measured {/bubble}",
    ),
    "clocks": (
        "agree to ±{clock_sd_ns}", "agree to ±{clock_median_ns} (median), ±{clock_sd_ns} at worst",
        "(else two may be {clock_bound_ns} apart)", "by less than {clock_unseen_ns}",
    ),
    "missing-ranks": ("({share}) is missing", "({share}) are missing"),
    "difference": (
        "is {b} in", ": {b}", "in {b}, {difference} ({change})", ", {difference} (",
        "({change}) more", "({change}) less",
        "the bubble is {/whole/what=bubble (global)/b}", "instead of {/whole/what=bubble (global)/a} ({bubble} points)",
    ),
    "levels-changed": (
        *(f"{{{level}_ns}} {way} from {words}" for level, words in LEVELS.items() for way in ("more", "less")),
        "{smaller_ns} more from smaller parts", "{smaller_ns} less from smaller parts",
    ),
    "prediction": (
        "predicted {predicted} of the", "± {band} points; measured {measured}", "grew to {ratio} its work",
        *(f"{{/levels/level={level}/difference}} {way} of a step from {words}"
          for level, words in LEVELS.items() for way in ("more", "less")),
    ),
    "gate": ("is {change} more", "is {change} less", "at least {at_least}", "the limit of {limit}"),
}  # fmt: skip
IN_NOTES = (
    *TRUST, "{/closed_form/idle_ns} with the mean durations",
    "known to about ±{/verdict/code=certainty/facts/clock_sd_ns}",
    "{/schedule/distance} of the blocks differ",
    "is closest, {/schedule/distance} differ",
)  # fmt: skip
"""Of what stands below the tables of a report, and beside them."""


def wrong(sentence: Mapping[str, Any], document: Mapping[str, Any]) -> list[str]:
    """The figures of a sentence of `document` that are not the value of their key, and those without a key."""
    facts = sentence["facts"]
    texts = [*OF_CODE.get(sentence["code"], ()), *CAUSE]
    if sentence["code"] == "cause-changed":
        sides = [side for side in "ab" if f"{side}_band" in facts]
        texts = [text.replace("{", f"{{{sides[0]}_") for text in CAUSE]
        if len(sides) == 2:
            texts = ["shorter by {a_gain_ns} in", "and {b_gain_ns} in"]
    whole = f"{sentence['text']}\n{sentence['next']}"
    return list(_wrong(whole, texts, document, facts))


def wrong_counts(sentence: Mapping[str, Any], document: Mapping[str, Any]) -> list[str]:
    """The counts of things in a sentence that are neither a fact, nor the length of one, nor a size of the schedule."""
    sizes = document.get("schedule") or {}
    known = {*_counts(sentence["facts"]), *(sizes.get(name) for name in ("stages", "microbatches", "chunks"))}
    return [
        f"{match[0]} is of no key: {sentence['text']}"
        for match in COUNT.finditer(sentence["text"])
        if not {int(text.replace(",", "")) for text in match.groups() if text} <= known
    ]


def _counts(value: Any) -> Iterator[int]:
    if isinstance(value, Mapping | list):
        yield len(value)
        for each in value.values() if isinstance(value, Mapping) else value:
            yield from _counts(each)
    elif isinstance(value, int):
        yield value


def wrong_notes(text: str, document: Mapping[str, Any]) -> list[str]:
    """The same of what is said below tables, as paragraphs."""
    return list(_wrong(text, IN_NOTES, document, {}))


def _wrong(text: str, templates: Sequence[str], document: Mapping[str, Any], facts: Mapping[str, Any]) -> Iterator[str]:
    keys = {at: key for template in templates for at, key in _keys(template, text)}
    parts = iter(range(len(facts.get("parts") or ())))  # of slow blocks, each is said in its order
    for figure in FIGURE.finditer(text):
        key = keys.get(figure.start())
        if key is None and "more_ns" in facts:
            key = f"parts/{next(parts)}/ns"
        if key is None:
            if figure[0] not in LIMITS:
                yield f"{figure[0]} is of no key: {text}"
        elif not is_rounded(figure[1], figure[2], value := _value(key, document, facts)):
            yield f"{figure[0]} is not {key}, {value}: {text}"


def _keys(template: str, text: str) -> Iterator[tuple[int, str]]:
    """Where the figures of a template are in the text, with their keys."""
    literal, *rest = re.split(r"\{([^}]*)\}", template)
    pattern, keys = re.escape(literal), rest[::2]
    for words in rest[1::2]:
        pattern += rf"[+-]?(\d+(?:\.\d+)? ?(?:{'|'.join(UNITS)})?)" + re.escape(words)
    for match in re.finditer(pattern, text):
        yield from ((match.start(n), key) for n, key in enumerate(keys, 1))


def _value(key: str, document: Mapping[str, Any], facts: Mapping[str, Any]) -> Any:
    place: Any = document if key.startswith("/") else facts
    for name in key.strip("/").split("/"):
        field, equal, value = name.partition("=")
        if isinstance(place, list):
            place = next(row for row in place if row[field] == value) if equal else place[int(name)]
        else:
            place = place.get(name)
    return place


def is_rounded(text: str, unit: str, value: float | None) -> bool:
    """Whether a figure is a value: to the digits that it has, or of a time to three significant ones."""
    if value is None:
        return False
    scaled, decimals = abs(value) * UNITS[unit], len(text.partition(".")[2])
    if unit in ("ns", "µs", "ms", "s") and float(f"{scaled:.3g}") == float(text):
        return True
    return (bool(decimals) or unit in ("%", "×", "points")) and abs(
        scaled - float(text)
    ) <= 0.5 * 10.0**-decimals * 1.000001
