"""Many ranks at once: the whole way from folder to chart, against the sum of its sources read one by one.

    python tests/benchmarks/bench_scale.py [ascend|nsys|paddle|dask]... [--scale 1.0] [--place FOLDER]

Prints for each: the sources, the seconds of the whole run and of reading one by one in one process, their ratio, and
the peak memory of the run with its workers. `dask` compares two Dask workers on this machine with two worker processes.
Figures to reach on two cores: ascend and nsys at most 0.5 of the sum plus 3 s, with at most 1 GB in total; 1,024 Paddle
logs at most 10 s; Dask at most 1.3 of the pool. Inputs are made in FOLDER and kept there for the next run.
"""

from __future__ import annotations

import argparse
import compileall
import os
import resource
import shutil
import socket
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import closing, suppress
from functools import partial
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

import psutil  # noqa: E402
from distributed import Client  # noqa: E402

from samples.generators import ascend as generate_ascend  # noqa: E402
from samples.generators import paddle as generate_paddle  # noqa: E402
from tests.support import nsys_session  # noqa: E402
from trace_export.sources.find import find  # noqa: E402
from trace_export.sources.read import read  # noqa: E402
from trace_export.sources.source import ReadOptions  # noqa: E402
from trace_export.workers import dask as cluster  # noqa: E402
from trace_export.workers import local  # noqa: E402
from trace_export.workers.cluster import Cluster  # noqa: E402
from trace_export.workers.sizing import Workers  # noqa: E402

STAGES, MICROBATCHES, STEPS = 8, 8, 2
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT)}


def ascend(place: Path, ranks: int) -> None:
    """Eight ranks a host, pipelines of eight, about 1,000 device tasks a rank."""
    generate_ascend.write(
        place, STAGES, MICROBATCHES, STEPS, hosts=-(-ranks // 8), replicas=-(-ranks // STAGES), kernels=30
    )


def nsys(place: Path, files: int, kernels: int = 100_000) -> None:
    """One session a file, each of one rank; all hold the same times."""
    first = nsys_session.write(place / "rank0.sqlite", kernels)
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


class Peak(threading.Thread):
    """Watches the memory of a process and its children: the largest sum of their private and shared parts (PSS)."""

    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self.process, self.bytes = psutil.Process(pid), 0

    def run(self) -> None:
        with suppress(psutil.Error):
            while self.process.is_running() and self.process.status() != psutil.STATUS_ZOMBIE:
                total = 0
                for process in (self.process, *self.process.children(recursive=True)):
                    with suppress(psutil.Error):
                        total += process.memory_full_info().pss
                self.bytes = max(self.bytes, total)
                time.sleep(0.1)


def whole_way(place: Path) -> tuple[float, float, float]:
    """Seconds, seconds of the processors, and peak megabytes of the command on a folder."""
    with tempfile.TemporaryDirectory() as out:
        started, before = time.perf_counter(), cpu()
        process = subprocess.Popen(
            [sys.executable, "-m", "trace_export", "--log_dir", str(place), "--out", out, "--quiet"],
            env=ENVIRONMENT,
            stderr=subprocess.DEVNULL,
        )
        watch = Peak(process.pid)
        watch.start()
        if process.wait():
            sys.exit(f"{place}: the command failed")
        return time.perf_counter() - started, cpu() - before, watch.bytes / 1e6


def cpu() -> float:
    """What the processes that have ended used of the processors, with all that those started."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


ONE_BY_ONE = """
import sys, time
from pathlib import Path
from trace_export.sources.find import find
from trace_export.sources.read import read
from trace_export.sources.source import ReadOptions
started = time.perf_counter()
for source in find(Path(sys.argv[1])).sources:
    read(source, ReadOptions())
print(time.perf_counter() - started)
"""


def one_by_one(place: Path) -> float:
    """Seconds of reading all sources in one process, one after the other."""
    command = [sys.executable, "-c", ONE_BY_ONE, str(place)]
    return float(subprocess.run(command, env=ENVIRONMENT, check=True, capture_output=True, text=True).stdout)


def dask(place: Path) -> tuple[float, float]:
    """Seconds of reading all sources with two Dask workers, and with two worker processes, both with their start."""
    found = list(find(place).sources)
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
        cluster.run(Cluster(address), reading, found[:8])  # so that both have imported what they need
        begun = time.perf_counter()
        cluster.run(Cluster(address), reading, found)
        on_dask = time.perf_counter() - begun
    finally:
        for process in reversed(started):
            process.terminate()
            process.wait()
    begun = time.perf_counter()
    local.run(reading, found, Workers(2))
    return on_dask, time.perf_counter() - begun


MAKERS = {"ascend": (ascend, 1024), "nsys": (nsys, 64), "paddle": (paddle, 1024), "dask": (ascend, 1024)}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("cases", nargs="*", metavar="CASE", help=", ".join(MAKERS))
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--place", type=Path, default=Path(tempfile.gettempdir()) / "trace_export_bench_scale")
    options = parser.parse_args()
    compileall.compile_dir(ROOT / "trace_export", quiet=1)  # as an installed package is
    for case in options.cases or MAKERS:
        make, count = MAKERS[case]
        count = max(STAGES, int(count * options.scale))
        place = options.place / f"{make.__name__}{count}"
        if not place.exists():
            place.mkdir(parents=True)
            make(place, count)
        if case == "dask":
            on_dask, on_pool = dask(place)
            print(
                f"dask    {count} sources: {on_dask:.2f} s, pool {on_pool:.2f} s, ratio {on_dask / on_pool:.2f} (1.3)"
            )
            continue
        before = cpu()
        alone = one_by_one(place)
        alone_cpu = cpu() - before
        seconds, seconds_cpu, megabytes = whole_way(place)
        limit = 10.0 if case == "paddle" else 0.5 * alone + 3
        print(
            f"{case:7} {count} sources: whole way {seconds:.2f} s ({limit:.2f}), one by one {alone:.2f} s,"
            f" ratio {seconds / alone:.2f}, of processor time {seconds_cpu:.2f} s and {alone_cpu:.2f} s,"
            f" peak {megabytes:.0f} MB (1000)"
        )


if __name__ == "__main__":
    main()
