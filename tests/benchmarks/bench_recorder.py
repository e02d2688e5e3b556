"""What the recorder costs the training run: a block, and a whole step of real processes.

    TRACE_EXPORT_FRAMEWORKS_PYTHON=…/bin/python python -m tests.benchmarks.bench_recorder [--pairs 200]

A block: seconds of the processor for its begin, its end and its line, the fastest round. A step: four processes train
with torch.distributed.pipelining over gloo, and of each two steps one is recorded; seconds of the processors of all
four. The aim is that both kinds of steps differ by less than twice the standard error of their difference.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator

import trace_export.instrument as ti
from tests.benchmarks import table
from tests.benchmarks.measure import ROOT, Amount
from tests.benchmarks.table import Row
from trace_export.instrument import marks
from trace_export.instrument.backends.block_recorder import BlockRecorder

AIM_US = 3.0
CALLS, ROUNDS = 20_000, 7
RANKS = 4
PYTHON = "TRACE_EXPORT_FRAMEWORKS_PYTHON"
"""Environment variable that names a Python with PyTorch."""


def marked(i: int) -> None:
    with ti.forward(microbatch=i, chunk=1, stage=2):
        pass


def best_us(run: Callable[[int], object]) -> float:
    """Of the processor, the fastest round's time per call."""
    rounds = []
    for _ in range(ROUNDS):
        start = time.process_time()
        for i in range(CALLS):
            run(i & 63)
        rounds.append(time.process_time() - start)
    return min(rounds) / CALLS * 1e6


def step_times(python: str, pairs: int, folder: str) -> list[tuple[float, float]]:
    """The seconds of a recorded step and of another one beside it, of all processes together."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    common = {
        "PYTHONPATH": str(ROOT), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(RANKS),
        "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore",
    }  # fmt: skip
    command = [python, str(ROOT / "tests/instrument/frameworks/step_times.py"), str(pairs), folder]
    running = [
        subprocess.Popen(
            command, env={**os.environ, **common, "RANK": str(rank)}, stdout=subprocess.PIPE, text=True
        )
        for rank in range(RANKS)
    ]  # fmt: skip
    said = [process.communicate()[0] for process in running]
    if any(process.returncode for process in running):
        raise RuntimeError("a training process failed")
    ranks = zip(*map(json.loads, said), strict=True)
    return [(sum(on for on, _ in pair), sum(off for _, off in pair)) for pair in ranks]


def rows(options: argparse.Namespace) -> Iterator[Row]:
    with tempfile.TemporaryDirectory() as folder:
        marks.state.backend = BlockRecorder(folder, None)
        recorded = best_us(marked)
    yield Row("a block: recorder, CPU", Amount(recorded, "µs"), aim=AIM_US)
    python = os.environ.get(PYTHON)
    work = "a step of four gloo processes, recorded, CPU"
    if python is None:
        yield Row(work, missing=f"{PYTHON} names no Python with PyTorch")
        return
    with tempfile.TemporaryDirectory() as folder:
        pairs = step_times(python, 4 if options.quick else options.pairs, folder)
    on, off = (statistics.mean(kind) * 1e3 for kind in zip(*pairs, strict=True))
    noise = 2e3 * statistics.stdev(on - off for on, off in pairs) / len(pairs) ** 0.5
    yield Row(work, Amount(on, "ms"), "not recorded", Amount(off, "ms"), 1 + noise / off)


if __name__ == "__main__":
    parser = table.parser(__doc__)
    parser.add_argument("--pairs", type=int, default=200)
    table.main(rows, parser.parse_args())
