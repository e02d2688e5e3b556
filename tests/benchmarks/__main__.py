"""Runs the benchmarks one after the other and writes what they measured as one Markdown table.

    tests/benchmarks/run [NAME]... [--quick] [--out FILE]
    tests/benchmarks/run start nsys         # bench_start.py and bench_nsys.py alone

Each is a process of its own and prints its rows; one that cannot run gives a row that says why. Peers that need an
environment of their own are named by variables: MSPROF_ANALYZE, the command msprof-analyze; HTA_PYTHON, a Python that
has HolisticTraceAnalysis; TRACE_EXPORT_FRAMEWORKS_PYTHON, one that has PyTorch. Leave the machine alone meanwhile; the
load is printed above the table.
"""

import argparse
import importlib.metadata
import os
import platform
import re
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from tests.benchmarks.measure import ROOT, compile_package
from tests.benchmarks.table import Row, from_json, markdown

PLACE = Path(__file__).parent
FAILED = "the benchmark failed"
PACKAGES = ("polars", "numpy", "orjson", "perfetto", "wasmtime", "distributed")


def names() -> list[str]:
    return sorted(path.stem.removeprefix("bench_") for path in PLACE.glob("bench_*.py"))


def rows_of(name: str, quick: bool) -> Iterator[Row]:
    """What a benchmark prints, as it prints it, and a row for why it failed, if it did."""
    command = [sys.executable, "-m", f"tests.benchmarks.bench_{name}", "--json", *(["--quick"] if quick else [])]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with tempfile.TemporaryFile("w+") as errors:
        with subprocess.Popen(
            command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=errors, text=True
        ) as process:
            assert process.stdout is not None
            for line in process.stdout:
                yield from_json(line)
        if process.returncode:
            errors.seek(0)
            said = errors.read().strip().splitlines()
            yield Row(f"bench_{name}.py", missing=f"{FAILED}, {said[-1] if said else process.returncode}")


def machine() -> list[str]:
    """What was measured where, as lines of a list."""
    model = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9
    commit = subprocess.run(["git", "describe", "--always", "--dirty"], cwd=ROOT, capture_output=True, text=True)
    versions = [f"Python {platform.python_version()}", f"SQLite {sqlite3.sqlite_version}"]
    for package in PACKAGES:
        try:
            versions.append(f"{package} {importlib.metadata.version(package)}")
        except importlib.metadata.PackageNotFoundError:
            continue
    return [
        f"{time.strftime('%Y-%m-%d')}, commit {commit.stdout.strip() or 'unknown'}",
        f"{model[1] if model else platform.machine()}, {len(os.sched_getaffinity(0))} cores, {memory:.0f} GB,"
        f" {platform.system()} {platform.release()}",
        ", ".join(versions),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(names()))
    parser.add_argument("--quick", action="store_true", help="very small inputs: only to see that all of them work")
    parser.add_argument("--out", type=Path, help="the file for the table; otherwise it is printed")
    options = parser.parse_args()
    if unknown := set(options.names) - set(names()):
        parser.error(f"no such benchmark: {', '.join(sorted(unknown))}; there are {', '.join(names())}")
    compile_package()
    load, begun, rows = os.getloadavg()[0], time.perf_counter(), []
    for name in options.names or names():
        started = time.perf_counter()
        for row in rows_of(name, options.quick):
            print(" | ".join(filter(None, row.cells())), file=sys.stderr, flush=True)
            rows.append(row)
        print(f"bench_{name}.py took {time.perf_counter() - started:.0f} s", file=sys.stderr, flush=True)
    lines = [*machine(), f"load {load:.1f} before and {os.getloadavg()[0]:.1f} after"]
    lines[-1] += f"; {(time.perf_counter() - begun) / 60:.0f} minutes" + ("; very small inputs" * options.quick)
    text = "".join(f"- {line}\n" for line in lines) + "\n" + markdown(rows)
    if options.out:
        options.out.write_text(text, encoding="utf-8")
    else:
        print(text, end="")
    return int(any(row.missing.startswith(FAILED) for row in rows))


if __name__ == "__main__":
    sys.exit(main())
