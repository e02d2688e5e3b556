"""What a simulated run costs from the schedule to the file, beside the Python builder of the perfetto package, which is
given the finished blocks.

    python -m tests.benchmarks.bench_simulate

1F1B of 64 stages and 8,192 micro-batches: 1.05 M blocks. Ours simulates, lays out with arrows and counters, and writes;
the builder writes a sample of the same blocks, without arrows and counters, and its time is scaled.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tests.benchmarks import table
from tests.benchmarks.bench_encoder import SAMPLE, best, package_builder
from tests.benchmarks.measure import Amount, of_work
from tests.benchmarks.table import Row
from trace_export import Simulation, simulate

STAGES, MICROBATCHES = 64, 8192
ROUNDS = 3


def sample_of(run: Simulation) -> list[tuple[int, ...]]:
    """Blocks as the builder gets them: track, start, end, name and three arguments."""
    spans = run.spans.gather_every(max(1, run.spans.height // SAMPLE))
    names = (spans["kind"] + spans["microbatch"].cast(str)).alias("name")
    return spans.select("rank", "start_ns", "end_ns", names, "microbatch", "step", "chunk").rows()


def rows(options: argparse.Namespace) -> Iterator[Row]:
    microbatches = 64 if options.quick else MICROBATCHES
    with tempfile.TemporaryDirectory() as folder:
        trace, other = Path(folder) / "a.pftrace", Path(folder) / "other"
        whole = best(lambda: simulate("1f1b", STAGES, microbatches).write(trace), trace, ROUNDS)
        run = simulate("1f1b", STAGES, microbatches)
        blocks = sample_of(run)
        builder, scale = of_work(lambda: package_builder(blocks, other)), run.spans.height / len(blocks)
    what = f"simulate, draw and write {run.spans.height:,} blocks"
    theirs = Amount(builder.wall * scale, "s", builder.cpu * scale)
    yield Row(what, whole.seconds, "StreamingTraceProtoBuilder, of the blocks alone", theirs)
    yield Row(what, Amount(run.spans.height / whole.wall / 1e6, "M blocks/s"))


if __name__ == "__main__":
    table.main(rows, table.parser(__doc__).parse_args())
