"""How long each format is read, beside the estimate from the speed in its row of `trace_export/sources/formats.py`.

    python -m tests.benchmarks.bench_read_speed [--megabytes 30]

Makes one file of about that size in each format and reads it on one thread in a process of its own: seconds of the
processor, best of three, of blocks and of device tasks, beside the estimate, which has the opening of the source too.
The speeds are for a core at 3 GHz and decide about the number of workers, so that a factor of two does not matter. The
row is of what took longest beside its estimate; the others go to stderr.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from samples.generators import ascend as generate_ascend
from samples.generators import nsys as nsys_generator
from samples.generators import recorder as generate_recorder
from samples.generators.rocpd_export import Export
from tests.benchmarks import bench_kineto, bench_nsys, bench_paddle, table
from tests.benchmarks.measure import Amount, of_command
from tests.benchmarks.table import Row
from trace_export.sources.find import find
from trace_export.sources.input_files import bytes_in, seconds

ROUNDS = 3
READ = """
import json, sys, tempfile, time
from pathlib import Path
from trace_export.sources.read import read, read_tasks
from trace_export.sources.find import find
from trace_export.sources.formats import of_kind
from trace_export.sources.source import ReadOptions, TaskRequest
source = find(Path(sys.argv[1])).sources[0]
def spent(work):
    start = time.process_time()
    result = work()
    return time.process_time() - start, result
for _ in range(2):  # the first imports
    blocks, profile = spent(lambda: read(source, ReadOptions()))
tasks = None
if of_kind(source.kind).has_device_tasks:
    ranks = dict(profile.ranks.select("process", "rank").iter_rows())
    with tempfile.TemporaryDirectory() as folder:
        tasks, _ = spent(lambda: read_tasks(TaskRequest(source, "kernels", ranks, None, Path(folder))))
print(json.dumps([blocks, tasks]))
"""


def ascend(folder: Path, megabytes: int, *, text: bool) -> None:
    """One of two stages; a kernel takes about 100 bytes, as a row of a database and as one of a text export."""
    kernels = (megabytes << 20) // 100 // (2 * 8 * 2)
    generate_ascend.write(folder, stages=2, microbatches=8, steps=2, hosts=1, kernels=kernels, text=text)


def dygraph(path: Path, megabytes: int) -> None:
    """Forwards and backwards of 64 micro-batches a step, a begin and an end each."""
    line = '{{"name": "{}{}", "cat": "virtual pipeline timeline", "ph": "{}", "pid": 0, "tid": 1, "ts": {}}}\n'
    with path.open("w") as file:
        at = 1_760_000_000_000
        while file.tell() < megabytes << 20:
            for kind in "FB":
                for microbatch in range(64):
                    file.write(line.format(kind, microbatch, "B", at) + line.format(kind, microbatch, "E", at + 5))
                    at += 7


def recorder(path: Path, megabytes: int) -> None:
    """Forwards and backwards of 64 micro-batches a step."""
    with path.open("w") as file:
        file.write(generate_recorder.header(host="a", boot="b", pid=1, unix_ns=10**18, clock_ns=0, rank=0, stage=0))
        at, step = 10**15, 0
        while file.tell() < megabytes << 20:
            for kind in "FB":
                for microbatch in range(64):
                    file.write(f"{kind},{step},{microbatch},0,,,{at},5123456,h\n")
                    at += 6_000_000
            step += 1


def rocpd(folder: Path, megabytes: int) -> None:
    """Blocks of 500 kernels of one process."""
    export, chance = Export(environment={"RANK": "0"}), random.Random(1)
    rank = nsys_generator.Rank(export, 0, 10**12, kernels=500)
    for block in nsys_generator.blocks_of(8, 8, max(1, megabytes // 4), chance):
        if block.rank == 0:
            rank.block(block, chance)
    export.write(folder / "1_results.db")


MAKERS: dict[str, Callable[[Path, int], object]] = {
    "paddle": lambda folder, megabytes: bench_paddle.make_log(folder / "workerlog.0", megabytes << 20, dense=False),
    "paddle_dygraph": lambda folder, megabytes: dygraph(folder / "profile_record_tmp_file_for_rank_0", megabytes),
    "recorder": lambda folder, megabytes: recorder(folder / "rank0.blocks", megabytes),
    "nsys": lambda folder, megabytes: bench_nsys.make(folder / "rank0.sqlite", megabytes * 4500),
    "rocpd": rocpd,
    "ascend": lambda folder, megabytes: ascend(folder, megabytes, text=False),
    "mindspore": lambda folder, megabytes: ascend(folder, megabytes, text=True),
    "kineto": lambda folder, megabytes: bench_kineto.write(folder / "rank0.pt.trace.json", megabytes),
}


def rows(options: argparse.Namespace) -> Iterator[Row]:
    wanted, rounds = (1, 1) if options.quick else (options.megabytes, ROUNDS)
    found: list[Row] = []
    for kind, make in MAKERS.items():
        with tempfile.TemporaryDirectory() as folder:
            make(Path(folder), wanted)
            source = find(Path(folder)).sources[0]
            megabytes = bytes_in(source.path) / 1e6
            command = [sys.executable, "-c", READ, folder]
            runs = [json.loads(of_command(command, {"POLARS_MAX_THREADS": "1"}).output) for _ in range(rounds)]
            for tasks, times in enumerate(zip(*runs, strict=True)):
                if None not in times:
                    work = f"{kind}: {'device tasks' if tasks else 'blocks'}, {megabytes:.0f} MB, CPU"
                    expected = seconds(source, device_tasks=bool(tasks))
                    found.append(Row(work, Amount(min(times), "s"), "estimate", Amount(expected, "s"), 2.0))
                    print(" | ".join(filter(None, found[-1].cells())), file=sys.stderr, flush=True)
    yield max(found, key=lambda row: row.ratio or 0)


if __name__ == "__main__":
    parser = table.parser(__doc__)
    parser.add_argument("--megabytes", type=int, default=30)
    table.main(rows, parser.parse_args())
