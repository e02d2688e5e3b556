"""What a record costs each reader: processor time and peak memory of a process that reads 100,000 and 400,000 of them.

    python -m tests.benchmarks.bench_bounds [READER…]

The difference of the two gives the memory for each record, and the time for each MB of the larger file. The table of
`trace_export/docs/scale.md` is from here.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from tests.faults import sizes

FEW, MANY = 100_000, 400_000
READ = """
import resource, sys
from pathlib import Path
from trace_export.sources.find import find
from trace_export.sources.read import read
from trace_export.sources.source import ReadOptions
for source in find(Path(sys.argv[1])).sources:
    blocks = read(source, ReadOptions()).spans.height
used = resource.getrusage(resource.RUSAGE_SELF)
print(used.ru_utime + used.ru_stime, used.ru_maxrss, blocks)
"""


def _ranges(count: int) -> Callable[[Path], None]:
    name = f"'F' || (n % 1000) || '.0.0'; {sizes.TID}; NULL"
    return sizes.database("nsys", sizes.ranges(f"n * 100; n * 100 + 50; {name}", count))


def _launches(count: int) -> Callable[[Path], None]:
    calls = sizes.calls(f"n * 100; {sizes.TID}; 1000 + n", count)
    return sizes.database("nsys", calls, sizes.kernels("n * 100; n * 100 + 50; 1000 + n; 1", count))


def _markers(count: int) -> Callable[[Path], None]:
    return sizes.database(
        "ascend",
        f"INSERT OR REPLACE INTO STRING_IDS SELECT 700000 + n, 'te:F' || n || '.0' FROM {sizes.numbers(1000)}",
        "INSERT INTO MSTX_EVENTS (startNs, endNs, eventType, message, domainId, connectionId)"
        f" SELECT {sizes.FIRST} + n * 100, {sizes.FIRST} + n * 100 + 50, 2, 700000 + n % 1000, 0, 5000000 + n"
        f" FROM {sizes.numbers(count)}",
        sizes.tasks("n * 100; n * 100 + 50; -1 - n", count).replace("4294967295", "5000000 + n"),
    )


def _tasks(count: int) -> Callable[[Path], None]:
    return sizes.database("ascend", sizes.tasks("n * 100; n * 100 + 50; -1 - n", count))


def _many(event: str, count: int) -> str:
    return ",\n".join(event.replace("{n}", str(n)).replace("{m}", str(n % 1000)) for n in range(count))


def _views(event: str) -> Callable[[int], Callable[[Path], None]]:
    return lambda count: sizes.text("mindspore", "trace_view.json", sizes.events(_many(event, count), 1))


def _traces(event: str) -> Callable[[int], Callable[[Path], None]]:
    return lambda count: sizes.text("kineto", "one.pt.trace.json", sizes.kineto(_many(event, count), 1))


READERS: dict[str, Callable[[int], Callable[[Path], None]]] = {
    "Paddle, record": lambda count: sizes.records(count, "forward", 7, 2.0),
    "Paddle, line of the dynamic graph": lambda count: sizes.text(
        "paddle_dygraph", sizes.RECORD, lambda content: content * (count // len(content.splitlines()))
    ),
    "Nsight Systems, range": _ranges,
    "Nsight Systems, launch and kernel": _launches,
    "Ascend database, marker with its task": _markers,
    "Ascend database, task": _tasks,
    "trace_view.json, marked range": _views(
        '{"name":"te:F{m}.0","ph":"X","ts":"{n}.123","dur":1.5,"pid":7,"tid":8,"args":{}}'
    ),
    "trace_view.json, other event": _views(
        '{"name":"aten::add","ph":"X","ts":"{n}.123","dur":1.5,"pid":7,"tid":8,"args":{}}'
    ),
    "torch.profiler, marked range": _traces(
        '{"ph":"X","cat":"user_annotation","name":"F{m}.0.0","pid":7,"tid":8,"ts":{n}.123,"dur":0.5,"args":{}}'
    ),
    "torch.profiler, kernel": _traces(
        '{"ph":"X","cat":"kernel","name":"k","pid":7,"tid":8,"ts":{n}.123,"dur":0.5,"args":{"correlation":{n}}}'
    ),
    "torch.profiler, other event": _traces(
        '{"ph":"X","cat":"python_function","name":"k","pid":7,"tid":8,"ts":{n}.123,"dur":0.5,"args":{"id":{n}}}'
    ),
}


def measured(make: Callable[[Path], None]) -> tuple[float, float, float]:
    """Size of the files in MB, processor time in s, peak memory in MB."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make(folder)
        total = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
        command = [sys.executable, "-c", READ, name]
        seconds, kilobytes, _ = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
        return total / 1e6, float(seconds), int(kilobytes) / 1e3


def main() -> None:
    wanted = sys.argv[1:]
    print(f"{'':40} {'bytes in the file':>18} {'bytes in memory':>16} {'s/MB':>6}")
    for name, make in READERS.items():
        if wanted and not any(word in name for word in wanted):
            continue
        (small, quick, low), (large, slow, high) = measured(make(FEW)), measured(make(MANY))
        each = MANY - FEW
        print(
            f"{name:40} {1e6 * (large - small) / each:18.0f} {1e6 * (high - low) / each:16.0f}"
            f" {(slow - quick) / (large - small):6.3f}", flush=True,
        )  # fmt: skip


if __name__ == "__main__":
    main()
