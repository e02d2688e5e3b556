"""Blocks from kernel types: each layer of a made-up network votes in its own way, recomputation included."""

from __future__ import annotations

import numpy as np
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
    rows, cuts, collectives, at = [], [], [], 0
    for letter in work:
        if letter in "|#":
            (cuts if letter == "|" else collectives).append(at)
            at += 10
            continue
        for kernel in kinds[letter]:
            rows.append({"text": kernel, "stream": 2, "start_ns": at, "end_ns": at + 8})
            at += 10
    kernels = conform(pl.DataFrame(rows), marker_blocks.WORKED)
    found = kernel_inference.spans(kernels, np.array(cuts, np.int64), np.array(collectives, np.int64), rank=3)
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
    found = kernel_inference.spans(table, np.array([40]), np.array([70]), rank=0)
    assert found.select("kind", "start_ns", "end_ns").rows() == [
        ("F", 0, 18), ("B", 20, 38), ("F", 50, 58), ("B", 60, 68), ("OPT", 90, 98)
    ]  # fmt: skip
