"""Recognising schedules in measured orders: golden orders, a real trace, and what must not be named."""

import random
from dataclasses import asdict, replace
from pathlib import Path

import polars as pl
import pytest

from samples.generators.paddle import TIMING
from samples.generators.pipeline import Operation, source_of
from samples.generators.pipeline import simulate as run_generator
from tests.schedules.test_schedule import planned
from tests.support.profiles import recognised
from trace_export.model import RANKS, SPANS, Declared, Plan, Profile, Recognition, conform
from trace_export.pipeline.block_order import sequences
from trace_export.pipeline.deviations import deviations
from trace_export.pipeline.passes import passes_of
from trace_export.pipeline.schedule_match import declare, exact_plan
from trace_export.schedules.schedule import Schedule, schedule
from trace_export.schedules.simulate import Costs, simulate


def run_of(s: Schedule) -> Profile:
    """A run of the schedule that does not say what it is."""
    profile = simulate(s, Costs(1000, 1200, 800, 10))
    return Profile(ranks=profile.ranks, spans=profile.spans)


ALIKE = {"1f1b_p4_m2"}
"""Where another schedule has the same order: with two micro-batches Eager 1F1B warms up as 1F1B does."""


def test_every_golden_order_is_recognised(golden: Path) -> None:
    for path in sorted((golden / "orders").glob("*.csv")):
        s = planned(path)
        profile = run_of(s)
        result = recognised(profile)
        assert result.certainty == ("likely" if path.stem in ALIKE else "exact"), path.stem
        assert result.distance == 0
        assert s.name in (result.plan.name, *result.twins), path.stem
        assert deviations(sequences(passes_of(profile)), result).is_empty()


@pytest.mark.parametrize(
    ("name", "twins"),
    [
        ("1f1b", ("zb-h1",)), ("gpipe", ()), ("eager-1f1b", ("zb-h2",)), ("zb-h1", ()), ("zb-h2", ()), ("zb-v", ()),
        ("dualpipe", ()), ("dualpipev", ()), ("zbh1-paddle", ()), ("interleaved-zb1p", ()),
        ("interleaved", ()),
    ],
)  # fmt: skip
def test_names_and_those_that_cannot_be_distinguished(name: str, twins: tuple[str, ...]) -> None:
    result = recognised(run_of(schedule(name, 4, 12)))
    assert (result.plan.name, result.certainty, result.twins) == (name, "exact", twins)


@pytest.mark.parametrize("name", ["gpipe", "1f1b", "zb-h1", "interleaved"])
def test_a_single_stage_has_no_schedule(name: str) -> None:
    assert recognised(run_of(schedule(name, 1, 4))).plan is None


@pytest.mark.parametrize("stages", [2, 4, 8])
@pytest.mark.parametrize("name", ["gpipe", "1f1b"])
def test_the_first_stage_alone_runs_all_forwards_first(name: str, stages: int) -> None:
    """With as many micro-batches as stages, GPipe and 1F1B differ on later stages only."""
    whole = run_of(schedule(name, stages, stages))
    first = replace(whole, spans=whole.spans.filter(rank=0), declared=Declared(pp=stages))
    result = recognised(first)
    assert result.certainty == "unknown"
    assert {"gpipe", "1f1b"} <= {result.plan.name, *result.twins}
    told = recognised(whole)
    assert told.plan.name == name
    assert not {"gpipe", "1f1b"} <= {told.plan.name, *told.twins}


@pytest.mark.parametrize("stages", [2, 4])
def test_one_micro_batch_does_not_tell_schedules_apart(stages: int) -> None:
    result = recognised(run_of(schedule("1f1b", stages, 1)))
    assert result.certainty == "likely"
    assert {"gpipe", "1f1b"} <= {result.plan.name, *result.twins}


@pytest.mark.parametrize("stage", range(4))
def test_one_stage_is_never_exact(stage: int) -> None:
    whole = run_of(schedule("1f1b", 4, 8))
    result = recognised(replace(whole, spans=whole.spans.filter(rank=stage), declared=Declared(pp=4)))
    assert (result.plan.name, result.distance) == ("1f1b", 0.0)
    assert result.certainty == ("likely" if stage < 3 else "unknown")  # the last one is the same in Eager 1F1B


def test_group_of_interleaving() -> None:
    result = recognised(run_of(schedule("interleaved", 2, 12, 3, group=4)))
    assert (result.certainty, result.plan.chunks, result.plan.group) == ("exact", 3, 4)


@pytest.mark.parametrize("name", ["zb-v", "dualpipev", "interleaved"])
def test_without_weight_gradients_and_numbers(name: str) -> None:
    """A trace that names only forward and backward."""
    profile = run_of(schedule(name, 4, 8))
    spans = profile.spans.filter(pl.col("kind") != "W").with_columns(
        microbatch=pl.when(pl.col("kind") != "FB").then("microbatch")
    )
    result = recognised(Profile(ranks=profile.ranks, spans=spans))
    assert (result.plan.name, result.certainty) == (name, "exact")


def test_micro_batches_that_count_on() -> None:
    profile = run_of(schedule("1f1b", 4, 8))
    spans = profile.spans.with_columns(pl.col("microbatch") + 800)
    assert recognised(Profile(ranks=profile.ranks, spans=spans)).certainty == "exact"


def test_any_removed_block_lowers_the_certainty() -> None:
    profile = run_of(schedule("1f1b", 2, 4))
    for row in range(len(profile.spans)):
        spans = profile.spans.with_row_index("i").filter(pl.col("i") != row).drop("i")
        cut = Profile(ranks=profile.ranks, spans=spans)
        assert recognised(cut).certainty != "exact", row
        assert len(deviations(sequences(passes_of(cut)), Recognition(Plan("1f1b", 2, 4)))) == 1, row


def test_first_deviation_is_named() -> None:
    """Stage 1 runs B1 before F3 instead of after it."""
    profile = run_of(schedule("1f1b", 3, 30))
    swapped = (pl.col("rank") == 1) & (pl.col("microbatch") == 10)
    moved = profile.spans.with_columns(
        start_ns=pl.when(swapped & (pl.col("kind") == "F")).then(pl.col("start_ns") + 2500).otherwise("start_ns")
    )
    changed = Profile(ranks=profile.ranks, spans=moved)
    result = recognised(changed)
    assert (result.plan.name, result.certainty) == ("1f1b", "likely")
    assert deviations(sequences(passes_of(changed)), result).rows() == [(0, 0, 1, 1, 19, "F10.0", "B9.0")]


def test_the_first_block_of_all_is_named_too() -> None:
    """The last stage runs F1 before F0."""
    profile = run_of(schedule("1f1b", 2, 6))
    first = (pl.col("rank") == 1) & (pl.col("kind") == "F") & (pl.col("microbatch") <= 1)
    changed = Profile(
        ranks=profile.ranks,
        spans=profile.spans.with_columns(
            microbatch=pl.when(first).then(1 - pl.col("microbatch")).otherwise("microbatch")
        ),
    )
    (result,) = deviations(sequences(passes_of(changed)), Recognition(Plan("1f1b", 2, 6))).rows()
    assert result == (0, 0, 1, 1, 0, "F0.0", "F1.0")


def test_steps_of_other_sizes_are_compared_with_their_own_order() -> None:
    """Batch size ramp-up: 4, then 8 micro-batches; nothing deviates."""
    small, large = (run_of(schedule("1f1b", 2, m)) for m in (4, 8))
    spans = pl.concat([small.spans, large.spans.with_columns(step=pl.lit(1, pl.Int32))])
    profile = Profile(ranks=small.ranks, spans=spans)
    result = recognised(profile)
    assert (result.certainty, result.plan.microbatches) == ("exact", 8)
    assert deviations(sequences(passes_of(profile)), result).is_empty()


def declaring(profile: Profile) -> Profile:
    return declare(profile, recognised(profile))


def test_what_is_recognised_is_declared_with_a_note() -> None:
    profile = declaring(run_of(schedule("dualpipe", 4, 8)))
    assert (profile.declared.schedule, profile.declared.microbatches, profile.declared.chunks) == ("DualPipe", 8, 2)
    assert [(n.code, n.text.split()[-1]) for n in profile.notes] == [("schedule-recognised", "DualPipe")]
    assert declaring(profile) is profile
    assert declaring(Profile()).declared.schedule is None
    assert declaring(run_of(schedule("1f1b", 1, 4))).declared.schedule is None


def test_weight_gradients_of_a_part_of_the_step() -> None:
    """MindSpeed marks the W blocks of one phase of DualPipeV only, and some backwards in two pieces."""
    profile = run_of(schedule("dualpipev", 4, 10))
    kept = profile.spans.filter((pl.col("kind") != "W") | (pl.col("microbatch") == 0))
    pieces = kept.filter(kept["kind"] == "B").head(3).with_columns(start_ns=pl.col("start_ns") + 1)
    recorded = Profile(ranks=profile.ranks, spans=pl.concat([kept, pieces]))
    result = recognised(recorded)
    assert (result.plan.name, result.certainty, result.weights) == ("dualpipev", "exact", False)
    assert deviations(sequences(passes_of(recorded)), result).is_empty()


def searched(stages: int, microbatches: int, chance: random.Random) -> list[list[Operation]]:
    """An order that a search over measured times might find for two chunks that run there and back: each stage in turn
    takes any operation whose inputs are there."""
    todo = [
        [Operation(kind, m, chunk) for kind in "FBW" for m in range(microbatches) for chunk in (0, 1)]
        for _ in range(stages)
    ]
    orders: list[list[Operation]] = [[] for _ in range(stages)]
    done: set[tuple[int, tuple[object, ...]]] = set()

    def possible(stage: int, operation: Operation) -> bool:
        if operation.kind == "W":
            return (stage, ("B", *operation[1:3])) in done
        source = source_of(operation.halves()[0], stage, stages, 2, vee=True)
        ready = operation.kind == "F" or (stage, ("F", *operation[1:3])) in done
        return ready and (source is None or (source[0], tuple(source[1])) in done)

    while any(todo):
        for stage in range(stages):
            ready = [operation for operation in todo[stage] if possible(stage, operation)]
            if ready:
                taken = chance.choice(ready)
                todo[stage].remove(taken)
                orders[stage].append(taken)
                done.add((stage, tuple(taken[:3])))
    return orders


@pytest.mark.parametrize("seed", range(5))
def test_order_of_a_search_is_not_forced_into_a_name(seed: int) -> None:
    """Paddle's ZBVPP comes from a search over measured times."""
    orders = searched(4, 4, random.Random(seed))
    run = run_generator(orders, TIMING, range(2), random.Random(seed), chunks=2, vee=True)
    ranks = conform(pl.DataFrame({"rank": range(4), "stage": range(4)}), RANKS)
    spans = conform(pl.DataFrame([{**asdict(b), "run": 0} for b in run.blocks], infer_schema_length=None), SPANS)
    result = recognised(Profile(ranks=ranks, spans=spans))
    assert result.certainty == "unknown"
    assert result.named is None


def test_evaluation_is_no_schedule() -> None:
    profile = run_of(schedule("gpipe", 3, 4))
    forward = Profile(ranks=profile.ranks, spans=profile.spans.filter(pl.col("kind") == "F"))
    assert recognised(forward).plan is None
    assert recognised(Profile()).plan is None


@pytest.mark.parametrize(("second", "named"), [("1f1b", None), ("gpipe", "gpipe")])
def test_runs_of_different_schedules_have_none(second: str, named: str | None) -> None:
    runs = [run_of(schedule(name, 4, 8)) for name in ("gpipe", second)]
    spans = pl.concat([run.spans.with_columns(run=pl.lit(n, pl.Int32)) for n, run in enumerate(runs)])
    result = recognised(replace(runs[0], spans=spans))
    assert (result.named and result.named.name) == named
    assert result.of_runs == (() if named else ("gpipe", second))


def test_data_that_go_round_are_of_several_chunks_where_their_order_is_that_of_gpipe_too() -> None:
    """F F F F B B B B on the first of two stages: GPipe of four micro-batches, or two chunks of two."""
    seen = {0: "FFFFBBBB"}
    of_data = {way: exact_plan(seen, 2, more=False, way=way) for way in (None, "line", "loop")}
    result = {way: (number.plan.name, number.plan.chunks) for way, number in of_data.items() if number}
    assert result == {None: ("gpipe", 1), "line": ("gpipe", 1), "loop": ("interleaved", 2)}
