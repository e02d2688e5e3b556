"""Blocks from kernel types: each layer of a made-up network votes in its own way, recomputation included."""

from __future__ import annotations

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
    found = kernel_inference.spans(
        kernels, pl.Series(transfers, dtype=pl.Int64), pl.Series(collectives, dtype=pl.Int64), rank=3
    )
    assert found["origin"].unique().to_list() in ([], ["inferred"])
    assert (found["start_ns"] >= found["end_ns"].shift(1)).fill_null(True).all()
    return found.sort("start_ns")["kind"].to_list()


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
    found = kernel_inference.spans(table, pl.Series([40]), pl.Series([70]), rank=0)
    assert found.select("kind", "start_ns", "end_ns").rows() == [
        ("F", 0, 18), ("B", 20, 38), ("F", 50, 58), ("B", 60, 68), ("OPT", 90, 98)
    ]  # fmt: skip


def votes(count: int) -> pl.DataFrame:
    """Voting kernels of 8 ns every 10 ns."""
    return pl.DataFrame({"start_ns": range(0, 10 * count, 10), "end_ns": range(8, 10 * count, 10)})


def runs(*rows: tuple[str, int, int]) -> pl.DataFrame:
    """(vote, segment, kernels) of consecutive runs → what `_runs` makes of such kernels, all of one step."""
    frame = pl.DataFrame(rows, {"vote": pl.String, "segment": pl.Int64, "n": pl.UInt32}, orient="row")
    first = pl.col("n").cum_sum() - pl.col("n")
    last = pl.col("n").cum_sum() - 1
    return frame.with_columns(
        step=0, first=first, start_ns=first.cast(pl.Int64) * 10, end_ns=last.cast(pl.Int64) * 10 + 8
    )


def drawn(blocks: pl.DataFrame) -> list[tuple[str, int, int]]:
    return blocks.select("kind", "start_ns", "end_ns").rows()


LAST_STAGE = (("F", 1, 8), ("B", 1, 2), ("F", 1, 2), ("B", 1, 2), ("F", 1, 2), ("B", 1, 2))
"""Three layers of two votes each. A forward of 6 votes and a backward that recomputes each layer before its gradient:
the recomputation of the first layer makes the first run 8 votes long."""


def test_mixed_splits_a_whole_forward_from_a_recomputing_backward() -> None:
    """`_mixed`: six runs → two blocks; the usual run has 2 votes, so that the first is LONG and 8 - 2 votes its own."""
    found = kernel_inference._mixed(runs(*LAST_STAGE), votes(18), "B")
    assert drawn(found) == [("F", 0, 58), ("B", 60, 178)]


def test_mixed_makes_one_block_of_two_overlapped_passes() -> None:
    """`_mixed`: where passes overlap, nothing is recomputed, and a long forward run ends where it ends."""
    found = kernel_inference._mixed(runs(*LAST_STAGE), votes(18), "FB")
    assert drawn(found) == [("F", 0, 78), ("FB", 80, 178)]


def test_plain_makes_a_short_forward_part_of_the_backward_around_it() -> None:
    """`_plain`, PARTIAL: five runs → three blocks; the last layer alone (1 of 6 votes) is recomputed."""
    found = kernel_inference._plain(runs(("F", 1, 6), ("F", 3, 6), ("B", 4, 5), ("F", 4, 1), ("B", 4, 1)), votes(19))
    assert drawn(found) == [("F", 0, 58), ("F", 60, 118), ("B", 120, 188)]


def test_plain_halves_a_forward_that_is_twice_as_long_as_the_backward() -> None:
    """`_plain`, TWICE: a last stage that recomputes everything; four runs → four blocks."""
    found = kernel_inference._plain(runs(("F", 1, 12), ("B", 1, 6), ("F", 2, 12), ("B", 2, 6)), votes(36))
    assert drawn(found) == [("F", 0, 58), ("B", 60, 178), ("F", 180, 238), ("B", 240, 358)]


def test_plain_takes_whole_forwards_before_every_backward_for_recomputations() -> None:
    """`_plain`: six runs → four blocks; the forwards of these micro-batches are there already."""
    found = kernel_inference._plain(
        runs(("F", 1, 6), ("F", 2, 6), ("F", 3, 6), ("B", 3, 6), ("F", 4, 6), ("B", 4, 6)), votes(36)
    )
    assert drawn(found) == [("F", 0, 58), ("F", 60, 118), ("B", 120, 238), ("B", 240, 358)]
