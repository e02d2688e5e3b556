"""The tables that the measured graph is made of."""

import pytest

from tests.support.profiles import concluded, profile, span, table, with_messages
from trace_export.model import MESSAGES, Declared, Profile
from trace_export.steps.recorded import recorded

US = 1_000


def one_edge(arrives: int) -> Profile:
    """F0 on two stages, and a message between them that names no micro-batch: sent at 20 µs, it arrives at `arrives`.
    The forward that takes it runs from 40 to 50. A second message at the same end names neither block for certain."""
    made = concluded(profile([span(0, "F", 0, 0, 10 * US), span(1, "F", 0, 40 * US, 50 * US)], {0: 0, 1: 1}))
    start = made.spans["start_ns"][0]
    rows = [
        {"src_rank": 0, "dst_rank": 1, "direction": "F", "send_start_ns": start + sent * US,
         "send_end_ns": start + end * US, "recv_start_ns": start + 12 * US, "recv_end_ns": start + end * US}
        for sent, end in [(20, arrives), (21, arrives)]
    ]  # fmt: skip
    return with_messages(made, table(rows, MESSAGES))


@pytest.mark.parametrize(("arrives", "known"), [(35, True), (90, False)])
def test_a_message_that_arrives_after_its_block_has_ended_is_of_another_one(arrives: int, known: bool) -> None:
    """As where a send of one step was paired with a receive of the next."""
    edges = recorded(one_edge(arrives)).edges
    assert edges["arrived"].to_list() == [arrives * US if known else None]


def test_a_pair_lacks_an_input_where_one_of_its_passes_does() -> None:
    """On the last of two stages in a loop a forward needs one and a backward none; on the first it is the reverse."""
    blocks = [
        span(rank, kind, 0, 100 * n, 100 * n + 50, chunk=0, microbatch_b=1, chunk_b=0)
        for rank in (0, 1) for n, kind in enumerate(["F", "B", "W", "FB", "OPT"])
    ]  # fmt: skip
    result = recorded(concluded(profile(blocks, {0: 0, 1: 1}, declared=Declared(placement="loop")))).blocks
    lacks = {(row["rank"], row["kind"]): row["lacks"] for row in result.to_dicts()}
    assert [kind for rank, kind in sorted(lacks) if rank == 0 and lacks[0, kind]] == ["B", "FB"]
    assert [kind for rank, kind in sorted(lacks) if rank == 1 and lacks[1, kind]] == ["F", "FB"]
