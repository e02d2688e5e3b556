"""Many logs at once are read as each alone is."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import trace_export
from samples.generators.paddle import Job, log
from tests.support import long_runs
from tests.support.paddle_jobs import JOBS
from tests.support.same_profiles import assert_same
from trace_export import read as reading
from trace_export.inspection import inspect as inspection
from trace_export.model import Profile
from trace_export.sources.find import find
from trace_export.sources.paddle import log_scanner, reader
from trace_export.sources.source import ReadOptions, Source

NAMES = ("1f1b with communication jobs", "1f1b, not announced", "interleaved", "zb-v")


@cache
def text(name: str, rank: int) -> str:
    job: Job = JOBS[name]
    return log(job, job.blocks(), rank)


PLAIN: dict[str, Callable[[str], str]] = {
    "as it is": lambda log: log,
    "started again": lambda log: log + re.sub(r" 223\d\d ", " 9999 ", log).replace("= 1760", "= 1770"),
    "without prefixes": lambda log: re.sub(r"I1009 .*?\] ", "", log),
    "half": lambda log: log[: len(log) // 2],
}
ODD: dict[str, Callable[[str], str]] = {
    "malformed": lambda log: log.replace("micro_batch_id", "micro", 2),
    "unknown job": lambda log: log.replace("type = forward", "type = sideways", 1),
    "no times": lambda log: re.sub(r"(time = )[\d.]+", r"\g<1>0.000000", log),
    "ends before it starts": lambda log: re.sub(r"end_time = [\d.]+", "end_time = 5.000000", log, count=1),
    "two ranks in it": lambda log: log + log.replace(" 223", " 77"),
    "no record": lambda log: "nothing\n",
}
"""Logs with something to say about them."""


@pytest.mark.parametrize("pieces", [0, 2])
@settings(max_examples=2)
@given(
    order=st.permutations([*PLAIN, *ODD, "absent"]),
    names=st.permutations(NAMES * 3),
    ranks=st.permutations([0, 1, 2, 3] * 3),
    frame_rows=st.sampled_from([7, 1000]),
)
def test_logs_of_all_kinds(pieces: int, order: list[str], names: list[str], ranks: list[int], frame_rows: int) -> None:
    """The odd ones, wherever they are, have their own notes and errors, and the others are as they were."""
    kinds = list(zip(names, ranks, order, strict=False))
    for first, last in ((0, 0), (0, 1), (1, 6), (6, 11)):
        read_together(kinds[first:last], pieces, frame_rows)


def read_together(parts: list[tuple[str, int, str]], pieces: int, frame_rows: int) -> None:
    """Whether each log (job, rank, kind) comes out as it does alone."""
    with (
        TemporaryDirectory() as folder,
        mock.patch.object(log_scanner, "READ_BYTES", 9_000),
        mock.patch.object(log_scanner, "FRAME_ROWS", frame_rows),
    ):
        sources = []
        for place, (name, rank, kind) in enumerate(parts):
            path = Path(folder) / f"workerlog.{place}"
            if kind != "absent":
                path.write_text((PLAIN | ODD)[kind](text(name, rank)))
            known = None if rank == 3 else rank  # the same number may come twice
            sources.append(Source("paddle", path, "host", place % 3, known, "assumed", place, place))
        results = reader.read(sources, ReadOptions(beginning=pieces))
        for source, result in zip(sources, results, strict=True):
            (alone,) = reader.read([source], ReadOptions(beginning=pieces))
            if isinstance(alone, Profile):
                assert isinstance(result, Profile), result
                assert_same(result, alone)
            else:
                assert str(result) == str(alone)


def test_inspect_says_the_same(tmp_path: Path) -> None:
    """Of good logs, an empty one and one with a broken record, read together and one by one."""
    long_runs.paddle(tmp_path, 120, 6)
    logs = find(tmp_path).sources
    logs[2].path.write_bytes(b"")
    logs[4].path.write_bytes(ODD["malformed"](logs[4].path.read_text()).encode())
    with mock.patch.object(inspection, "WHOLE_BYTES", 0):
        found = trace_export.inspect(tmp_path, jobs=1)
        with mock.patch.object(reading, "TOGETHER", 1):
            alone = trace_export.inspect(tmp_path, jobs=1)
    assert found.json() == alone.json()
    assert (found.facts["beginnings"], len(found.failures)) == (5, 1)
