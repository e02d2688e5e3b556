"""How long the report takes: 1,024 ranks × 10 steps × 64 micro-batches (1.3 M blocks), and schedules of 64 × 512.

    python -m tests.benchmarks.bench_report

Of the schedules the row is of the one that takes longest.
"""

import argparse
from collections.abc import Iterator

import numpy as np
import polars as pl

from tests.benchmarks import table
from tests.benchmarks.measure import Cost, of_work
from tests.benchmarks.table import Row
from tests.support.profiles import recognised
from tests.support.reports import report_of
from trace_export.model import RANKS, Profile, conform
from trace_export.pipeline.interpret import conclude, with_ids
from trace_export.pipeline.replicas import number_replicas
from trace_export.schedules.schedule import schedule
from trace_export.schedules.simulate import Costs, as_profile, durations, simulate, start_and_end

STAGES, REPLICAS, STEPS, MICROBATCHES = 16, 64, 10, 64


def large_run(replicas: int) -> Profile:
    """Replicas and steps of 1F1B, each with its own jitter."""
    s = schedule("1f1b", STAGES, MICROBATCHES)
    rng = np.random.default_rng(0)
    base = durations(s, Costs(10_000_000, 20_000_000))[:, None]
    start, end = start_and_end(s, np.round(base * rng.normal(1, 0.02, (len(s.ops), replicas * STEPS))), 100_000)
    one = as_profile(s, start[:, 0], end[:, 0]).spans
    parts = []
    for case in range(replicas * STEPS):
        replica, step = divmod(case, STEPS)
        times = [
            pl.Series(n, t[:, case].astype(np.int64)) + step * 10**10 for n, t in (("start_ns", start), ("end_ns", end))
        ]
        place = {"rank": pl.col("rank") + replica * STAGES, "step": pl.lit(step, pl.Int32)}
        parts.append(one.with_columns(*times, **place))
    ranks = pl.DataFrame({"rank": range(STAGES * replicas)}).with_columns(
        stage=pl.col("rank") % STAGES, dp=pl.col("rank") // STAGES
    )
    run_as_read = Profile(ranks=number_replicas(conform(ranks, RANKS)), spans=pl.concat(parts))
    return with_ids(run_as_read)


def both(name: str, stages: int, microbatches: int) -> Cost:
    """What it takes to recognise a run of the schedule and to simulate it."""
    costs = Costs(10_000_000, 10_000_000, 10_000_000)
    model = simulate(schedule(name, stages, microbatches), costs)
    return of_work(lambda: recognised(model)) + of_work(lambda: simulate(schedule(name, stages, microbatches), costs))


def rows(options: argparse.Namespace) -> Iterator[Row]:
    profile = large_run(2 if options.quick else REPLICAS)
    whole = of_work(lambda: report_of(conclude(profile)))
    what = f"report of {len(profile.spans) / 1e6:.2g} M blocks"
    yield Row(what, whole.seconds, aim=3.0)
    stages, microbatches = (8, 16) if options.quick else (64, 512)
    names = ("1f1b", "interleaved", "zb-h1", "zb-v", "dualpipev")
    taken, name = max(((both(name, stages, microbatches), name) for name in names), key=lambda each: each[0].wall)
    what = f"{name}, {stages} stages, {microbatches} micro-batches: recognised and simulated"
    yield Row(what, taken.seconds, aim=1)


if __name__ == "__main__":
    table.main(rows, table.parser(__doc__).parse_args())
