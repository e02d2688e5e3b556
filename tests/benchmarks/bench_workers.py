"""Our worker processes beside those of the standard library and of pebble, where that is installed.

    python -m tests.benchmarks.bench_workers

The best of some rounds of four small items on two workers, which is what starting costs; the memory of all processes;
and how many workers are left when their parent is killed.
"""

from __future__ import annotations

import argparse
import importlib.util
import multiprocessing
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.benchmarks import table
from tests.benchmarks.measure import ROOT, Amount, least, of_command
from tests.benchmarks.table import Row

ROUNDS = 5
COMMAND = (sys.executable, "-m", "tests.benchmarks.bench_workers")


def ours(function: Callable[..., object], items: list[object]) -> None:
    from trace_export.workers.sizing import Workers
    from trace_export.workers.work import run

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
    """The four items on a pool."""
    from tests.support.worker_tasks import perform, tasks

    POOLS[name](perform, [*tasks(*"abcd")])


def hang(name: str, place: str) -> None:
    from tests.support import worker_tasks

    POOLS[name](worker_tasks.hang, [worker_tasks.Task(Path(place) / each) for each in "ab"])


def memory_and_orphans(name: str) -> tuple[float, int]:
    """The megabytes of a pool's processes while they work (shared pages divided), and how many outlive a killed parent
    by five seconds."""
    import psutil

    from tests.support.wait import wait_until

    with tempfile.TemporaryDirectory() as place:
        parent = subprocess.Popen([*COMMAND, "--hang", name, place], cwd=ROOT, stderr=subprocess.DEVNULL)
        wait_until(lambda: len(list(Path(place).iterdir())) == 2)
        children = psutil.Process(parent.pid).children(recursive=True)
        megabytes = sum(child.memory_full_info().pss for child in children) / 1e6
        parent.kill()
        parent.wait()
        _, alive = psutil.wait_procs(children, timeout=5)
        for child in alive:
            child.kill()
    return megabytes, len(alive)


def rows(options: argparse.Namespace) -> Iterator[Row]:
    pools = [name for name in POOLS if name != "pebble" or importlib.util.find_spec(name)]
    rounds = range(1 if options.quick else ROUNDS)
    taken = {name: least(of_command([*COMMAND, "--map", name]) for _ in rounds) for name in pools}
    left = {name: memory_and_orphans(name) for name in pools}
    for name in pools[1:]:
        yield Row("pool of 2 processes: 4 small items", taken["ours"].seconds, name, taken[name].seconds)
        memory = (Amount(left[each][0], "MB") for each in ("ours", name))
        yield Row("pool of 2 processes: memory", next(memory), name, next(memory))
    yield Row("pool of 2 processes: left when the parent is killed", Amount(left["ours"][1], "processes"), aim=0)


if __name__ == "__main__":
    parser = table.parser(__doc__)
    parser.add_argument("--map", metavar="POOL", help=argparse.SUPPRESS)
    parser.add_argument("--hang", nargs=2, metavar=("POOL", "FOLDER"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.map:
        map_once(options.map)
    elif options.hang:
        hang(*options.hang)
    else:
        table.main(rows, options)
