"""Blocks from kernel types: each layer of a made-up network votes in its own way, recomputation included."""

import polars as pl
import pytest

from trace_export.model import conform
from trace_export.sources.ascend import kernel_inference, marker_blocks

LAYERS = 6
FORWARD = ["RmsNorm", "MatMulV3", "FlashAttentionScore", "SwiGlu", "MatMulV3"]
BACKWARD = ["SwiGluGrad", "MatMulV3", "FlashAttentionScoreGrad", "RmsNormGrad", "MatMulV3"]


def infer(work: str) -> list[str]:
    """Kinds of the blocks found. Letters of `work`, in order: f and b a layer's forward and backward, o the optimizer's
    kernels, h the loss head, | a point-to-point operator, # a collective."""
    kinds = {"f": FORWARD, "b": BACKWARD, "o": ["ApplyAdamWV2"] * 4, "h": ["MatMulV3", "Cast"]}
    rows, transfers, collectives, at = [], [], [], 0
    for letter in work:
        if letter in "|#":
            (transfers if letter == "|" else collectives).append(at)
            at += 10
            continue
        for kernel in kinds[letter]:
            rows.append({"text": kernel, "stream": 2, "start_ns": at, "end_ns": at + 8})
            at += 10
    kernels = conform(pl.DataFrame(rows), marker_blocks.WORKED)
    result = kernel_inference.spans(
        kernels, pl.Series(transfers, dtype=pl.Int64), pl.Series(collectives, dtype=pl.Int64), rank=3
    )
    assert result["origin"].unique().to_list() in ([], ["inferred"])
    assert (result["start_ns"] >= result["end_ns"].shift(1)).fill_null(True).all()
    return result.sort("start_ns")["kind"].to_list()


F, B = "f" * LAYERS, "b" * LAYERS
AGAIN = "fb" * LAYERS
"""A backward that computes the forward of each layer again."""
WHOLE_AGAIN = F + B
PART_AGAIN = "b" * (LAYERS - 1) + "fb"


def test_first_stage() -> None:
    assert infer(f"{F}|{F}||{B}{F}||{B}||{B}#oooo") == ["F", "F", "B", "F", "B", "B", "OPT"]


def test_last_stage_without_a_message_between_forward_and_backward() -> None:
    assert infer(f"|{F}h{B}||{F}h{B}|#o") == ["F", "B", "F", "B", "OPT"]


@pytest.mark.parametrize("backward", [AGAIN, WHOLE_AGAIN, PART_AGAIN])
def test_recomputation_is_part_of_the_backward(backward: str) -> None:
    """A middle stage: every block is between two messages."""
    assert infer(f"|{F}||{F}||{backward}||{F}||{backward}||{backward}|#o") == ["F", "F", "B", "F", "B", "B", "OPT"]


@pytest.mark.parametrize("backward", [AGAIN, WHOLE_AGAIN])
def test_recomputation_on_the_last_stage(backward: str) -> None:
    assert infer(f"|{F}{backward}||{F}{backward}||{F}{backward}|#o") == ["F", "B", "F", "B", "F", "B", "OPT"]


@pytest.mark.parametrize("backward", [AGAIN, PART_AGAIN])
def test_recomputation_on_the_first_stage(backward: str) -> None:
    """A forward may follow a backward without a message: it needs none."""
    assert infer(f"{F}|{F}||{backward}{F}||{backward}||{backward}#o") == ["F", "F", "B", "F", "B", "B", "OPT"]


def test_overlapped_passes_are_told_from_recomputation_by_plain_backwards() -> None:
    assert infer(f"{F}|{F}|{AGAIN}|{AGAIN}|{B}|{B}#o") == ["F", "F", "FB", "FB", "B", "B", "OPT"]


@pytest.mark.parametrize("work", ["hhhh", F, f"{F}{B}", f"{F}|{F}|{F}", "oooo"])
def test_nothing_is_made_up(work: str) -> None:
    assert infer(work) == []


def test_kernels_between_blocks_go_to_the_earlier_one() -> None:
    """The loss head after the forward of the last stage; the optimizer keeps its own bounds."""
    kernels = [("RmsNorm", 0), ("MatMulV3", 10), ("SwiGluGrad", 20), ("Cast", 30), ("RmsNorm", 50), ("SwiGluGrad", 60)]
    rows = [{"text": t, "stream": 2, "start_ns": s, "end_ns": s + 8} for t, s in kernels]
    rows += [{"text": "ApplyAdamWV2", "stream": 2, "start_ns": 90, "end_ns": 98}]
    table = conform(pl.DataFrame(rows), marker_blocks.WORKED)
    result = kernel_inference.spans(table, pl.Series([40]), pl.Series([70]), rank=0)
    assert result.select("kind", "start_ns", "end_ns").rows() == [
        ("F", 0, 18), ("B", 20, 38), ("F", 50, 58), ("B", 60, 68), ("OPT", 90, 98)
    ]  # fmt: skip


VOTES = {"F": "RmsNorm", "B": "SwiGluGrad"}
FAR = 10_000
"""From the begin of a segment to that of the next; a point-to-point operator lies between."""


def drawn(*runs: tuple[str, int, int]) -> list[tuple[str, int, int, int]]:
    """(vote, segment, kernels) of consecutive runs, of a kernel of 8 ns every 10 ns → kind, segment, first and last
    kernel there of the blocks found."""
    at: dict[int, int] = {}
    rows, transfers = [], []
    for vote, segment, count in runs:
        if segment and segment not in at:
            transfers.append(segment * FAR - 5)
        for _ in range(count):
            start = segment * FAR + 10 * at.get(segment, 0)
            rows.append({"text": VOTES[vote], "stream": 2, "start_ns": start, "end_ns": start + 8})
            at[segment] = at.get(segment, 0) + 1
    result = kernel_inference.spans(conform(pl.DataFrame(rows), marker_blocks.WORKED), pl.Series(transfers),
                                   pl.Series([], dtype=pl.Int64), rank=0)  # fmt: skip
    times = result.sort("start_ns").select("kind", "start_ns", "end_ns").rows()
    return [(kind, start // FAR, start % FAR // 10, end % FAR // 10) for kind, start, end in times]


LAST_STAGE = (("F", 8), ("B", 2), ("F", 2), ("B", 2), ("F", 2), ("B", 2))
"""Three layers of two votes each. A forward of 6 votes and a backward that recomputes each layer before its gradient:
the recomputation of the first layer makes the first run 8 votes long."""


def test_a_whole_forward_is_split_from_a_recomputing_backward() -> None:
    """The usual run has 2 votes, so that the first is LONG and 8 - 2 votes its own."""
    runs = [(vote, segment, count) for segment in (0, 1) for vote, count in LAST_STAGE]
    assert drawn(*runs) == [
        ("F", 0, 0, 5), ("B", 0, 6, 17), ("F", 1, 0, 5), ("B", 1, 6, 17),
    ]  # fmt: skip


def test_a_long_forward_beside_overlapped_passes_ends_where_it_ends() -> None:
    """There are plain backwards, so nothing is recomputed."""
    runs = [(vote, 0, count) for vote, count in LAST_STAGE]
    assert drawn(*runs, ("F", 1, 6), ("B", 2, 6)) == [
        ("F", 0, 0, 7), ("FB", 0, 8, 17), ("F", 1, 0, 5), ("B", 2, 0, 5),
    ]  # fmt: skip


def test_a_forward_run_is_long_beyond_one_and_a_half_usual_ones() -> None:
    """Of 3 kernels it is a layer, of 9 a whole forward; the usual run has 2."""
    alternating = [("F", 0, 2), ("B", 0, 2), ("F", 0, 3), ("B", 0, 2), ("F", 0, 2), ("B", 0, 2)]
    assert drawn(*alternating, ("F", 0, 9), ("F", 1, 6), ("B", 2, 6)) == [
        ("FB", 0, 0, 12), ("F", 0, 13, 21), ("F", 1, 0, 5), ("B", 2, 0, 5),
    ]  # fmt: skip


def test_a_short_forward_is_part_of_the_backward_around_it() -> None:
    """PARTIAL: the last layer alone (1 of 6 votes) is recomputed, or the last two thirds are."""
    for recomputed in (1, 4):
        runs = [("F", 1, 6), ("F", 3, 6), ("B", 4, 5), ("F", 4, recomputed), ("B", 4, 1), ("B", 5, 6)]
        whole = ("B", 4, 0, 5 + recomputed)
        assert drawn(*runs) == [("F", 1, 0, 5), ("F", 3, 0, 5), whole, ("B", 5, 0, 5)]


def test_a_forward_that_is_twice_as_long_as_the_backward_is_halved() -> None:
    """TWICE: a last stage that recomputes everything."""
    assert drawn(("F", 1, 12), ("B", 1, 6), ("F", 2, 12), ("B", 2, 6)) == [
        ("F", 1, 0, 5), ("B", 1, 6, 17), ("F", 2, 0, 5), ("B", 2, 6, 17),
    ]  # fmt: skip


def test_whole_forwards_before_every_backward_are_recomputations_where_the_forwards_are_there_already() -> None:
    assert drawn(("F", 1, 6), ("F", 2, 6), ("F", 3, 6), ("B", 3, 6), ("F", 4, 6), ("B", 4, 6)) == [
        ("F", 1, 0, 5), ("F", 2, 0, 5), ("B", 3, 0, 11), ("B", 4, 0, 11),
    ]  # fmt: skip
