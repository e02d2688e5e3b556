"""How fast Nsight Systems exports are read, as ratios against a plain SQLite scan in the same run.

    python tests/benchmarks/bench_nsys.py [--kernels 250000,1000000] [--unmarked]

Makes exports of 8 processes with nested ranges, 2.75 calls for each kernel, and prints for each size: the time of the
scan (all columns that are needed, summed by SQLite), the ratios of the reader alone and of the whole command with both
trace files, the command's peak memory, and whether every block is exact. Then the same rows in four files, with one job
and with one for each core. With `--unmarked` only how much longer the reader takes, and what memory, when it ignores
the names of the same passes and finds them from their launches. On a busy machine the ratios of processor time say more
than those of the clock.
"""

from __future__ import annotations

import argparse
import compileall
import os
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT))
from samples.generators.nsys_export import VM, Export  # noqa: E402

PROCESSES, PER_BLOCK, MICROBATCHES, INNER = 8, 220, 16, 12
KINDS = "FBW"
CALL, GAP = 6_000, 60_000
PERIOD = PER_BLOCK * CALL + GAP
ROUNDS = 3
SCAN = """
SELECT total(start), total("end"), total(deviceId), total(streamId), total(correlationId), total(globalPid),
    total(shortName) FROM CUPTI_ACTIVITY_KIND_KERNEL;
SELECT total(start), total("end"), total(globalTid), total(correlationId), total(nameId)
    FROM CUPTI_ACTIVITY_KIND_RUNTIME;
SELECT total(start), total("end"), total(globalTid), total(length(text)) FROM NVTX_EVENTS;
"""
READ = """
import sys
from pathlib import Path
from trace_export.sources.nsys.reader import read
from trace_export.sources.source import ReadOptions, Source
profile = read(Source("nsys", Path(sys.argv[1]), "host"), ReadOptions(infer=sys.argv[2]))
profile.spans.select("rank", "kind", "start_ns", "end_ns").sort("rank", "start_ns").write_csv(sys.argv[3])
"""
NAMES = (
    "gemm", "cudaLaunchKernel_v7000", "cuLaunchKernelEx", "cudaEventRecord_v3020", "cudaDeviceSynchronize_v3020",
    "FusedAdam", *(f"kernel_{n}" for n in range(12)),
)  # fmt: skip
OPTIMIZER, OTHERS = 5, 6
"""Places in NAMES."""
SYNCHRONIZE, UPDATE = 10**8, 10**9
"""Where the correlation ids of waits and of the optimizer's launches begin."""


def make(path: Path, kernels: int, processes: Iterable[int] = range(PROCESSES)) -> pl.DataFrame:
    """An export with about `kernels` kernels over all processes; the truth: rank, marker, start_ns, end_ns."""
    blocks = max(1, round(kernels / PROCESSES / PER_BLOCK))
    export = Export()
    names = [export.string(n) for n in NAMES]
    for table in ("CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_RUNTIME", "NVTX_EVENTS"):
        export.rows[table] = []
    export.write(path)
    truth = []
    with closing(sqlite3.connect(path)) as db:
        db.executescript("PRAGMA journal_mode = off; PRAGMA synchronous = off;")
        for first in range(0, blocks, 3 * MICROBATCHES):
            numbers = np.arange(first, min(first + 3 * MICROBATCHES, blocks))
            parts = [step(rank, numbers, names) for rank in processes]
            for table, place in (("NVTX_EVENTS", 0), ("CUPTI_ACTIVITY_KIND_RUNTIME", 1)):
                rows = sorted((row for part in parts for row in part[place]), key=lambda row: row[0])
                db.executemany(f"INSERT INTO {table} VALUES ({','.join('?' * len(rows[0]))})", rows)
            rows = sorted((row for part in parts for row in part[2]), key=lambda row: row[0])
            db.executemany(f"INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES ({','.join('?' * len(rows[0]))})", rows)
            truth += [row for part in parts for row in part[3]]
        db.commit()
    return pl.DataFrame(truth, ["rank", "marker", "start_ns", "end_ns"], orient="row")


Rows = list[tuple[object, ...]]


def step(rank: int, blocks: np.ndarray, names: list[int]) -> tuple[Rows, Rows, Rows, Rows]:
    """Ranges, calls, kernels and truth of one rank and one training step, whose blocks have these numbers."""
    process = 500 + 10 * rank
    thread, gemm = VM | process << 24 | process, names[0]
    ranges: Rows = []
    calls: Rows = []
    kernels: Rows = []
    truth: Rows = []

    def mark(start: int, end: int, text: str) -> None:
        ranges.append((start, end, 59, text, thread, None, None, 0))

    mark(int(blocks[0]) * PERIOD, int(blocks[-1] + 1) * PERIOD, f"iter_{rank}_{blocks[0] // (3 * MICROBATCHES)}")
    for block in blocks.tolist():
        kind, at = KINDS[block % 3], block * PERIOD + 1_000
        text = f"{kind}{block // 3 % MICROBATCHES}.0.0"
        mark(at, at + PERIOD - GAP // 2, text)
        launcher = thread + 9 if kind == "B" else thread
        calls.append((at - 500, at - 300, 0, thread, SYNCHRONIZE + block, names[4], 0))
        launch = at + 10_000 + rank + CALL * np.arange(PER_BLOCK)
        correlation = 1_000 + 3 * (block * PER_BLOCK + np.arange(PER_BLOCK))
        for j in range(INNER):
            begin = int(launch[j * PER_BLOCK // INNER])
            mark(begin - 50, begin + 90_000, f"aten::linear, seq = {j}, op_id = {block * INNER + j}")
        for i, (t, c) in enumerate(zip(launch.tolist(), correlation.tolist(), strict=True)):
            calls.append((t, t + 2_000, i % 2, launcher, c, names[1 + i % 2], 0))
            calls.append((t + 2_500, t + 3_000, 0, launcher, c + 1, names[3], 0))
            if i % 4:
                calls.append((t + 3_500, t + 4_000, 0, launcher, c + 2, names[3], 0))
            name = gemm if kind == "W" or i % 3 == 0 else names[OTHERS + i % 12]
            kernels.append((t + 30_000, t + 34_000, rank, 1, 7, c, VM | process << 24, name, name, None))
        first, last = int(launch[0]) + 30_000, int(launch[-1]) + 34_000
        truth.append((rank, text, Export.epoch_ns + first, Export.epoch_ns + last))
    end, c = int(blocks[-1] + 1) * PERIOD, UPDATE + int(blocks[-1])
    calls.append((end - 900, end - 800, 0, thread, c, names[1], 0))
    update = names[OPTIMIZER]
    kernels.append((end - 700, end - 600, rank, 1, 7, c, VM | process << 24, update, update, None))
    return ranges, calls, kernels, truth


def scan(path: Path) -> None:
    with closing(sqlite3.connect(path)) as db:
        for statement in SCAN.strip().split(";\n"):
            db.execute(statement).fetchall()


@dataclass(frozen=True)
class Cost:
    """Of the best of some rounds: seconds on the clock, seconds of processors, and the peak memory in MB."""

    wall: float
    cpu: float
    memory: int = 0

    def __truediv__(self, unit: Cost) -> str:
        return f"{self.wall / unit.wall:.2f}x ({self.cpu / unit.cpu:.2f}x of processor time)"


def best(rounds: list[Cost]) -> Cost:
    return Cost(min(c.wall for c in rounds), min(c.cpu for c in rounds), min(c.memory for c in rounds))


def scan_cost(path: Path) -> Cost:
    wall, cpu = time.perf_counter(), time.process_time()
    scan(path)
    return Cost(time.perf_counter() - wall, time.process_time() - cpu)


def cost(command: list[str]) -> Cost:
    """What a command takes, with its start and its children. Raises RuntimeError when it fails."""
    wall = time.perf_counter()
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError(f"{command} failed")
    return Cost(time.perf_counter() - wall, usage.ru_utime + usage.ru_stime, usage.ru_maxrss // 1024)


def report(kernels: int, folder: Path) -> None:
    path = folder / "in" / "node0.sqlite"
    path.parent.mkdir(parents=True)
    truth = make(path, kernels)
    export = [sys.executable, "-m", "trace_export", "--log_dir", str(path.parent), "--out", str(folder / "out")]
    unit = best([scan_cost(path) for _ in range(ROUNDS)])
    reader = best([cost(read_command(path, "auto")) for _ in range(ROUNDS)])
    whole = best([cost(export) for _ in range(ROUNDS)])
    cost([*export, "--format", "parquet", "--align", "none"])
    got = pl.read_parquet(folder / "out" / "pipeline_profile.parquet").select(truth.columns)
    exact = sorted(got.rows()) == sorted(truth.rows())
    print(
        f"{truth.height * PER_BLOCK:,} kernels, {path.stat().st_size / 1e6:.0f} MB: scan {unit.wall:.2f} s; "
        f"reader {reader / unit}; whole command {whole / unit}, {whole.wall:.2f} s, {whole.memory} MB; "
        f"{truth.height} blocks {'exact' if exact else 'WRONG'}",
        flush=True,
    )


def read_command(path: Path, infer: str) -> list[str]:
    return [sys.executable, "-c", READ, str(path), infer, str(path.with_suffix(f".{infer}.csv"))]


def report_unmarked(kernels: int, folder: Path) -> None:
    path = folder / "node0.sqlite"
    folder.mkdir(parents=True)
    whole = 3 * MICROBATCHES * PROCESSES * PER_BLOCK
    make(path, max(1, round(kernels / whole)) * whole)
    rounds = [(cost(read_command(path, "auto")), cost(read_command(path, "only"))) for _ in range(ROUNDS)]
    marked, inferred = (best([pair[side] for pair in rounds]) for side in (0, 1))
    names, launches = (pl.read_csv(path.with_suffix(f".{infer}.csv")) for infer in ("auto", "only"))
    same = names.equals(launches.filter(pl.col("kind") != "OPT"))
    print(
        f"{kernels:,} kernels: without names {inferred / marked}, {inferred.wall:.2f} s, {inferred.memory} MB "
        f"(with names {marked.memory} MB); {names.height} blocks {'the same' if same else 'DIFFER'}",
        flush=True,
    )


def report_jobs(kernels: int, folder: Path) -> None:
    (folder / "in").mkdir(parents=True)
    for part in range(4):
        make(folder / "in" / f"part{part}.sqlite", kernels, range(2 * part, 2 * part + 2))
    export = [sys.executable, "-m", "trace_export", "--log_dir", str(folder / "in"), "--out", str(folder / "out")]
    one, many = (best([cost([*export, "--jobs", str(n)]) for _ in range(ROUNDS)]) for n in (1, os.cpu_count()))
    print(f"four files: one job {one.wall:.2f} s, {os.cpu_count()} jobs {many.wall:.2f} s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kernels", default="250000,1000000", help="numbers of kernels, comma-separated")
    parser.add_argument("--unmarked", action="store_true", help="compare with blocks that are found without names")
    arguments = parser.parse_args()
    sizes = [int(n) for n in arguments.kernels.split(",")]
    compileall.compile_dir(ROOT / "trace_export", quiet=1)  # as an installed package is
    with tempfile.TemporaryDirectory() as name:
        for size in sizes:
            (report_unmarked if arguments.unmarked else report)(size, Path(name) / str(size))
        if arguments.unmarked:
            return
        report_jobs(sizes[-1], Path(name) / "jobs")


if __name__ == "__main__":
    main()
