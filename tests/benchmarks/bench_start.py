"""How long short runs of the command line take, and which imports cost them most.

    python tests/benchmarks/bench_start.py [--runs 7]

Prints for `--version`, `--help` and the export of a small sample the fastest run (seconds that somebody waits, and
those of the processors), the goal, and the ten dearest imports: each module's own time without that of what it imports,
the smallest of all runs, for a busy machine only adds to it.
"""

from __future__ import annotations

import argparse
import compileall
import os
import re
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SAMPLE = ROOT / "samples" / "paddle" / "two_machines"
GOALS = {"--version": 0.12, "--help": 0.25, "sample": 0.55}
MOST = 10
IMPORT = re.compile(r"import time: +(\d+) \| +\d+ \| +(\S+)")
RUN = "import sys; from trace_export.cli import main; main(sys.argv[1:])"


def taken(arguments: Sequence[str]) -> tuple[float, float]:
    """Seconds of a run, and seconds of the processors."""
    before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    _run([sys.executable, "-m", "trace_export", *arguments])
    wall, after = time.perf_counter() - started, resource.getrusage(resource.RUSAGE_CHILDREN)
    return wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def imports(arguments: Sequence[str]) -> dict[str, int]:
    """Module → microseconds of its own import."""
    text = _run([sys.executable, "-X", "importtime", "-c", RUN, *arguments])
    return {name: int(own) for own, name in IMPORT.findall(text)}


def _run(command: Sequence[str]) -> str:
    """What a command that must succeed writes to stderr."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stderr


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=7)
    runs = range(parser.parse_args().runs)
    compileall.compile_dir(ROOT / "trace_export", quiet=1)  # as an installed package is
    with tempfile.TemporaryDirectory() as folder:
        sample = ["export", str(SAMPLE), "--out", folder, "--debug"]  # which leaves stderr to the interpreter
        for name, arguments in {"--version": ["--version"], "--help": ["--help"], "sample": sample}.items():
            wall, cpu = (min(times) for times in zip(*(taken(arguments) for _ in runs), strict=True))
            print(f"{name}: {wall:.2f} s, {cpu:.2f} s of processors, goal {GOALS[name]} s")
            measured = [imports(arguments) for _ in runs]
            own = {module: min(each.get(module, 0) for each in measured) for module in measured[0]}
            for module in sorted(own, key=own.__getitem__, reverse=True)[:MOST]:
                print(f"  {own[module] / 1e3:6.1f} ms {module}")


if __name__ == "__main__":
    main()
