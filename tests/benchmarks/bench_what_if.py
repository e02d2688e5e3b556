"""What the slowdown by stragglers costs: an operation table of 1.9 M operations and one of 117,000.

    python -m tests.benchmarks.bench_what_if [FOLDER]

The scenarios (all of them as one batch, in process), and of the whole command `report` its time and memory. The tables
stay in FOLDER, if there is one.

One replica and step of 1F1B is computed; the others are the same in a time that runs up to 0.1 % faster or slower.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import polars as pl

from samples.generators.operation_table import Job
from tests.benchmarks import table
from tests.benchmarks.measure import PROGRAM, compile_package, least, of_command, of_work
from tests.benchmarks.table import Row
from trace_export import api
from trace_export.analysis.what_if import what_if

SIZES = {"1.9 M operations": Job(16, 64, 64, tuple(range(5))), "117,000 operations": Job(4, 32, 4, tuple(range(44)))}
AIMS = {"1.9 M operations": (0.5, None, 500), "117,000 operations": (0.1, 1.5, None)}
"""Seconds of the scenarios, seconds and MB of the command."""
QUICK = {"352 operations": Job(4, 8, 2, (0, 1))}
ROUNDS = 5


def write(folder: Path, job: Job) -> None:
    """The table of a job, and its description."""
    Job(job.stages, job.microbatches, 1, job.steps[:1]).write(folder)
    one = pl.read_parquet(folder / "trace-made.parquet")
    lanes = pl.DataFrame({"replica": range(job.replicas)}).join(pl.DataFrame({"at": job.steps}), how="cross")
    speed = np.random.default_rng(0).uniform(0.999, 1.001, lanes.height)
    made = one.join(lanes.with_columns(speed=pl.Series(speed)), how="cross").with_columns(
        (pl.col("start_ts", "duration") * pl.col("speed")).cast(pl.Float32),
        dp_rank=pl.col("replica").cast(pl.Int8), step=pl.col("at"),
        rank=(pl.col("stage").cast(pl.Int16) * job.replicas + pl.col("replica")).cast(pl.Int16),
    )  # fmt: skip
    made.select(one.columns).write_parquet(folder / "trace-made.parquet")
    description = folder / "meta-made.yaml"
    description.write_text(description.read_text().replace("dp_size: 1", f"dp_size: {job.replicas}"))


def rows(options: argparse.Namespace) -> Iterator[Row]:
    compile_package()
    with TemporaryDirectory() as made:
        for name, job in (QUICK if options.quick else SIZES).items():
            place = (options.folder or Path(made)) / f"{job.stages}x{job.replicas}"
            write(place, job)
            operations = api.load(place).align()._operations.usual
            assert operations is not None
            scenarios = least(of_work(lambda found=operations: what_if(found)) for _ in range(ROUNDS))  # type: ignore[misc]
            whole = of_command([*PROGRAM, "report", place])
            aims = AIMS.get(name, (None, None, None))
            yield Row(f"slowdown of {name}: scenarios", scenarios.seconds, aim=aims[0])
            yield Row(f"slowdown of {name}: report", whole.seconds, aim=aims[1])
            yield Row(f"slowdown of {name}: report, memory", whole.megabytes, aim=aims[2])


if __name__ == "__main__":
    parser = table.parser(__doc__)
    parser.add_argument("folder", type=Path, nargs="?")
    table.main(rows, parser.parse_args())
