"""How long `inspect` looks at large sources, at a few sizes, beside what reading them whole is estimated at.

    python tests/benchmarks/bench_inspect.py [nsys|ascend|paddle|kineto]... [--sources 64] [--megabytes 5,50]

Prints for each the seconds of the whole command by the clock and by the processors, the best of three, and the verdict.
What is looked at is the beginning, so that the time should not grow with the size. Figure to reach on two cores: 1 s.
The sources are made in a temporary folder, all of the sizes of one format at a time.
"""

from __future__ import annotations

import argparse
import compileall
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

import orjson  # noqa: E402

from tests.support import long_runs  # noqa: E402

MAKERS = {
    "nsys": lambda place, times, stages: long_runs.nsys(place, times, stages, kernels=40),
    "ascend": lambda place, times, stages: long_runs.ascend(place, times, stages, kernels=40),
    "paddle": long_runs.paddle,
    "kineto": lambda place, times, stages: long_runs.kineto(place, times, stages, operators=40),
}


def size(place: Path) -> int:
    return sum(path.stat().st_size for path in place.rglob("*") if path.is_file())


def look(place: Path) -> tuple[float, float, dict[str, object]]:
    """Seconds, seconds of the processors, and what the command says."""
    command = [sys.executable, "-m", "trace_export", "inspect", str(place), "--json"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    started = time.perf_counter()
    done = subprocess.run(command, env=environment, check=True, capture_output=True)
    seconds = time.perf_counter() - started
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return seconds, used, orjson.loads(done.stdout)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("cases", nargs="*", metavar="CASE", help=", ".join(MAKERS))
    parser.add_argument("--sources", type=int, default=64)
    parser.add_argument("--megabytes", default="5,50")
    options = parser.parse_args()
    compileall.compile_dir(ROOT / "trace_export", quiet=1)  # as an installed package is
    for case in options.cases or MAKERS:
        for megabytes in map(float, options.megabytes.split(",")):
            with tempfile.TemporaryDirectory() as folder:
                for name in ("probe", "run"):
                    (Path(folder) / name).mkdir()
                MAKERS[case](probe := Path(folder) / "probe", 4, 2)
                times = max(1, round(megabytes * 1e6 * 8 / size(probe)))
                MAKERS[case](place := Path(folder) / "run", times, options.sources)
                runs = [look(place) for _ in range(3)]
                seconds, used = min(run[0] for run in runs), min(run[1] for run in runs)
                said = runs[0][2]
                each = f"{size(place) / options.sources / 1e6:.1f} MB"
                print(
                    f"{case:7} {options.sources} sources of {each}: {seconds:.2f} s, of processor time {used:.2f} s"
                    f";"
                    f" truth: {times * long_runs.STEPS} steps; {said['verdict']}"
                )


if __name__ == "__main__":
    main()
