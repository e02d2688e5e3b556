"""Speed and memory of reading one large torch.profiler trace.

    python tests/benchmarks/bench_kineto.py [megabytes]

Compared in the same run with `orjson.loads` of the whole file, which every reader that is not a stream must begin with.
Each runs in a process of its own, so that its peak memory is its own.
"""

from __future__ import annotations

import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from samples.generators.kineto_trace import MAIN, Trace

OPERATORS = 8
"""Operators for each launch; in real traces with stacks there are more."""


def write(path: Path, megabytes: int) -> None:
    """Blocks of 40 kernels, in pieces that are written one after the other: the trace need not fit into memory."""
    base = Trace()
    head, tail = base.text().split("\n  ],")
    number, at = 0, 0
    with path.open("w") as file:
        file.write(head)
        while file.tell() < megabytes << 20:
            piece = Trace(correlation=base.correlation)
            for block in range(10):
                piece.range(at, at + 400_000, f"F{number % 64}.0.0")
                for i in range(40):
                    for _ in range(OPERATORS):
                        piece.range(at + i * 5_000, at + i * 5_000 + 900, "aten::linear", thread=MAIN, cat="cpu_op")
                    call = piece.call(at + i * 5_000, thread=77)
                    piece.kernel(at + 500_000 + i * 8_000, at + 507_000 + i * 8_000, call)
                at, number = at + 1_000_000, number + block % 2
            base.correlation = piece.correlation
            body = piece.text().split('"traceEvents": [\n', 1)[1].split("\n  ],")[0]
            file.write(("," if file.tell() > len(head) + 10 else "") + body)
        file.write("\n  ]," + tail)


def stream(path: Path) -> int:
    from trace_export.sources.kineto.reader import read
    from trace_export.sources.source import ReadOptions, Source

    return read(Source("kineto", path, "host"), ReadOptions()).spans.height


def whole(path: Path) -> int:
    import orjson

    return len(orjson.loads(path.read_bytes())["traceEvents"])


def main() -> None:
    if len(sys.argv) == 3:
        name, path = sys.argv[1], Path(sys.argv[2])
        start = time.perf_counter()
        found = {"stream": stream, "whole": whole}[name](path)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(found, time.perf_counter() - start, peak)
        return
    megabytes = int(sys.argv[1]) if len(sys.argv) == 2 else 150
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "big.pt.trace.json"
        write(path, megabytes)
        results = {}
        for name in ("whole", "stream"):
            done = subprocess.run([sys.executable, __file__, name, path], capture_output=True, text=True, check=True)
            found, seconds, peak = map(float, done.stdout.split())
            results[name] = seconds, peak
            print(
                f"{name:7} {found:9,.0f} found  {seconds:6.2f} s  {megabytes / seconds:6.1f} MB/s  {peak:7.0f} MB peak"
            )
    speed, memory = (results["whole"][i] / results["stream"][i] for i in (0, 1))
    print(f"{megabytes} MB: {speed:.2f} times the speed of orjson.loads alone, {1 / memory:.2f} of its memory")


if __name__ == "__main__":
    main()
