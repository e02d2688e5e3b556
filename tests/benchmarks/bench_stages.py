"""What each stage of an export costs per block, on one core: find, read, interpret, align, analyse, lay out, encode,
write.

    python -m tests.benchmarks.bench_stages [long|wide]... [--place FOLDER]

`long`: 8 ranks on one machine, 1 M blocks. `wide`: 1,024 ranks on 128 machines, 1,000 blocks each. Paddle logs, for
their reader does the least. Seconds are those of the processors, of each stage the least of three processes, for what
else runs on the machine only adds to them. No stage after reading should take more than 0.4 µs a block. Inputs are made
in FOLDER and kept there for the next run.
"""

from __future__ import annotations

import argparse
import os
import re
import tempfile
import time
from collections.abc import Callable, Iterator
from multiprocessing import get_context
from pathlib import Path
from typing import TypeVar

os.environ["POLARS_MAX_THREADS"] = "1"  # before Polars is loaded

from samples.generators import paddle
from tests.benchmarks import table
from tests.benchmarks.measure import Amount, warm_memory
from tests.benchmarks.table import Row
from trace_export.analysis.bubbles import Bubbles
from trace_export.clocks import align as clocks
from trace_export.draw import Content, draw
from trace_export.model import Declared
from trace_export.options import drawing
from trace_export.pipeline import completeness
from trace_export.pipeline.interpret import interpret
from trace_export.progress import silent
from trace_export.read import LoadOptions, locate, read_profile
from trace_export.writers.traces import perfetto

STAGES, MICROBATCHES = 8, 64
REPEATED, STEP_MS = 8, 5_000
CASES = {"long": (1, 976), "wide": (128, 8)}
"""Machines, each a pipeline of its own, and steps, a multiple of those that are made."""
AIM_US, ROUNDS = 0.4, 3
WITHOUT_AIM = ("find", "read")

Result = TypeVar("Result")


class Stopwatch:
    """Processor seconds by stage; what takes place under one name more than once adds up."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    def __call__(self, stage: str, work: Callable[[], Result]) -> Result:
        started = time.process_time()
        result = work()
        self.seconds[stage] = self.seconds.get(stage, 0) + time.process_time() - started
        return result


def make(place: Path, machines: int, steps: int) -> None:
    """The logs of one machine, whose eight steps come again and again, and links to them for the others."""
    first = place / "machine0"
    paddle.write(first, stages=STAGES, microbatches=MICROBATCHES, steps=REPEATED)
    (first / "truth.csv").unlink()
    for log in first.iterdir():
        text = log.read_text("utf-8")
        log.write_text("".join(_later(text, REPEATED * k) for k in range(steps // REPEATED)), "utf-8")
    for machine in range(1, machines):
        (folder := place / f"machine{machine}").mkdir()
        for log in first.iterdir():
            (folder / log.name).hardlink_to(log)


def _later(text: str, steps: int) -> str:
    """A log whose steps come so many steps later."""
    shift = steps * STEP_MS
    return re.sub(r"(?<=_time = )[0-9.]+", lambda time: f"{float(time[0]) + shift:.6f}", text)


def export(place: Path, folder: Path) -> tuple[dict[str, float], int]:
    """What the stages of `trace-export place --out folder --format perfetto` take, and the number of blocks. To encode
    is to write as well."""
    warm_memory()
    watch, options = Stopwatch(), LoadOptions(place, jobs=1)
    located = watch("find", lambda: locate(options))
    profile, _ = watch("read", lambda: read_profile(located, options, silent))
    profile = watch("interpret", lambda: interpret(profile, Declared()))
    profile = watch("align", lambda: clocks.align(profile, "auto"))
    profile = watch("align", lambda: completeness.mark_whole_steps(profile, one_clock=True, all_ranks=True))
    measured = Bubbles(profile)
    watch("analyse", lambda: measured.steps)
    chart = watch("lay out", lambda: draw(Content(measured), drawing(tracks="rank")))
    watch("encode", lambda: perfetto.write(chart, folder / "trace.pftrace"))
    trace = (folder / "trace.pftrace").read_bytes()
    watch("write", lambda: (folder / "again").write_bytes(trace))
    return watch.seconds, profile.spans.height


def rows(options: argparse.Namespace) -> Iterator[Row]:
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) if options.quick else options.place
        for case in options.cases or CASES:
            machines, steps = (1, REPEATED) if options.quick else CASES[case]
            logs = place / f"{case}{machines}x{steps}"
            if not logs.exists():
                make(logs, machines, steps)
            with get_context("spawn").Pool(1, maxtasksperchild=1) as pool:  # the memory of each is new
                done = pool.starmap(export, [(logs, Path(folder))] * ROUNDS, chunksize=1)
            blocks = done[0][1]
            least = {stage: min(seconds[stage] for seconds, _ in done) for stage in done[0][0]}
            for stage, seconds in (least | {"encode": least["encode"] - least["write"]}).items():
                work = f"{stage}: {blocks:,} blocks of {STAGES * machines:,} ranks, CPU"
                aim = None if stage in WITHOUT_AIM else AIM_US
                yield Row(work, Amount(seconds / blocks * 1e6, "µs a block"), aim=aim)


if __name__ == "__main__":
    parser = table.parser(__doc__)
    parser.add_argument("cases", nargs="*", metavar="CASE", help=", ".join(CASES))
    parser.add_argument("--place", type=Path, default=Path(tempfile.gettempdir()) / "trace_export_bench_stages")
    table.main(rows, parser.parse_args())
