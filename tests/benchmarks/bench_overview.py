"""An overview of very many ranks, from span tables of hosts with planted exceptions.

    python tests/benchmarks/bench_overview.py [--replicas 782] [--jobs N] [--place FOLDER]

128 ranks (16 stages of 8 tensor-parallel ranks) to a replica, so that 782 are 100,096 ranks and 13 million blocks, in
12,512 tables (200 MB, kept in FOLDER for the next run). Prints wall and processor seconds, the largest memory of any
process, and the size of the page. Fails where the exceptions are not exactly those that were planted. Figures to reach
on two cores: 10 minutes, 1 GB, 5 MB.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

import polars as pl  # noqa: E402

from tests.support.many_ranks import ManyRanks, Planted, write  # noqa: E402


def command(logs: Path, out: Path, jobs: int | None) -> list[str]:
    chosen = ["--jobs", str(jobs)] if jobs else []
    place = ["overview", str(logs), "--out", str(out), "--format", "html,parquet", "--quiet"]
    return [sys.executable, "-m", "trace_export", *place, *chosen]


def named(table: pl.DataFrame) -> Planted:
    """The exceptions as what might have been planted."""

    def of(kind: str, *columns: str) -> list[tuple[object, ...]]:
        return sorted(table.filter(pl.col("kind") == kind).select(columns).rows())

    return Planted(
        ranks=tuple(row[0] for row in of("slow-rank", "rank")),  # type: ignore[misc]
        links=tuple(sorted((min(row), max(row)) for row in of("slow-link", "rank", "to_rank"))),  # type: ignore[type-var]
        hosts=tuple(row[0] for row in of("drifting-clock", "host")),  # type: ignore[misc]
        replicas=tuple(row[0] for row in of("settings", "replica")),  # type: ignore[misc]
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--replicas", type=int, default=782)
    parser.add_argument("--jobs", type=int)
    parser.add_argument("--place", type=Path, default=Path(tempfile.gettempdir()) / "trace_export_bench_overview")
    options = parser.parse_args()
    run = ManyRanks(replicas=options.replicas).with_exceptions()
    logs = options.place / f"ranks{run.ranks}"
    if not logs.exists():
        write(logs, run)
    with tempfile.TemporaryDirectory() as out:
        begun, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        subprocess.run(command(logs, Path(out), options.jobs), env=environment, check=True)
        used, seconds = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter() - begun
        processor = used.ru_utime + used.ru_stime - before.ru_utime - before.ru_stime
        page = (Path(out) / "pipeline_overview.html").stat().st_size / 1e6
        print(
            f"{run.ranks} ranks: {seconds:.0f} s, {processor:.0f} s of the processors"
            f" ({processor / run.ranks * 1e3:.2f} ms a rank),"
            f" at most {used.ru_maxrss / 1e3:.0f} MB a process, page {page:.1f} MB"
        )
        found = named(pl.read_parquet(Path(out) / "pipeline_overview.exceptions.parquet"))
        planted = run.planted
        expected = Planted(tuple(sorted(planted.ranks)), tuple(sorted(planted.links)), planted.hosts, planted.replicas)
        if found != expected:
            sys.exit(f"named {found}, planted {expected}")


if __name__ == "__main__":
    main()
