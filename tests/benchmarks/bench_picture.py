"""How fast and how large pictures of large charts are, against the span table as CSV in the same run.

python -m tests.benchmarks.bench_picture [--stages 64] [--microbatches 512] [--steps 1]
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import polars as pl

from tests.benchmarks import table
from tests.benchmarks.measure import Amount, of_work
from tests.benchmarks.table import Row
from trace_export.chart.layout import lay_out
from trace_export.schedules.schedule import schedule
from trace_export.schedules.simulate import Costs, simulate
from trace_export.selection import Numbers
from trace_export.writers import tables
from trace_export.writers.pictures import picture


def rows(options: argparse.Namespace) -> Iterator[Row]:
    stages, microbatches = (8, 16) if options.quick else (options.stages, options.microbatches)
    one = simulate(schedule("1f1b", stages, microbatches), Costs(1_000_000, 2_000_000))
    length = int(one.spans["end_ns"].to_numpy().max())
    moved = [one.spans.with_columns(pl.col("start_ns", "end_ns") + n * length, step=n) for n in range(options.steps)]
    profile = replace(one, spans=pl.concat(moved).cast({"step": pl.Int32}))
    chart, count = lay_out(profile), profile.spans.height
    with tempfile.TemporaryDirectory() as folder:
        base = of_work(lambda: tables.write_csv(profile, Path(folder) / "spans.csv"))
        for name in ("svg", "html", "png"):
            path = Path(folder) / name
            every = Numbers(((0, options.steps),)) if name != "png" else None
            taken = of_work(lambda p=path, f=name, s=every: picture.write(chart, p, f, s))  # type: ignore[misc]
            yield Row(f"picture of {count:,} blocks: {name}", taken.seconds, "their table as CSV", base.seconds)
            yield Row(f"picture of {count:,} blocks: {name}, size", Amount(path.stat().st_size / count, "B a block"))


if __name__ == "__main__":
    parser = table.parser(__doc__)
    parser.add_argument("--stages", type=int, default=64)
    parser.add_argument("--microbatches", type=int, default=512)
    parser.add_argument("--steps", type=int, default=1)
    table.main(rows, parser.parse_args())
