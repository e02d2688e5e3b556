"""Who sends what to whom where chunks go round the ranks, and names of transfers tell the direction alone."""

import random
from pathlib import Path

import polars as pl
import pytest

from samples.generators import nsys
from samples.generators.data_parallel import Job, Receives, simulate
from samples.generators.nsys_export import Export
from samples.generators.pipeline import MS
from tests.support.rows import seeds
from trace_export import load


@pytest.mark.parametrize("receives", ["early", "at once"])
@pytest.mark.parametrize("seed", seeds(1, 8))
def test_messages_of_a_loop_bear_what_was_sent(receives: Receives, seed: int, tmp_path: Path) -> None:
    """The last rank passes activations to the first, and what is received early is there before further blocks."""
    stages = random.Random(seed).choice((2, 3, 4))
    job = Job(
        stages=stages, microbatches=2 * stages, replicas=1, schedule="interleaved", receives=receives, jitter=0.02,
        gap=6 * MS, seed=seed,
    )  # fmt: skip
    run, export = simulate(job), Export()
    ranks = [nsys.Rank(export, rank, 0, dialect=nsys.Plain()) for rank in range(stages)]
    nsys.fill_met(ranks, run, random.Random(seed))
    result = load(export.write(tmp_path / "node0.sqlite")).align().profile.messages
    said = result.select("src_rank", "dst_rank", "direction", "microbatch", "chunk", "send_start_ns")
    sent = [
        (t.sender, t.receiver, t.kind, t.microbatch, t.chunk, t.sent_ns + 3_000 + Export.epoch_ns)
        for t in run.transfers
    ]
    assert said.with_columns(pl.col("direction").cast(pl.String)).sort(pl.all()).rows() == sorted(sent)
