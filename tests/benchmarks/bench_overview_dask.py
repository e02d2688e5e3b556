"""An overview on a Dask cluster beside local processes, and workers that are killed while it reads.

    python -m tests.benchmarks.bench_overview_dask [--replicas 16] [--pairs 3] [--kills 1] [--place FOLDER]

Span tables of pipelines of 16 stages with 8 tensor-parallel ranks, one task for each replica. Two local processes and
a cluster of two workers with one thread each take turns, with the processor time of all processes, the scheduler's
among it. Then a worker is killed at a random moment and started again. It fails where the files are not those of the
local processes, byte for byte.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil

import trace_export
from tests.benchmarks import table
from tests.benchmarks.measure import Amount
from tests.benchmarks.table import Row
from tests.support.dask_cluster import DaskCluster, dask_cluster
from tests.support.many_ranks import ManyRanks, write

AIM = 1.2
NAMES = ("left", "right")


def written(logs: Path, out: Path, scheduler: str | None) -> dict[str, bytes]:
    done = trace_export.overview(
        logs, out, ["html", "parquet"], scheduler=scheduler, jobs=None if scheduler else 2, force=True
    )
    if done.overview.unread:
        raise SystemExit(f"{done.overview.unread} sources were lost")
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


def rows(options: argparse.Namespace) -> Iterator[Row]:
    replicas, pairs = (12, 1) if options.quick else (options.replicas, options.pairs)
    logs = options.place / f"tables_of_{replicas}"
    if not logs.exists():
        write(logs, ManyRanks(replicas=replicas))
    with tempfile.TemporaryDirectory() as folder, dask_cluster(Path(folder), *NAMES) as cluster:
        out, turns = Path(folder) / "out", []
        for pair in range(pairs + 1):
            here = timed(logs, out, cluster, None)
            there = timed(logs, out, cluster, cluster.address)
            if there[2] != here[2]:
                raise SystemExit("the cluster wrote other bytes")
            if pair:  # in the first, the workers import the program
                turns.append((*here[:2], *there[:2]))
        wall, cpu, on_dask, cpu_on_dask = (statistics.median(values) for values in zip(*turns, strict=True))
        what = f"overview of {replicas * 128:,} ranks on 2 Dask workers"
        yield Row(what, Amount(on_dask, "s", cpu_on_dask), "2 processes", Amount(wall, "s", cpu), AIM)
        for _ in range(options.kills):
            killed(logs, out, cluster, here[2], wall)
        yield Row(f"{what}, one of which is killed: the same files", Amount(options.kills, f"of {options.kills}"))


def killed(logs: Path, out: Path, cluster: DaskCluster, expected: dict[str, bytes], seconds: float) -> None:
    """A run during which one worker is killed."""
    victim = random.choice(NAMES)
    timer = threading.Timer(random.uniform(0.0, 0.9) * seconds, cluster.workers[victim].kill)
    timer.start()
    same = written(logs, out, cluster.address) == expected
    timer.cancel()
    if not same:
        raise SystemExit(f"other bytes after {victim} was killed")
    cluster.make_whole(*NAMES)


if __name__ == "__main__":
    parser = table.parser(__doc__)
    parser.add_argument("--replicas", type=int, default=16)
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--kills", type=int, default=1)
    parser.add_argument("--place", type=Path, default=Path(tempfile.gettempdir()) / "trace_export_bench_overview")
    table.main(rows, parser.parse_args())
