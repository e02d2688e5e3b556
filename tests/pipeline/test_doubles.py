"""What was recorded twice counts once."""

from tests.support.profiles import ORIGIN, profile, span, table
from trace_export.model import P2P
from trace_export.pipeline.doubles import without_doubles


def test_the_operations_of_a_log_that_was_doubled_count_once() -> None:
    """The profiler counts on, so the copies have other sequence numbers; rank 1 sends the same and was not doubled."""
    send = {"role": "send", "peer": 5, "op": "send", "start_ns": ORIGIN + 3, "end_ns": ORIGIN + 9}
    p2p = table([{"rank": rank, "sequence": n, **send} for rank, n in ((0, 0), (0, 1), (1, 0), (1, 1))], P2P)
    blocks = [span(0, "F", 0, 0, 10), span(0, "F", 0, 0, 10), span(1, "F", 0, 0, 10)]
    done = without_doubles(profile(blocks, {0: 0, 1: 1}, p2p=p2p))
    assert done.p2p.select("rank", "sequence").rows() == [(0, 0), (1, 0), (1, 1)]
