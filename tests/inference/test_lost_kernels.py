"""Kernels that the profiler lost where no pass is named: a warning counts them, in each format."""

import gzip
import json
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

import trace_export
from samples.generators.unmarked import Program, write
from tests.support.databases import changing
from tests.support.rows import crossed

SMALL = Program(stages=3, microbatches=6, layers=1)
PROGRAMS = {
    "1f1b": SMALL, "zb-h1": replace(SMALL, schedule="zb-h1"), "experts": replace(SMALL, experts=True, varying=True),
    "operators": replace(SMALL, operators=True), "graphs": replace(SMALL, graphs=True),
}  # fmt: skip


def _of_traces(folder: Path, count: int) -> None:
    path = next(folder.glob("node0_701.*.json.gz"))
    document = json.loads(gzip.decompress(path.read_bytes()))
    kernels = [e for e in document["traceEvents"] if e.get("cat") == "kernel" and "nccl" not in e["name"]]
    last = max(kernels, key=lambda event: event["ts"])
    for event in random.Random(1).sample([e for e in kernels if e is not last], count):
        document["traceEvents"].remove(event)
    path.write_bytes(gzip.compress(json.dumps(document).encode()))


def _of_database(table: str, time: str) -> Callable[[Path, int], None]:
    def lose(folder: Path, count: int) -> None:
        path = min(folder.glob("*.*"))
        with changing(path) as db:
            (name,) = db.execute(
                "SELECT name FROM sqlite_master WHERE type = 'table' AND name LIKE ?", (f"{table}%",)
            ).fetchone()
            rows = [row for (row,) in db.execute(f'SELECT rowid FROM "{name}" ORDER BY "{time}"').fetchall()]
            chosen = random.Random(1).sample(rows[: len(rows) // 2], count)
            db.executemany(f'DELETE FROM "{name}" WHERE rowid = ?', [(row,) for row in chosen])

    return lose


FORMATS: dict[str, tuple[dict[str, bool], Callable[[Path, int], None]]] = {
    "kineto": ({"kineto": True}, _of_traces), "nsys": ({}, _of_database("CUPTI_ACTIVITY_KIND_KERNEL", "start")),
    "rocpd": ({"rocpd": True}, _of_database("rocpd_kernel_dispatch", "start")),
}  # fmt: skip


@pytest.mark.parametrize(("form", "name", "count"), crossed(FORMATS, PROGRAMS, [0, 1, 7]))
def test_launches_whose_kernels_are_not_in_the_file_are_told(form: str, name: str, count: int, tmp_path: Path) -> None:
    """Where graphs run, kernels are launched into them that never run themselves: nothing is said there."""
    options, lose = FORMATS[form]
    write(tmp_path, PROGRAMS[name], **options)
    if count:
        lose(tmp_path, count)
    run = trace_export.load(tmp_path, jobs=1)
    told = sum(note.count for note in run.notes if (note.code, note.level) == ("kernels-lost", "warning"))
    assert told == (0 if name == "graphs" else count)
