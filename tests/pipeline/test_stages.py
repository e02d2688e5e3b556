"""Stages and replicas of the ranks: from what is specified, from sizes, from the shape of the work."""

from collections.abc import Sequence
from dataclasses import asdict, replace

import polars as pl
import pytest

from samples.generators.paddle import Job
from tests.support.paddle_jobs import JOBS
from tests.support.rows import crossed
from trace_export.errors import UsageError
from trace_export.model import P2P, RANKS, SPANS, Declared, Plan, Profile, RankOrder, conform
from trace_export.pipeline import stages_from_work
from trace_export.pipeline.stages import chunk_placement, resolve
from trace_export.schedules.recorded import OVERLAPPED, PLAIN
from trace_export.schedules.schedule import schedule
from trace_export.schedules.simulate import Costs, simulate
from trace_export.schedules.words import profile_blocks


def of_job(job: Job, ranks: list[int] | None = None) -> Profile:
    """The blocks of a job as its logs say them, without their stage."""
    rows = [
        {**asdict(b), "run": 0, "marker": job.type(b), "host": str(b.rank // job.workers)}
        for b in job.blocks()
        if ranks is None or b.rank in ranks
    ]
    spans = pl.DataFrame(rows, infer_schema_length=None)
    table = spans.select("rank", "host", kind=pl.lit("paddle")).unique().sort("rank")
    return Profile(ranks=conform(table, RANKS), spans=conform(spans, SPANS)).validate()


def stages(profile: Profile) -> dict[int, int]:
    return dict(profile.ranks.sort("rank").select("rank", "stage").iter_rows())


@pytest.mark.parametrize("name", JOBS)
def test_stages_from_the_shape_of_the_work(name: str) -> None:
    job = JOBS[name]
    profile = resolve(of_job(job), Declared()).validate()
    assert stages(profile) == {rank: job.stage(rank) for rank in range(job.ranks)}


@pytest.mark.parametrize(("name", "ranks"), [("1f1b, not announced", [2, 3]), ("1f1b", [1, 3])])
def test_ranks_that_were_not_read(name: str, ranks: list[int]) -> None:
    profile = resolve(of_job(JOBS[name], ranks), Declared())
    assert stages(profile) == {rank: rank for rank in ranks}
    assert [n.code for n in profile.notes] == ["stages-inferred"]


def test_replicas_are_guessed_from_times() -> None:
    profile = resolve(of_job(JOBS["tensor and data parallel"]), Declared())
    assert profile.ranks.sort("rank").select("rank", "dp", "tp").rows() == [
        (rank, rank // 4, rank % 2) for rank in range(8)
    ]
    assert set(profile.ranks["stage_origin"]) == {"inferred"}
    assert "tensor-parallel-guessed" in [n.code for n in profile.notes]


@pytest.mark.parametrize(("name", "placement"), [("interleaved", "loop"), ("zb-v", "vee"), ("1f1b", "loop")])
def test_placement_from_the_order_of_forwards(name: str, placement: str) -> None:
    assert chunk_placement(of_job(JOBS[name])) == placement


def dualpipev(stages: int, microbatches: int, replicas: int, *, plain: bool) -> Profile:
    """DualPipeV as it is recorded: forwards carry m + c * M, nothing tells a chunk; replica by replica."""
    plan = Plan(PLAIN if plain else OVERLAPPED, stages, microbatches, 2)
    forward = pl.col("kind").is_in(["F", "FB"])
    number = pl.col("microbatch") + pl.col("chunk") * microbatches
    steps = [
        profile_blocks(plan, tuple(range(stages))).select(
            "kind", rank=pl.col("stage") + replica * stages, run=0, step=step,
            microbatch=pl.when(forward).then(number), start_ns=10_000 * step + 100 * pl.col("position"),
            end_ns=10_000 * step + 100 * pl.col("position") + 90,
        )
        for step in range(2)
        for replica in range(replicas)
    ]  # fmt: skip
    declared = Declared(numbers_continue=True, overlapped=not plain)
    ranks, spans = bare(stages * replicas).ranks, conform(pl.concat(steps), SPANS)
    return Profile(ranks=ranks, spans=spans, declared=declared).validate()


@pytest.mark.parametrize("plain", [False, True])
@pytest.mark.parametrize(("stages", "microbatches", "replicas"), [(2, 4, 1), (4, 8, 2), (4, 11, 1), (8, 16, 1)])
def test_stages_of_dualpipev_from_its_numbers(stages: int, microbatches: int, replicas: int, plain: bool) -> None:
    whole = dualpipev(stages, microbatches, replicas, plain=plain)
    expected = {rank: rank % stages for rank in range(stages * replicas)}
    assert stages_of(whole) == expected
    begun = whole.spans.filter((pl.col("rank") > 0) | (pl.col("start_ns") >= 200) & (pl.col("step") == 0))
    assert stages_of(replace(whole, spans=begun)) == expected  # rank 0 has one step, and not its first two blocks
    first = replace(whole, ranks=whole.ranks.filter(rank=0), spans=whole.spans.filter(rank=0))
    assert resolve(first, Declared()).declared.pp == stages  # whatever was read of them


@pytest.mark.parametrize(("stages", "microbatches"), [(2, 3), (4, 4), (4, 5), (4, 7), (4, 8), (8, 9), (8, 15), (8, 20)])
def test_stages_of_a_v_with_few_microbatches(stages: int, microbatches: int) -> None:
    """The first stages run out of forwards before the data come back: their number tells nothing then."""
    run = simulate(schedule("zb-v", stages, microbatches), Costs(1000, 1000, 1000, transfer=100))
    unknown = replace(run, ranks=run.ranks.with_columns(stage=pl.lit(None, RANKS["stage"])), declared=Declared())
    assert stages_of(unknown) == {rank: rank for rank in range(stages)}
    assert not [n for n in resolve(run, Declared()).notes if n.level == "warning"]


@pytest.mark.parametrize("slow", range(3))
def test_stages_of_a_v_with_a_slow_replica(slow: int) -> None:
    """Its data come back later, on stage 1 about as late as to stage 0 of the others."""
    parts = []
    for replica in range(3):
        unit = 1500 if replica == slow else 1000
        spans = simulate(schedule("zb-v", 4, 6), Costs(unit, unit, unit, transfer=100)).spans
        parts.append(spans.with_columns(pl.col("rank") + 4 * replica))
    assert stages_of(replace(bare(12), spans=pl.concat(parts))) == {rank: rank % 4 for rank in range(12)}


def stages_of(profile: Profile) -> dict[int, int]:
    return stages(resolve(profile, Declared()))


def worked(words: dict[int, str], sizes: Declared | None = None, wait: dict[int, int] | None = None) -> Profile:
    """Ranks with these words, a letter for a block, and declared sizes; each waits so long for its first backward."""
    rows = []
    for rank, word in words.items():
        for at, kind in enumerate(word):
            start = 100 * at + (wait or {}).get(rank, 0) * (at >= word.index("B"))
            rows.append({"rank": rank, "run": 0, "step": 0, "kind": kind, "start_ns": start, "end_ns": start + 90})
    ranks = bare(max(words) + 1).ranks.filter(pl.col("rank").is_in(list(words)))
    return Profile(ranks=ranks, spans=conform(pl.DataFrame(rows), SPANS), declared=sizes or Declared())


def test_the_order_of_ranks_where_the_first_and_last_stage_were_not_read() -> None:
    """pp 6, dp 2, counted pp, dp: ranks 2, 3, 7, 8 and 10."""
    leads = {rank: 6 - rank % 6 for rank in (2, 3, 7, 8, 10)}
    words = {rank: "F" * (n - 1) + "FB" * 8 + "B" * (n - 1) for rank, n in leads.items()}
    assert stages_of(worked(words, Declared(pp=6, tp=1, dp=2))) == {2: 2, 3: 3, 7: 1, 8: 2, 10: 4}


def test_stages_beside_one_that_was_not_read_and_runs_all_forwards_first() -> None:
    """pp 8, tp 2, 8 micro-batches, nothing of stage 1: nothing but the number of stage 0's forwards tells of it."""
    stage = {rank: rank // 2 for rank in (1, 4, 5, 8, 9, 10, 12, 13, 14)}
    words = {rank: "F" * (7 - s) + "FB" * (s + 1) + "B" * (7 - s) for rank, s in stage.items()}
    assert stages_of(worked(words)) == stage


@pytest.mark.parametrize(("read", "believed"), [(range(8), True), ([0, 1, 7], False)])
def test_times_alone_order_many_ranks_only(read: Sequence[int], believed: bool) -> None:
    """pp 4, dp 2, counted pp, dp, all forwards first: only the wait for the first backward tells the stage."""
    words, wait = dict.fromkeys(read, "FFFFBBBB"), {rank: 300 * (3 - rank % 4) for rank in range(8)}
    expected = {rank: rank % 4 if believed else rank // 2 for rank in read}
    assert stages_of(worked(words, Declared(pp=4, tp=1, dp=2), wait)) == expected


@pytest.mark.parametrize("origin", ["user-specified", "declared"])
def test_the_rank_order_follows_from_the_work(origin: str) -> None:
    """pp 2, tp 2, dp 2, counted tp, pp, dp; one rank in eight was cut and looks like the last stage."""
    words = ["FFBFBB", "FBFBB", "FBFBFB", "FBFBFB", "FFBFBB", "FFBFBB", "FBFBFB", "FBFBFB"]
    sizes, profile = Declared(pp=2, tp=2, dp=2), worked(dict(enumerate(words)))
    given = (
        resolve(profile, sizes) if origin == "user-specified" else resolve(replace(profile, declared=sizes), Declared())
    )
    assert stages(given) == {0: 0, 1: 0, 2: 1, 3: 1, 4: 0, 5: 0, 6: 1, 7: 1}
    assert given.ranks["dp"].to_list() == [0, 0, 0, 0, 1, 1, 1, 1]
    assert set(given.ranks["stage_origin"]) == {"user-specified" if origin == "user-specified" else "inferred"}
    assert ("rank-order-from-work" in [n.code for n in given.notes]) == (origin == "user-specified")


@pytest.mark.parametrize(
    ("names", "order", "inner"),
    crossed(
        ["pp", "tp", "dp", "pp tp", "pp dp", "tp dp", "pp tp dp"], [None, "tp-cp-dp-pp", "tp-cp-pp-dp"], [True, False]
    ),
)
def test_any_of_the_sizes_of_the_user_is_enough(names: str, order: RankOrder | None, inner: bool) -> None:
    """pp 2, tp 2, dp 4 in either order of ranks: the work says which, whatever order a reader declares as usual."""
    stage = [rank // 2 % 2 if inner else rank // 8 for rank in range(16)]
    profile = worked({rank: "FBFBFB" if stage[rank] else "FFBFBB" for rank in range(16)}, Declared(rank_order=order))
    user = Declared(**{name: {"pp": 2, "tp": 2, "dp": 4}[name] for name in names.split()})
    result = resolve(profile, user)
    assert result.ranks["stage"].to_list() == stage
    assert set(result.ranks["stage_origin"]) == {"inferred" if names in ("tp", "dp") else "user-specified"}
    if names != "pp":
        assert result.ranks["tp"].to_list() == [rank % 2 for rank in range(16)]
    assert not [note for note in result.notes if note.level == "warning"]


@pytest.mark.parametrize(
    ("given", "recorded", "order"),
    crossed([("pp", 2), ("tp", 2), ("dp", 2), ("cp", 2), ("pp", 1), ("tp", 4)], [True, False], [None, "tp-cp-pp-dp"]),
)
def test_a_size_that_is_contradicted_is_obeyed_with_a_warning(
    given: tuple[str, int], recorded: bool, order: RankOrder | None
) -> None:
    """Four stages of one rank each, by the record or by the work."""
    name, size = given
    words = {rank: "F" * (4 - rank) + "BF" * (rank + 4) + "B" * (4 - rank) for rank in range(4)}
    profile = worked(words, Declared(rank_order=order))
    if recorded:
        profile = replace(profile, ranks=bare(4, [0, 1, 2, 3]).ranks)
    result = resolve(profile, Declared(**{name: size}))
    column = {"pp": "stage"}.get(name, name)
    assert result.ranks[column].to_numpy().max() == size - 1
    assert result.ranks["stage"].n_unique() == (size if name == "pp" else 4 // size)
    assert "stages-contradict" in [note.code for note in result.notes if note.level == "warning"]


@pytest.mark.parametrize("declared", [Declared(), Declared(world=4), Declared(rank_order="tp-cp-pp-dp")])
@pytest.mark.parametrize("user", [{"pp": 3}, {"tp": 3}, {"dp": 3}, {"cp": 3}, {"tp": 3, "dp": 1}])
def test_a_size_that_cannot_be_is_an_error(user: dict[str, int], declared: Declared) -> None:
    sizes = ", ".join(f"{name} {size}" for name, size in user.items())
    with pytest.raises(UsageError, match=f"4 ranks cannot be divided by {sizes}"):
        resolve(replace(bare(4), declared=declared), Declared(**user))


@pytest.mark.parametrize("user", [{"pp": 1}, {"tp": 2}, {"pp": 2, "dp": 2}, {}])
def test_sizes_beside_a_rank_of_the_largest_number(user: dict[str, int]) -> None:
    ranks = conform(pl.DataFrame({"rank": [0, (1 << 31) - 1]}), RANKS)
    result = resolve(Profile(ranks=ranks, declared=Declared(pp=1)), Declared(**user))
    assert result.ranks["stage"].null_count() == 0


@pytest.mark.parametrize("declared", [Declared(pp=0), Declared(pp=0, tp=0, dp=0), Declared(pp=2, tp=0)])
def test_a_recorded_size_of_none_is_none(declared: Declared) -> None:
    result = resolve(replace(bare(4), declared=declared), Declared())
    assert result.ranks["stage"].to_list() == ([0, 0, 1, 1] if declared.pp else [0, 1, 2, 3])


def test_more_stages_than_the_recorded_job_has_ranks_are_an_error() -> None:
    with pytest.raises(UsageError, match="4 ranks cannot be divided by pp 8"):
        resolve(replace(bare(4), declared=Declared(world=4)), Declared(pp=8))


def test_a_recorded_size_gives_way_to_the_users() -> None:
    """By the record pp 4, tp 2, dp 2; the user says pp 2, so that dp is 4."""
    result = resolve(replace(bare(16), declared=Declared(pp=4, tp=2, dp=2, world=16)), Declared(pp=2))
    assert result.ranks["stage"].to_list() == [0] * 8 + [1] * 8
    assert (result.declared.pp, result.declared.tp, result.declared.dp) == (2, 2, 4)
    (note,) = [note for note in result.notes if note.level == "warning"]
    assert (note.code, note.text) == ("sizes-contradict", "contradicting sizes: --pp is 2, and 4 by the profile")


@pytest.mark.parametrize("slow", range(4))
@pytest.mark.parametrize("peers", [True, False])
def test_as_many_micro_batches_as_stages(slow: int, peers: bool) -> None:
    """pp 4, dp 2, four micro-batches: the first stage runs all forwards first, and one of its ranks waits longer than
    the other, by as much as a stage makes."""
    words = {rank: "F" * (4 - s) + "BF" * s + "B" * (4 - s) for rank in range(8) for s in [rank // 2]}
    profile = worked(words, wait={rank: 300 * (3 - rank // 2) + 900 * (rank == slow) for rank in range(8)})
    if peers:
        profile = replace(profile, p2p=exchanged([(rank, rank + 2) for rank in range(6)]))
    result = resolve(profile, Declared())
    assert stages(result) == {rank: rank // 2 for rank in range(8)}


@pytest.mark.parametrize("slow", range(8))
def test_stages_of_gpipe_follow_from_whom_ranks_exchange_data_with(slow: int) -> None:
    """pp 4, dp 2: one rank waits as long as that of another stage."""
    wait = {rank: 300 * (3 - rank // 2) + 400 * (rank == slow) for rank in range(8)}
    profile = worked(dict.fromkeys(range(8), "FFFFBBBB"), wait=wait)
    profile = replace(profile, p2p=exchanged([(rank, rank + 2) for rank in range(6)]))
    assert stages_of(profile) == {rank: rank // 2 for rank in range(8)}


@pytest.mark.parametrize("inner", [True, False])
@pytest.mark.parametrize("slow", [0, 1])
def test_stages_of_gpipe_with_a_slow_replica(slow: int, inner: bool) -> None:
    """pp 4, dp 2, and nobody says who exchanges data with whom. The waits of one replica are half as long again as
    those of the other, its rank on stage 1 waits as long as the other's on stage 0."""
    place = {rank: (rank % 4, rank // 4) if inner else (rank // 2, rank % 2) for rank in range(8)}
    wait = {rank: 300 * (3 - s) * (3 if replica == slow else 2) // 2 for rank, (s, replica) in place.items()}
    profile = worked(dict.fromkeys(range(8), "FFFFBBBB"), wait=wait)
    assert stages_of(profile) == {rank: s for rank, (s, _) in place.items()}


def exchanged(pairs: Sequence[tuple[int, int]]) -> pl.DataFrame:
    """A send of each of these ranks to its peer, and nothing else."""
    rows = pl.DataFrame(pairs, schema=["rank", "peer"], orient="row")
    return conform(rows.with_columns(role=pl.lit("send"), start_ns=0, end_ns=1), P2P)


def bare(count: int, stage: list[int | None] | None = None) -> Profile:
    """Ranks without any block."""
    table = pl.DataFrame({"rank": range(count), "stage": stage or [None] * count})
    return Profile(ranks=conform(table, RANKS))


def test_sizes_in_the_order_of_megatron() -> None:
    """pp 2, cp 2, dp 2, tp 2: tp is the fastest, then cp, then dp, and pp the slowest."""
    profile = resolve(bare(16), Declared(pp=2, tp=2, dp=2, cp=2))
    rows = profile.ranks.select("stage", "dp", "cp", "tp").rows()
    assert rows[:4] == [(0, 0, 0, 0), (0, 0, 0, 1), (0, 0, 1, 0), (0, 0, 1, 1)]
    assert rows[4][1] == 1
    assert rows[8] == (1, 0, 0, 0)
    assert set(profile.ranks["stage_origin"]) == {"user-specified"}


def test_what_sizes_leave_is_context_parallel() -> None:
    profile = resolve(bare(16), Declared(pp=2, tp=2, dp=2))
    told = resolve(bare(16), Declared(pp=2, tp=2, dp=2, cp=2))
    assert profile.ranks.equals(told.ranks)
    (note,) = profile.notes
    text = "contradicting sizes: 16 ranks are more than those of pp 2, tp 2 and dp 2, so cp is taken for 2"
    assert (note.code, note.level, note.text) == ("sizes-contradict", "warning", text)
    assert told.notes == ()


def test_sizes_in_the_order_that_the_reader_declares() -> None:
    """dp 2, pp 2, tp 2: dp is the slowest."""
    declared = replace(bare(8), declared=Declared(rank_order="tp-cp-pp-dp"))
    profile = resolve(declared, Declared(pp=2, tp=2, dp=2))
    assert profile.ranks["stage"].to_list() == [0, 0, 1, 1, 0, 0, 1, 1]
    assert profile.ranks["dp"].to_list() == [0, 0, 0, 0, 1, 1, 1, 1]
    assert profile.ranks["tp"].to_list() == [0, 1] * 4


def test_recorded_stages_stay_and_say_so() -> None:
    profile = resolve(bare(4, stage=[0, 1, 0, 1]), Declared())
    assert stages(profile) == {0: 0, 1: 1, 2: 0, 3: 1}
    assert set(profile.ranks["stage_origin"]) == {"recorded"}


def test_nothing_known_makes_every_rank_a_stage() -> None:
    profile = resolve(bare(3), Declared())
    assert stages(profile) == {0: 0, 1: 1, 2: 2}
    assert set(profile.ranks["stage_origin"]) == {"assumed"}
    assert "stages-unknown" in [n.code for n in profile.notes]


def test_sizes_of_ranks_of_which_the_last_are_lost() -> None:
    profile = resolve(bare(3), Declared(pp=4, tp=1, dp=1))
    assert stages(profile) == {0: 0, 1: 1, 2: 2}
    assert not profile.notes, "pipeline.completeness names the stages that are absent"


def test_data_parallel_run_without_pipeline_is_one_stage() -> None:
    rows = [
        {"rank": r, "run": 0, "step": 0, "kind": k, "microbatch": m, "chunk": 0, "start_ns": t, "end_ns": t + 10}
        for r in range(2)
        for t, (k, m) in zip(range(100 * r, 100 * r + 40, 10), [("F", 0), ("B", 0), ("F", 1), ("B", 1)], strict=True)
    ]
    profile = Profile(ranks=bare(2).ranks, spans=conform(pl.DataFrame(rows), SPANS))
    assert stages(resolve(profile, Declared())) == {0: 0, 1: 0}


def test_missing_ranks_are_a_note_where_stages_are_counted_without_them() -> None:
    """pp 3, tp 2: the whole first stage is lost, and nothing can tell that it was."""
    words = {2: "FFBFBFBB", 3: "FFBFBFBB", 4: "FBFBFBFB", 5: "FBFBFBFB"}
    result = resolve(worked(words), Declared())
    assert stages(result) == {2: 0, 3: 0, 4: 1, 5: 1}
    (warning,) = [n for n in result.notes if n.level == "warning"]
    assert warning.code == "ranks-absent"
    assert "no profile of 2 ranks" in warning.text


def restarted(runs: int) -> pl.DataFrame:
    """The blocks of two stages that were started this many times and ran three micro-batches each time."""
    order = {0: "F0 F1 B0 F2 B1 B2", 1: "F0 B0 F1 B1 F2 B2"}
    words = [(rank, number, word) for rank, text in order.items() for number, word in enumerate(text.split())]
    one = pl.DataFrame(
        [(rank, 1000 * number, word[0], int(word[1])) for rank, number, word in words],
        schema=["rank", "at", "kind", "microbatch"], orient="row",
    )  # fmt: skip
    blocks = pl.select(run=pl.int_range(runs)).join(one, how="cross", maintain_order="left_right")
    start = pl.col("run") * 100_000 + pl.col("at")
    return conform(blocks.with_columns(start_ns=start, end_ns=start + 900, step=0, chunk=0), SPANS)


def test_the_run_with_blocks_of_all_ranks_decides_among_many() -> None:
    spans = restarted(100)
    inference = stages_from_work.infer(spans.filter((pl.col("rank") == 0) | (pl.col("run") == 99)))
    assert inference is not None
    assert inference.stages.select("rank", "stage").rows() == [(0, 0), (1, 1)]


def test_a_rank_may_have_the_largest_number() -> None:
    largest = (1 << 31) - 1
    spans = restarted(1).with_columns(rank=pl.when(rank=1).then(largest).otherwise("rank").cast(pl.Int32))
    inference = stages_from_work.infer(spans)
    assert inference is not None
    assert inference.stages.select("rank", "stage").rows() == [(0, 0), (largest, 1)]
