"""Cuts off forwards what lies between the passes: counters of tokens, and what is done once before the first."""

from __future__ import annotations

from collections import Counter

import numpy as np

from trace_export.sources.launches.step import Rows, Step


def trim(step: Step, forwards: list[Rows]) -> list[Rows]:
    """The forwards without what does not belong to them.

    Off come counters of tokens at either end; a kernel that stands before some forwards and after others; and what
    precedes the usual row in a form that occurs once. What the first forward begins with does not count: the capture
    may begin inside it.

    Example: `a b`, `n a b`, `a b n`, `z a b` are four times `a b`.
    """
    timeline = step.timeline
    between = _between(step, forwards)
    out = []
    for begin, end in forwards:
        while end - begin > 1 and timeline.counter[begin]:
            begin += 1
        while end - begin > 1 and timeline.counter[end - 1]:
            end -= 1
        if end - begin > 2 and timeline.name[begin] in between:
            begin += 1
        if end - begin > 2 and timeline.name[end - 1] in between:
            end -= 1
        out.append(Rows(begin, end))
    return _usual_endings(step, out)


def _between(step: Step, forwards: list[Rows]) -> set[int]:
    """Names, no products, that stand first in some forwards but the first of all, and last in others."""
    name, product = step.timeline.name, step.timeline.names.product
    ends = [(int(name[rows.begin]), int(name[rows.end - 1])) for rows in forwards if rows.end - rows.begin > 2]
    both = {first for first, _ in ends[1:]} & {last for _, last in ends}
    return {n for n in both if not product[n] and any((first == n) != (last == n) for first, last in ends)}


def _usual_endings(step: Step, forwards: list[Rows]) -> list[Rows]:
    """Of a form that occurs once only the usual one that it ends with."""
    name = step.timeline.name
    forms = Counter(rows.of(name).tobytes() for rows in forwards)
    usual = [np.frombuffer(form, name.dtype) for form, count in forms.most_common() if count > 1]
    out = []
    for rows in forwards:
        own = rows.of(name)
        if forms[own.tobytes()] == 1:
            form = next((u for u in usual if len(own) > len(u) and np.array_equal(own[-len(u) :], u)), None)
            rows = rows if form is None else Rows(rows.end - len(form), rows.end)
        out.append(rows)
    return out
