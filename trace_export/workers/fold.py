"""Results that come in any order, merged in the order of their items; few are held at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, Generic, TypeVar

Part = TypeVar("Part")

MOST: Final = 32
"""No process holds more results than this, those that are merged counting as one, and while they are merged again as
two."""
AT_ONCE: Final = MOST // 2
"""This many are merged at a time: fewer would be copied more often."""

Merge = Callable[[Sequence[Part]], Part]
"""Several neighbouring results as one, in their order."""


class Fold(Generic[Part]):
    """The results of the items 0, 1, …, this many, merged. An item may be begun when `may_begin` says so; then no more
    than `MOST` results are ever here."""

    def __init__(self, merge: Merge[Part], count: int) -> None:
        self.merge, self.count = merge, count
        self.merged: list[Part] = []
        self.waiting: dict[int, Part] = {}
        self.first = 0
        """The first item that is not merged yet."""

    def may_begin(self, index: int) -> bool:
        return index < self.first + MOST - 2

    def put(self, index: int, part: Part) -> None:
        self.waiting[index] = part
        end = self.first
        while end in self.waiting:
            end += 1
        if end - self.first >= AT_ONCE or end == self.count:
            neighbours = [self.waiting.pop(at) for at in range(self.first, end)]
            self.merged = [self.merge([*self.merged, *neighbours])]
            self.first = end

    def result(self) -> Part:
        return self.merged[0] if self.merged else self.merge([])
