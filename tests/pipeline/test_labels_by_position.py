"""Which parts of a stage's blocks have a certain place in the schedule's order."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from trace_export.pipeline.labels_by_position import certain_pieces


def test_the_ends_of_a_word_with_a_gap_do_not_overlap() -> None:
    """One F of the second pair is missing: which of them, the order does not say."""
    found = certain_pieces("FFFBBFBB", "FFFBBFFBB", starts=True, ends=True)
    assert [(piece.begin, piece.offset) for piece in found] == [(n, 0) for n in range(5)] + [(6, 1), (7, 1)]


@given(st.text("FB", max_size=12), st.text("FB", max_size=14), st.booleans(), st.booleans())
def test_pieces_are_in_order_and_agree_with_what_is_expected(
    found: str, expected: str, starts: bool, ends: bool
) -> None:
    after = 0
    for piece in certain_pieces(found, expected, starts=starts, ends=ends):
        assert after <= piece.begin <= piece.end <= len(found)
        assert found[piece.begin : piece.end] == expected[piece.begin + piece.offset :][: piece.end - piece.begin]
        after = piece.end
