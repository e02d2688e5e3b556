"""Forwards that no backward follows: those of an evaluation, and those whose backward was lost."""

import pytest

from tests.support.profiles import profile, span
from trace_export.pipeline.evaluations import set_apart

WHOLE = "F0 F1 F2 F3 B0 B1 B2 B3 OPT"


@pytest.mark.parametrize(
    ("second", "apart"),
    [
        ("F0 F1 F2 F3 B0 B1 B3 OPT", 0),  # the backward of 2 was lost, as its line in a damaged log
        ("F0 F0 F1 F2 F3 B0 B1 B2 B3 OPT", 1),
        ("F0 F1 F0 F1 F2 F3 B0 B1 B2 B3 OPT", 2),
    ],
)
def test_a_lost_backward_makes_no_evaluation(second: str, apart: int) -> None:
    """Two whole steps have four backwards, and a third has three, so that as many as in the second are usual."""
    words = " ".join([WHOLE, second, *(["F0 F1 F2 B0 B1 B2 OPT"] * 3 if apart == 0 else [WHOLE])]).split()
    blocks = [
        span(0, word[:1] if word != "OPT" else word, int(word[1:]) if word != "OPT" else None, 20 * n, 20 * n + 10,
             step=None)
        for n, word in enumerate(words)
    ]  # fmt: skip
    assert set_apart(profile(blocks, {0: 0})).evaluations.height == apart
