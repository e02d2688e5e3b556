"""Ranks of a pipeline must agree on steps and blocks; what is missing or in excess is named and left out of means."""

import random
from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest

import trace_export
from samples.generators import nsys
from samples.generators.nsys_export import Export
from tests.support.clock_runs import Clocks, make
from tests.support.profiles import placed
from trace_export.model import Declared, Profile, Recognition
from trace_export.pipeline import completeness
from trace_export.pipeline.interpret import conclude

STEPS, STAGES, MICROBATCHES = 3, 4, 6
PARTS = 2 * MICROBATCHES


def whole(**more: object) -> Profile:
    """Steps 0-2 of 1F1B on four stages, on one clock."""
    run = make(Clocks(steps=STEPS, stages=STAGES, microbatches=MICROBATCHES, ranks_per_host=STAGES, **more))  # type: ignore[arg-type]
    spans = run.profile.spans.with_columns(run=pl.lit(0, pl.Int32)).sort("rank", "start_ns")
    return replace(run.profile, spans=spans)


def check(profile: Profile, *, one_clock: bool = True, all_ranks: bool = True) -> Profile:
    interpreted = profile if profile.interpretation else conclude(placed(profile), Recognition())
    return completeness.mark_whole_steps(interpreted, one_clock=one_clock, all_ranks=all_ranks)


def without(profile: Profile, gone: pl.Expr) -> Profile:
    return replace(profile, spans=profile.spans.filter(~gone))


def at(rank: int, step: int) -> pl.Expr:
    return (pl.col("rank") == rank) & (pl.col("step") == step)


nth = pl.int_range(pl.len()).over("rank", "step")


def noted(done: Profile) -> dict[str, tuple[str, int]]:
    return {note.code: (note.level, note.count) for note in done.notes}


def steps(done: Profile) -> dict[int, bool]:
    return dict(done.steps.select("step", "whole").iter_rows())


def text(done: Profile, code: str) -> str:
    return next(note.text for note in done.notes if note.code == code)


@pytest.mark.parametrize("clocks", [{}, {"replicas": 2}, {"eager": 1.0}])
def test_a_whole_run_has_no_note(clocks: dict[str, object]) -> None:
    done = check(whole(**clocks)).validate()
    assert steps(done) == {0: True, 1: True, 2: True}
    assert not done.notes


def test_many_ranks_that_share_no_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not as many rows as ranks times steps: a table of 50,000 rows would be 600 million."""
    monkeypatch.setattr(completeness, "MOST_PARTS", 4)
    assert not check(whole()).notes
    done = check(without(whole(), pl.col("step") != pl.col("rank") % STEPS))
    assert noted(done)["blocks-missing"][0] == "warning"
    assert not any(steps(done).values())


def test_blocks_that_are_missing_in_the_middle_are_named() -> None:
    """7 of the 12 blocks of rank 2 are missing in step 1, 2 of rank 0: five rows in, one warning out."""
    done = check(without(whole(), (at(2, 1) & (nth >= 5)) | (at(0, 1) & (nth < 2))))
    assert noted(done) == {"blocks-missing": ("warning", 2), "steps-not-whole": ("note", 1)}
    assert "stage 2 (rank 2): step 1 has 5 of 12 blocks" in text(done, "blocks-missing")
    assert "on ranks 0,2, in step 1" in text(done, "blocks-missing")
    assert steps(done) == {0: True, 1: False, 2: True}


def test_a_lost_block_of_a_single_micro_batch_is_missing() -> None:
    run = make(Clocks(steps=STEPS, stages=STAGES, microbatches=1, ranks_per_host=STAGES))
    profile = replace(run.profile, spans=run.profile.spans.with_columns(run=pl.lit(0, pl.Int32)))
    assert steps(check(profile)) == {0: True, 1: True, 2: True}
    for gone in (at(2, 1), at(2, 1) & (pl.col("kind") == "F")):
        done = check(without(profile, gone))
        assert steps(done) == {0: True, 1: False, 2: True}
        assert noted(done)["blocks-missing"] == ("warning", 1)


def test_a_log_that_ends_early_is_not_taken_for_the_end_of_the_capture() -> None:
    """Rank 2 stops in the middle of step 1; the others go on to the end of step 2."""
    done = check(without(whole(), (at(2, 1) & (nth >= 5)) | at(2, 2)))
    assert noted(done)["blocks-missing"] == ("warning", 2)
    assert "stage 2 (rank 2): step 2 has 0 of 12 blocks" in text(done, "blocks-missing")
    assert steps(done) == {0: True, 1: False, 2: False}


def test_blocks_in_excess_are_named() -> None:
    made = whole()
    late = made.spans.filter(at(1, 1)).with_columns(pl.col("start_ns", "end_ns") + 5)
    done = check(replace(made, spans=pl.concat([made.spans, late])))
    assert noted(done) == {"blocks-in-excess": ("warning", 1), "steps-not-whole": ("note", 1)}
    assert "stage 1 (rank 1): step 1 has 24 of 12 blocks" in text(done, "blocks-in-excess")


def test_a_capture_that_ends_inside_a_step_is_truncated_on_all_ranks() -> None:
    made = whole()
    last = made.spans.filter(pl.col("step") == 2)
    end = int(last["start_ns"].min() + (last["end_ns"].max() - last["start_ns"].min()) * 0.6)  # type: ignore[operator]
    done = check(without(made, pl.col("end_ns") > end))
    assert noted(done).keys() == {"steps-truncated", "steps-not-whole"}
    assert {note.level for note in done.notes} == {"note"}
    assert steps(done) == {0: True, 1: True, 2: False}


def test_a_capture_that_begins_inside_a_step() -> None:
    made = whole()
    first = made.spans.filter(pl.col("step") == 0)
    begin = int(first["start_ns"].min() + (first["end_ns"].max() - first["start_ns"].min()) * 0.4)  # type: ignore[operator]
    done = check(without(made, pl.col("start_ns") < begin))
    assert noted(done).keys() == {"steps-truncated", "steps-not-whole"}
    assert steps(done) == {0: False, 1: True, 2: True}


def test_steps_that_the_profiler_announced_are_never_truncated_by_the_capture() -> None:
    made = replace(whole(), declared=Declared(steps=(0, 3)))
    done = check(without(made, at(3, 2) & (nth >= PARTS - 2)))
    assert noted(done)["blocks-missing"] == ("warning", 1)


def test_steps_that_were_announced_and_are_on_no_rank() -> None:
    done = check(replace(whole(), declared=Declared(steps=(0, 5))))
    assert noted(done) == {"steps-missing": ("warning", 1)}
    assert "announced steps 0-4, and no rank has steps 3-4" in text(done, "steps-missing")


def test_no_whole_step_is_a_warning() -> None:
    done = check(without(whole(), (pl.col("rank") == 1) & (nth == 4)))
    assert noted(done) == {"blocks-missing": ("warning", 3), "no-whole-step": ("warning", 1)}
    assert not any(steps(done).values())


def test_a_rank_whose_steps_are_numbered_otherwise_lies_apart() -> None:
    """Rank 2 lacks step 1, and its source counts what it has: its step 1 is the others' step 2."""
    made = without(whole(), at(2, 1))
    counted = pl.when(at(2, 2)).then(1).otherwise("step").cast(pl.Int32).alias("step")
    done = check(replace(made, spans=made.spans.with_columns(counted)))
    assert noted(done).keys() == {"blocks-missing", "steps-apart", "steps-not-whole"}
    assert text(done, "steps-apart").startswith("stage 2 (rank 2): step 1 lies")
    assert steps(done) == {0: True, 1: False, 2: False}


def test_weights_apart_may_leave_the_first_stage_without_input_gradients() -> None:
    made = whole()
    backward = made.spans.filter(pl.col("kind") == "B").with_columns(kind=pl.lit("W"))
    both = pl.concat([made.spans, backward.with_columns(pl.col("start_ns") + 1)])
    done = check(replace(made, spans=both.filter(~((pl.col("rank") == 0) & (pl.col("kind") == "B")))))
    assert not done.notes
    lost = check(replace(made, spans=both.filter(~(at(2, 1) & (pl.col("kind") == "W") & (pl.col("microbatch") == 3)))))
    assert "stage 2 (rank 2): step 1 has 17 of 18 blocks" in text(lost, "blocks-missing")


def test_a_step_that_runs_forward_only_is_whole() -> None:
    assert not check(without(whole(), (pl.col("step") == 1) & (pl.col("kind") == "B"))).notes


def test_stages_and_ranks_that_are_missing_are_named() -> None:
    made = whole()
    sizes = Declared(pp=6, tp=1, dp=1)
    done = check(replace(without(made, pl.col("rank") == 1), declared=sizes))
    assert noted(done) == {"ranks-missing": ("warning", 3)}
    said = "no blocks of ranks 1,4-5 are in the data, nor of any rank of stages 1,4-5 of 6; the job has 6 ranks"
    assert said in text(done, "ranks-missing")
    without_sizes = check(replace(without(made, pl.col("rank") == 1), declared=Declared(pp=6)))
    assert noted(without_sizes) == {"stages-missing": ("warning", 3)}
    assert "no rank of stages 1,4-5 of 6 is in the data" in text(without_sizes, "stages-missing")
    assert not check(replace(made, declared=sizes), all_ranks=False).notes


def test_ranks_that_are_replicas_of_others_may_be_missing() -> None:
    done = check(replace(whole(), declared=Declared(world=8)))
    assert noted(done) == {"ranks-missing": ("note", 4)}


def test_a_stage_with_fewer_ranks_than_the_others() -> None:
    done = check(without(whole(replicas=2), pl.col("rank") == 6))
    assert noted(done) == {"stages-uneven": ("warning", 1)}
    assert "stage 2 has 1 rank in" in text(done, "stages-uneven")


def test_times_of_clocks_that_are_not_aligned_are_not_compared() -> None:
    run = make(Clocks(steps=STEPS, stages=STAGES, microbatches=MICROBATCHES, ranks_per_host=2, offset_us=3e7))
    apart = check(run.profile)
    assert "steps-apart" in noted(apart)
    assert not check(run.profile, one_clock=False).notes


def test_steps_that_a_clock_set_back_puts_before_earlier_ones_have_no_step_time(tmp_path: Path) -> None:
    """The clock is set back by 5 s between the steps 1 and 2."""
    blocks = nsys.blocks_of(STAGES, MICROBATCHES, STEPS, random.Random(1))
    late = [replace(b, start_ns=b.start_ns + 5 * 10**9, end_ns=b.end_ns + 5 * 10**9) for b in blocks if b.step < 2]
    nsys.record(tmp_path, [*late, *(b for b in blocks if b.step == 2)], 1, (0,), random.Random(1))
    run = trace_export.load(tmp_path)
    (note,) = [note for note in run.notes if note.code == "steps-out-of-order"]
    assert (note.level, note.count) == ("warning", STAGES)
    assert "step 2 on ranks 0-3" in note.text
    times = run.report().steps.sort("step")["step_ns"].to_list()
    assert times[0] is not None
    assert times[0] > 0
    assert times[1:] == [None, None]


@pytest.mark.parametrize("counts", [(4, 8), (4, 4)])
def test_replicas_with_micro_batches_of_their_own_seem_to_be_of_different_jobs(
    tmp_path: Path, counts: tuple[int, int]
) -> None:
    """Two exports in one folder, in which nothing names ranks or steps."""
    named = nsys.Plain()
    named.steps = False
    for host, count in zip("ab", counts, strict=True):
        export = Export(host=host)
        ranks = [nsys.Rank(export, rank, 0, dialect=named) for rank in range(2)]
        nsys.fill(ranks, nsys.blocks_of(2, count, 4, random.Random(1), split=False), random.Random(1))
        export.write(tmp_path / f"{host}.sqlite")
    said = " ".join(note.text for note in trace_export.load(tmp_path).notes)
    one = "in every step ranks 0-1 have 4 forwards and ranks 2-3 have 8: they seem to be of different jobs"
    assert (one in said) is (counts[0] != counts[1])
