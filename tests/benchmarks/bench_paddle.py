"""How fast Paddle logs are read, as ratios against grep in the same run.

    python -m tests.benchmarks.bench_paddle [--gb 1.0] [--dense]

The whole command against `grep -c "Profiler Info"` on the same file, and a line of 100 MB.
"""

import argparse
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from samples.generators import paddle as generate_paddle
from tests.benchmarks import table
from tests.benchmarks.measure import PROGRAM, Cost, compile_package, least, of_command
from tests.benchmarks.table import Row

TEXT = b"[2025-10-09 08:53:20,113] [    INFO] - loss: 9.87654321, learning_rate: 3e-05, interval_runtime: 1.2345\n"
ROUNDS, LINE = 3, 100_000_000


def make_log(path: Path, size: int, dense: bool) -> None:
    """A log of about `size` bytes: the records of many steps, with a training's chatter between them unless dense."""
    with tempfile.TemporaryDirectory() as folder:
        generate_paddle.write(Path(folder), stages=1, microbatches=8, steps=200, first_step=0)
        steps = (Path(folder) / "workerlog.0").read_bytes().split(b"[INFO] loss")
    chatter = b"" if dense else TEXT * 20_000
    with path.open("wb") as file:
        while file.tell() < size:
            for step in steps:
                file.write(step)
                file.write(chatter)
                if file.tell() >= size:
                    break


def best(arguments: Sequence[object]) -> Cost:
    return least(of_command(arguments) for _ in range(ROUNDS))


def rows(options: argparse.Namespace) -> Iterator[Row]:
    compile_package()
    size = round((0.005 if options.quick else options.gb) * 1e9)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        log = folder / "one" / "workerlog.0"
        log.parent.mkdir()
        make_log(log, size, options.dense)
        grep = best(["grep", "-c", "Profiler Info", log])
        export = [*PROGRAM, "--out", folder / "out", "--log_dir"]
        whole = best([*export, log.parent])
        what = f"Paddle log of {table.short(size / 1e9)} GB"
        yield Row(f"{what}: whole command", whole.seconds, "grep", grep.seconds, 3.0)
        line = folder / "line" / "workerlog.0"
        line.parent.mkdir()
        line.write_bytes(b"x" * min(LINE, size) + log.read_bytes()[:100_000])
        counted = best(["grep", "-c", "Profiler Info", line])
        one = best([*export, line.parent])
        yield Row("Paddle log with a line of 100 MB: whole command", one.seconds, "grep", counted.seconds)


if __name__ == "__main__":
    parser = table.parser(__doc__)
    parser.add_argument("--gb", type=float, default=1.0)
    parser.add_argument("--dense", action="store_true", help="nothing but records in the log")
    table.main(rows, parser.parse_args())
