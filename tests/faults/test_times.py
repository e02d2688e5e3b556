"""Times that cannot be: 0 for "not known", the ends of 64 bits, and below. Never a wrong picture."""

import re
import sqlite3
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import TypeVar

import pytest

from tests.faults.inputs import INPUTS
from trace_export import Run, load
from trace_export.errors import TraceExportError
from trace_export.model import Profile

LAST = 2**63 - 1
NUMBERS = ((0, False), (LAST, False), (0, True), (LAST, True), (LAST + 1, False), (-LAST - 1, False), (-1, False))
"""Whether it is written for all times of a column, or for one."""
TEXTS = (
    ("0", False), (str(LAST), False), ("0.000000", True), ("0.000000", False), ("0", True), (str(LAST), True),
    *((str(n), False) for n in (LAST + 1, -LAST - 1, -1)),
    *((f"{n // 1000}.{n % 1000:06}", False) for n in (LAST, LAST + 1)),
)  # fmt: skip
"""Also as microseconds whose nanoseconds are about those that 64 bits hold, and as Paddle writes it."""

CELLS = {
    "nsys": (
        ("CUPTI_ACTIVITY_KIND_KERNEL", "start"), ("CUPTI_ACTIVITY_KIND_KERNEL", "end"), ("NVTX_EVENTS", "start"),
        ("NVTX_EVENTS", "end"), ("CUPTI_ACTIVITY_KIND_RUNTIME", "start"),
        ("TARGET_INFO_SESSION_START_TIME", "utcEpochNs"),
    ),
    "ascend": (
        ("TASK", "startNs"), ("TASK", "endNs"), ("MSTX_EVENTS", "startNs"), ("MSTX_EVENTS", "endNs"),
        ("STEP_TIME", "startNs"), ("STEP_TIME", "endNs"), ("COMMUNICATION_OP", "startNs"),
        ("COMMUNICATION_OP", "endNs"),
    ),
}  # fmt: skip
"""Format → the columns of its database that hold times."""

PATTERNS = {
    "paddle": (
        ("workerlog.0", rb"job_start_time = ([\d.]+)"),
        ("workerlog.0", rb"type = forward, .*job_end_time = ([\d.]+)"),
    ),
    "paddle_dygraph": (
        ("profile_record_tmp_file_for_rank_0", rb'"B", "ts": (\d+)'),
        ("profile_record_tmp_file_for_rank_0", rb'"E", "ts": (\d+)'),
    ),
    "recorder": (
        ("rank0.blocks", rb"F,5,0,0,,,(\d+),\d+,d\n"),
        ("rank0.blocks", rb"B,5,0,0,,,\d+,(\d+),d\n"),
        ("rank0.blocks", rb'"unix_ns":(\d+)'),
        ("rank0.blocks", rb'"clock_ns":(\d+)'),
    ),
    "mindspore": (
        ("trace_view.json", rb'"ts": "(\d+\.\d+)"'),
        ("trace_view.json", rb'"dur": ([\d.]+)'),
        ("kernel_details.csv", rb",(\d{16}\.\d{3})\t"),
        ("kernel_details.csv", rb"\t,([\d.]+)\n"),
    ),
    "kineto": (
        ("one.pt.trace.json", rb'gemm"[^}]*"ts": ([\d.]+)'),
        ("one.pt.trace.json", rb'gemm"[^}]*"dur": ([\d.]+)'),
        ("one.pt.trace.json", rb'te:B0.0[^}]*"ts": ([\d.]+)'),
        ("one.pt.trace.json", rb'te:B0.0[^}]*"dur": ([\d.]+)'),
        ("one.pt.trace.json", rb'"baseTimeNanoseconds": (\d+)'),
    ),
}
"""Format → a file of it, and what stands around a time there."""


def aligned(folder: Path) -> Run:
    return load(folder, jobs=1).align()


def lengths(profile: Profile) -> int:
    """How long the run lasts: a block in the wrong decade makes it long."""
    return int(profile.spans["end_ns"].max()) - int(profile.spans["start_ns"].min())  # type: ignore[arg-type]


Value = TypeVar("Value")


def some(values: Sequence[Value], number: int) -> Sequence[Value]:
    """A few of them for the column of that number; the next ones get the rest."""
    return [value for place, value in enumerate(values) if (place + number) % 7 == 0]


def broken_ones(kind: str, file: Path, every: bool) -> list[tuple[str, Callable[[], object]]]:
    """What to do to the file, one thing at a time, with a name for each. `every`: all values in all columns."""
    content = file.read_bytes()

    def cell(table: str, column: str, value: float, where: str) -> None:
        file.write_bytes(content)
        with closing(sqlite3.connect(file)) as db:
            db.execute(f'UPDATE "{table}" SET "{column}" = ? WHERE {where}', [value])
            db.commit()

    def text(pattern: bytes, value: str, count: int) -> None:
        changed = content
        for match in [*re.finditer(pattern, content)][-count:][::-1]:
            changed = changed[: match.start(1)] + value.encode() + changed[match.end(1) :]
        file.write_bytes(changed)

    deeds: list[tuple[str, Callable[[], object]]] = []
    for number, (table, column) in enumerate(CELLS.get(kind, ())):
        one = f'rowid = (SELECT min(rowid) FROM "{table}" WHERE "{column}" IS NOT NULL)'
        for value, for_all in NUMBERS if every else some(NUMBERS, number):
            held = float(value) if value > LAST else value  # as SQLite takes it
            where = "TRUE" if for_all else one
            deed = lambda t=table, c=column, v=held, w=where: cell(t, c, v, w)  # noqa: E731
            deeds.append((f"{table}.{column} = {value} where {where}", deed))
    for number, (name, pattern) in enumerate(PATTERNS.get(kind, ())):
        if name == file.name:
            assert re.search(pattern, content), pattern
            for written, for_all in TEXTS if every else some(TEXTS, number):
                change = lambda p=pattern, v=written, n=int(not for_all): text(p, v, n)  # noqa: E731
                deeds.append((f"{pattern!r} = {written}, {'all' if for_all else 'one'}", change))
    return deeds


@pytest.mark.parametrize("kind", [kind for kind in INPUTS if kind in CELLS or kind in PATTERNS])
def test_impossible_times_are_a_note_and_not_drawn(kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    logs, out = tmp_path / "logs", tmp_path / "out"
    logs.mkdir()
    INPUTS[kind].make(logs)
    sound = aligned(logs).profile
    times = sound.spans.select("start_ns", "end_ns")
    noted = {note.text for note in sound.notes}
    drawings = 0
    tried = set()
    for name in {file for file, _ in PATTERNS.get(kind, ())} or {INPUTS[kind].files[0]}:
        file = next(logs.rglob(name))
        content = file.read_bytes()
        for what, deed in broken_ones(kind, file, request.config.getoption("--slow")):
            deed()
            if file.read_bytes() in tried:  # where there is one time only, the last is all
                continue
            tried.add(file.read_bytes())
            try:
                run = aligned(logs)
                result = run.profile
                if result.spans.join(times, on=["start_ns", "end_ns"], how="anti").height:
                    run.write(out)
            except TraceExportError as error:
                assert str(error).isprintable(), what
                continue
            drawings += 1
            shifted = kind == "nsys" and " = -1 " in what  # its clock may be shifted: -1 is as good as any time
            # Without its markers a run is inferred from kernels, which end a few milliseconds later.
            assert lengths(result) <= lengths(sound) + (10**9 if shifted else 10**7), what
            lost = result.spans.height < sound.spans.height
            assert not lost or {note.text for note in result.notes} - noted, f"{what}: lost without a word"
        file.write_bytes(content)
    assert drawings
