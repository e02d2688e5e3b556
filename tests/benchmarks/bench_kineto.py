"""Speed and memory of reading one large torch.profiler trace, beside programs that read such traces.

    python -m tests.benchmarks.bench_kineto [--megabytes 54]

Each runs in a process of its own on the same file, so that processor time (user and system, of all threads) and peak
memory are its own: `json.load` and the trace processor (its WebAssembly build) of the whole file, HolisticTraceAnalysis
where the Python named by the environment variable HTA_PYTHON has it, and the command with --detail kernels; also of a
trace four times as large.
"""

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from samples.generators.kineto_trace import MAIN, Trace
from tests.benchmarks import table
from tests.benchmarks.measure import Cost, of_command
from tests.benchmarks.table import Row

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


LARGER = 4
"""How many times as large the second trace is, of which the start of the command is a smaller part."""


def json_load(path: Path) -> None:
    with path.open() as file:
        json.load(file)


def trace_processor(path: Path) -> None:
    from tests.support.trace_processor import TraceProcessor

    with TraceProcessor(path):
        pass


READERS = {f.__name__: f for f in (json_load, trace_processor)}
HTA = "import sys; from hta.common.trace import parse_trace_file as parse; parse(sys.argv[1])"


def measured(arguments: list[object], compiled: Path) -> Cost:
    """What a Python program takes. Its modules are `compiled` once, as those of an installed package are."""
    return of_command(arguments, {"PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": str(compiled)})


def exported(trace: Path, compiled: Path) -> Cost:
    """What the command takes for a trace alone in a folder, from its start to its end, with both files it writes."""
    with tempfile.TemporaryDirectory() as folder:
        alone = Path(folder) / "in"
        alone.mkdir()
        (alone / trace.name).symlink_to(trace)
        out = Path(folder) / "out"
        command = [sys.executable, "-m", "trace_export", "export", alone, "--out", out, "--detail", "kernels"]
        return measured([*command, "--follow-links"], compiled)


def rows(options: argparse.Namespace) -> Iterator[Row]:
    megabytes = 2 if options.quick else options.megabytes
    with tempfile.TemporaryDirectory() as folder:
        path, compiled = Path(folder) / "lines.json", Path(folder) / "compiled"
        write(path, megabytes)
        small = path.with_name("small.json")
        write(small, 1)

        def taken(name: str, trace: Path = path) -> Cost:
            return measured([sys.executable, "-m", "tests.benchmarks.bench_kineto", "--one", name, trace], compiled)

        exported(small, compiled)  # so that it is compiled
        beside("", taken("json_load", small), "", lambda: taken("trace_processor", small))
        what = f"torch.profiler, {megabytes} MB"
        work = f"{what}: command with kernels"
        load, whole = taken("json_load"), exported(path, compiled)
        yield Row(work, whole.seconds, "json.load", load.seconds, 1.0)
        yield beside(work, whole, "trace processor", lambda: taken("trace_processor"), 0.5)
        if python := os.environ.get("HTA_PYTHON"):
            yield beside(work, whole, "HTA", lambda: measured([python, "-c", HTA, path], compiled), 0.2)
        else:
            yield Row(work, reference="HTA", aim=0.2, missing="HTA_PYTHON does not name a Python that has it")
        yield Row(f"{work}, memory", whole.megabytes, "json.load", load.megabytes)
        larger = LARGER * megabytes
        write(path, larger)
        work = f"torch.profiler, {larger} MB: command with kernels"
        yield beside(work, exported(path, compiled), "trace processor", lambda: taken("trace_processor"), 0.5)


def beside(work: str, ours: Cost, name: str, theirs: Callable[[], Cost], aim: float | None = None) -> Row:
    """A row for a program that may not be here."""
    try:
        return Row(work, ours.seconds, name, theirs().seconds, aim)
    except RuntimeError as failure:
        return Row(work, reference=name, aim=aim, missing=str(failure).splitlines()[-1])


if __name__ == "__main__":
    parser = table.parser(__doc__)
    parser.add_argument("--megabytes", type=int, default=54)
    parser.add_argument("--one", nargs=2, metavar=("READER", "FILE"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        READERS[options.one[0]](Path(options.one[1]))
    else:
        table.main(rows, options)
