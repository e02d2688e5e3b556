"""An overview on a Dask cluster beside local processes, and workers that are killed while it reads.

    python tests/benchmarks/bench_overview_dask.py [--replicas 96] [--pairs 3] [--kills 10] [--place FOLDER]

Span tables of pipelines of 16 stages with 8 tensor-parallel ranks, one task for each replica. Two local processes and
a cluster of two workers with one thread each take turns; printed are wall seconds, and the processor seconds of all
processes, those of the scheduler among them. Then a worker is killed at a random moment and started again, and the
files have to be those of the local processes, byte for byte.

Figures to reach: 1.2 times the time of the local processes; the same bytes, ten times of ten.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

import psutil  # noqa: E402

import trace_export  # noqa: E402
from tests.support.dask_cluster import DaskCluster, dask_cluster  # noqa: E402
from tests.support.many_ranks import ManyRanks, write  # noqa: E402

NAMES = ("left", "right")


def written(logs: Path, out: Path, scheduler: str | None) -> dict[str, bytes]:
    done = trace_export.overview(
        logs, out, ["html", "parquet"], scheduler=scheduler, jobs=None if scheduler else 2, force=True
    )
    if done.overview.unread:
        sys.exit(f"{done.overview.unread} sources were lost")
    return {path.name: path.read_bytes() for path in done.files}


def processor(cluster: DaskCluster) -> float:
    """Seconds of this process, of its children that have ended, and of the cluster."""
    own = sum(os.times()[:4])
    return own + sum(
        sum(psutil.Process(process.pid).cpu_times()[:2]) for process in (cluster.scheduler, *cluster.workers.values())
    )


def timed(logs: Path, out: Path, cluster: DaskCluster, scheduler: str | None) -> tuple[float, float, dict[str, bytes]]:
    begun, before = time.perf_counter(), processor(cluster)
    files = written(logs, out, scheduler)
    return time.perf_counter() - begun, processor(cluster) - before, files


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--replicas", type=int, default=96)
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--place", type=Path, default=Path(tempfile.gettempdir()) / "trace_export_bench_overview")
    options = parser.parse_args()
    logs = options.place / f"tables_of_{options.replicas}"
    if not logs.exists():
        write(logs, ManyRanks(replicas=options.replicas))
    chance = random.Random(1)
    with tempfile.TemporaryDirectory() as folder, dask_cluster(Path(folder), *NAMES) as cluster:
        out, expected = Path(folder) / "out", {}
        ratios: list[tuple[float, float]] = []
        seconds = 0.0
        for pair in range(options.pairs + 1):
            here = timed(logs, out, cluster, None)
            there = timed(logs, out, cluster, cluster.address)
            expected, seconds = here[2], there[0]
            print(
                f"local {here[0]:.1f} s ({here[1]:.1f} s of the processors), Dask {there[0]:.1f} s ({there[1]:.1f} s)"
            )
            if there[2] != expected:
                sys.exit("the cluster wrote other bytes")
            if pair:  # in the first, the workers import the program
                ratios.append((there[0] / here[0], there[1] / here[1]))
        wall, processors = (statistics.median(ratio) for ratio in zip(*ratios, strict=True))
        print(f"Dask by local: {wall:.2f} of the time, {processors:.2f} of the processors' time")
        for number in range(options.kills):
            moment = chance.uniform(0.0, 0.9) * seconds
            victim = chance.choice(NAMES)
            timer = threading.Timer(moment, cluster.workers[victim].kill)
            timer.start()
            same = written(logs, out, cluster.address) == expected
            timer.cancel()
            killed = cluster.workers[victim].poll() is not None
            print(f"{number}: {victim} {'killed' if killed else 'outlived it'} after {moment:.1f} s:", same)
            if not same:
                sys.exit("other bytes")
            cluster.make_whole(*NAMES)


if __name__ == "__main__":
    main()
