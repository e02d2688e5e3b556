"""The index of a rank on its machine, as launchers count it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

SIZES = tuple(1 << n for n in range(11))
"""The sizes tried if no machine is complete."""


def local_ranks(hosts: Sequence[str], ranks: Sequence[int | None]) -> list[int]:
    """The index on its host of each of the `ranks`.

    Launchers give each machine a block of consecutive ranks, all blocks of one size: as large as the fullest host
    shows, or a power of two. The smallest that fits all hosts counts, so a rank that was not recorded does not shift
    the ones after it. Where none fits, and on hosts with a rank of unknown number (None), ranks are counted in order.
    """
    numbers = [-1 if rank is None else rank for rank in ranks]
    extents: dict[str, tuple[int, int]] = {}
    for host, number in zip(hosts, numbers, strict=True):
        low, high = extents.get(host, (number, number))
        extents[host] = min(low, number), max(high, number)
    size = _size([(low, high) for low, high in extents.values() if low >= 0])
    indexes = [0] * len(numbers)
    counted: Counter[str] = Counter()
    for row in sorted(range(len(numbers)), key=numbers.__getitem__):
        host = hosts[row]
        indexes[row] = numbers[row] % size if size and extents[host][0] >= 0 else counted[host]
        counted[host] += 1
    return indexes


def _size(extents: Sequence[tuple[int, int]]) -> int | None:
    """The smallest size of blocks that fits the lowest and highest rank of each host."""
    if not extents:
        return None
    fullest = max(high - low + 1 for low, high in extents)
    for size in (fullest, *(size for size in SIZES if size > fullest)):
        blocks = {low // size for low, high in extents if low // size == high // size}
        if len(blocks) == len(extents):
            return size
    return None
