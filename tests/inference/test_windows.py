"""Captures that begin and end anywhere: what is found in a part of one is what is there."""

import random
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from samples.generators.unmarked import Program, write
from trace_export.inference.infer import Passes, infer
from trace_export.inference.threads import Threads, find_threads
from trace_export.inference.work import Work
from trace_export.sources.nsys.unmarked import read_processes
from trace_export.sources.shared.sqlite import Database

WINDOWS = 200
NO_STEPS = np.zeros(0, np.int64)
COLUMNS = ("launch", "thread", "start", "end", "stream", "name", "role")

Times = dict[tuple[str, int, int], tuple[int, int]]
"""Kind, start and end of a pass → its first and last launch."""


def times(result: Passes) -> Times:
    line = result.timeline
    return {
        (p.kind, int(line.start[p.begin : p.end].min()), int(line.end[p.begin : p.end].max())): (
            int(line.launch[p.begin]),
            int(line.launch[p.end - 1]),
        )
        for p in result.passes
    }


def cut(work: Work, begin: float, end: float) -> Work:
    """What was launched and called from `begin` to `end`."""
    inside = (work.launch >= begin) & (work.launch <= end)
    columns = {name: getattr(work, name)[inside] for name in COLUMNS}
    return replace(work, **columns, calls=work.calls.filter(pl.col("start").is_between(begin, end)))


@pytest.fixture(scope="module")
def captures(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[Work, Threads, Times]]:
    programs = (
        Program(steps=3),
        Program(steps=3, experts=True, varying=True),
        Program(steps=3, host_transfers=True),
        Program(steps=3, schedule="zb-h1"),
        Program(steps=3, schedule="zb-h1", tokens=False),
    )
    result = []
    for number, program in enumerate(programs):
        folder: Path = tmp_path_factory.mktemp(f"program{number}")
        write(folder, program)
        with Database(folder / "node0.sqlite") as db:
            for _, process in read_processes(db, {}, None):
                threads = find_threads(process.work, process.named, frozenset(), None)
                assert isinstance(threads, Threads)
                whole = infer(process.work, threads, None, NO_STEPS)
                assert whole.refused == []
                result.append((process.work, threads, times(whole)))
    return result


def test_hardly_a_forward_and_no_backward_is_wrong_in_any_window(
    captures: list[tuple[Work, Threads, Times]],
) -> None:
    chance = random.Random(7)
    counts: Counter[tuple[str, str]] = Counter()
    for _ in range(WINDOWS):
        work, threads, truth = chance.choice(captures)
        first, length = float(work.launch[0]), float(work.launch[-1] - work.launch[0])
        part = chance.uniform(0.35, 1)
        begin = first + length * chance.uniform(0, 1 - part)
        end = begin + length * part
        at_the_cut = [span for span in truth.values() if span[0] < begin <= span[1] or span[0] <= end < span[1]]
        for result, (launched, last) in times(infer(cut(work, begin, end), threads, None, NO_STEPS)).items():
            touches = any(launched <= high and low <= last for low, high in at_the_cut)
            counts[result[0], "right" if result in truth else "cut" if touches else "wrong"] += 1
    assert counts["F", "right"] > 1_800
    assert counts["F", "wrong"] <= 0.005 * counts["F", "right"]
    assert counts["B", "wrong"] == 0
    assert counts["B", "cut"] <= WINDOWS
