"""What the slowdown by stragglers costs: an operation table of 1.9 M operations and one of 117,000.

Run: python tests/benchmarks/bench_what_if.py [FOLDER]. Prints seconds of the scenarios (all of them as one batch, in
process), and of the whole command `report` its seconds, those of the processors, and its memory. The tables stay in
FOLDER, if there is one.

One replica and step of 1F1B is computed; the others are the same in a time that runs up to 0.1 % faster or slower.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import polars as pl
import psutil

from samples.generators.operation_table import Job
from trace_export import api
from trace_export.analysis.what_if import what_if

SIZES = {"1.9 M operations": Job(16, 64, 64, tuple(range(5))), "117,000 operations": Job(4, 32, 4, tuple(range(44)))}


def write(folder: Path, job: Job) -> None:
    """The table of a job, and its description."""
    Job(job.stages, job.microbatches, 1, job.steps[:1]).write(folder)
    one = pl.read_parquet(folder / "trace-made.parquet")
    lanes = pl.DataFrame({"replica": range(job.replicas)}).join(pl.DataFrame({"at": job.steps}), how="cross")
    speed = np.random.default_rng(0).uniform(0.999, 1.001, lanes.height)
    table = one.join(lanes.with_columns(speed=pl.Series(speed)), how="cross").with_columns(
        (pl.col("start_ts", "duration") * pl.col("speed")).cast(pl.Float32),
        dp_rank=pl.col("replica").cast(pl.Int8), step=pl.col("at"),
        rank=(pl.col("stage").cast(pl.Int16) * job.replicas + pl.col("replica")).cast(pl.Int16),
    )  # fmt: skip
    table.select(one.columns).write_parquet(folder / "trace-made.parquet")
    description = folder / "meta-made.yaml"
    description.write_text(description.read_text().replace("dp_size: 1", f"dp_size: {job.replicas}"))


def command(folder: Path) -> str:
    """What `report` takes as a command of its own."""
    start = time.perf_counter()
    process = psutil.Popen([sys.executable, "-m", "trace_export", "report", str(folder)], stdout=-3, stderr=-3)
    most = cpu = 0.0
    while process.poll() is None:
        try:
            most, times = max(most, process.memory_info().rss), process.cpu_times()
        except psutil.Error:
            break
        cpu = times.user + times.system
        time.sleep(0.02)
    return f"{time.perf_counter() - start:.2f} s ({cpu:.2f} s of processors), {most / 1e6:.0f} MB"


def main(folder: Path) -> None:
    for name, job in SIZES.items():
        place = folder / f"{job.stages}x{job.replicas}"
        write(place, job)
        operations = api.load(place).align()._operations.usual
        assert operations is not None
        taken = []
        for _ in range(5):
            start = time.perf_counter()
            what_if(operations)
            taken.append(time.perf_counter() - start)
        print(f"{name}: scenarios {min(taken):.3f} s, command {command(place)}", flush=True)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(Path(sys.argv[1]))
    else:
        with TemporaryDirectory() as made:
            main(Path(made))
