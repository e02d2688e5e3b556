"""Kernels that send, receive or do both, without a word of what: whose block they belong to."""

from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest

from samples.generators.unmarked import Program, write
from trace_export.model import P2P, RANKS, SPANS, Declared, Profile, conform
from trace_export.pipeline.interpret import interpret
from trace_export.pipeline.transfers import split_fused
from trace_export.sources.read import read as read_source
from trace_export.sources.source import ReadOptions, Source


def profile(blocks: str, kernels: list[tuple[float, float]], stage: int, chunk: int = 0) -> Profile:
    """A rank of three with blocks such as `F3 B0`, each 10 µs long with 20 between, from 100 on; `kernels` in µs."""
    rows = [
        {"rank": stage, "kind": text[0], "microbatch": int(text[1:]), "chunk": chunk, "start_ns": 100 + 30 * n}
        for n, text in enumerate(blocks.split())
    ]
    spans = pl.DataFrame(rows).with_columns(end_ns=pl.col("start_ns") + 10)
    others = pl.DataFrame({"rank": [0, 1, 2], "stage": [0, 1, 2], "replica": 0})
    p2p = pl.DataFrame(kernels, ["start_ns", "end_ns"], orient="row").with_columns(rank=stage, role=pl.lit("both"))
    spans, p2p = (frame.with_columns(pl.col("start_ns", "end_ns") * 1000) for frame in (spans, p2p))
    return Profile(spans=conform(spans, SPANS), ranks=conform(others, RANKS), p2p=conform(p2p, P2P))


def split_of(one: Profile) -> list[tuple[str, str | None, int | None]]:
    return split_fused(one).p2p.select("role", "direction", "microbatch").rows()


@pytest.mark.parametrize(
    ("blocks", "kernels", "stage", "expected"),
    [
        ("F3 B0", [(112, 128)], 1, [("send", "F", 3), ("recv", "B", 0)]),
        ("F3 B0", [(112, 118), (119, 128)], 1, [("send", "F", 3), ("recv", "B", 0)]),
        ("F3 B3", [(112, 128)], 2, [("both", None, None)]),  # nothing is sent between them on the last stage
        ("B3 F4", [(112, 128)], 2, [("send", "B", 3), ("recv", "F", 4)]),
        ("F3 F4", [(112, 128)], 0, [("send", "F", 3)]),
        ("F3 F4", [(90, 99)], 1, [("recv", "F", 3)]),
        ("F3 F4", [(145, 150)], 1, [("send", "F", 4)]),
        ("F3 B0", [(105, 128)], 1, [("both", None, None)]),  # begins inside a block
        ("F3 B0", [(109.5, 130.5)], 1, [("send", "F", 3), ("recv", "B", 0)]),  # as far as times may be rounded
        ("F3 B0", [(112, 114), (115, 117), (118, 128)], 1, [("both", None, None)] * 3),
    ],
)
def test_a_kernel_between_two_blocks_sends_the_one_and_receives_the_other(
    blocks: str, kernels: list[tuple[float, float]], stage: int, expected: list[tuple[str, str | None, int | None]]
) -> None:
    assert split_of(profile(blocks, kernels, stage)) == expected


def test_with_several_chunks_a_kernel_among_forwards_alone_has_their_direction() -> None:
    blocks = "F0 F1 F2 F3 B0 F4 B1 B2 B3 B4"
    kernels = [(112 + 30 * n, 128 + 30 * n) for n in range(9)]
    whole = split_fused(profile(blocks, kernels, 1, chunk=1)).p2p
    assert whole.select("role", "end_ns").rows() == [("both", round(1000 * end)) for _, end in kernels]
    assert whole["direction"].to_list() == ["F", "F", None, None, None, None, None, "B", "B"]
    assert split_of(profile("F3 B0", [(112, 128)], 1, chunk=1)) == [("both", None, None)]
    assert split_of(profile("F0 F1 F2 F3", [(135, 145)], 1, chunk=1)) == [("both", None, None)]  # overlaps a block


def test_an_interleaved_capture_shows_the_direction_of_its_warm_up_and_cool_down(tmp_path: Path) -> None:
    write(tmp_path, Program(schedule="interleaved", steps=2))
    read = read_source(Source("nsys", tmp_path / "node0.sqlite", "node0"), ReadOptions())
    run = interpret(read, Declared())
    result = run.p2p.sort("start_ns").join_asof(
        run.spans.filter(pl.col("kind").is_in(["F", "B"])).select("rank", "kind", start_ns="start_ns").sort("start_ns"),
        on="start_ns", by="rank", check_sortedness=False,
    )  # fmt: skip
    directed = result.filter(pl.col("direction").is_not_null())
    assert directed.height > 0.3 * result.height
    assert directed.filter(pl.col("kind") != pl.col("direction")).is_empty()
    assert run.messages.is_empty()


def test_where_a_kernel_does_both_the_ends_of_transfers_are_unknown() -> None:
    both = split_fused(profile("F3 B0", [(112, 128), (142, 149)], 1)).p2p
    assert both["end_ns"].to_list() == [None, None, None]
    one = split_fused(profile("F3 F4", [(112, 128)], 0)).p2p
    assert one["end_ns"].to_list() == [128_000]


@pytest.mark.parametrize(
    ("kernels", "ends"),
    [
        ([(112, 128)], [128, 128, 128, 128]),
        ([(112, 118), (119, 128)], [None] * 4),  # stage 2 first sends, then receives
        ([], [None] * 2),  # nothing is known of the exchange on stage 2
    ],
)
def test_of_two_ranks_that_exchange_with_each_other_the_ends_are_known(
    kernels: list[tuple[float, float]], ends: list[int | None]
) -> None:
    one, other = profile("F3 B0", [(112, 128)], 1), profile("B0 F3", kernels, 2) if kernels else None
    if other is not None:
        one = replace(one, spans=pl.concat([one.spans, other.spans]), p2p=pl.concat([one.p2p, other.p2p]))
    assert (split_fused(one).p2p["end_ns"] // 1000).to_list() == ends


def test_a_kernel_that_sends_to_one_rank_and_receives_from_another_ends_with_the_later_one() -> None:
    result = split_fused(profile("F3 F4", [(112, 128)], 1)).p2p
    assert result.select("role", "end_ns").rows() == [("send", None), ("recv", None)]


@pytest.mark.parametrize(("schedule", "microbatches"), [("1f1b", 6), ("1f1b", 3), ("zb-h1", 6)])
def test_exchanges_of_an_unmarked_capture_are_messages(tmp_path: Path, schedule: str, microbatches: int) -> None:
    """With fewer micro-batches than stages, too: how long each rank waits in its steps tells its stage then."""
    write(tmp_path, Program(schedule=schedule, microbatches=microbatches, steps=2))
    read = read_source(Source("nsys", tmp_path / "node0.sqlite", "node0"), ReadOptions())
    result = interpret(read, Declared()).messages
    truth = [
        message
        for low in range(3)
        for m in range(microbatches)
        for message in ((low, low + 1, "F", m), (low + 1, low, "B", m))
    ] * 2  # fmt: skip
    assert sorted(result.select("src_rank", "dst_rank", "direction", "microbatch").rows()) == sorted(truth)
    agree = (result["recv_end_ns"] - result["send_end_ns"]).abs() <= 30_000
    assert agree.mean() > 0.7  # else the sender had to go on before the other was free


@pytest.mark.parametrize("waits", [True, False])
def test_all_transfers_of_an_unmarked_capture_are_named(tmp_path: Path, waits: bool) -> None:
    write(tmp_path, Program(stages=4, microbatches=6, steps=2, waits=waits))
    read = read_source(Source("nsys", tmp_path / "node0.sqlite", "node0"), ReadOptions())
    sides = interpret(read, Declared()).p2p.select("rank", "role", "peer", "direction", "microbatch").rows()
    truth = [
        side
        for stage in range(3)
        for m in range(6)
        for low, high in [(stage, stage + 1)]
        for side in (
            (low, "send", high, "F", m), (high, "recv", low, "F", m),
            (high, "send", low, "B", m), (low, "recv", high, "B", m),
        )
    ]  # fmt: skip
    assert sorted(sides) == sorted(truth * 2)
