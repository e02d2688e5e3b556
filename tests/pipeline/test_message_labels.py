"""What a message carries, inferred from the blocks at both its ends."""

from __future__ import annotations

from dataclasses import replace

import polars as pl
import pytest

from tests.conftest import AscendRun
from tests.support.profiles import ORIGIN, concluded, profile, span, table
from trace_export import load
from trace_export.model import MESSAGES, Profile
from trace_export.pipeline.message_labels import label

SKEW = 10_000
"""The second rank's clock is ahead by so many µs: no time of one rank is compared with one of the other."""


def at(us: int) -> int:
    return 1000 * us


def two_ranks() -> Profile:
    """1F1B of two micro-batches on two stages; 10 µs after a block its result leaves, and takes 20 µs."""
    blocks = [
        span(rank, kind, number, at(start + SKEW * rank), at(start + SKEW * rank + 100), chunk=0)
        for rank, kind, number, start in [
            (0, "F", 0, 0), (0, "F", 1, 100), (0, "B", 0, 400), (0, "B", 1, 700),
            (1, "F", 0, 140), (1, "B", 0, 240), (1, "F", 1, 400), (1, "B", 1, 500),
        ]
    ]  # fmt: skip
    rows = [
        {
            "src_rank": src, "dst_rank": dst,
            "send_start_ns": ORIGIN + at(end + SKEW * src + 10), "send_end_ns": ORIGIN + at(end + SKEW * src + 30),
            "recv_start_ns": ORIGIN + at(end + SKEW * dst), "recv_end_ns": ORIGIN + at(end + SKEW * dst + 30),
        }
        for src, dst, end in [(0, 1, 100), (0, 1, 200), (1, 0, 340), (1, 0, 600)]
    ]  # fmt: skip
    return replace(concluded(profile(blocks, {0: 0, 1: 1})), messages=table(rows, MESSAGES))


def labels_of(found: Profile) -> list[tuple[object, ...]]:
    return found.messages.select("direction", "microbatch", "chunk").rows()


def test_both_ends_name_the_same_blocks() -> None:
    found = label(two_ranks())
    assert labels_of(found) == [("F", 0, 0), ("F", 1, 0), ("B", 0, 0), ("B", 1, 0)]
    assert [(n.code, n.count) for n in found.notes] == [("message-labels-inferred", 4)]


def test_ends_that_disagree_leave_a_message_as_it_is() -> None:
    """The receive of the first message ends only after the forward that it is said to feed has begun."""
    whole = two_ranks()
    late = pl.when(pl.int_range(pl.len()) == 0).then(pl.col("recv_end_ns") + at(200)).otherwise("recv_end_ns")
    found = label(replace(whole, messages=whole.messages.with_columns(recv_end_ns=late)))
    assert labels_of(found)[0] == (None, None, None)
    assert labels_of(found)[2:] == [("B", 0, 0), ("B", 1, 0)]


def test_what_the_source_says_stays() -> None:
    whole = two_ranks()
    said = whole.messages.with_columns(direction=pl.lit("B"), microbatch=pl.lit(7, pl.Int32))
    assert labels_of(label(replace(whole, messages=said))) == [("B", 7, None)] * 4


def test_a_recorded_direction_is_kept() -> None:
    whole = two_ranks()
    said = whole.messages.with_columns(direction=pl.Series(["F", "B", "B", "F"]))
    found = label(replace(whole, messages=said))
    assert labels_of(found) == [("F", 0, 0), ("B", None, None), ("B", 0, 0), ("F", None, None)]
    assert [(n.code, n.count) for n in found.notes] == [("message-labels-inferred", 2)]


@pytest.mark.parametrize(
    ("name", "at_least"), [("1f1b", 1.0), ("clipped", 1.0), ("interleaved", 1.0), ("dualpipev", 0.4)]
)
def test_what_is_filled_in_is_right(ascend_run: AscendRun, name: str, at_least: float) -> None:
    """Fused pairs send from their middle, which no block's end shows."""
    folder, truth = ascend_run(name)
    wanted = {(src, dst, sent): labels for src, dst, *labels, sent, _, _, _ in truth.messages}
    messages = load(folder).messages
    known = messages.drop_nulls("direction")
    keys = known.select("src_rank", "dst_rank", "send_start_ns").rows()
    assert known.select("direction", "microbatch", "chunk").rows() == [tuple(wanted[key]) for key in keys]
    assert known.height >= at_least * messages.height > 0
