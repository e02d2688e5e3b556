"""Speed and memory of reading one large torch.profiler trace, beside programs that read such traces.

    python tests/benchmarks/bench_kineto.py [megabytes]

Each runs in a process of its own on the same files, so that processor time (user and system, of all threads) and peak
memory are its own: `json.load`, `orjson.loads` and the trace processor (its WebAssembly build) of the whole file,
HolisticTraceAnalysis where the Python named by the environment variable HTA_PYTHON has it, and of trace-export the
blocks alone, the device tasks alone, and the command with --detail kernels; also of the same events on one line and
gzipped. `start` is the import of the library alone.
"""

from __future__ import annotations

import gzip
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from samples.generators.kineto_trace import MAIN, Trace

OPERATORS = 8
"""Operators for each launch; in real traces with stacks there are more."""


def write(path: Path, megabytes: int) -> None:
    """Blocks of 40 kernels in the order of Kineto, all operators before all launches and kernels; in pieces that are
    written one after the other: the trace need not fit into memory."""
    head, tail = Trace().text().split("\n  ],")
    cpu, gpu = _piece(0)
    pieces = (megabytes << 20) // (len(cpu) + len(gpu))
    with path.open("w") as file:
        file.write(head)
        for side in (0, 1):
            for number in range(pieces):
                file.write(("," if side or number else "") + _piece(number)[side])
        file.write("\n  ]," + tail)


def _piece(number: int) -> tuple[str, str]:
    """The operators of ten blocks as text; their launches and kernels."""
    cpu, gpu = Trace(), Trace(correlation=100 + 400 * number)
    for block in range(10 * number, 10 * number + 10):
        at = block * 1_000_000
        cpu.range(at, at + 400_000, f"F{block // 2 % 64}.0.0")
        for i in range(40):
            for _ in range(OPERATORS):
                cpu.range(at + i * 5_000, at + i * 5_000 + 900, "aten::linear", thread=MAIN, cat="cpu_op")
            call = gpu.call(at + i * 5_000, thread=77)
            gpu.kernel(at + 500_000 + i * 8_000, at + 507_000 + i * 8_000, call)
    texts = [trace.text().split('"traceEvents": [\n', 1)[1].split("\n  ],")[0] for trace in (cpu, gpu)]
    return texts[0], texts[1]


def rewritten(path: Path) -> tuple[Path, Path]:
    """The same trace on one line, as json.dumps writes it, and gzipped."""
    import orjson

    line, packed = (path.with_name(name) for name in ("line.json", "packed.json.gz"))
    with line.open("w") as file:
        json.dump(orjson.loads(path.read_bytes()), file)
    with path.open("rb") as whole, gzip.open(packed, "wb", 6) as file:
        shutil.copyfileobj(whole, file)
    return line, packed


def start(path: Path) -> None:
    import trace_export.api  # noqa: F401


def blocks(path: Path) -> None:
    from trace_export.sources.kineto.reader import read
    from trace_export.sources.source import ReadOptions, Source

    read(Source("kineto", path, "host"), ReadOptions())


def tasks(path: Path) -> None:
    from trace_export.sources.kineto.reader import read_tasks
    from trace_export.sources.source import Source, TaskRequest

    with tempfile.TemporaryDirectory() as folder:
        read_tasks(TaskRequest(Source("kineto", path, "host"), "kernels", {0: 0}, None, Path(folder)))


def command(path: Path) -> None:
    from trace_export import api

    with tempfile.TemporaryDirectory() as folder:
        alone = Path(folder) / "in"
        alone.mkdir()
        (alone / path.name).symlink_to(path)
        api.export(alone, Path(folder) / "out", detail="kernels")


def json_load(path: Path) -> None:
    with path.open() as file:
        json.load(file)


def orjson_loads(path: Path) -> None:
    import orjson

    orjson.loads(path.read_bytes())


def trace_processor(path: Path) -> None:
    from tests.support.trace_processor import TraceProcessor

    with TraceProcessor(path):
        pass


def gunzip(path: Path) -> None:
    with gzip.open(path) as file:
        while file.read(1 << 20):
            pass


READERS = {f.__name__: f for f in (start, blocks, tasks, command, json_load, orjson_loads, trace_processor, gunzip)}
HTA = "import sys; from hta.common.trace import parse_trace_file as parse; parse(sys.argv[1])"


def measured(arguments: list[str], compiled: Path) -> tuple[float, float] | None:
    """Processor seconds and peak MB of a Python program; None where it fails. Its modules are `compiled` once, as those
    of an installed package are."""
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    timed = subprocess.run(
        ["/usr/bin/time", "-f", "%U %S %M", *arguments],
        env={**environment, "PYTHONPYCACHEPREFIX": str(compiled)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if timed.returncode:
        print(arguments, timed.stderr[-500:], file=sys.stderr)
        return None
    user, system, peak = map(float, timed.stderr.split()[-3:])
    return user + system, peak / 1024


def main() -> None:
    if len(sys.argv) == 3:
        READERS[sys.argv[1]](Path(sys.argv[2]))
        return
    megabytes = int(sys.argv[1]) if len(sys.argv) == 2 else 54
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "lines.json"
        write(path, megabytes)
        line, packed = rewritten(path)
        runs = [
            (name, path)
            for name in ("json_load", "orjson_loads", "trace_processor", "start", "blocks", "tasks", "command")
        ]
        runs += [(name, line) for name in ("json_load", "blocks", "command")]
        runs += [("gunzip", packed), ("blocks", packed)]
        compiled = Path(folder) / "compiled"
        small = path.with_name("small.json")
        write(small, 1)
        for name in ("command", "trace_processor"):
            measured([sys.executable, __file__, name, str(small)], compiled)
        found = {(name, p): measured([sys.executable, __file__, name, str(p)], compiled) for name, p in runs}
        if hta := os.environ.get("HTA_PYTHON"):
            found["hta", path] = measured([hta, "-c", HTA, str(path)], compiled)
    base = found["json_load", path]
    for (name, p), result in found.items():
        if result and base:
            seconds, peak = result
            speed, share = megabytes / seconds, seconds / base[0]
            print(f"{name:16}{p.name:15}{seconds:7.2f} s {speed:7.0f} MB/s {peak:6.0f} MB {share:6.2f} x json.load")


if __name__ == "__main__":
    main()
