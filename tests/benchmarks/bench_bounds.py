"""What a record costs each reader: processor time and peak memory of a process that reads 100,000 and 400,000 of them.

    python -m tests.benchmarks.bench_bounds [READER…]

The rows are of the readers that come nearest to the bounds that `trace_export/docs/scale.md` states: in memory, and in
the time for each MB of the larger file. What each reader takes goes to stderr.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.benchmarks import table
from tests.benchmarks.measure import Amount, Cost, of_command
from tests.benchmarks.table import Row
from tests.faults import sizes

FEW, MANY = 100_000, 400_000
AIM_MEMORY, AIM_S = (640.0, 20.0), 3.0
"""The most memory, in MB and in sizes of the file, and seconds for each MB."""
READ = """
import sys
from pathlib import Path
from trace_export.sources.find import find
from trace_export.sources.read import read
from trace_export.sources.source import ReadOptions
for source in find(Path(sys.argv[1])).sources:
    read(source, ReadOptions())
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
    "Paddle, record": lambda count: sizes.records(count, "forward", 7, 2000.0),
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
        '{"ph":"X","cat":"user_annotation","name":"F{m}.0.0","pid":4001,"tid":8,"ts":{n}.123,"dur":0.5,"args":{}}'
    ),
    "torch.profiler, kernel": _traces(
        '{"ph":"X","cat":"kernel","name":"k","pid":0,"tid":8,"ts":{n}.123,"dur":0.5,"args":{"correlation":{n}}}'
    ),
    "torch.profiler, other event": _traces(
        '{"ph":"X","cat":"python_function","name":"k","pid":4001,"tid":8,"ts":{n}.123,"dur":0.5,"args":{"id":{n}}}'
    ),
}


def measured(make: Callable[[Path], None]) -> tuple[int, Cost]:
    """Size of the files in bytes, and what reading them takes."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make(folder)
        total = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
        return total, of_command([sys.executable, "-c", READ, name])


def rows(options: argparse.Namespace) -> Iterator[Row]:
    few, many = (100, 1_000) if options.quick else (FEW, MANY)
    memory: list[tuple[float, Row]] = []
    time: list[tuple[float, Row]] = []
    for name, make in READERS.items():
        if options.readers and not any(word in name for word in options.readers):
            continue
        (small, quick), (large, slow) = measured(make(few)), measured(make(many))
        bound = AIM_MEMORY[0] + AIM_MEMORY[1] * large / 1e6
        memory.append((slow.megabytes.value / bound, Row(f"{name}: memory of {many:,}", slow.megabytes, aim=bound)))
        a_megabyte = (slow.cpu - quick.cpu) / ((large - small) / 1e6)
        time.append((a_megabyte, Row(f"{name}: CPU", Amount(a_megabyte, "s a MB"), aim=AIM_S)))
        for _, row in (memory[-1], time[-1]):
            print(" | ".join(filter(None, row.cells())), file=sys.stderr, flush=True)
    for found in (memory, time):
        yield max(found, key=lambda each: each[0])[1]


if __name__ == "__main__":
    parser = table.parser(__doc__)
    parser.add_argument("readers", nargs="*", metavar="READER")
    table.main(rows, parser.parse_args())
