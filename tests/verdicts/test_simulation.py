"""The simulation that gives the truth of the verdicts, held against closed forms and against its own parts."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from samples.generators.data_parallel import Job, Receives, simulate
from samples.generators.pipeline import MS

BARE = Job(hop=0, lead=0, gather=0, reduce=0, norm=0, gap=0)


@pytest.mark.parametrize(("stages", "microbatches"), [(2, 6), (4, 8), (3, 12)])
def test_the_bubble_of_1f1b_has_its_closed_form(stages: int, microbatches: int) -> None:
    """(p - 1) / (m + p - 1)."""
    job = replace(BARE, stages=stages, microbatches=microbatches)
    assert simulate(job).bubble(job) == pytest.approx((stages - 1) / (microbatches + stages - 1))


@pytest.mark.parametrize(("stages", "microbatches"), [(2, 6), (4, 8)])
def test_the_bubble_of_interleaved_1f1b_has_its_closed_form(stages: int, microbatches: int) -> None:
    """(p - 1) / (v m + p - 1) with v = 2 chunks."""
    job = replace(BARE, stages=stages, microbatches=microbatches, schedule="interleaved")
    assert simulate(job).bubble(job) == pytest.approx((stages - 1) / (2 * microbatches + stages - 1))


@pytest.mark.parametrize("factor", [1.2, 1.5])
def test_a_stage_that_is_slow_costs_its_surplus_on_every_microbatch(factor: float) -> None:
    """Of the last stage, which never waits once it has begun: 3 F + m (F' + B') + 3 B."""
    slow = replace(BARE, slow={(a, BARE.stages - 1): factor for a in range(BARE.replicas)})
    surplus = BARE.microbatches * (factor - 1) * (BARE.forward + BARE.backward)
    assert simulate(slow).step_ns - simulate(BARE).step_ns == pytest.approx(surplus)


def test_a_longer_reduction_costs_what_it_is_longer() -> None:
    """Of the stage that ends last: the first, as its backward is the last of all."""
    longer = replace(BARE, longer={("reduce_scatter", 0): 10 * MS})
    assert simulate(longer).step_ns - simulate(BARE).step_ns == 10 * MS


def test_sizes_of_microbatches_do_not_change_the_work() -> None:
    even, uneven = (simulate(replace(BARE, uneven=s, steps=2)) for s in (0.0, 0.3))
    work = [sum(b.end_ns - b.start_ns for b in run.blocks if b.kind != "OPT") for run in (even, uneven)]
    assert work[1] == pytest.approx(work[0], rel=1e-6)


@pytest.mark.parametrize("receives", ["early", "at once"])
def test_a_transfer_begins_when_both_sides_are_there(receives: Receives) -> None:
    job = Job(receives=receives, jitter=0.02, tensor=2)
    run = simulate(job)
    assert all(t.done_ns == max(t.sent_ns, t.posted_ns) + job.hop for t in run.transfers)


def test_what_is_planted_changes_no_chance() -> None:
    """Blocks of ranks before the planted place are the same to the nanosecond in the first step."""
    job = Job(jitter=0.02, spread=0.01, uneven=0.1, receives="early")
    before, after = simulate(job), simulate(replace(job, slow={(1, 2): 1.5}))
    lengths = [
        {(b.rank, b.step, b.kind, b.microbatch): b.end_ns - b.start_ns for b in run.blocks} for run in (before, after)
    ]
    changed = {key[0] for key in lengths[0] if lengths[0][key] != lengths[1][key]}
    assert changed == {job.rank(1, 2)}


def test_what_is_planted_in_some_steps_changes_no_other() -> None:
    job = replace(BARE, jitter=0.02, steps=4)
    runs = [simulate(job), simulate(replace(job, slow_ranks={3: 1.5}, during=frozenset({2})))]
    lengths = [{(b.rank, b.step, b.kind, b.microbatch): b.end_ns - b.start_ns for b in run.blocks} for run in runs]
    changed = {key[:2] for key in lengths[0] if lengths[0][key] != lengths[1][key]}
    assert changed == {(3, 2)}
    assert runs[1].begins[2] == runs[0].begins[2]


def test_a_warm_up_makes_the_first_steps_longer() -> None:
    """By its factor, where there is nothing but blocks and optimizers of no length."""
    begins = simulate(replace(BARE, optimizer=0, steps=4, warm_up=(5.0, 2.0))).begins
    first, second, third = (b - a for a, b in pairwise(begins))
    assert (first, second) == (5 * third, 2 * third)


@pytest.mark.parametrize("stages_first", [False, True])
def test_the_place_of_a_rank_is_where_it_was_put(stages_first: bool) -> None:
    job = Job(replicas=3, tensor=2, stages_first=stages_first)
    spots = [(a, s, t) for a in range(3) for s in range(4) for t in range(2)]
    assert sorted(job.rank(*spot) for spot in spots) == list(range(job.ranks))
    assert all(job.place(job.rank(*spot)) == spot for spot in spots)
