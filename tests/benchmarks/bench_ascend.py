"""How long an Ascend cluster takes, beside a plain scan of the rows that are needed and beside msprof-analyze.

    python -m tests.benchmarks.bench_ascend             # makes 16 ranks of 500,000 tasks, 0.9 GB
    python -m tests.benchmarks.bench_ascend CLUSTER     # a folder of *_ascend_pt captures

The environment variable MSPROF_ANALYZE names the command msprof-analyze; it works on a copy, for it writes into the
databases that it reads. Blocks only: time beside the scan and beside the reference, and the memory of all processes
together. Then all device tasks: slices a second, from the databases to the finished traces.
"""

import argparse
import os
import shutil
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from samples.generators import ascend as generate_ascend
from tests.benchmarks import table
from tests.benchmarks.measure import PROGRAM, Amount, Cost, compile_package, median, of_command, of_work, warm_memory
from tests.benchmarks.table import Row

STAGES, REPLICAS, MICROBATCHES, STEPS, KERNELS = 8, 2, 20, 2, 6250
NEEDED = (
    "SELECT startNs, endNs, connectionId, streamId FROM TASK WHERE connectionId >= 4000000001 AND"
    " connectionId < 4294967295",
    "SELECT startNs, endNs, message, connectionId FROM MSTX_EVENTS",
    "SELECT opName, startNs, endNs, groupName, opId FROM COMMUNICATION_OP",
    "SELECT opId, srcRank, dstRank, taskType, MAX(size) FROM COMMUNICATION_TASK_INFO GROUP BY opId, srcRank, dstRank,"
    " taskType",
)
"""What blocks and messages are made of."""
ROUNDS = 3


def export(cluster: Path, out: Path, *options: str) -> Cost:
    warm_memory()
    return of_command([*PROGRAM, "ascend", "--log_dir", cluster, "--out", out, "--quiet", *options], together=True)


def scan(databases: list[Path]) -> None:
    for path in databases:
        with closing(sqlite3.connect(f"file:{path}?mode=ro&immutable=1", uri=True)) as db:
            for query in NEEDED:
                db.execute(query).fetchall()


def tasks(databases: list[Path]) -> int:
    total = 0
    for path in databases:
        with closing(sqlite3.connect(f"file:{path}?mode=ro&immutable=1", uri=True)) as db:
            total += db.execute("SELECT COUNT(*) FROM TASK").fetchone()[0]
    return total


def reference(what: str, blocks: Cost, cluster: Path, folder: Path) -> Row:
    name, command = "msprof-analyze pp_chart", shutil.which(os.environ.get("MSPROF_ANALYZE", ""))
    if not command:
        return Row(f"{what}: blocks", reference=name, aim=0.25, missing="MSPROF_ANALYZE does not name the command")
    copy = shutil.copytree(cluster, folder / "reference")
    taken = of_command([command, "cluster", "-m", "pp_chart", "-d", copy])
    shutil.rmtree(copy)
    return Row(f"{what}: blocks", blocks.seconds, name, taken.seconds, 0.25)


def rows(options: argparse.Namespace) -> Iterator[Row]:
    compile_package()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        cluster = options.cluster or folder / "cluster"
        if not options.cluster:
            kernels, replicas = (40, 1) if options.quick else (KERNELS, REPLICAS)
            generate_ascend.write(cluster, STAGES, MICROBATCHES, STEPS, replicas=replicas, kernels=kernels, calls=True)
        databases = sorted(cluster.rglob("ascend_*_profiler_*.db"))
        if not databases:
            raise SystemExit(f"{cluster} has no profiler databases")
        number = tasks(databases)
        what = f"Ascend, {len(databases)} ranks, {number / 1e6:.1f} M tasks"
        rounds = range(1 if options.quick else ROUNDS)
        plain = median(of_work(lambda: scan(databases)) for _ in rounds)
        blocks = median(export(cluster, folder / "blocks") for _ in rounds)
        yield Row(f"{what}: blocks", blocks.seconds, "scan", plain.seconds, 2.0)
        yield Row(f"{what}: blocks, memory of all processes", blocks.megabytes, aim=1000)
        yield reference(what, blocks, cluster, folder)
        detail = ("--detail", "kernels", "--tracks", "rank", "--force")
        whole = median(export(cluster, folder / "tasks", *detail) for _ in rounds)
        speed = Amount(number / whole.wall / 1e6, "M/s")
        yield Row(f"{what}: all tasks as perfetto and chrome", speed, aim=1.0, at_least=True)


if __name__ == "__main__":
    parser = table.parser(__doc__)
    parser.add_argument("cluster", type=Path, nargs="?")
    table.main(rows, parser.parse_args())
