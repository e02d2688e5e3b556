"""An overview of very many ranks.

    python -m tests.benchmarks.bench_overview [tables|paddle]... [--ranks N] [--jobs N] [--place FOLDER]

`tables` are span tables of hosts with planted exceptions, 128 ranks (16 stages of 8 tensor-parallel ranks) in a
replica: 100,096 ranks have 13 million blocks in 12,512 tables (200 MB). It fails where the exceptions are not exactly
those that were planted. `paddle` are logs of pipelines of eight ranks, two steps of 32 micro-batches. Inputs are kept
in FOLDER for the next run. Measured are the whole command; for `tables` the largest memory of any process, the size of
the page and how long a browser takes to open it; and for `paddle` the time of a second look for one replica.

Without --ranks there are few enough that making and reading them takes about a minute. The aims of 100,096 tables and
16,384 logs, 10 minutes and 90 s on two cores, hold for as many ranks in proportion.
"""

import argparse
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import psutil
from playwright.sync_api import sync_playwright

from samples.generators import paddle as generate_paddle
from tests.benchmarks import table
from tests.benchmarks.measure import PROGRAM, Amount, Cost, compile_package, of_command
from tests.benchmarks.table import Row
from tests.support.browser import FLAGS, PROGRAMS
from tests.support.many_ranks import ManyRanks, Planted, write

STAGES, MICROBATCHES, STEPS = 8, 32, 2


def tables(place: Path, ranks: int) -> None:
    write(place, many(ranks))


def many(ranks: int) -> ManyRanks:
    return ManyRanks(replicas=max(ranks // 128, 12)).with_exceptions()


def paddle(place: Path, ranks: int) -> None:
    """Eight logs a machine, each machine a pipeline of its own; all have the same blocks."""
    generate_paddle.write(place / "machine0", stages=STAGES, microbatches=MICROBATCHES, steps=STEPS)
    (place / "machine0" / "truth.csv").unlink()
    for machine in range(1, ranks // STAGES):
        shutil.copytree(place / "machine0", place / f"machine{machine}")


MAKERS = {"tables": (tables, 12_800), "paddle": (paddle, 2_048)}
AIM_MS = {"tables": 6.0, "paddle": 5.5}
"""Milliseconds a rank."""
AIM_MEMORY, AIM_PAGE, AIM_OPENING = 1000, 5.0, 2.0


def used(*arguments: object) -> Cost:
    return of_command([*PROGRAM, *arguments, "--quiet"])


def opening(page: Path) -> Row:
    """From the address to the map that is drawn, in a tab of a browser that runs."""
    work = "overview: its page opened by a browser"
    path = next(filter(None, map(shutil.which, PROGRAMS)), None)
    if path is None:
        return Row(work, aim=AIM_OPENING, missing="there is no Chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=FLAGS)
        for _ in range(2):
            tab = browser.new_page(viewport={"width": 1400, "height": 900})
            begun, before = time.perf_counter(), browsing()
            tab.goto(page.as_uri())
            tab.locator("#state", has_text="in view").wait_for()
            taken = Amount(time.perf_counter() - begun, "s", browsing() - before)
            tab.close()
        browser.close()
    return Row(work, taken, aim=AIM_OPENING)


def browsing() -> float:
    """Processor seconds of the browser's processes so far."""
    result = 0.0
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            result += sum(process.cpu_times()[:2])
    return result


def named(exceptions: pl.DataFrame) -> Planted:
    """The exceptions as what might have been planted."""

    def of(kind: str, *columns: str) -> list[tuple[Any, ...]]:
        return sorted(exceptions.filter(pl.col("kind") == kind).select(columns).rows())

    return Planted(
        ranks=tuple(row[0] for row in of("slow-rank", "rank")),
        links=tuple(sorted((min(row), max(row)) for row in of("slow-link", "rank", "to_rank"))),
        hosts=tuple(row[0] for row in of("drifting-clock", "host")),
        replicas=tuple(row[0] for row in of("settings", "replica")),
    )


def rows(options: argparse.Namespace) -> Iterator[Row]:
    compile_package()
    for kind in options.kinds or MAKERS:
        make, usual = MAKERS[kind]
        ranks = (1_536 if kind == "tables" else 160) if options.quick else options.ranks or usual
        logs = options.place / f"{kind}{ranks}"
        if not logs.exists():
            make(logs, ranks)
        with tempfile.TemporaryDirectory() as out:
            yield from look(kind, ranks, logs, Path(out), options.jobs)


def look(kind: str, ranks: int, logs: Path, out: Path, jobs: int | None) -> Iterator[Row]:
    whole = used("overview", logs, "--out", out, "--format", "html,parquet", *(["--jobs", jobs] if jobs else []))
    html, what = out / "pipeline_overview.html", f"overview of {ranks:,} ranks, {kind}"
    yield Row(what, whole.seconds, aim=AIM_MS[kind] * ranks / 1e3)
    if kind == "tables":
        yield Row(f"{what}: memory of the largest process", whole.megabytes, aim=AIM_MEMORY)
        yield Row(f"{what}: page", Amount(html.stat().st_size / 1e6, "MB"), aim=AIM_PAGE)
        yield opening(html)
        result = named(pl.read_parquet(out / "pipeline_overview.exceptions.parquet"))
        planted = many(ranks).planted
        if result != replace(planted, links=tuple(sorted(planted.links))):
            raise SystemExit(f"named {result}, planted {planted}")
        return
    replica = ["export", logs, "--replica", "17", "--out", out / "replica"]
    yield Row(f"{what}: one replica", used(*replica).seconds)


if __name__ == "__main__":
    parser = table.parser(__doc__)
    parser.add_argument("kinds", nargs="*", metavar="KIND", help=", ".join(MAKERS))
    parser.add_argument("--ranks", type=int)
    parser.add_argument("--jobs", type=int)
    parser.add_argument("--place", type=Path, default=Path(tempfile.gettempdir()) / "trace_export_bench_overview")
    table.main(rows, parser.parse_args())
