"""Many ranks at once: the whole way from folder to chart, against the sum of its sources read one by one.

    python -m tests.benchmarks.bench_scale [ascend|nsys|paddle|dask]... [--scale 1.0] [--place FOLDER]

For each the seconds of the whole run, beside reading one by one in one process, and the peak memory of the run with its
workers. `dask` compares two Dask workers on this machine with two worker processes. The aims are those for two cores.
Inputs are made in FOLDER and kept there for the next run.
"""

import argparse
import os
import random
import shutil
import socket
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path

from distributed import Client

from samples.generators import ascend as generate_ascend
from samples.generators import nsys as generate_nsys
from samples.generators import paddle as generate_paddle
from samples.generators.nsys_export import Export
from tests.benchmarks import table
from tests.benchmarks.measure import PROGRAM, ROOT, Amount, Cost, compile_package, of_command
from tests.benchmarks.table import Row
from trace_export.sources.find import find
from trace_export.sources.read import read
from trace_export.sources.source import ReadOptions
from trace_export.workers import work
from trace_export.workers.cluster import Cluster
from trace_export.workers.sizing import Workers

STAGES, MICROBATCHES, STEPS = 8, 8, 2
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT)}


def ascend(place: Path, ranks: int) -> None:
    """Eight ranks a host, pipelines of eight, about 1,000 device tasks a rank."""
    generate_ascend.write(
        place, STAGES, MICROBATCHES, STEPS, hosts=-(-ranks // 8), replicas=-(-ranks // STAGES), kernels=30
    )


def nsys(place: Path, files: int, kernels: int = 100_000) -> None:
    """One session a file, each of one rank; all hold the same times."""
    export, chance, in_block = Export(), random.Random(1), 500
    steps = max(1, kernels // (in_block * 3 * MICROBATCHES))
    blocks = [b for b in generate_nsys.blocks_of(STAGES, MICROBATCHES, steps, chance) if b.rank == 0]
    rank = generate_nsys.Rank(export, 0, 0, kernels=in_block)
    for block in blocks:
        rank.block(block, chance)
    rank.steps(blocks)
    first = export.write(place / "rank0.sqlite")
    for number in range(1, files):
        path = shutil.copyfile(first, place / f"rank{number}.sqlite")
        with closing(sqlite3.connect(path)) as db:
            db.execute("UPDATE NVTX_EVENTS SET text = replace(text, 'iter_0_', ?)", [f"iter_{number}_"])
            db.execute("UPDATE TARGET_INFO_SYSTEM_ENV SET value = ? WHERE name = 'Hostname'", [f"node{number // 8}"])
            db.commit()


def paddle(place: Path, logs: int) -> None:
    """Eight logs a machine, each machine a pipeline of its own."""
    generate_paddle.write(place / "machine0", stages=STAGES, microbatches=MICROBATCHES, steps=STEPS)
    (place / "machine0" / "truth.csv").unlink()
    for machine in range(1, logs // STAGES):
        shutil.copytree(place / "machine0", place / f"machine{machine}")


ONE_BY_ONE = """
import sys
from pathlib import Path
from trace_export.sources.find import find
from trace_export.sources.read import read
from trace_export.sources.source import ReadOptions
for source in find(Path(sys.argv[1])).sources:
    read(source, ReadOptions())
"""


def one_by_one(place: Path) -> Cost:
    """Reading all sources in one process, one after the other, with its start."""
    return of_command([sys.executable, "-c", ONE_BY_ONE, place])


def dask(place: Path) -> tuple[float, float]:
    """Seconds of reading all sources with two Dask workers, and with two worker processes, both with their start."""
    result = list(find(place).sources)
    reading = partial(read, options=ReadOptions())
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"tcp://127.0.0.1:{free.getsockname()[1]}"
    quiet = {"env": ENVIRONMENT, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    base = [sys.executable, "-m"]
    port = ["--host", "127.0.0.1", "--port", address.rpartition(":")[2], "--no-dashboard"]
    started = [subprocess.Popen([*base, "distributed.cli.dask_scheduler", *port], **quiet)]
    worker = ["--nthreads", "1", "--no-nanny", "--no-dashboard"]
    started += [subprocess.Popen([*base, "distributed.cli.dask_worker", address, *worker], **quiet) for _ in range(2)]
    try:
        with Client(address) as client:
            client.wait_for_workers(2)
        work.run(reading, result[:8], Cluster(address))  # so that both have imported what they need
        begun = time.perf_counter()
        work.run(reading, result, Cluster(address))
        on_dask = time.perf_counter() - begun
    finally:
        for process in reversed(started):
            process.terminate()
            process.wait()
    begun = time.perf_counter()
    work.run(reading, result, Workers(2))
    return on_dask, time.perf_counter() - begun


MAKERS = {"ascend": (ascend, 1024), "nsys": (nsys, 64), "paddle": (paddle, 1024), "dask": (ascend, 1024)}
AIM_S = {"paddle": 8.0}
"""The most by the clock; for the others half of reading one by one, and 3 s."""


def rows(options: argparse.Namespace) -> Iterator[Row]:
    compile_package()
    for case in options.cases or MAKERS:
        make, count = MAKERS[case]
        count = max(STAGES, int(count * (0.01 if options.quick else options.scale)))
        place = options.place / f"{make.__name__}{count}"
        if not place.exists():
            place.mkdir(parents=True)
            make(place, count)
        what = f"{count:,} sources of {make.__name__}"
        if case == "dask":
            on_dask, on_pool = dask(place)
            yield Row(f"{what} by 2 Dask workers", Amount(on_dask, "s"), "2 processes", Amount(on_pool, "s"), 1.3)
            continue
        alone = one_by_one(place)
        with tempfile.TemporaryDirectory() as out:
            whole = of_command([*PROGRAM, "--log_dir", place, "--out", out, "--quiet"], together=True)
        yield Row(what, whole.seconds, aim=AIM_S.get(case, 0.5 * alone.wall + 3))
        if case == "ascend":
            yield Row(f"{what}: memory of all processes", whole.megabytes, aim=1000)


if __name__ == "__main__":
    parser = table.parser(__doc__)
    parser.add_argument("cases", nargs="*", metavar="CASE", help=", ".join(MAKERS))
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--place", type=Path, default=Path(tempfile.gettempdir()) / "trace_export_bench_scale")
    table.main(rows, parser.parse_args())
