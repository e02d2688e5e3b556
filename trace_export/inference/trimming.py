"""Cuts off forwards what lies between the passes, such as counters of tokens."""

from __future__ import annotations

from trace_export.inference.step import Rows, Step


def trim(step: Step, forwards: list[Rows]) -> list[Rows]:
    """The forwards without what does not belong to them.

    Off come counters of tokens at either end, and a kernel that stands before some forwards and after others. What the
    first forward begins with does not count: the capture may begin inside it.

    Example: `a b`, `n a b`, `a b n` are three times `a b`.
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
    return out


def _between(step: Step, forwards: list[Rows]) -> set[int]:
    """Names, no products, that stand first in some forwards but the first of all, and last in others."""
    name, product = step.timeline.name, step.timeline.names.product
    ends = [(int(name[rows.begin]), int(name[rows.end - 1])) for rows in forwards if rows.end - rows.begin > 2]
    both = {first for first, _ in ends[1:]} & {last for _, last in ends}
    return {n for n in both if not product[n] and any((first == n) != (last == n) for first, last in ends)}
