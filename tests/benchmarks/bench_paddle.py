"""How fast Paddle logs are read, as ratios against grep in the same run.

    python tests/benchmarks/bench_paddle.py [--gb 1.0] [--dense]

Prints the time of the reader and of the whole command against `grep -c "Profiler Info"` on the same file, the memory
above what the process holds once its packages are imported, a 100 MB line, and 8 files on all cores.
"""

from __future__ import annotations

import argparse
import compileall
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT))
from samples.generators import paddle as generate_paddle  # noqa: E402

TEXT = b"[2025-10-09 08:53:20,113] [    INFO] - loss: 9.87654321, learning_rate: 3e-05, interval_runtime: 1.2345\n"
READ = """
import resource, sys
from pathlib import Path
from trace_export.sources.paddle.reader import read
from trace_export.sources.source import ReadOptions, Source
import polars; polars.DataFrame({"a": ["1"]}).select(polars.col("a").cast(int))
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
profile = read(Source("paddle", Path(sys.argv[1]), "machine0", rank=0), ReadOptions())
print(profile.spans.height, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
"""


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


def seconds(run: Callable[[], object], rounds: int = 3) -> float:
    """The best of some rounds."""
    best = float("inf")
    for _ in range(rounds):
        start = time.perf_counter()
        run()
        best = min(best, time.perf_counter() - start)
    return best


def command(*arguments: object) -> Callable[[], object]:
    return lambda: subprocess.run([str(a) for a in arguments], capture_output=True, check=False, cwd=ROOT)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gb", type=float, default=1.0)
    parser.add_argument("--dense", action="store_true", help="nothing but records in the log")
    options = parser.parse_args()
    compileall.compile_dir(ROOT / "trace_export", quiet=1)  # as an installed package is
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        log = folder / "one" / "workerlog.0"
        log.parent.mkdir()
        make_log(log, round(options.gb * 1e9), options.dense)
        grep = seconds(command("grep", "-c", "Profiler Info", log))
        export = [sys.executable, "-m", "trace_export", "--log_dir"]
        whole = seconds(command(*export, log.parent, "--out", folder / "out"))
        out = subprocess.run(
            [sys.executable, "-c", READ, log], capture_output=True, text=True, check=True, cwd=ROOT
        ).stdout.split()
        empty = folder / "empty"
        empty.mkdir()
        start_up = seconds(command(sys.executable, "-c", READ.replace("profile = ", "sys.exit() #"), log))
        read = seconds(command(sys.executable, "-c", READ, log)) - start_up
        print(f"{options.gb} GB, {out[0]} blocks: grep {grep:.2f} s")
        print(f"reader {read:.2f} s = {read / grep:.2f} × grep, {out[1]} MB")
        print(f"whole command {whole:.2f} s = {whole / grep:.2f} × grep")
        line = folder / "line" / "workerlog.0"
        line.parent.mkdir()
        line.write_bytes(b"x" * 100_000_000 + log.read_bytes()[:100_000])
        print(
            f"one line of 100 MB: whole command {seconds(command(*export, line.parent, '--out', folder / 'out')):.2f} s"
        )
        many = folder / "many"
        many.mkdir()
        for n in range(8):
            make_log(many / f"workerlog.{n}", 128_000_000, options.dense)
        pipe = seconds(command("bash", "-c", f"for f in {many}/*; do cat $f | grep -c 'Profiler Info'; done"))
        both = seconds(command(*export, many, "--out", folder / "out"))
        print(
            f"8 × 128 MB: cat | grep one after the other {pipe:.2f} s; whole command {both:.2f} s = {both / pipe:.2f} ×"
        )


if __name__ == "__main__":
    main()
