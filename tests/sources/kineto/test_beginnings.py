"""The beginnings of many traces at once are what the reader gives for each alone."""

from __future__ import annotations

import gzip
import random
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
from samples.generators import kineto as generate
from samples.generators.nsys import blocks_of
from samples.generators.pipeline import MS
from tests.support import long_runs
from tests.support.same_profiles import assert_as_one_by_one
from trace_export.selection import Numbers
from trace_export.sources.find import find
from trace_export.sources.kineto import beginnings, event_stream, reader
from trace_export.sources.source import ReadOptions, Source
from trace_export.workflow import inspection, reading

STEPS = 2
LOOK = ReadOptions(beginning=1)


@cache
def texts() -> list[str]:
    """Traces with blocks and their kernels first, and NCCL's kernels, of transfers and collectives, at the end."""
    chance = random.Random(5)
    blocks = blocks_of(generate.STAGES, generate.MICROBATCHES, STEPS, chance)
    ranks = [generate.Rank(rank, 0) for rank in range(generate.STAGES)]
    for block in blocks:
        ranks[block.rank].block(block, chance)
    for step in range(STEPS):
        end = max(b.end_ns for b in blocks if b.step == step)
        for rank in ranks:
            rank.nccl("allreduce", end, end + MS, end + 2 * MS, Seq=step + 1)
    generate.transfers(ranks, blocks, chance)
    return [rank.trace.text() for rank in ranks]


def with_first_range(text: str, name: str) -> str:
    """A range of this name on the CPU before all others."""
    event = re.search(r'  \{\n    "ph": "X", "cat": "cpu_op".*?\n  \},\n', text, re.DOTALL)
    assert event
    own = re.sub(r'"name": "[^"]*"', f'"name": "{name}"', event[0]).replace("cpu_op", "user_annotation")
    return text.replace(event[0], own + event[0], 1)


NCCL_START = re.compile(r'("name": "nccl[^{]*"ts": )[\d.]+')
PLAIN: dict[str, Callable[[str], str]] = {
    "as it is": lambda text: text,
    "without a rank": lambda text: text.replace('"rank"', '"number"'),
    "collectives without numbers": lambda text: text.replace('"Seq"', '"x"'),
    "named transfers": lambda text: with_first_range(text, "SEND_FORWARD"),
    "threads by name": lambda text: text.replace('"tid": 4001', '"tid": "main"'),
}
ODD: dict[str, Callable[[str], str]] = {
    "truncated": lambda text: text[:-400],
    "broken event": lambda text: text.replace('"dur": ', '"dur: ', 1),
    "no names": lambda text: text.replace('"te:', '"aten:'),
    "no GPU work": lambda text: re.sub(r'"cat": "(kernel|cuda_runtime)"', '"cat": "none"', text),
    "no date": lambda text: text.replace("baseTimeNanoseconds", "base"),
    "two processes": lambda text: re.sub(r'("cat": "cuda_runtime".*?"pid": )\d+', r"\g<1>7", text, count=1),
    "small": lambda text: text[: text.index("\n  },", 3_000)] + '\n  }\n  ],"traceName": "x" }',
    "ends before it starts": lambda text: text.replace('"dur": ', '"dur": -', 1),
    "calls of NCCL days later": lambda text: NCCL_START.sub(r"\g<1>999999999999.000", text),
    "no trace": lambda text: "{}",
}
"""Traces that the reader must look at."""


@pytest.mark.parametrize("options", [LOOK, ReadOptions(beginning=2, host_ranges=True)], ids=["plain", "host"])
@settings(max_examples=2)
@given(order=st.permutations([*PLAIN, *ODD, "packed", "absent"]), ranks=st.permutations([0, 1, 2, 3] * 4))
def test_traces_of_all_kinds(order: list[str], ranks: list[int], options: ReadOptions) -> None:
    """The odd ones, wherever they are, are left to the reader, and the others are not."""
    kinds = list(zip(ranks, order, strict=False))
    for first, last in ((0, 0), (0, 1), (1, 6), (6, 11), (11, 20)):
        read_together(kinds[first:last], options)


def read_together(parts: list[tuple[int, str]], options: ReadOptions) -> None:
    """Whether each trace (rank, kind) comes out as its reader alone gives it."""
    with TemporaryDirectory() as folder, mock.patch.object(event_stream, "PIECE_BYTES", 20_000):
        sources = []
        for place, (rank, kind) in enumerate(parts):
            path = Path(folder) / f"{place}.pt.trace.json"
            if kind == "packed":
                path.write_bytes(gzip.compress(texts()[rank].encode()))
            elif kind != "absent":
                path.write_text((PLAIN | ODD)[kind](texts()[rank]))
            sources.append(Source("kineto", path, f"host{place % 2}", place % 2, place % 3, "assumed"))
        read = assert_as_one_by_one(reader.read_one, beginnings.read, sources, options)
    for (_, kind), was_read in zip(parts, read, strict=True):
        good = kind in PLAIN or kind == "packed"
        assert was_read or not good
        assert not was_read or good or (kind == "no GPU work" and options.host_ranges)


@pytest.mark.parametrize(
    ("options", "read"),
    [(ReadOptions(beginning=1, infer="only"), []), (ReadOptions(beginning=1, ranks=Numbers.of([1, 2])), [1, 2])],
)
def test_what_the_options_leave_to_the_reader(options: ReadOptions, read: list[int], tmp_path: Path) -> None:
    long_runs.kineto(tmp_path, 30)
    sources = find(tmp_path).sources
    with mock.patch.object(event_stream, "PIECE_BYTES", 20_000):
        found = beginnings.read(sources, options)
    assert [place for place, profile in enumerate(found) if profile is not None] == read


def test_inspect_says_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of good traces, a damaged one and one without names, read together and one by one."""
    long_runs.kineto(tmp_path, 20, 6)
    for rank, kind in ((2, "no trace"), (4, "no names")):
        path = tmp_path / f"rank{rank}.pt.trace.json"
        path.write_text(ODD[kind](path.read_text()))
    monkeypatch.setattr(inspection, "WHOLE_BYTES", 0)
    monkeypatch.setattr(event_stream, "PIECE_BYTES", 90_000)
    together = trace_export.inspect(tmp_path, jobs=1)
    monkeypatch.setattr(reading, "TOGETHER", 1)
    alone = trace_export.inspect(tmp_path, jobs=1)
    assert together.json() == alone.json()
    assert (together.facts["beginnings"], len(together.failures)) == (4, 2)
