"""Captures in which no pass is named: every block that is found is that of the truth, to the nanosecond."""

import gzip
import json
import sqlite3
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import trace_export
from samples.generators.kineto_trace import Trace
from samples.generators.unmarked import Program, write
from tests.inference.tools import SMALL, TOOLS, captures, profiles, spans, truth
from tests.support.captures import drawn
from tests.support.captures import truth as numbered
from tests.support.databases import changing
from trace_export.errors import SourceError

PROGRAMS = {
    "1f1b": SMALL,
    "with experts": replace(SMALL, experts=True),
    "with varying experts": replace(SMALL, experts=True, varying=True),
    "with varying experts, without waits": replace(SMALL, experts=True, varying=True, waits=False),
    "with recomputation": replace(SMALL, recompute=True),
    "without waits": replace(SMALL, waits=False),
    "without counted tokens": replace(SMALL, tokens=False),
    "graphs of layers": replace(SMALL, graphs=True),
    "interleaved": Program(schedule="interleaved", stages=4, microbatches=8),
    "two stages": Program(stages=2, microbatches=5),
    "through the host": replace(SMALL, host_transfers=True),
    "with operators": replace(SMALL, operators=True),
    "interleaved, with operators": Program(schedule="interleaved", operators=True),
}
COMMON = ("1f1b", "graphs of layers", "through the host", "with operators")
CASES: list[tuple[str, str, dict[str, Any]]] = [
    *(("nsys", name, {"threads": False}) for name in PROGRAMS),
    *(("nsys", name, {"threads": True}) for name in ("1f1b", "interleaved", "through the host", "with operators")),
    *(("kineto", name, {"threads": True}) for name in (*COMMON, "with varying experts")),
    ("kineto", "1f1b", {"threads": False}),
    *(("rocpd", name, {"schema": 4}) for name in (*COMMON, "without waits", "with varying experts, without waits")),
    ("rocpd", "1f1b", {"schema": 3}),
]
"""The profiler, the program, and how it was captured."""


@pytest.mark.parametrize(("tool", "name", "how"), CASES)
def test_blocks_of_an_unmarked_capture_are_exact(tmp_path: Path, tool: str, name: str, how: dict[str, Any]) -> None:
    program = PROGRAMS[name]
    blocks = write(tmp_path, program, **TOOLS[tool].write, **how)
    result = profiles(tool, tmp_path)
    assert spans(*result) == truth(tool, blocks)
    for profile in result:
        assert set(profile.spans["origin"]) == {"inferred"}
        assert profile.spans["marker"].null_count() == profile.spans.height
        assert (profile.p2p.height > 0) is not program.host_transfers
        assert (profile.spans["pair"].null_count() < profile.spans.height) is program.operators
    notes = [note for profile in result for note in profile.notes if note.code == "blocks-inferred"]
    assert sum(note.count for note in notes) == len(blocks)
    separated = (
        "waits of the host between them, because there are no transfers" if program.host_transfers else "transfers"
    )
    assert program.operators or all(f"separated by {separated}" in note.text for note in notes)


def ends_wrongly_in_nsys(file: Path, end_ns: int, end: str) -> None:
    with changing(file) as db:
        assert db.execute(f'UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET "end" = {end} WHERE "end" = {end_ns}').rowcount == 1


def ends_wrongly_in_rocpd(file: Path, end_ns: int, end: str) -> None:
    with changing(file) as db:
        assert (
            db.execute(f'UPDATE {table(db, "kernel_dispatch")} SET "end" = {end} WHERE "end" = {end_ns}').rowcount == 1
        )


def ends_wrongly_in_kineto(file: Path, end_ns: int, end: str) -> None:
    events = json.loads(gzip.decompress(file.read_bytes()))
    kernels = [event for event in events["traceEvents"] if event.get("cat") == "kernel"]
    (last,) = (event for event in kernels if round((event["ts"] + event["dur"]) * 1000) == end_ns)
    last["dur"] = float(end)
    file.write_bytes(gzip.compress(json.dumps(events).encode()))


def table(db: sqlite3.Connection, name: str) -> str:
    """The name of the process's own table in a database of rocprofv3."""
    result = db.execute("SELECT name FROM sqlite_master WHERE type = 'table' AND name GLOB ?", [f"rocpd_{name}_*"])
    return str(result.fetchone()[0])


BREAK: dict[str, Callable[[Path, int, str], None]] = {
    "nsys": ends_wrongly_in_nsys, "kineto": ends_wrongly_in_kineto, "rocpd": ends_wrongly_in_rocpd,
}  # fmt: skip
YEAR = '"end" + 31536000000000000'
WRONG = [
    *(("nsys", end, marked) for end in ("start - 1", YEAR, "0") for marked in (False, True)),
    ("kineto", "3e13", False), ("rocpd", "start - 1", False), ("rocpd", YEAR, False),
]  # fmt: skip
"""The profiler, the end of the kernel, and whether names say the passes."""


@pytest.mark.parametrize(("tool", "end", "marked"), WRONG)
def test_a_kernel_with_an_impossible_end_is_left_out_with_a_warning(
    tmp_path: Path, tool: str, end: str, marked: bool
) -> None:
    """The last kernel of a forward: nothing but the end of this block may change, and only become earlier."""
    program = replace(SMALL, marked=frozenset(range(3 * marked)))
    blocks = write(tmp_path, program, **TOOLS[tool].write)
    hit = next(b for b in blocks if (b.rank, b.kind, b.microbatch) == (1, "F", 3))
    BREAK[tool](captures(tool, tmp_path)[-2:][0], hit.end_ns, end)
    result = profiles(tool, tmp_path)
    ((rank, kind, first, last),) = set(spans(*result)) - set(truth(tool, blocks))
    (was,) = set(truth(tool, blocks)) - set(spans(*result))
    assert was[:3] == (rank, kind, first)
    assert isinstance(first, int) and isinstance(last, int)
    assert first < last < hit.end_ns + TOOLS[tool].epoch_ns
    (note,) = [note for profile in result for note in profile.notes if note.code == "times-unusable"]
    assert (note.level, note.count) == ("warning", 1)


@pytest.mark.parametrize("tool", TOOLS)
def test_on_one_thread_sequence_numbers_tell_forwards_from_backwards(tmp_path: Path, tool: str) -> None:
    blocks = write(tmp_path, replace(SMALL, one_thread=True, operators=True), **TOOLS[tool].write)
    run = trace_export.load(tmp_path, jobs=1)
    assert drawn(run.profile) == numbered(blocks, TOOLS[tool].epoch_ns)
    assert run.spans["origin"].unique().to_list() == ["inferred"]


@pytest.mark.parametrize("tool", TOOLS)
def test_names_count_where_there_are_any(tmp_path: Path, tool: str) -> None:
    blocks = write(tmp_path, replace(SMALL, marked=frozenset(range(3))), **TOOLS[tool].write)
    for infer, origin in (("auto", "device"), ("off", "device"), ("only", "inferred")):
        result = profiles(tool, tmp_path, infer=infer)
        assert spans(*result) == truth(tool, blocks)
        for profile in result:
            assert set(profile.spans["origin"]) == {origin}
            assert profile.spans["marker"].is_null().to_list() == [origin == "inferred"] * profile.spans.height


@pytest.mark.parametrize("tool", TOOLS)
def test_a_program_of_one_thread_is_refused(tmp_path: Path, tool: str) -> None:
    write(tmp_path, replace(SMALL, one_thread=True), **TOOLS[tool].write)
    words = "no pass is named, and the launches do not show any: one thread launches everything"
    with pytest.raises(SourceError, match=words) as caught:
        profiles(tool, tmp_path)
    assert ("ti.auto()" if tool == "kineto" else "trace-export run") in str(caught.value)
    with pytest.raises(SourceError, match=TOOLS[tool].nameless):
        profiles(tool, tmp_path, infer="off")


def test_a_process_of_two_gpus_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "nsys", Program(stages=1, microbatches=2))
    with changing(tmp_path / "nsys" / "node0.sqlite") as db:
        db.execute("UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET deviceId = rowid % 20 = 0")  # a few do not count
        db.commit()
        assert len(spans(*profiles("nsys", tmp_path / "nsys"))) == 10
        db.execute("UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET deviceId = rowid % 2")
    trace = Trace()
    for number in range(40):
        at = 1_000_000 + 10_000 * number
        call = trace.call(at, thread=4001 if number % 4 < 2 else 4010)
        trace.kernel(at + 1_000, at + 9_000, call, name=f"gemm_{number % 4}", device=number % 2)
    trace.name_thread(4010, "thread 4010 (pt_autograd_0)")
    trace.write(tmp_path / "kineto" / "node0_700.pt.trace.json.gz")
    for tool in ("nsys", "kineto"):
        with pytest.raises(SourceError, match="one process runs several GPUs"):
            profiles(tool, tmp_path / tool)
