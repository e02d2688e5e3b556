"""Edges between blocks, against the way of the data that each placement prescribes."""

from dataclasses import replace

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.profiles import concluded
from tests.support.rows import examples
from trace_export.model import RANKS, SPANS, Declared, Profile, conform
from trace_export.pipeline.edges import drawable_edges
from trace_export.schedules.schedule import schedule, virtual_stage


def planned(name: str, stages: int, microbatches: int, chunks: int | None = None, steps: int = 1) -> Profile:
    """The blocks of a schedule, each one unit long and one after the other on its rank."""
    s = schedule(name, stages, microbatches, chunks)
    ops = s.ops.rename({"stage": "rank"}).with_columns(
        run=0, start_ns=pl.col("position"), end_ns=pl.col("position") + 1
    )
    spans = pl.concat([ops.with_columns(step=n, start_ns=pl.col("start_ns") + 1000 * n) for n in range(steps)])
    ranks = pl.DataFrame({"rank": range(stages), "stage": range(stages)})
    declared = Declared(schedule=name)
    return concluded(Profile(ranks=conform(ranks, RANKS), spans=conform(spans, SPANS), declared=declared))


def named(profile: Profile) -> set[tuple[object, ...]]:
    """Each edge as (direction, step, micro-batch, producing rank and chunk, consuming rank and chunk)."""
    passes = profile.interpreted.passes.to_dicts()
    result = set()
    for src, dst, direction in profile.interpreted.edges.iter_rows():
        one, other = passes[src], passes[dst]
        assert [one["id"], other["id"]] == [src, dst]
        assert {one["kind"], other["kind"]} == {direction}
        assert (one["microbatch"], one["step"]) == (other["microbatch"], other["step"])
        ends = [(row["rank"], row["chunk"]) for row in (one, other)]
        result.add((direction, one["step"], one["microbatch"], *ends))
    return result


@pytest.mark.parametrize(
    ("name", "stages", "microbatches", "chunks"),
    [
        ("1f1b", 3, 4, None),
        ("interleaved", 2, 4, 3),
        ("zb-v", 3, 5, None),
        ("dualpipev", 2, 6, None),
        ("dualpipe", 4, 8, None),
        ("zb-h1", 1, 2, None),
    ],
)
def test_edges_follow_the_data(name: str, stages: int, microbatches: int, chunks: int | None) -> None:
    s = schedule(name, stages, microbatches, chunks)
    expected = set()
    places = [(rank, chunk) for rank in range(stages) for chunk in range(s.chunks)]
    for a in places:
        for b in places:
            one, other = (virtual_stage(s.placement, stages, c, r) for r, c in (a, b))
            if other != one + 1 or (s.placement == "both" and a[1] != b[1]):
                continue
            for microbatch in range(microbatches):
                if s.placement == "both" and microbatch // (microbatches // 2) != a[1]:
                    continue
                for step in range(2):
                    expected |= {("F", step, microbatch, a, b), ("B", step, microbatch, b, a)}
    assert named(planned(name, stages, microbatches, chunks, steps=2)) == expected


def test_replicas_stay_apart_and_gaps_stay_open() -> None:
    """Two replicas of three stages, the middle stage of the second was not read."""
    one = planned("1f1b", 3, 2)
    ranks = pl.DataFrame({"rank": [0, 1, 2, 3, 5], "stage": [0, 1, 2, 0, 2], "dp": [0, 0, 0, 1, 1]})
    second = one.spans.filter(pl.col("rank") != 1).with_columns(pl.col("rank") + 3)
    profile = concluded(Profile(ranks=conform(ranks, RANKS), spans=pl.concat([one.spans, second])))
    assert named(profile) == named(one)


@examples(4)
@given(seed=st.integers(0, 1000), name=st.sampled_from(["1f1b", "zb-v", "interleaved"]))
def test_order_of_rows_changes_nothing(seed: int, name: str) -> None:
    profile = planned(name, 3, 3)
    shuffled = Profile(
        ranks=profile.ranks.sample(fraction=1, shuffle=True, seed=seed),
        spans=profile.spans.sample(fraction=1, shuffle=True, seed=seed),
        declared=profile.declared,
    )
    assert named(concluded(shuffled)) == named(profile)


def test_edges_survive_that_blocks_are_filtered_out() -> None:
    """Of two steps the first is taken away: the edges of the second lead to the same blocks, at other rows."""
    whole = planned("zb-v", 3, 5, steps=2)
    late = replace(whole, spans=whole.spans.filter(pl.col("step") == 1))
    rows, spans = late.edge_rows(), late.spans
    block_of = whole.interpreted.passes["span"]
    for src, dst, _, src_pass, dst_pass in rows.iter_rows():
        assert (spans["id"][src], spans["id"][dst]) == (block_of[src_pass], block_of[dst_pass])
    edges = whole.interpreted.edges
    there = edges.filter(block_of.gather(edges["src"]).is_in(spans["id"].implode()))
    assert set(rows.select("src_pass", "dst_pass", "direction").iter_rows()) == set(there.iter_rows())
    assert 0 < len(rows) < len(edges)


@examples(8)
@given(seed=st.integers(0, 1000), name=st.sampled_from(["1f1b", "zb-v", "dualpipev"]))
def test_a_pass_of_two_blocks_takes_its_input_in_the_first_and_gives_its_result_in_the_last(
    seed: int, name: str
) -> None:
    """Each forward and backward recorded as two blocks, as MindSpeed does with the loss head; rows in any order."""
    whole = planned(name, 3, 6)
    halves = [
        whole.spans.with_columns(
            pl.col("start_ns", "end_ns") * 2 + later, marker=pl.lit("second" if later else "first")
        )
        for later in (0, 1)
    ]
    spans = pl.concat(halves).filter(pl.col("kind").is_in(["F", "B"])).sample(fraction=1, shuffle=True, seed=seed)
    profile = concluded(Profile(ranks=whole.ranks, spans=spans, declared=whole.declared))
    edges = profile.edge_rows()
    assert len(edges) > 0
    assert set(profile.spans["marker"].gather(edges["src"])) == {"second"}
    assert set(profile.spans["marker"].gather(edges["dst"])) == {"first"}


def test_a_last_stage_that_is_declared_and_was_not_read_is_a_gap_between_chunks() -> None:
    """Chunk 1 of stage 0 takes its input from stage 2, which was not read, and not from stage 1."""
    whole = planned("interleaved", 3, 3, 2)
    spans, ranks = (frame.filter(pl.col("rank") < 2) for frame in (whole.spans, whole.ranks))
    declared = Declared(schedule="interleaved", pp=3)
    result = named(concluded(Profile(ranks=ranks, spans=spans, declared=declared)))
    assert result == {edge for edge in named(whole) if edge[3][0] < 2 and edge[4][0] < 2}  # type: ignore[index]


def test_edges_that_point_backwards_in_time_are_counted_and_left_out() -> None:
    """The second stage's clock is so far behind that its first forward seems to start before it is fed."""
    whole = planned("1f1b", 2, 2)
    moved = pl.when(pl.col("rank") == 1).then(pl.col("start_ns") - 100).otherwise("start_ns")
    edges, back = drawable_edges(replace(whole, spans=whole.spans.with_columns(start_ns=moved)))
    assert back == 2
    assert edges["direction"].to_list() == ["B", "B"]


@examples(4)
@given(step=st.integers(0, 2**31 - 2), run=st.integers(0, 2**31 - 1), microbatch=st.integers(0, 2**31 - 8))
def test_numbers_as_large_as_a_file_can_hold_link_the_same_blocks(step: int, run: int, microbatch: int) -> None:
    """Their product does not fit into 64 bits."""
    one = planned("interleaved", 3, 6, 2, steps=2)
    wide = one.spans.with_columns(pl.col("microbatch") + microbatch, run=pl.lit(run, pl.Int32))
    wide = wide.with_columns(step=pl.when(pl.col("step") == 1).then(step + 1).otherwise(0).cast(pl.Int32))
    others = wide.tail(1).with_columns(microbatch=0, run=0, step=7)
    spans = pl.concat([wide, others.cast(wide.schema)])
    result = concluded(replace(one, spans=spans)).interpreted.edges
    assert set(result.iter_rows()) == set(one.interpreted.edges.iter_rows())
