"""The distance of the measured order of a step from that of a schedule."""

from __future__ import annotations

from bisect import bisect_left

import polars as pl

from trace_export.pipeline.block_order import KEY


def distances_to(expected: dict[str, pl.DataFrame], step: pl.DataFrame) -> dict[str, tuple[bool, float]]:
    """Whether `step` (as `block_order.sequences`) differs from each order that is `expected` (as
    `block_order.expected_order`), and by how much; if none is exact, edits are counted for the closest two.

    The others are compared by the share of blocks with a wrong follower, which is quickly known.
    """
    measured = step.select("rank", "stage", "position", key=KEY)
    rough = {name: _rough(measured, order) for name, order in expected.items()}
    close = sorted(rough, key=lambda name: rough[name])[:2] if min(rough.values()) > 0 else []
    return {
        name: (far > 0, _edits(measured, expected[name]) if name in close and far else far)
        for name, far in rough.items()
    }


def _rough(measured: pl.DataFrame, order: pl.DataFrame) -> float:
    """The share of blocks whose follower is not the expected one; 0 if and only if all ranks are exact."""
    following = pl.col("key").shift(-1).fill_null(-1)
    links = measured.with_columns(next=following.over("rank"), first=pl.col("position") == 0)
    right = order.select("stage", "position", key=KEY).with_columns(
        next=following.over("stage"), first=pl.col("position") == 0
    )
    matched = len(links.join(right, on=["stage", "key", "next", "first"], how="semi"))
    wanted = measured.select("rank", "stage").unique().join(right.group_by("stage").len(), on="stage")["len"].sum()
    total = max(len(measured), wanted)
    return float(1 - matched / total) if total else 0.0


def _edits(measured: pl.DataFrame, order: pl.DataFrame) -> float:
    """(missing + superfluous + displaced blocks) / blocks. Blocks missing at both ends are free: the window was cut."""
    positions = {
        stage: dict(zip(keys, range(len(keys)), strict=True))
        for stage, keys in order.group_by("stage").agg(KEY).iter_rows()
    }
    wrong = total = 0
    for stage, keys in measured.group_by("rank").agg(pl.col("stage").first(), "key").select("stage", "key").iter_rows():
        where = positions.get(stage, {})
        met = [where[k] for k in dict.fromkeys(keys) if k in where]
        span = max(met) - min(met) + 1 if met else 0
        wrong += (len(keys) - len(met)) + (span - len(met)) + (len(met) - _increasing(met))
        total += max(len(keys), span)
    return wrong / total if total else 1.0


def _increasing(values: list[int]) -> int:
    """The length of the longest increasing subsequence: this many blocks can stay where they are."""
    tails: list[int] = []
    for value in values:
        at = bisect_left(tails, value)
        tails[at : at + 1] = [value]
    return len(tails)
