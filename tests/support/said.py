"""Which value of a JSON document each figure of a text is, whatever the words of the text.

A figure of a sentence is one of its facts, or a value of the document that sentences sum up: a time, a share or a
ratio, as its unit says.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

UNITS = {"ns": 1.0, "µs": 1e-3, "ms": 1e-6, "s": 1e-9, "%": 100.0, "points": 100.0, "×": 1.0}
TIMES = ("ns", "µs", "ms", "s")
FIGURE = re.compile(rf"(?<![\w.])(\d+(?:\.\d+)?) ?({'|'.join(UNITS)})(?!\w)")
THINGS = "rank|host|stage|micro-batch|chunk|replica|step|block|link|clock|source"
COUNT = re.compile(
    rf"(?<![\w.,:×-])(\d[\d,]*)(?: of (?:the )?(\d[\d,]*))? (?:(?:slow|drifting) )?(?:{THINGS})(?:e?s)?\b"
)
LIMITS = ("0.01%", "0.5%", "1%", "3 %", "99%")
"""Figures that are of no run: bounds from which on something is named, and a level of confidence."""
SUMMED_UP = ("bubble", "closed_form", "levels", "schedule", "trust", "whole")
"""What sentences tell beside their facts."""
OF_EITHER = ("a", "b", "difference")
"""Of a comparison: a time or a share, as the row says."""


def wrong(text: str, facts: Mapping[str, Any], document: Mapping[str, Any]) -> list[str]:
    """The figures of a text that are neither among the facts nor among what sentences sum up."""
    values = [*_named(facts), *_named({name: document.get(name) for name in SUMMED_UP})]
    return [
        f"{figure[0]} is of no key: {text}"
        for figure in FIGURE.finditer(text)
        if figure[0] not in LIMITS and not any(is_rounded(figure[1], figure[2], *named) for named in values)
    ]


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


def _named(value: Any, name: str = "") -> Iterator[tuple[str, float]]:
    """All numbers in it, with the name of the field that each is in."""
    if isinstance(value, Mapping):
        for key, each in value.items():
            yield from _named(each, key)
    elif isinstance(value, list):
        for each in value:
            yield from _named(each, name)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield name, value


def is_rounded(text: str, unit: str, name: str, value: float) -> bool:
    """Whether a figure is the value of that name: to the digits that it has, or of a time to three significant ones."""
    scaled, decimals = abs(value) * UNITS[unit], len(text.partition(".")[2])
    exact = abs(scaled - float(text)) <= 0.5 * 10.0**-decimals * 1.000001
    if unit in TIMES:
        short = float(f"{scaled:.3g}") == float(text)
        return (name.endswith("_ns") or name in OF_EITHER) and (short or (bool(decimals) and exact))
    return not name.endswith("_ns") and exact
