"""Ranks that wait until what they sent is taken, told from those that go on."""

from dataclasses import replace

import numpy as np
import polars as pl
import pytest

from samples.generators.data_parallel import Job, simulate
from samples.generators.pipeline import MS, US
from tests.support.rows import crossed
from trace_export.steps.batches import Batches, infer

JOB = Job(replicas=1, microbatches=8, steps=2, hop=US, lead=0, clipped=False, jitter=0.03)


def batches(job: Job) -> tuple[Batches | None, list[tuple[int, str]]]:
    """What `infer` says of the blocks of a job, and rank and kind of each block."""
    run = simulate(job)
    blocks = sorted((b for b in run.blocks if b.kind != "OPT"), key=lambda b: (b.rank, b.start_ns))
    row = {(b.rank, b.step, b.kind, b.microbatch, b.chunk): n for n, b in enumerate(blocks)}
    edges = []
    for t in run.transfers:
        turns = {("F", 0, job.stages - 1): 1, ("B", job.stages - 1, 0): -1}  # the chunk before of a ring
        chunk = t.chunk - (turns.get((t.kind, t.receiver, t.sender), 0) if job.stages > 2 else 0)
        edges.append(
            (row[t.sender, t.step, t.kind, t.microbatch, chunk], row[t.receiver, t.step, t.kind, t.microbatch, t.chunk])
        )
    src, dst = np.array(edges).T
    opens = [n == 0 or (b.rank, b.step) != (blocks[n - 1].rank, blocks[n - 1].step) for n, b in enumerate(blocks)]
    table = pl.DataFrame({name: [getattr(b, name) for b in blocks] for name in ("rank", "kind", "chunk")})
    start, end = (np.array([getattr(b, name) for b in blocks]) for name in ("start_ns", "end_ns"))
    result = infer(table, src, dst, np.array(opens), start, end, timed=False)
    return result, [(b.rank, b.kind) for b in blocks]


@pytest.mark.parametrize(("schedule", "stages"), crossed(["interleaved", "zb-h1"], [3, 4]))
def test_awaited_sends_are_told_from_others(schedule: str, stages: int) -> None:
    job = replace(JOB, schedule=schedule, stages=stages, microbatches=12, head=2.0)
    assert batches(replace(job, rendezvous=True))[0] is not None
    for receives in ("early", "at once", "late", "random"):
        assert batches(replace(job, receives=receives))[0] is None


def test_a_forward_and_a_backward_of_the_steady_state_are_one_batch() -> None:
    result, blocks = batches(replace(JOB, schedule="interleaved", rendezvous=True))
    assert result is not None
    sizes = result.last - result.first + 1
    warm = (JOB.stages - 1) * 2 + JOB.stages  # forwards of rank 0 before its first backward, but one
    kinds = [kind for rank, kind in blocks if rank == 0][: 4 * JOB.microbatches]
    assert sizes[:warm].tolist() == [1] * warm
    assert sizes[warm : warm + 4].tolist() == [2] * 4
    assert kinds[warm : warm + 4] == ["F", "B"] * 2


def test_a_step_of_1f1b_takes_as_long_with_awaited_sends() -> None:
    """Each send is taken before the next data are there, so that nothing shows whether it was awaited."""
    plain = replace(JOB, jitter=0.0, hop=MS)
    assert simulate(plain).step_ns == simulate(replace(plain, rendezvous=True)).step_ns
    assert batches(plain)[0] is None
