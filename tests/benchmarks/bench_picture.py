"""How fast and how large pictures of large charts are, against the span table as CSV in the same run.

python tests/benchmarks/bench_picture.py [--stages 64] [--microbatches 512] [--steps 1]
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import polars as pl

from trace_export.chart.layout import lay_out
from trace_export.schedules.schedule import schedule
from trace_export.schedules.simulate import Costs, simulate
from trace_export.selection import Numbers
from trace_export.writers import tables
from trace_export.writers.pictures import picture


def timed(action: Callable[[], object]) -> float:
    begin = time.perf_counter()
    action()
    return time.perf_counter() - begin


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stages", type=int, default=64)
    parser.add_argument("--microbatches", type=int, default=512)
    parser.add_argument("--steps", type=int, default=1)
    options = parser.parse_args()
    one = simulate(schedule("1f1b", options.stages, options.microbatches), Costs(1_000_000, 2_000_000))
    length = int(one.spans["end_ns"].to_numpy().max())
    moved = [one.spans.with_columns(pl.col("start_ns", "end_ns") + n * length, step=n) for n in range(options.steps)]
    profile = replace(one, spans=pl.concat(moved).cast({"step": pl.Int32}))
    chart = lay_out(profile)
    count = profile.spans.height
    print(f"{count} blocks on {options.stages} stages")
    with tempfile.TemporaryDirectory() as folder:
        csv = Path(folder) / "spans.csv"
        base = timed(lambda: tables.write_csv(profile, csv))
        print(f"csv   {base:6.2f} s            {csv.stat().st_size / count:6.1f} bytes a block")
        for name in ("svg", "html", "png"):
            path = Path(folder) / name
            every = Numbers(((0, options.steps),)) if name != "png" else None
            took = timed(lambda p=path, f=name, s=every: picture.write(chart, p, f, s))  # type: ignore[misc]
            size = path.stat().st_size
            print(f"{name:5} {took:6.2f} s  {took / base:5.1f} ×  {size / count:6.1f} bytes a block")


if __name__ == "__main__":
    main()
