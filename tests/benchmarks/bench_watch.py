"""How soon `trace-export watch` shows a step, what of a core it takes, and whether its memory grows with the job.

    python -m tests.benchmarks.bench_watch                    # 64 logs, 64 micro-batches, a step a second, 120 steps
    python -m tests.benchmarks.bench_watch --memory 3600      # so many steps as fast as they can be read

A page is open all the while: a client of the events fetches each new chart. The reference for the processor time is the
same command on logs that do not grow.
"""

import http.client
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

from samples.generators.paddle import Job, log
from tests.benchmarks import table
from tests.benchmarks.measure import Amount
from tests.benchmarks.table import Row

AIM_S, AIM_SHARE = 2.0, 10.0
"""Seconds from the last line to the chart, and percent of a core."""
TIME = re.compile(r"_time = (\d+)\.(\d{6})")


class Writer:
    """Appends steps to the logs of a job, each as long as the first ones."""

    def __init__(self, folder: Path, ranks: int, microbatches: int) -> None:
        job = Job(stages=ranks, microbatches=microbatches, steps=range(2), announced=False)
        blocks = job.blocks()
        self.paths = [folder / f"workerlog.{rank}" for rank in range(ranks)]
        self.texts = [log(Job(ranks, microbatches, range(1), announced=False), blocks, r) for r in range(ranks)]
        starts = [min(b.start_ns for b in blocks if b.step == step) for step in range(2)]
        self.length_ms = round((starts[1] - starts[0]) / 1e6)

    def write(self, step: int) -> float:
        """Appends a step; returns when its last line was on the disk."""
        shift = step * self.length_ms
        for path, text in zip(self.paths, self.texts, strict=True):
            moved = TIME.sub(lambda m: f"_time = {int(m[1]) + shift}.{m[2]}", text)
            with path.open("a", encoding="utf-8") as file:
                file.write(moved)
        return time.time()


def charts(address: str, result: dict[int, float]) -> None:
    """Fetches the chart after each event; notes when the chart of a step was there."""
    host, port = address.removeprefix("http://").split(":")
    events = http.client.HTTPConnection(host, int(port))
    events.request("GET", "/events")
    fetched: set[str] = set()
    for line in events.getresponse():
        if line.startswith(b"data: ") and (state := json.loads(line[6:])).get("steps"):
            for name in state["charts"]:
                if name not in fetched:
                    connection = http.client.HTTPConnection(host, int(port))
                    connection.request("GET", f"/chart.svg?{name}")
                    connection.getresponse().read()
                    connection.close()
            fetched = set(state["charts"])
            for step in state["steps"]:
                result.setdefault(step["step"], time.time())


def pace(folder: Path, options: list[str], writer: Writer, steps: range) -> tuple[dict[int, float], float]:
    """Step → seconds from its last line to its chart; the share of a core."""
    command = [sys.executable, "-m", "trace_export", "watch", str(folder), "--no-browser", "--port", "0", *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        address = process.stdout.readline().split()[-1]
        shown: dict[int, float] = {}
        threading.Thread(target=charts, args=(address, shown), daemon=True).start()
        threading.Thread(target=process.stdout.read, daemon=True).start()
        written, began, before = {}, time.time(), _cpu(process.pid)
        for step in steps:
            written[step] = writer.write(step)
            time.sleep(max(0.0, began + (step - steps.start + 1) - time.time()))
        time.sleep(3)
        share = (_cpu(process.pid) - before) / (time.time() - began)
        process.send_signal(signal.SIGINT)
    return {step: shown[step] - at for step, at in written.items() if step in shown}, share


def _cpu(process: int) -> float:
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def rows(options: Namespace) -> Iterator[Row]:
    ranks, microbatches, steps = (4, 8, 3) if options.quick else (options.ranks, options.microbatches, options.steps)
    with TemporaryDirectory() as name:
        folder = Path(name)
        writer = Writer(folder, ranks, microbatches)
        writer.write(0)
        late, share = pace(folder, [], writer, range(1, steps + 1))
        what, times = f"watch of {ranks} logs, a step a second", sorted(late.values())
        if len(times) < steps:
            yield Row(f"{what}: from the last line to the chart", missing=f"{len(times)} of {steps} steps were shown")
        else:
            yield Row(f"{what}: from the last line to the chart, worst", Amount(times[-1], "s"), aim=AIM_S)
        yield Row(f"{what}: of one core", Amount(share * 100, "%"), aim=AIM_SHARE)


if __name__ == "__main__":
    parser = table.parser(__doc__)
    parser.add_argument("--ranks", type=int, default=64)
    parser.add_argument("--microbatches", type=int, default=64)
    parser.add_argument("--steps", type=int, default=120)
    table.main(rows, parser.parse_args())
