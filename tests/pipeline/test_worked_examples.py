"""One worked example for each function that is hard to read: few rows in, few rows out."""

from __future__ import annotations

import polars as pl
import pytest

from tests.support.profiles import concluded
from trace_export.analysis import bubbles
from trace_export.model import INT, RANKS, SPANS, TEXT, Declared, Profile, conform
from trace_export.pipeline import block_order, labels_by_number
from trace_export.pipeline.order_distance import distances_to
from trace_export.pipeline.passes import passes_of
from trace_export.pipeline.rank_order import Arrangement, arrangements
from trace_export.steps.idle import idle


def test_arrangements_of_sizes() -> None:
    """16 ranks, pp 2, dp 2, tp 2: a stage has 8 ranks, so 8 / (2 * 2) = 2 are left for cp."""
    ranks = pl.Series("rank", range(16))
    usual, inner = arrangements(ranks, Declared(pp=2, tp=2, dp=2), anywhere=False)
    assert usual == Arrangement(pp=2, per_stage=8, stride=8, tp=2, cp=2)
    assert inner == Arrangement(pp=2, per_stage=8, stride=4, tp=2, cp=2)
    assert arrangements(ranks, Declared(tp=2, dp=2), anywhere=False)[0].pp == 4
    assert not arrangements(ranks, Declared(tp=2), anywhere=False)  # pp 8 with dp 1, or pp 4 with dp 2, …
    assert [a.pp for a in arrangements(ranks, Declared(tp=8), anywhere=True)] == [2, 1, 1]
    assert not arrangements(ranks, Declared(tp=3), anywhere=True)
    assert [a.stride for a in arrangements(ranks, Declared(pp=2, rank_order="tp-cp-pp-dp"), anywhere=False)] == [
        1,
        2,
        4,
        8,
    ]


def test_places_of_an_arrangement() -> None:
    """Five of eight ranks of pp 2, dp 2, tp 2: (stage, dp, tp) where ranks count tp, dp, pp and where they count tp,
    pp, dp."""
    ranks = pl.Series("rank", [0, 1, 2, 4, 7])
    found = {
        stride: Arrangement(2, 4, stride, 2, 1).places(ranks, "recorded").select("stage", "dp", "tp").rows()
        for stride in (4, 2)
    }
    assert found == {
        4: [(0, 0, 0), (0, 0, 1), (0, 1, 0), (1, 0, 0), (1, 1, 1)],
        2: [(0, 0, 0), (0, 0, 1), (1, 0, 0), (0, 1, 0), (1, 1, 1)],
    }


def test_labels_by_number_places() -> None:
    """`pipeline.labels_by_number.positions`: two chunks of two micro-batches, so forward number 2 is chunk 1 of
    micro-batch 0: place 2. The two blocks after it fit what is expected there, F and B; the forward after them does
    not, so nothing is certain from there on."""
    plan = [("F", 0, 0), ("F", 1, 0), ("F", 0, 1), ("F", 1, 1), ("B", 0, 1), ("B", 1, 1)]
    expected = pl.DataFrame(
        {
            "stage": 0, "position": range(6), "kind": [kind for kind, _, _ in plan], "letter": [k for k, _, _ in plan],
            "microbatch": [m for _, m, _ in plan], "chunk": [c for _, _, c in plan],
        }, {"stage": INT, "position": INT, "kind": TEXT, "letter": TEXT, "microbatch": INT, "chunk": INT},
    )  # fmt: skip
    kinds = ["F", "F", "B", "F", "B"]
    work = pl.DataFrame(
        {
            "rank": 0, "run": 0, "step": 0, "stage": 0, "row": range(10, 15), "position": range(5), "kind": kinds,
            "letter": kinds, "microbatch": [2, None, None, None, None],
        }, {
            "rank": INT, "run": INT, "step": INT, "stage": INT, "row": INT, "position": INT, "kind": TEXT,
            "letter": TEXT, "microbatch": INT,
        },
    )  # fmt: skip
    found = labels_by_number.positions(work, expected, microbatches=2)
    assert found.select("row", "position").rows() == [(10, 2), (11, 3), (12, 4)]


def test_block_order_sequences() -> None:
    """`pipeline.block_order.sequences`: F1 and B0 overlap by 8 of the 8 that F1 takes, so F1 counts as the first of
    them; the fused block is its forward, then its backward."""
    rows = [("F", 0, None, 0, 10), ("B", 0, None, 20, 40), ("F", 1, None, 22, 30), ("FB", 2, 1, 50, 70)]
    spans = pl.DataFrame(rows, ["kind", "microbatch", "microbatch_b", "start_ns", "end_ns"], orient="row")
    spans = spans.with_columns(rank=0, run=0, step=0, chunk=0, chunk_b=0)
    ranks = conform(pl.DataFrame({"rank": [0], "stage": [0]}), RANKS)
    found = block_order.sequences(passes_of(Profile(ranks=ranks, spans=conform(spans, SPANS))))
    assert found.select("position", "kind", "microbatch", "row").rows() == [
        (0, "F", 0, 0), (1, "F", 1, 2), (2, "B", 0, 1), (3, "F", 2, 3), (4, "B", 1, 4),
    ]  # fmt: skip


def test_bubbles_split() -> None:
    """`steps.idle.idle`, of the three gaps of rank 1, which gets its forwards from rank 0.

    20-23: F1 is made at 21, so 1 is waiting for the stage before, and 2 is its transfer. 31-35: F2 was made at 25 and a
    transfer takes 2, so it was here before the gap: all is late. 40-44: rank 0 has no F3, so nothing is known.
    """
    rows = [
        (0, "F", 0, 0, 10), (0, "F", 1, 10, 21), (0, "F", 2, 21, 25),
        (1, "F", 0, 12, 20), (1, "F", 1, 23, 31), (1, "F", 2, 35, 40), (1, "F", 3, 44, 50),
    ]  # fmt: skip
    columns = ["rank", "kind", "microbatch", "start_ns", "end_ns"]
    spans = pl.DataFrame(rows, columns, orient="row").with_columns(run=0, step=0, chunk=0)
    ranks = pl.DataFrame({"rank": [0, 1], "stage": [0, 1]})
    profile = concluded(Profile(ranks=conform(ranks, RANKS), spans=conform(spans, SPANS)))
    found = idle(bubbles.Bubbles(profile).graph).select("start_ns", "end_ns", "cause").rows()
    assert found == [(20, 21, "forward"), (21, 23, "transfer"), (31, 35, "late"), (40, 44, "unknown")]


def order(text: str) -> pl.DataFrame:
    """Blocks such as "F0 B0" of rank and stage 0, with the columns of `block_order.sequences` that distances need."""
    rows = [(n, word[0], int(word[1:])) for n, word in enumerate(text.split())]
    known = pl.DataFrame(rows, schema=["position", "kind", "microbatch"], orient="row")
    return known.with_columns(rank=0, stage=0, chunk=0)


@pytest.mark.parametrize("second", ["F0", "B0"])
def test_order_distance_of_blocks_that_were_recorded_again(second: str) -> None:
    """The last block of a step is followed by nothing, not by one with a small number either."""
    expected = {"plain": order(f"B2 {second} F1")}
    assert distances_to(expected, order(f"B2 {second} F1")) == {"plain": (False, 0.0)}
    assert distances_to(expected, order(f"B2 {second} F1 {second} F1"))["plain"][0]
