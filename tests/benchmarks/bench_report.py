"""How long the report takes: 1,024 ranks × 10 steps × 64 micro-batches (1.3 M blocks), and schedules of 64 × 512.

Run: python tests/benchmarks/bench_report.py. Prints seconds, those of the processors (which a busy machine does not
stretch), and the ratio to sorting the same table once by (rank, step, start), the least that any analysis has to do.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import polars as pl

from trace_export.analysis.report import report
from trace_export.model import RANKS, Profile, conform
from trace_export.pipeline.interpret import conclude, with_ids
from trace_export.pipeline.replicas import number_replicas
from trace_export.pipeline.schedule_match import recognise
from trace_export.schedules.schedule import schedule
from trace_export.schedules.simulate import Costs, as_profile, durations, simulate, start_and_end

STAGES, REPLICAS, STEPS, MICROBATCHES = 16, 64, 10, 64


@dataclass(frozen=True)
class Taken:
    """Seconds that somebody waits, and seconds of all processors together."""

    wall: float
    cpu: float

    def __add__(self, other: Taken) -> Taken:
        return Taken(self.wall + other.wall, self.cpu + other.cpu)

    def __str__(self) -> str:
        return f"{self.wall:.2f} s ({self.cpu:.2f} s of processors)"


def taken(work: Callable[[], object]) -> Taken:
    wall, cpu = time.perf_counter(), time.process_time()
    work()
    return Taken(time.perf_counter() - wall, time.process_time() - cpu)


def large_run() -> Profile:
    """Replicas and steps of 1F1B, each with its own jitter."""
    s = schedule("1f1b", STAGES, MICROBATCHES)
    rng = np.random.default_rng(0)
    base = durations(s, Costs(10_000_000, 20_000_000))[:, None]
    start, end = start_and_end(s, np.round(base * rng.normal(1, 0.02, (len(s.ops), REPLICAS * STEPS))), 100_000)
    one = as_profile(s, start[:, 0], end[:, 0]).spans
    parts = []
    for case in range(REPLICAS * STEPS):
        replica, step = divmod(case, STEPS)
        times = [
            pl.Series(n, t[:, case].astype(np.int64)) + step * 10**10 for n, t in (("start_ns", start), ("end_ns", end))
        ]
        place = {"rank": pl.col("rank") + replica * STAGES, "step": pl.lit(step, pl.Int32)}
        parts.append(one.with_columns(*times, **place))
    ranks = pl.DataFrame({"rank": range(STAGES * REPLICAS)}).with_columns(
        stage=pl.col("rank") % STAGES, dp=pl.col("rank") // STAGES
    )
    run_as_read = Profile(ranks=number_replicas(conform(ranks, RANKS)), spans=pl.concat(parts))
    return with_ids(run_as_read)


def both(name: str) -> Taken:
    """What it takes to recognise a run of the schedule and to simulate it."""
    costs = Costs(10_000_000, 10_000_000, 10_000_000)
    model = simulate(schedule(name, 64, 512), costs)
    return taken(lambda: recognise(model)) + taken(lambda: simulate(schedule(name, 64, 512), costs))


def main() -> None:
    profile = large_run()
    least = taken(lambda: profile.spans.sort("rank", "step", "start_ns"))
    whole = taken(lambda: report(conclude(profile)))
    print(f"report of {len(profile.spans):,} blocks: {whole}, goal 5 s; {whole.cpu / least.cpu:.0f} × one sort")
    for name in ("1f1b", "interleaved", "zb-h1", "zb-v", "dualpipev"):
        print(f"{name}, 64 stages, 512 micro-batches: recognition and simulation {both(name)}, goal 1 s")


if __name__ == "__main__":
    main()
