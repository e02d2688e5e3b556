"""What a message carries, inferred from the blocks at both its ends."""

from dataclasses import replace

import polars as pl
import pytest

from tests.conftest import AscendRun
from tests.support.profiles import ORIGIN, concluded, profile, span, table
from trace_export import load
from trace_export.clocks.apply import correct_profile
from trace_export.model import CLOCKS, MESSAGES, Profile, conform
from trace_export.pipeline.message_passes import link

SKEW = 10_000
"""The second rank's clock is ahead by this many µs: no time of one rank is compared with one of the other."""


def at(us: int) -> int:
    return 1000 * us


def two_ranks() -> Profile:
    """1F1B of two micro-batches on two stages; 10 µs after a block its result leaves, and takes 20 µs."""
    blocks = [
        span(rank, kind, number, at(start + SKEW * rank), at(start + SKEW * rank + 100), chunk=0)
        for rank, kind, number, start in [
            (0, "F", 0, 0), (0, "F", 1, 100), (0, "B", 0, 400), (0, "B", 1, 700),
            (1, "F", 0, 140), (1, "B", 0, 240), (1, "F", 1, 400), (1, "B", 1, 500),
        ]
    ]  # fmt: skip
    rows = [
        {
            "src_rank": src, "dst_rank": dst,
            "send_start_ns": ORIGIN + at(end + SKEW * src + 10), "send_end_ns": ORIGIN + at(end + SKEW * src + 30),
            "recv_start_ns": ORIGIN + at(end + SKEW * dst), "recv_end_ns": ORIGIN + at(end + SKEW * dst + 30),
        }
        for src, dst, end in [(0, 1, 100), (0, 1, 200), (1, 0, 340), (1, 0, 600)]
    ]  # fmt: skip
    return replace(concluded(profile(blocks, {0: 0, 1: 1})), messages=table(rows, MESSAGES))


def said(whole: Profile, **columns: pl.Series | pl.Expr) -> Profile:
    """`whole`, whose messages say this of themselves."""
    return replace(whole, messages=conform(whole.messages.with_columns(**columns), MESSAGES))


def labels_of(result: Profile) -> list[tuple[object, ...]]:
    return result.messages.select("direction", "microbatch", "chunk").rows()


def test_ends_that_disagree_leave_a_message_as_it_is() -> None:
    """The receive of the first message ends only after the forward that it is said to feed has begun."""
    whole = two_ranks()
    late = pl.when(pl.int_range(pl.len()) == 0).then(pl.col("recv_end_ns") + at(200)).otherwise("recv_end_ns")
    result = link(replace(whole, messages=whole.messages.with_columns(recv_end_ns=late)))
    assert labels_of(result)[0] == (None, None, None)
    assert labels_of(result)[2:] == [("B", 0, 0), ("B", 1, 0)]


def test_what_the_source_says_stays() -> None:
    whole = two_ranks()
    result = link(said(whole, direction=pl.lit("B"), microbatch=pl.lit(7, pl.Int32)))
    assert labels_of(result) == [("B", 7, None)] * 4
    assert result.messages["src_pass"].null_count() == 4


def test_a_micro_batch_alone_is_completed_where_the_ends_agree_with_it() -> None:
    result = link(said(two_ranks(), microbatch=pl.Series([0, 0, 0, 1], dtype=pl.Int32)))
    assert labels_of(result) == [("F", 0, 0), (None, 0, None), ("B", 0, 0), ("B", 1, 0)]
    assert result.messages["src_pass"].null_count() == 1


def test_a_recorded_direction_is_kept() -> None:
    whole = two_ranks()
    result = link(said(whole, direction=pl.Series(["F", "B", "B", "F"])))
    assert labels_of(result) == [("F", 0, 0), ("B", None, None), ("B", 0, 0), ("F", None, None)]
    assert [(n.code, n.count) for n in result.notes] == [("message-labels-inferred", 2)]


def ends_of(result: Profile) -> list[tuple[object, ...]]:
    """Of each message the kind, micro-batch and step of its two passes."""
    columns = ["kind", "microbatch", "step"]
    passes = result.interpreted.passes.select(columns)
    rows = []
    for src, dst in result.messages.select("src_pass", "dst_pass").iter_rows():
        rows.append((passes.row(src), passes.row(dst)) if src is not None and dst is not None else (None, None))
    return rows


@pytest.mark.parametrize("labelled", [True, False])
def test_a_message_lies_between_the_passes_of_its_step(labelled: bool) -> None:
    """Three steps, whose micro-batches have the same numbers."""
    one = two_ranks()
    later = [pl.col("^.*_ns$") + at(1000 * step) for step in range(3)]
    spans = pl.concat([one.spans.with_columns(later[step], step=pl.lit(step, pl.Int32)) for step in range(3)])
    whole = replace(
        concluded(replace(one, spans=spans)), messages=pl.concat([one.messages.with_columns(t) for t in later])
    )
    if labelled:
        labels = {"direction": pl.Series(["F", "F", "B", "B"] * 3), "microbatch": pl.Series([0, 1] * 6)}
        whole = said(whole, **labels)
    result = link(whole)
    expected = [(way, number, step) for step in range(3) for way in "FB" for number in range(2)]
    assert ends_of(result) == [(one, one) for one in expected]
    produced = result.passes()["end_ns"].gather(result.messages["src_pass"])
    assert result.messages["ready_ns"].to_list() == produced.to_list()


def test_a_receive_after_the_block_that_it_should_feed_is_not_linked() -> None:
    """The send of step 0 was paired with the receive of step 1."""
    whole = said(two_ranks(), direction=pl.Series(["F", "F", "B", "B"]), microbatch=pl.Series([0, 1, 0, 1]))
    late = [pl.col(c) + at(1000) for c in ("recv_start_ns", "recv_end_ns")]
    result = link(replace(whole, messages=whole.messages.with_columns(late)))
    assert ends_of(result) == [(None, None)] * 4


def test_what_follows_from_the_times_moves_with_the_clocks() -> None:
    """The clock of the receiver of activations is set back by the 10 ms that it is ahead. Both ends are there when the
    send begins, 10 µs after the block, but for the receives, which began 10 µs before."""
    whole = link(two_ranks())
    clocks = pl.DataFrame({"host": ["node-b"], "offset_ns": [at(SKEW)], "drift": [0.0], "reference_ns": [0]})
    hosts = pl.when(pl.col("rank") == 1).then(pl.lit("node-b")).otherwise("host").alias("host")
    moved = correct_profile(replace(whole, ranks=whole.ranks.with_columns(hosts)), conform(clocks, CLOCKS)).messages
    assert moved["wire_ns"].to_list() == [at(20)] * 4
    assert (moved["ready_ns"] - ORIGIN).to_list() == [at(end) for end in (100, 200, 340, 600)]


@pytest.mark.parametrize("name", ["1f1b", "clipped", "interleaved", "dualpipev"])
def test_each_message_of_a_job_is_linked_to_the_passes_that_truth_names(ascend_run: AscendRun, name: str) -> None:
    """A send begins once its data are made; a block begins once it has them."""
    folder, truth = ascend_run(name)
    wanted = {(src, dst, sent): labels for src, dst, *labels, sent, _, _, _ in truth.messages}
    profile = load(folder).profile
    linked = profile.messages.drop_nulls("dst_pass")
    assert linked.height >= (0.8 if name == "dualpipev" else 1.0) * profile.messages.height > 0
    passes = profile.passes()
    ends = [passes[linked[side].to_list()] for side in ("src_pass", "dst_pass")]
    for end, rank in zip(ends, ("src_rank", "dst_rank"), strict=True):
        assert end["rank"].to_list() == linked[rank].to_list()
    assert ends[0]["step"].to_list() == ends[1]["step"].to_list()
    keys = linked.select("src_rank", "dst_rank", "send_start_ns").rows()
    assert ends[1].select(pl.col("kind").cast(pl.String), "microbatch", "chunk").rows() == [
        tuple(wanted[k]) for k in keys
    ]
    if name != "dualpipev":  # fused pairs send from their middle
        assert (linked["ready_ns"] <= linked["send_start_ns"]).all()
    assert (linked["recv_end_ns"] <= ends[1]["start_ns"]).all()


@pytest.mark.parametrize(
    ("name", "at_least"), [("1f1b", 1.0), ("clipped", 1.0), ("interleaved", 1.0), ("dualpipev", 0.4)]
)
def test_what_is_filled_in_is_right(ascend_run: AscendRun, name: str, at_least: float) -> None:
    """Fused pairs send from their middle, which no block's end shows."""
    folder, truth = ascend_run(name)
    wanted = {(src, dst, sent): labels for src, dst, *labels, sent, _, _, _ in truth.messages}
    messages = load(folder).messages
    filled = messages.drop_nulls("direction")
    keys = filled.select("src_rank", "dst_rank", "send_start_ns").rows()
    assert filled.select("direction", "microbatch", "chunk").rows() == [tuple(wanted[key]) for key in keys]
    assert filled.height >= at_least * messages.height > 0
