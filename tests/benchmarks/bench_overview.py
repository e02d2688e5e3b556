"""An overview of very many ranks.

    python tests/benchmarks/bench_overview.py tables [--ranks 100096]
    python tests/benchmarks/bench_overview.py paddle [--ranks 16384]
    python tests/benchmarks/bench_overview.py ascend [--ranks 16384]
    … [--jobs N] [--place FOLDER]

`tables` are span tables of hosts with planted exceptions, 128 ranks (16 stages of 8 tensor-parallel ranks) in a
replica: 100,096 ranks have 13 million blocks in 12,512 tables (200 MB). It fails where the exceptions are not exactly
those that were planted. `paddle` are logs and `ascend` databases of pipelines of eight ranks, two steps of 32
micro-batches. Inputs are kept in FOLDER for the next run. Prints wall and processor seconds, the largest memory of any
process, the size of the page, how long a browser takes to open it, and for `paddle` and `ascend` the time of a second
look for one replica.

Figures to reach on two cores: 100,096 tables 10 minutes, 1 GB, 5 MB; 16,384 logs 90 s and 600 MB, and a rank of them at
most 1.15 times as much processor time as one of 1,024; opening the page 2 s; a second look 2 s.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import time
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

import polars as pl  # noqa: E402
import psutil  # noqa: E402
from playwright.sync_api import sync_playwright  # noqa: E402

from samples.generators import ascend as generate_ascend  # noqa: E402
from samples.generators import paddle as generate_paddle  # noqa: E402
from samples.generators.ascend_export import hash_of  # noqa: E402
from tests.support.browser import FLAGS, PROGRAMS  # noqa: E402
from tests.support.many_ranks import ManyRanks, Planted, write  # noqa: E402

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


def ascend(place: Path, ranks: int) -> None:
    """Eight ranks a host, each host a pipeline of its own with the same blocks, about 1,000 device tasks a rank."""
    job = generate_ascend.Job(
        STAGES, MICROBATCHES, STEPS, data=ranks // STAGES, pipelines_first=True, hosts=1, kernels=30
    )
    first = place / "first"
    generate_ascend.record(first, replace(job, data=1))
    captures = sorted(first.iterdir(), key=lambda folder: int(folder.name.split("_")[1]))
    for rank in range(job.ranks):
        machine, device = divmod(rank, STAGES)
        _rename(captures[device], place / f"node{machine}_{4000 + rank}_20251127120000000_ascend_pt", job, rank)
    shutil.rmtree(first)


def _rename(capture: Path, folder: Path, job: generate_ascend.Job, rank: int) -> None:
    """A copy of the capture of a rank of the first pipeline, as another rank."""
    machine, device = divmod(rank, STAGES)
    output = folder / "ASCEND_PROFILER_OUTPUT"
    output.mkdir(parents=True)
    name = "ascend_pytorch_profiler_{}.db"
    copy = Path(shutil.copyfile(capture / output.name / name.format(device), output / name.format(rank)))
    before, after = (generate_ascend.group_of(column) for column in (0, machine))
    numbers = [f"_{hash_of(group)[-3:]}_" for group in (before, after)]
    with closing(sqlite3.connect(copy)) as db:
        db.execute("PRAGMA synchronous = OFF")
        db.execute("UPDATE RANK_DEVICE_MAP SET rankId = ?", (rank,))
        db.execute("UPDATE HOST_INFO SET hostUid = ?, hostName = ?", (hash_of(f"node{machine}"), f"node{machine}"))
        db.execute("UPDATE STRING_IDS SET value = ? WHERE value = ?", (after, before))
        db.execute("UPDATE STRING_IDS SET value = replace(value, ?, ?) WHERE value LIKE 'hcom%'", numbers)
        for key, value in generate_ascend.metadata(job, rank).items():
            db.execute("UPDATE META_DATA SET value = ? WHERE name = ?", (json.dumps(value), key))
        db.commit()
    (folder / f"profiler_info_{rank}.json").write_text(json.dumps({"rank_id": rank}))


MAKERS = {"tables": (tables, 100_096), "paddle": (paddle, 16_384), "ascend": (ascend, 16_384)}


def used(arguments: list[str]) -> tuple[float, float]:
    """Wall and processor seconds of the command."""
    begun, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [sys.executable, "-m", "trace_export", *arguments, "--quiet"]
    done = subprocess.run(command, env={**os.environ, "PYTHONPATH": str(ROOT)}, check=False, stderr=subprocess.DEVNULL)
    if done.returncode:
        sys.exit(f"{' '.join(command)}: exit code {done.returncode}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    processor = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return time.perf_counter() - begun, processor


def opening(page: Path) -> str:
    """Wall and processor seconds of a browser from the address to the map that is drawn, in a tab of a browser that
    runs."""
    path = next(filter(None, map(shutil.which, PROGRAMS)), None)
    if path is None:
        return "no browser is here to open the page"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=FLAGS)
        for _ in range(2):
            tab = browser.new_page(viewport={"width": 1400, "height": 900})
            begun, before = time.perf_counter(), browsing()
            tab.goto(page.as_uri())
            tab.locator("#state", has_text="in view").wait_for()
            wall, processor = time.perf_counter() - begun, browsing() - before
            tab.close()
        browser.close()
    return f"opened by a browser in {wall:.2f} s, {processor:.2f} s of the processors"


def browsing() -> float:
    """Processor seconds of the browser's processes so far."""
    found = 0.0
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            found += sum(process.cpu_times()[:2])
    return found


def named(table: pl.DataFrame) -> Planted:
    """The exceptions as what might have been planted."""

    def of(kind: str, *columns: str) -> list[tuple[Any, ...]]:
        return sorted(table.filter(pl.col("kind") == kind).select(columns).rows())

    return Planted(
        ranks=tuple(row[0] for row in of("slow-rank", "rank")),
        links=tuple(sorted((min(row), max(row)) for row in of("slow-link", "rank", "to_rank"))),
        hosts=tuple(row[0] for row in of("drifting-clock", "host")),
        replicas=tuple(row[0] for row in of("settings", "replica")),
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("kind", choices=MAKERS)
    parser.add_argument("--ranks", type=int)
    parser.add_argument("--jobs", type=int)
    parser.add_argument("--place", type=Path, default=Path(tempfile.gettempdir()) / "trace_export_bench_overview")
    options = parser.parse_args()
    make, usual = MAKERS[options.kind]
    ranks = options.ranks or usual
    logs = options.place / f"{options.kind}{ranks}"
    if not logs.exists():
        make(logs, ranks)
    jobs = ["--jobs", str(options.jobs)] if options.jobs else []
    with tempfile.TemporaryDirectory() as out:
        seconds, processor = used(["overview", str(logs), "--out", out, "--format", "html,parquet", *jobs])
        memory = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1e3
        html = Path(out) / "pipeline_overview.html"
        page = html.stat().st_size / 1e6
        print(
            f"{options.kind} {ranks} ranks: {seconds:.0f} s, {processor:.0f} s of the processors"
            f" ({processor / ranks * 1e3:.2f} ms a rank), at most {memory:.0f} MB a process, page {page:.1f} MB"
        )
        print(opening(html))
        if options.kind != "tables":
            look = ["export", str(logs), "--replica", "17", "--cache", f"{out}/cache", "--out", f"{out}/replica"]
            (_, first), (again, second) = used(look), used(look)
            print(
                f"one replica: {first:.2f} s of the processors; again, by the catalogue, {again:.2f} s, {second:.2f} s"
            )
            return
        found, planted = named(pl.read_parquet(Path(out) / "pipeline_overview.exceptions.parquet")), many(ranks).planted
        if found != Planted(planted.ranks, tuple(sorted(planted.links)), planted.hosts, planted.replicas):
            sys.exit(f"named {found}, planted {planted}")


if __name__ == "__main__":
    main()
