"""How long a large Ascend cluster takes, beside a plain sqlite3 scan of the rows that are needed, in one run.

    python tests/benchmarks/bench_ascend.py CLUSTER                      # a folder of *_ascend_pt captures
    python tests/benchmarks/bench_ascend.py --generator GEN.py           # makes one: 16 ranks x 500 k tasks, 0.9 GB
    python tests/benchmarks/bench_ascend.py CLUSTER --reference COMMAND  # also the command msprof-analyze, on a copy

Blocks only: seconds, ratio to the scan and to the reference, and the memory of all processes together. Then all device
tasks: slices a second, from the databases to the finished trace, and memory. Processor seconds stand beside the time by
the clock, because the latter says little on a machine that is busy with other work.
"""

from __future__ import annotations

import argparse
import compileall
import os
import resource
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
CLUSTER = "--schedule dualpipev --pp 8 --dp 2 --mb 20 --hosts 2 --skew-ns 0,3500000 --steps 2 --total-tasks 500000"
NEEDED = (
    "SELECT startNs, endNs, connectionId, streamId FROM TASK WHERE connectionId >= 4000000001 AND"
    " connectionId < 4294967295",
    "SELECT startNs, endNs, message, connectionId FROM MSTX_EVENTS",
    "SELECT opName, startNs, endNs, groupName, opId FROM COMMUNICATION_OP",
    "SELECT opId, srcRank, dstRank, taskType, MAX(size) FROM COMMUNICATION_TASK_INFO GROUP BY opId, srcRank, dstRank,"
    " taskType",
)
"""What blocks and messages are made of."""


@dataclass(frozen=True)
class Cost:
    """Seconds by the clock, of the processors, and the most memory of all processes at once (MB)."""

    wall: float
    cpu: float
    peak_mb: float

    def __str__(self) -> str:
        return f"{self.wall:6.2f} s by the clock, {self.cpu:6.2f} s of processors, {self.peak_mb:5.0f} MB"


def spent() -> float:
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def tree_mb(root: int) -> float:
    """Resident memory of the process and all below it."""
    parents: dict[int, int] = {}
    pages: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit():
                parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                pages[int(entry.name)] = int((entry / "statm").read_text().split()[1])
        except OSError:
            continue
    ours = {root}
    while more := {child for child, parent in parents.items() if parent in ours} - ours:
        ours |= more
    return sum(pages.get(p, 0) for p in ours) * os.sysconf("SC_PAGE_SIZE") / 1e6


def command(*arguments: str) -> Cost:
    """What a command costs; its output is shown when it fails."""
    begin, before, peak = time.perf_counter(), spent(), 0.0
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(arguments, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    said: list[str] = []
    reader = threading.Thread(target=lambda: said.append(process.stdout.read() if process.stdout else ""))
    reader.start()
    while process.poll() is None:
        peak = max(peak, tree_mb(process.pid))
        time.sleep(0.05)
    reader.join()
    if process.returncode:
        print("".join(said)[-2000:], file=sys.stderr)
        raise SystemExit(f"{' '.join(arguments)}: exit code {process.returncode}")
    return Cost(time.perf_counter() - begin, spent() - before, peak)


def export(cluster: Path, out: Path, *options: str) -> Cost:
    return command(
        sys.executable, "-m", "trace_export", "ascend", f"--log_dir={cluster}", f"--out={out}", "--quiet", *options
    )  # fmt: skip


def scan(databases: list[Path]) -> Cost:
    begin, before = time.perf_counter(), spent()
    for path in databases:
        with closing(sqlite3.connect(f"file:{path}?mode=ro&immutable=1", uri=True)) as db:
            for query in NEEDED:
                db.execute(query).fetchall()
    return Cost(time.perf_counter() - begin, spent() - before, 0.0)


def tasks(databases: list[Path]) -> int:
    total = 0
    for path in databases:
        with closing(sqlite3.connect(f"file:{path}?mode=ro&immutable=1", uri=True)) as db:
            total += db.execute("SELECT COUNT(*) FROM TASK").fetchone()[0]
    return total


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cluster", type=Path, nargs="?")
    parser.add_argument("--generator", type=Path)
    parser.add_argument("--reference", help="the path of msprof-analyze; it writes into the databases that it reads")
    asked = parser.parse_args()
    compileall.compile_dir(ROOT / "trace_export", quiet=1)  # as an installed package is
    with tempfile.TemporaryDirectory() as scratch:
        cluster = asked.cluster or Path(scratch) / "cluster"
        if asked.generator:
            subprocess.run([sys.executable, asked.generator, cluster, *CLUSTER.split()], check=True)
        databases = sorted(cluster.rglob("ascend_*_profiler_*.db"))
        if not databases:
            parser.error("no profiler databases: give a cluster, or a --generator to make one")
        rows = tasks(databases)
        print(f"{len(databases)} ranks, {rows:,} tasks")
        plain = scan(databases)
        print(f"plain sqlite3 scan       {plain}")
        blocks = export(cluster, Path(scratch) / "blocks")
        print(f"blocks, whole command    {blocks}")
        print(
            f"  {blocks.wall / plain.wall:.2f}x the scan by the clock, {blocks.cpu / plain.cpu:.2f}x its processor time"
        )
        if asked.reference:
            copy = shutil.copytree(cluster, Path(scratch) / "reference")
            reference = command(asked.reference, "cluster", "-m", "pp_chart", "-d", str(copy))
            print(f"msprof-analyze pp_chart  {reference}")
            print(f"  blocks take {blocks.wall / reference.wall:.2f} of its time")
        every = export(
            cluster, Path(scratch) / "tasks", "--detail", "kernels", "--tracks", "rank", "--format", "perfetto"
        )
        print(f"all tasks, whole command {every}")
        print(f"  {rows / every.wall / 1e6:.2f} M slices/s by the clock, {rows / every.cpu / 1e6:.2f} M by processors")


if __name__ == "__main__":
    main()
