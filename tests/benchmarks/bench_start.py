"""How long short runs of the command line take, and which imports cost them most.

    python -m tests.benchmarks.bench_start [--runs 15]

`--version`, `--help` and the export of a small sample: the median run. For each the ten dearest imports go to stderr:
each module's own time without that of what it imports, the smallest of some runs, for a busy machine only adds to it.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence

from tests.benchmarks import table
from tests.benchmarks.measure import PROGRAM, ROOT, compile_package, median, of_command
from tests.benchmarks.table import Row

SAMPLE = ROOT / "samples" / "paddle" / "two_machines"
AIMS = {"--version": 0.12, "--help": 0.25, "export of a small sample": 0.55}
MOST, LOOKS = 10, 5
IMPORT = re.compile(r"import time: +(\d+) \| +\d+ \| +(\S+)")
RUN = "import sys; from trace_export.cli import main; main(sys.argv[1:])"


def imports(arguments: Sequence[str]) -> dict[str, int]:
    """Module → microseconds of its own import."""
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-c", RUN, *arguments],
        env={**os.environ, "PYTHONPATH": str(ROOT)}, check=True, capture_output=True, text=True,
    )  # fmt: skip
    return {name: int(self_us) for self_us, name in IMPORT.findall(done.stderr)}


def dearest(arguments: Sequence[str]) -> list[tuple[str, int]]:
    measured = [imports(arguments) for _ in range(LOOKS)]
    least = {module: min(each.get(module, 0) for each in measured) for module in measured[0]}
    return sorted(least.items(), key=lambda pair: -pair[1])[:MOST]


def rows(options: argparse.Namespace) -> Iterator[Row]:
    compile_package()
    with tempfile.TemporaryDirectory() as folder:
        sample = ["export", str(SAMPLE), "--out", folder, "--debug"]  # which leaves stderr to the interpreter
        for (name, aim), arguments in zip(AIMS.items(), (["--version"], ["--help"], sample), strict=True):
            runs = [of_command([*PROGRAM, *arguments]) for _ in range(2 if options.quick else options.runs)]
            yield Row(f"start: {name}", median(runs).seconds, aim=aim)
            if not options.json:
                for module, self_us in dearest(arguments):
                    print(f"  {self_us / 1e3:6.1f} ms {module}", file=sys.stderr)


if __name__ == "__main__":
    parser = table.parser(__doc__)
    parser.add_argument("--runs", type=int, default=15)
    table.main(rows, parser.parse_args())
