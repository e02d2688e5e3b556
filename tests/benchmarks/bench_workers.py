"""Our worker processes beside those of the standard library and of pebble, where that is installed.

    python tests/benchmarks/bench_workers.py

For each pool the best of some rounds of four small items on two workers, which is what starting costs: seconds on the
clock, seconds of processors, and the memory of all its processes; and whether its workers end when their parent is
killed.
"""

from __future__ import annotations

import importlib.util
import multiprocessing
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

ROUNDS = 5


def ours(function: Callable[..., object], items: list[object]) -> None:
    from trace_export.workers.local import run
    from trace_export.workers.sizing import Workers

    run(function, items, Workers(2))  # type: ignore[type-var]


def futures(function: Callable[..., object], items: list[object]) -> None:
    from concurrent.futures import ProcessPoolExecutor

    os.environ["POLARS_MAX_THREADS"] = "1"
    with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("spawn")) as pool:
        list(pool.map(function, items))


def pebble(function: Callable[..., object], items: list[object]) -> None:
    from pebble import ProcessPool

    os.environ["POLARS_MAX_THREADS"] = "1"
    with ProcessPool(2, context=multiprocessing.get_context("spawn")) as pool:
        list(pool.map(function, items, timeout=600).result())


POOLS = {"ours": ours, "futures": futures, "pebble": pebble}


def map_once(name: str) -> None:
    """In a process of its own: the four items on a pool, then seconds, seconds of processors and megabytes."""
    from tests.support.worker_tasks import perform, tasks

    started = time.perf_counter()
    POOLS[name](perform, [*tasks(*"abcd")])
    seconds, used = time.perf_counter() - started, resource.getrusage(resource.RUSAGE_CHILDREN)
    print(seconds, used.ru_utime + used.ru_stime)


def hang(name: str, place: str) -> None:
    from tests.support import worker_tasks

    POOLS[name](worker_tasks.hang, [worker_tasks.Task(Path(place) / each) for each in "ab"])


def memory_and_orphans(name: str) -> tuple[float, int]:
    """The megabytes of a pool's processes while they work (shared pages divided), and how many outlive a killed parent
    by five seconds."""
    import psutil

    from tests.support.wait import wait_until

    with tempfile.TemporaryDirectory() as place:
        parent = subprocess.Popen([sys.executable, __file__, "hang", name, place], stderr=subprocess.DEVNULL)
        wait_until(lambda: len(list(Path(place).iterdir())) == 2)
        children = psutil.Process(parent.pid).children(recursive=True)
        megabytes = sum(child.memory_full_info().pss for child in children) / 2**20
        parent.kill()
        parent.wait()
        _, alive = psutil.wait_procs(children, timeout=5)
        for child in alive:
            child.kill()
    return megabytes, len(alive)


def main() -> None:
    for name in POOLS:
        if name == "pebble" and importlib.util.find_spec(name) is None:
            continue
        command = [sys.executable, __file__, "map", name]
        rounds = [subprocess.run(command, capture_output=True, text=True, check=True).stdout for _ in range(ROUNDS)]
        seconds, cpu = (min(values) for values in zip(*(map(float, line.split()) for line in rounds), strict=True))
        megabytes, orphans = memory_and_orphans(name)
        print(
            f"{name:8} {seconds:5.2f} s, {cpu:5.2f} s of processors, {megabytes:4.0f} MB, {orphans} outlive the parent"
        )


if __name__ == "__main__":
    if sys.argv[1:2] == ["map"]:
        map_once(sys.argv[2])
    elif sys.argv[1:2] == ["hang"]:
        hang(*sys.argv[2:])
    else:
        main()
