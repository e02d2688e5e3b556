"""Captures of one made-up run in every format whose blocks are named ranges around launches."""

import random
from collections.abc import Callable
from pathlib import Path

from samples.generators import kineto, nsys, rocpd
from samples.generators.nsys_export import Export
from samples.generators.pipeline import Block
from trace_export.model import Profile


def _nsys(folder: Path, blocks: list[Block], dialect: nsys.Dialect) -> int:
    nsys.record(folder, blocks, 1, (0,), random.Random(2), dialect)
    return Export.epoch_ns


def _rocpd(folder: Path, blocks: list[Block], dialect: nsys.Dialect) -> int:
    rocpd.record(folder, blocks, (0,), random.Random(2), dialect)
    return 0


def _kineto(folder: Path, blocks: list[Block], dialect: nsys.Dialect) -> int:
    kineto.record(folder, blocks, random.Random(2), dialect)
    return Export.epoch_ns


CAPTURES: dict[str, Callable[[Path, list[Block], nsys.Dialect], int]] = {
    "nsys": _nsys, "rocpd": _rocpd, "kineto": _kineto,
}  # fmt: skip
"""Format → what writes blocks in it with ranges of a dialect, and returns when the run began."""

BLOCK = ("rank", "step", "kind", "microbatch", "start_ns", "end_ns")


def drawn(profile: Profile) -> list[tuple[object, ...]]:
    """The blocks, in an order that says nothing."""
    return sorted(profile.blocks.select(BLOCK).rows(), key=str)


def truth(blocks: list[Block], epoch_ns: int) -> list[tuple[object, ...]]:
    """What `drawn` gives of a profile with these blocks."""
    step = {b.step: b.step if b.step >= 0 else None for b in blocks}
    rows = [(b.rank, step[b.step], b.kind, b.microbatch, b.start_ns + epoch_ns, b.end_ns + epoch_ns) for b in blocks]
    return sorted(rows, key=str)
