"""How fast Nsight Systems exports are read, as ratios against a plain SQLite scan in the same run.

    python -m tests.benchmarks.bench_nsys [--kernels 1000000] [--rounds 10] [--unmarked]

Makes exports of 8 processes with nested ranges, 2.75 calls for each kernel. For each size: the scan (all columns that
are needed, summed by SQLite) and the whole command with both trace files, in turns, and the command's peak memory; it
fails where a block is not exact. Then how much longer the reader takes when it ignores the names of the same passes and
finds them from their launches (`--unmarked`: only that). On a busy machine the ratios of processor time say more than
those of the clock.
"""

import argparse
import sqlite3
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import polars as pl

from samples.generators.nsys_export import VM, Export
from tests.benchmarks import table
from tests.benchmarks.measure import PROGRAM, compile_package, median, of_command, of_work
from tests.benchmarks.table import Row

PROCESSES, PER_BLOCK, MICROBATCHES, INNER = 8, 220, 16, 12
KINDS = "FBW"
CALL, GAP = 6_000, 60_000
PERIOD = PER_BLOCK * CALL + GAP
AIMS = {250_000: 4.0, 1_000_000: 2.0}
"""The most that the whole command may take of the scan, by kernels."""
LEAST_UNMARKED = 170_000
"""Two steps, with fewer no pass is found without names."""
AIM_UNMARKED, AIM_MEMORY = 1.3, 250.0
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
from tests.support.one_source import read
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


def make(path: Path, kernels: int) -> pl.DataFrame:
    """An export with about `kernels` kernels over all processes; the truth: rank, marker, start_ns, end_ns."""
    blocks = max(1, round(kernels / PROCESSES / PER_BLOCK))
    export = Export()
    names = [export.string(n) for n in NAMES]
    for name in ("CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_RUNTIME", "NVTX_EVENTS"):
        export.rows[name] = []
    export.write(path)
    truth = []
    with closing(sqlite3.connect(path)) as db:
        db.executescript("PRAGMA journal_mode = off; PRAGMA synchronous = off;")
        for first in range(0, blocks, 3 * MICROBATCHES):
            numbers = np.arange(first, min(first + 3 * MICROBATCHES, blocks))
            parts = [step(rank, numbers, names) for rank in range(PROCESSES)]
            for name, place in (("NVTX_EVENTS", 0), ("CUPTI_ACTIVITY_KIND_RUNTIME", 1)):
                rows = sorted((row for part in parts for row in part[place]), key=lambda row: row[0])
                db.executemany(f"INSERT INTO {name} VALUES ({','.join('?' * len(rows[0]))})", rows)
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


def read_command(path: Path, infer: str) -> list[str]:
    return [sys.executable, "-c", READ, str(path), infer, str(path.with_suffix(f".{infer}.csv"))]


def marked(kernels: int, rounds: int, folder: Path) -> Iterator[Row]:
    path = folder / "in" / "node0.sqlite"
    path.parent.mkdir(parents=True)
    truth = make(path, kernels)
    export = [*PROGRAM, "--log_dir", path.parent, "--out", folder / "out"]
    turns = [(of_work(lambda: scan(path)), of_command(export)) for _ in range(rounds)]
    unit, whole = (median(turn[place] for turn in turns) for place in range(2))
    of_command([*export, "--format", "parquet", "--align", "none"])
    got = pl.read_parquet(folder / "out" / "pipeline_profile.parquet").select(truth.columns)
    if sorted(got.rows()) != sorted(truth.rows()):
        raise SystemExit(f"{kernels} kernels: blocks are wrong")
    what = f"nsys, {kernels:,} kernels"
    yield Row(f"{what}: whole command", whole.seconds, "scan", unit.seconds, AIMS.get(kernels))
    yield Row(f"{what}: memory", whole.megabytes, aim=AIM_MEMORY)


def unmarked(kernels: int, rounds: int, folder: Path) -> Iterator[Row]:
    path = folder / "node0.sqlite"
    folder.mkdir(parents=True)
    whole = 3 * MICROBATCHES * PROCESSES * PER_BLOCK
    make(path, max(1, round(kernels / whole)) * whole)
    turns = [tuple(of_command(read_command(path, infer)) for infer in ("auto", "only")) for _ in range(rounds)]
    by_names, by_launches = (median(turn[place] for turn in turns) for place in range(2))
    names, launches = (pl.read_csv(path.with_suffix(f".{infer}.csv")) for infer in ("auto", "only"))
    if not names.equals(launches.filter(pl.col("kind") != "OPT")):
        raise SystemExit(f"{kernels} kernels without names: blocks differ")
    what = f"nsys, {kernels:,} kernels without names"
    yield Row(f"{what}: reader", by_launches.seconds, "by names", by_names.seconds, AIM_UNMARKED)


def rows(options: argparse.Namespace) -> Iterator[Row]:
    sizes = [20_000] if options.quick else [int(n) for n in options.kernels.split(",")]
    rounds = 1 if options.quick else options.rounds
    compile_package()
    with tempfile.TemporaryDirectory() as name:
        if not options.unmarked:
            for size in sizes:
                yield from marked(size, rounds, Path(name) / str(size))
        yield from unmarked(max(sizes[-1], LEAST_UNMARKED), min(rounds, 5), Path(name) / "unmarked")


if __name__ == "__main__":
    parser = table.parser(__doc__)
    parser.add_argument("--kernels", default="1000000", help="numbers of kernels, comma-separated")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--unmarked", action="store_true", help="only blocks that are found without names")
    table.main(rows, parser.parse_args())
