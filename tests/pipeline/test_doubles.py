"""What was recorded twice counts once."""

from __future__ import annotations

from tests.support.profiles import ORIGIN, profile, span, table, two_stages
from trace_export.model import P2P, Profile
from trace_export.pipeline.doubles import without_doubles


def codes(done: Profile) -> list[tuple[str, int]]:
    return [(note.code, note.count) for note in done.notes]


def test_without_doubles_of_five_blocks_keeps_three() -> None:
    """The second copy of F0 and B0 is in another run and step; F1 only begins when F0 does."""
    blocks = [
        span(0, "F", 0, 0, 10), span(0, "B", 0, 20, 40), span(0, "F", 1, 0, 11),
        span(0, "F", 0, 0, 10, run=1, step=3), span(0, "B", 0, 20, 40, run=1, step=3),
    ]  # fmt: skip
    done = without_doubles(profile(blocks, {0: 0}))
    assert done.spans.select("run", "kind", "microbatch").rows() == [(0, "F", 0), (0, "B", 0), (0, "F", 1)]
    assert codes(done) == [("blocks-recorded-twice", 2)]


def test_what_was_recorded_once_stays_bit_for_bit() -> None:
    made = two_stages()
    assert without_doubles(made) is made


def test_the_operations_of_a_log_that_was_doubled_count_once() -> None:
    """The profiler counts on, so the copies have other sequence numbers; rank 1 sends the same and was not doubled."""
    send = {"role": "send", "peer": 5, "op": "send", "start_ns": ORIGIN + 3, "end_ns": ORIGIN + 9}
    p2p = table([{"rank": rank, "sequence": n, **send} for rank, n in ((0, 0), (0, 1), (1, 0), (1, 1))], P2P)
    blocks = [span(0, "F", 0, 0, 10), span(0, "F", 0, 0, 10), span(1, "F", 0, 0, 10)]
    done = without_doubles(profile(blocks, {0: 0, 1: 1}, p2p=p2p))
    assert done.p2p.select("rank", "sequence").rows() == [(0, 0), (1, 0), (1, 1)]
