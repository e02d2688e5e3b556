"""Numbers from order in captures that begin and end anywhere, or lack a block, against those of the simulated run."""

import random
from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest

import trace_export
from samples.generators import nsys
from samples.generators.pipeline import Operation, one_f_one_b, zb_h1
from samples.generators.pipeline import simulate as simulate_blocks
from tests.support.captures import CAPTURES
from tests.support.rows import seeds
from trace_export import simulate
from trace_export.model import P2P, Declared, Profile, empty
from trace_export.pipeline.interpret import interpret

UNKNOWN = pl.lit(None, pl.Int32)


def steps_of(schedule: str, stages: int, microbatches: int, steps: int) -> Profile:
    """Some steps of a simulated run, one after the other."""
    one = simulate(schedule, stages, microbatches).profile
    first, last = one.spans["start_ns"].min(), one.spans["end_ns"].max()
    assert isinstance(first, int)
    assert isinstance(last, int)
    length = (last - first) * 11 // 10
    moved = [
        one.spans.with_columns(pl.col("start_ns", "end_ns") + n * length, step=pl.lit(n, pl.Int32))
        for n in range(steps)
    ]
    return replace(one, spans=pl.concat(moved), messages=one.messages.clear(), p2p=empty(P2P))


def plain(profile: Profile, *, stepped: bool) -> Profile:
    """The profile as its interpretation from blocks without any number."""
    numbers = dict.fromkeys(("microbatch", "chunk", "microbatch_b", "chunk_b", "pair"), UNKNOWN)
    steps = {} if stepped else {"step": UNKNOWN}
    spans = profile.spans.with_columns(**numbers, **steps)
    stages = Declared(pp=profile.ranks["stage"].n_unique())
    return interpret(replace(profile, spans=spans, declared=stages, interpretation=None), Declared())


def wrong(result: Profile, true: pl.DataFrame) -> pl.DataFrame:
    """The blocks that have another number than the true ones."""
    both = result.spans.join(true, on=["rank", "start_ns", "end_ns"], suffix="_true")
    assert len(both) == len(true)
    chunks = [pl.col(name).fill_null(0) for name in ("chunk", "chunk_true")]
    return both.filter((pl.col("microbatch") != pl.col("microbatch_true")) | (
        pl.col("microbatch").is_not_null() & (chunks[0] != chunks[1])
    ))  # fmt: skip


@pytest.mark.parametrize("seed", seeds(12, 60))
def test_no_number_of_a_cut_capture_is_wrong(seed: int) -> None:
    """All ranks begin or end at one time inside a step, or each begins at another one; steps are recorded or not."""
    draw = random.Random(seed)
    stages, steps = draw.choice([2, 3, 4]), draw.choice([1, 2, 3])
    schedule = draw.choice(["gpipe", "1f1b", "eager-1f1b", "interleaved", "zb-h1"])
    whole = steps_of(schedule, stages, stages * draw.choice([1, 2, 3]), steps)
    length = int(whole.spans.select(pl.col("end_ns").max() - pl.col("start_ns").min()).item()) / steps
    last = int(whole.spans["end_ns"].to_numpy().max()) - draw.choice([0, 0, draw.uniform(0.05, 0.9)]) * length
    together = draw.choice([0, draw.uniform(0.05, 0.9)])
    starts = {rank: draw.choice([together, draw.uniform(0, 0.6)]) * length for rank in range(stages)}
    if draw.random() < 0.7:
        starts = dict.fromkeys(starts, together * length)
    begin = pl.col("rank").replace_strict(starts, return_dtype=pl.Float64)
    kept = whole.spans.filter((pl.col("start_ns") >= begin) & (pl.col("end_ns") <= last))
    result = plain(replace(whole, spans=kept), stepped=draw.random() < 0.6)
    assert wrong(result, kept).is_empty()
    if len(kept) == len(whole.spans):
        assert result.spans["microbatch"].null_count() == 0


@pytest.mark.parametrize("seed", seeds(8, 40))
def test_no_number_of_a_step_that_lacks_a_block_is_wrong(seed: int) -> None:
    """The middle one of three steps, whose ends are there, lacks any one of its blocks."""
    draw = random.Random(seed)
    stages, schedule = draw.choice([2, 3, 4]), draw.choice(["gpipe", "1f1b", "eager-1f1b", "interleaved", "zb-h1"])
    whole = steps_of(schedule, stages, stages * draw.choice([1, 2, 3]), 3).spans.with_row_index("row")
    lost = draw.choice(whole.filter(step=1)["row"].to_list())
    kept = whole.filter(pl.col("row") != lost).drop("row")
    result = plain(replace(steps_of(schedule, stages, stages, 3), spans=kept), stepped=True)
    assert wrong(result, kept).is_empty()
    assert result.spans["microbatch"].null_count() <= result.spans["microbatch"].len() / 8


@pytest.mark.parametrize(("microbatches", "twins"), [(8, ("interleaved",)), (6, ()), (4, ())])
def test_gpipe_whose_chunks_nothing_tells_is_not_exact(microbatches: int, twins: tuple[str, ...]) -> None:
    """Eight forwards and then eight backwards on four stages are two chunks of four micro-batches, too."""
    result = plain(steps_of("gpipe", 4, microbatches, 2), stepped=True).interpreted.recognition
    assert result.plan is not None
    assert (result.plan.name, result.twins) == ("gpipe", twins)
    assert result.certainty == ("likely" if twins else "exact")


def later(whole: Profile, begins: dict[int, str]) -> pl.DataFrame:
    """The blocks of a run whose ranks are recorded from the block of the first step that `begins` names: F2, B2.1."""
    name = pl.format("{}{}", "kind", "microbatch") + pl.when(pl.col("chunk") > 0).then(pl.lit(".1")).otherwise(
        pl.lit("")
    )
    named = whole.spans.filter(step=0).with_columns(name=name).select("rank", "name", begin="start_ns")
    first = pl.DataFrame({"rank": list(begins), "name": list(begins.values())}, {"rank": pl.Int32, "name": pl.String})
    kept = whole.spans.join(first.join(named, on=["rank", "name"]).select("rank", "begin"), on="rank", how="left")
    return kept.filter(pl.col("start_ns") >= pl.col("begin").fill_null(pl.lit(-1))).drop("begin")


def test_a_step_that_one_rank_has_whole_is_of_the_schedule_of_the_others() -> None:
    """Two chunks of three micro-batches: the first rank runs six forwards and then six backwards, as under GPipe."""
    whole = steps_of("interleaved", 3, 3, 3)
    kept = later(whole, {1: "B2.1", 2: "F2"})
    result = plain(replace(whole, spans=kept), stepped=True)
    assert wrong(result, kept).is_empty()
    assert result.spans.filter(rank=0)["microbatch"].null_count() == 0


def test_a_replica_of_which_one_rank_is_whole_has_the_schedule_of_the_other() -> None:
    """The first rank of the second replica alone is whole, and runs its blocks as under GPipe."""
    one = steps_of("interleaved", 3, 3, 1)
    cut = later(one, {1: "B2.1", 2: "F2"}).with_columns(pl.col("rank") + 3)
    second = one.ranks.with_columns(
        pl.col("rank") + 3, pl.lit(1, pl.Int32).alias("dp"), pl.lit(1, pl.Int32).alias("replica")
    )
    kept = pl.concat([one.spans, cut])
    result = plain(replace(one, spans=kept, ranks=pl.concat([one.ranks, second])), stepped=True)
    assert wrong(result, kept).is_empty()
    assert result.spans.filter(rank=3)["microbatch"].null_count() == 0


def test_a_replica_whose_blocks_fit_at_several_positions_on_all_ranks_has_no_numbers() -> None:
    """One replica is whole; of the other each rank has one forward of its only step."""
    one = steps_of("1f1b", 2, 4, 1)
    whole = pl.concat([one.spans, later(one, {0: "F2", 1: "F1"}).with_columns(pl.col("rank") + 2)])
    kept = whole.filter((pl.col("rank") < 2) | (pl.int_range(pl.len()).over("rank", order_by="start_ns") < 1))
    second = one.ranks.with_columns(
        pl.col("rank") + 2, pl.lit(1, pl.Int32).alias("dp"), pl.lit(1, pl.Int32).alias("replica")
    )
    result = plain(replace(one, spans=kept, ranks=pl.concat([one.ranks, second])), stepped=True)
    assert wrong(result, kept).is_empty()
    assert result.spans.filter(pl.col("rank") < 2)["microbatch"].null_count() == 0
    assert result.spans.filter(pl.col("rank") >= 2)["microbatch"].null_count() == 2


def test_a_step_of_weight_gradients_alone_is_not_whole() -> None:
    """The last weight gradients of a step are all that the capture has of it: they are not the first ones."""
    whole = steps_of("zb-h1", 2, 6, 3)
    kept = later(whole, {0: "W5", 1: "W5"})
    result = plain(replace(whole, spans=kept), stepped=True)
    assert result.spans.filter(step=0)["microbatch"].to_list() == [5, 5]


def test_a_step_whose_start_all_ranks_lack_is_not_two_steps() -> None:
    """GPipe with six micro-batches: F3 F4 F5 B0 B1 B2 has as many backwards as forwards, and three backwards follow."""
    whole = steps_of("gpipe", 3, 6, 1)
    kept = later(whole, {0: "F3", 1: "B0", 2: "F3"})
    result = plain(replace(whole, spans=kept), stepped=False)
    assert wrong(result, kept).is_empty()
    assert result.spans["step"].n_unique() == 1


@pytest.mark.parametrize(("ranks", "numbered"), [((0, 1), True), ((0,), False)])
def test_forwards_alone_are_numbered_where_all_ranks_have_as_many(ranks: tuple[int, ...], numbered: bool) -> None:
    """Of three forwards rank 1 has all, or the last one alone: then its first one need not be that of rank 0."""
    whole = steps_of("1f1b", 2, 3, 1)
    forwards = whole.spans.filter(pl.col("kind") == "F")
    kept = forwards.filter(pl.col("rank").is_in(ranks) | (pl.col("microbatch") == 2))
    result = plain(replace(whole, spans=kept), stepped=True)
    assert wrong(result, kept).is_empty()
    assert (result.spans["microbatch"].null_count() == 0) is numbered


@pytest.mark.parametrize("seed", seeds(8, 80))
def test_no_number_of_a_rank_of_which_few_passes_are_there_is_wrong(seed: int, tmp_path: Path) -> None:
    """One to three blocks of one rank, from anywhere; the others are whole."""
    draw = random.Random(seed)
    stages = draw.choice([2, 3, 4])
    microbatches, order = stages * draw.choice([1, 2, 3]), ORDERS[draw.choice([*ORDERS])]
    orders = [order(stage, stages, microbatches) for stage in range(stages)]
    blocks = simulate_blocks(orders, nsys.TIMING, range(draw.choice([1, 2, 3])), random.Random(seed)).blocks
    rank, count = draw.randrange(stages), draw.choice([1, 2, 3])
    of_rank = sorted((b for b in blocks if b.rank == rank and b.kind != "OPT"), key=lambda b: b.start_ns)
    first = draw.randrange(len(of_rank) - count)
    kept = [b for b in blocks if b.rank != rank or b in of_rank[first : first + count]]
    epoch = CAPTURES["nsys"](tmp_path, kept, nsys.Megatron() if order is zb_h1 else nsys.Plain())
    run = trace_export.load(tmp_path, jobs=1, pp=stages)
    true = {(b.rank, b.start_ns + epoch): b.microbatch for b in kept if b.kind != "OPT"}
    rows = run.spans.filter(pl.col("microbatch").is_not_null()).select("rank", "start_ns", "microbatch").rows()
    assert [row for row in rows if true[row[0], row[1]] != row[2]] == []


ORDERS = {"1f1b": one_f_one_b, "zb-h1": zb_h1, "gpipe": lambda _, __, microbatches: [
    Operation(kind, number) for kind in "FB" for number in range(microbatches)]}  # fmt: skip


@pytest.mark.parametrize("seed", seeds(8, 80))
def test_no_number_of_a_capture_that_lost_a_block_is_wrong(seed: int, tmp_path: Path) -> None:
    """Of any step, also the first and the last; optimizers show where steps end. Without one of the forwards with which
    the first stage begins, the first step is as in a capture that begins later, which is noted."""
    draw = random.Random(seed)
    stages = draw.choice([2, 3, 4])
    microbatches, order = stages * draw.choice([1, 2, 3]), ORDERS[draw.choice([*ORDERS])]
    orders = [order(stage, stages, microbatches) for stage in range(stages)]
    blocks = simulate_blocks(orders, nsys.TIMING, range(draw.choice([2, 3])), random.Random(seed)).blocks
    begun = min(b.start_ns for b in blocks if b.kind == "B" and b.rank == 0)
    lost = draw.choice([b for b in blocks if b.kind != "OPT" and (b.rank > 0 or b.start_ns >= begun)])
    kept = [b for b in blocks if b is not lost]
    epoch = CAPTURES["nsys"](tmp_path, kept, nsys.Megatron() if order is zb_h1 else nsys.Plain())
    run = trace_export.load(tmp_path, jobs=1, pp=stages)
    true = {(b.rank, b.start_ns + epoch): b.microbatch for b in kept if b.kind != "OPT"}
    rows = run.spans.filter(pl.col("microbatch").is_not_null()).select("rank", "start_ns", "microbatch").rows()
    assert [row for row in rows if true[row[0], row[1]] != row[2]] == []
    assert len(rows) >= len(true) / 2
    assert {"blocks-missing", "steps-truncated", "microbatch-unknown"} & {note.code for note in run.notes}
