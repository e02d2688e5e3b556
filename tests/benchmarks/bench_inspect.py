"""How long `inspect` looks at large sources, at a few sizes.

    python -m tests.benchmarks.bench_inspect [nsys|ascend|paddle|kineto]... [--sources 64] [--megabytes 2,10]

The whole command, the best of three. What is looked at is the beginning, so that the time should not grow with the size
of the sources. The row is of the format and size that take longest; all go to stderr, with the verdict. The sources are
made in a temporary folder, all of the sizes of one format at a time.
"""

import argparse
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import orjson

from tests.benchmarks import table
from tests.benchmarks.measure import PROGRAM, compile_package, least, of_command
from tests.benchmarks.table import Row
from tests.support import long_runs

MAKERS = {
    "nsys": lambda place, times, stages: long_runs.nsys(place, times, stages, kernels=40),
    "ascend": lambda place, times, stages: long_runs.ascend(place, times, stages, kernels=40),
    "paddle": long_runs.paddle,
    "kineto": lambda place, times, stages: long_runs.kineto(place, times, stages, operators=40),
}


AIM_S, ROUNDS = 1.0, 3


def size(place: Path) -> int:
    return sum(path.stat().st_size for path in place.rglob("*") if path.is_file())


def rows(options: argparse.Namespace) -> Iterator[Row]:
    compile_package()
    sources, sizes = (4, [0.2]) if options.quick else (options.sources, list(map(float, options.megabytes.split(","))))
    result: list[Row] = []
    for case in options.cases or MAKERS:
        for megabytes in sizes:
            with tempfile.TemporaryDirectory() as folder:
                for name in ("probe", "run"):
                    (Path(folder) / name).mkdir()
                MAKERS[case](probe := Path(folder) / "probe", 4, 2)
                times = max(1, round(megabytes * 1e6 * 8 / size(probe)))
                MAKERS[case](place := Path(folder) / "run", times, sources)
                taken = least(of_command([*PROGRAM, "inspect", place, "--json"]) for _ in range(ROUNDS))
                what = f"inspect of {sources} sources of {case}, {size(place) / sources / 1e6:.1f} MB each"
            result.append(Row(what, taken.seconds, aim=AIM_S))
            print(" | ".join(filter(None, result[-1].cells())), file=sys.stderr)
            verdict = orjson.loads(taken.output)["verdict"]
            print(f"truth: {times * long_runs.STEPS} steps; {verdict}", file=sys.stderr)
    yield max(result, key=lambda row: row.ours.value if row.ours else 0)


if __name__ == "__main__":
    parser = table.parser(__doc__)
    parser.add_argument("cases", nargs="*", metavar="CASE", help=", ".join(MAKERS))
    parser.add_argument("--sources", type=int, default=64)
    parser.add_argument("--megabytes", default="2,10")
    table.main(rows, parser.parse_args())
