"""Attribution of GPU work against brute force: random ranges, threads, processes, graphs, at equal times too."""

from pathlib import Path
from typing import NamedTuple
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from samples.generators.nsys_export import STARTED, Export
from tests.support.databases import changing
from tests.support.one_source import read
from trace_export.errors import SourceError
from trace_export.sources.shared import sqlite
from trace_export.sources.source import ReadOptions, Source

PROCESSES = (500, 501)
THREADS = (500, 7, 8)
Moment = st.integers(1, 24)  # 0 is what profilers write for an unknown time


class Range(NamedTuple):
    process: int
    thread: int
    start: int
    length: int
    transfer: bool


class Launch(NamedTuple):
    """A call and the tasks it launches: (delay, length, what)."""

    process: int
    thread: int
    at: int
    tasks: list[tuple[int, int, str]]


Process, Thread = st.sampled_from(PROCESSES), st.sampled_from(THREADS)
Ranges = st.lists(st.builds(Range, Process, Thread, Moment, st.integers(0, 20), st.booleans()), max_size=14)
Task = st.tuples(st.integers(0, 40), st.integers(0, 9), st.sampled_from(["kernel", "kernel", "nccl", "graph", "copy"]))
Calls = st.lists(st.builds(Launch, Process, Thread, Moment, st.lists(Task, max_size=3)), max_size=14)


def name(index: int, of: Range) -> str:
    return f"SEND_FORWARD.{index}.0.0" if of.transfer else f"F{index}.0.0"


def innermost(index: int, of: Range) -> tuple[int, int, int, str]:
    """Grows inwards; the order of the rows in the file means nothing."""
    return of.start, -of.length, of.thread, name(index, of)


def brute_force(ranges: list[Range], launches: list[Launch]) -> dict[str, tuple[int, int]]:
    """Block → (first start, last end), straight from the rule."""
    extents: dict[str, tuple[int, int]] = {}
    for launch in launches:
        around = [
            i
            for i in range(len(ranges))
            if ranges[i].process == launch.process and ranges[i].start <= launch.at < ranges[i].start + ranges[i].length
        ]
        of_thread = [i for i in around if ranges[i].thread == launch.thread]
        best = max(of_thread or around, key=lambda i: innermost(i, ranges[i]), default=None)
        if best is None or ranges[best].transfer:
            continue
        for delay, length, what in launch.tasks:
            if what in ("kernel", "graph"):
                start = launch.at + delay
                first, last = extents.get(name(best, ranges[best]), (start, start))
                extents[name(best, ranges[best])] = min(first, start), max(last, start + length)
    return extents


def build(ranges: list[Range], launches: list[Launch]) -> Export:
    export = Export(epoch_ns=1)
    for index, of in enumerate(ranges):
        end = of.start + of.length
        export.range(of.process, of.start, end, name(index, of), thread=of.thread, registered=index % 3 == 0,
                     kind=STARTED if index % 4 == 0 else 59)  # fmt: skip
    for process in PROCESSES:  # so that both are training processes, and the file has kernels
        export.range(process, 90, 99, "B0.0.0")
        export.kernel(process, 95, 96, export.call(process, 91))
    for number, launch in enumerate(launches):
        api = "cuLaunchKernelEx" if number % 2 else "cudaLaunchKernel_v7000"
        call = export.call(launch.process, launch.at, thread=launch.thread, name=api)
        for delay, length, what in launch.tasks:
            start, end = launch.at + delay, launch.at + delay + length
            if what == "graph":
                export.graph(launch.process, start, end, call)
            elif what == "copy":
                export.copy(launch.process, start, end, call)
            else:
                export.kernel(launch.process, start, end, call, name="ncclDevKernel" if what == "nccl" else "gemm")
    return export


@pytest.mark.parametrize("rows", [1, 4, 1 << 18])
@settings(max_examples=8, deadline=None)
@given(ranges=Ranges, launches=Calls)
def test_blocks_equal_brute_force(
    tmp_path_factory: pytest.TempPathFactory, rows: int, ranges: list[Range], launches: list[Launch]
) -> None:
    path = build(ranges, launches).write(tmp_path_factory.getbasetemp() / f"work{rows}.sqlite")
    with patch.object(sqlite, "AHEAD_ROWS", rows):
        spans = read(Source("nsys", path, "h"), ReadOptions()).spans
    got = {m: (s - 1, e - 1) for m, s, e in spans.select("marker", "start_ns", "end_ns").iter_rows() if m != "B0.0.0"}
    assert got == brute_force(ranges, launches)


def test_a_kernel_without_a_name_is_none_of_nccl(tmp_path: Path) -> None:
    export = Export(epoch_ns=0)
    export.range(500, 0, 100, "F0.0.0")
    for start, name in ((200, "gemm"), (300, "unnamed"), (400, "ncclDevKernel")):
        export.kernel(500, start, start + 50, export.call(500, start // 10), name=name)
    path = export.write(tmp_path / "x.sqlite")
    with changing(path) as db:
        unnamed = "(SELECT id FROM StringIds WHERE value = 'unnamed')"
        db.execute(f"UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET shortName = NULL WHERE shortName = {unnamed}")
    spans = read(Source("nsys", path, "h"), ReadOptions()).spans
    assert spans.select("start_ns", "end_ns").rows() == [(200, 350)]


def test_unusual_launch_calls_are_found(tmp_path: Path) -> None:
    export = Export(epoch_ns=0)
    export.range(500, 0, 100, "F0.0.0")
    export.kernel(500, 200, 300, export.call(500, 10, name="hipModuleRun"))
    profile = read(Source("nsys", export.write(tmp_path / "x.sqlite"), "h"), ReadOptions())
    assert profile.spans.select("start_ns", "end_ns").rows() == [(200, 300)]
    assert "launch-calls-unusual" in [n.code for n in profile.notes]


def test_work_without_a_block_is_counted_and_invented_nowhere(tmp_path: Path) -> None:
    export = Export(epoch_ns=0)
    export.range(500, 0, 100, "F0.0.0")
    export.range(500, 200, 300, "F1.0.0")
    export.range(500, 400, None, "F2.0.0")
    for at in (10, 20, 150, 160):
        export.kernel(500, at + 1000, at + 1005, export.call(500, at))
    export.kernel(500, 2000, 2001, None)
    profile = read(Source("nsys", export.write(tmp_path / "x.sqlite"), "h"), ReadOptions())
    assert profile.spans["marker"].to_list() == ["F0.0.0"]
    result = {n.code: n for n in profile.notes}
    assert (result["blocks-without-work"].count, result["ranges-unclosed"].count) == (1, 1)
    assert (result["tasks-outside-blocks"].count, result["tasks-without-launch"].count) == (2, 1)
    assert result["blocks-without-work"].text.endswith("F1.0.0")
    assert result["ranges-unclosed"].text.endswith("F2.0.0")
    assert "40.0%" in result["tasks-outside-blocks"].text


def test_no_block_with_work_is_an_error(tmp_path: Path) -> None:
    export = Export()
    export.range(500, 0, 100, "F0.0.0")
    export.kernel(500, 200, 300, export.call(500, 150))
    with pytest.raises(SourceError, match=r"no GPU work was launched inside any pipeline range; .*`host_ranges`"):
        read(Source("nsys", export.write(tmp_path / "x.sqlite"), "h"), ReadOptions())
