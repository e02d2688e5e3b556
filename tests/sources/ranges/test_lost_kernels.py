"""Kernels that the profiler lost: their launches are in the file, so that a warning names their blocks."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import pytest

from samples.generators.kineto_trace import Trace
from samples.generators.nsys_export import Export as Nsys
from samples.generators.rocpd_export import Export as Rocpd
from tests.support.one_source import read
from trace_export.errors import SourceError
from trace_export.model import Note, Profile
from trace_export.sources.source import ReadOptions, Source


class Recorder(Protocol):
    """What a profiler writes, of one process."""

    def range(self, start: int, end: int, name: str) -> None: ...
    def call(self, at: int, name: str = ..., thread: int = ...) -> int: ...
    def kernel(self, start: int, end: int, call: int, name: str = ...) -> None: ...
    def read(self, folder: Path) -> Profile: ...


class OfTorch:
    capture = "cudaStreamBeginCapture", "cudaStreamEndCapture"

    def __init__(self) -> None:
        self.trace = Trace()

    def range(self, start: int, end: int, name: str) -> None:
        self.trace.range(start, end, name)

    def call(self, at: int, name: str = "cudaLaunchKernel", thread: int = 7) -> int:
        return self.trace.call(at, name=name, thread=thread)

    def kernel(self, start: int, end: int, call: int, name: str = "gemm") -> None:
        self.trace.kernel(start, end, call, name=name)

    def read(self, folder: Path) -> Profile:
        return read(Source("kineto", self.trace.write(folder / "a.json"), "h"), ReadOptions())


class OfNsys:
    capture = "cudaStreamBeginCapture_v10000", "cudaStreamEndCapture_v10000"
    export: Any

    def __init__(self) -> None:
        self.export = Nsys(epoch_ns=0)

    def range(self, start: int, end: int, name: str) -> None:
        self.export.range(0, start, end, name)

    def call(self, at: int, name: str = "", thread: int = 7) -> int:
        named = {"name": name} if name else {}
        return int(self.export.call(0, at, thread=thread, **named))

    def kernel(self, start: int, end: int, call: int, name: str = "gemm") -> None:
        self.export.kernel(0, start, end, call, name=name)

    def read(self, folder: Path) -> Profile:
        return read(Source("nsys", self.export.write(folder / "a.sqlite"), "h"), ReadOptions())


class OfRocm(OfNsys):
    capture = "hipStreamBeginCapture", "hipStreamEndCapture"

    def __init__(self) -> None:
        self.export = Rocpd()

    def read(self, folder: Path) -> Profile:
        return read(Source("rocpd", self.export.write(folder / "a_results.db"), "h"), ReadOptions())


PROFILERS = pytest.mark.parametrize("profiler", [OfTorch, OfNsys, OfRocm])


def record(profiler: Callable[[], Recorder], lost: set[int]) -> Recorder:
    """Three blocks with ten kernels each; those with the numbers in `lost` are not in the file."""
    recorder = profiler()
    for block in range(3):
        begin = 10_000 * (block + 1)
        recorder.range(begin, begin + 5_000, f"F{block}.0.0")
        for kernel in range(10):
            call, start = recorder.call(begin + 100 * (kernel + 1)), begin + 1_000 + 100 * kernel
            if 10 * block + kernel not in lost:
                recorder.kernel(start, start + 90, call)
    return recorder


def note(profile: Profile) -> Note | None:
    return next((note for note in profile.notes if note.code == "kernels-lost"), None)


@PROFILERS
@pytest.mark.parametrize("lost", [{29}, {10}, {5, 29}, set(range(10)), {3, *range(20, 30)}])
def test_a_block_whose_kernels_were_lost_is_named(
    profiler: Callable[[], Recorder], lost: set[int], tmp_path: Path
) -> None:
    result = note(record(profiler, lost).read(tmp_path))
    blocks = sorted({number // 10 for number in lost})
    assert result is not None
    assert (result.level, result.count) == ("warning", len(blocks))
    names = ", ".join(f"F{block}.0.0" for block in blocks)
    what = f"blocks that launched kernels which are not in the file ({len(lost)} in all)"
    assert result.text == f"{what}; their times may be wrong: {names}"


@PROFILERS
@pytest.mark.parametrize(("kernels", "end"), [("none", 40_500), ("there", 40_900), ("lost", None)])
def test_a_transfer_whose_kernel_was_lost_has_no_end(
    profiler: Callable[[], Recorder], kernels: str, end: int | None, tmp_path: Path
) -> None:
    """The end of its range is that of the call on the host, which may be long before the data have moved."""
    recorder = record(profiler, set())
    recorder.range(40_000, 40_500, "SEND_FORWARD.0.0.0")
    if kernels != "none":
        call = recorder.call(40_100)
        if kernels == "there":
            recorder.kernel(40_200, 40_900, call, name="ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)")
    (moved,) = recorder.read(tmp_path).p2p["end_ns"] % 10**9  # torch.profiler counts from a day of its own
    assert moved == end


@PROFILERS
def test_launches_outside_blocks_and_other_calls_say_nothing(profiler: Callable[[], Recorder], tmp_path: Path) -> None:
    recorder = record(profiler, set())
    recorder.call(90_000)
    recorder.call(10_950, name="cudaEventRecord")
    recorder.call(10_960, name="cudaLaunchHostFunc")
    recorder.call(10_970, name="hipLaunchHostFunc")
    assert note(recorder.read(tmp_path)) is None


@PROFILERS
@pytest.mark.parametrize("thread", [7, 8])
def test_what_is_captured_into_a_graph_runs_later(profiler: Any, thread: int, tmp_path: Path) -> None:
    """Not as kernels of these launches: those of another thread count as captured, too, as autograd's may be."""
    recorder = record(profiler, {25, 26})
    begin, end = profiler.capture
    recorder.call(30_590, name=begin, thread=thread)
    recorder.call(30_710, name=end, thread=thread)
    assert note(recorder.read(tmp_path)) is None
    recorder = record(profiler, {24, 25, 26})
    recorder.call(30_590, name=begin, thread=thread)
    recorder.call(30_710, name=end, thread=thread)
    result = note(recorder.read(tmp_path))
    assert result is not None and "(1 in all)" in result.text


@PROFILERS
@pytest.mark.parametrize("lost", [set(), {1}, {0, 2}, {0, 1, 2}])
def test_a_replay_whose_kernels_were_lost_is_one_where_others_ran(
    profiler: Any, lost: set[int], tmp_path: Path
) -> None:
    """Where none ran, the graphs may be empty."""
    recorder = record(profiler, set())
    launch = "hipGraphLaunch" if profiler is OfRocm else "cudaGraphLaunch"
    for block in range(3):
        begin = 10_000 * (block + 1)
        call = recorder.call(begin + 2_000, name=launch)
        if block not in lost:
            recorder.kernel(begin + 2_500, begin + 2_600, call)
            recorder.kernel(begin + 2_600, begin + 2_700, call)
    result = note(recorder.read(tmp_path))
    assert (result.count if result else 0) == len(lost) % 3


@PROFILERS
@pytest.mark.parametrize(("without_launch", "level"), [(1, "note"), (12, "warning")])
def test_many_kernels_without_a_launch_are_a_warning(
    profiler: Callable[[], Recorder], without_launch: int, level: str, tmp_path: Path
) -> None:
    recorder = profiler()
    recorder.range(10_000, 90_000, "F0.0.0")
    for number in range(1_000):
        call = recorder.call(10_010 + number)
        recorder.kernel(100_000 + 10 * number, 100_009 + 10 * number, call + 5_000 * (number < without_launch))
    (result,) = [note for note in recorder.read(tmp_path).notes if note.code == "tasks-without-launch"]
    assert (result.level, result.count) == (level, without_launch)


@PROFILERS
def test_where_all_kernels_were_lost_their_launches_are_told(profiler: Callable[[], Recorder], tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="no GPU work in the file, though kernels were launched: the profiler lost"):
        record(profiler, set(range(30))).read(tmp_path)
    recorder = profiler()
    recorder.range(10_000, 15_000, "F0.0.0")
    recorder.call(10_100, name="cudaEventRecord")
    with pytest.raises(SourceError, match=r"no GPU work in the file: it was (?:recorded|captured) without"):
        recorder.read(tmp_path)


@PROFILERS
@pytest.mark.parametrize("call", [0, 1 << 20])
def test_kernels_that_name_no_launch_of_the_file(profiler: Callable[[], Recorder], call: int, tmp_path: Path) -> None:
    recorder = profiler()
    for block in range(3):
        recorder.range(10_000 * block, 10_000 * block + 5_000, f"F{block}.0.0")
        recorder.call(10_000 * block + 100)
        recorder.kernel(10_000 * block + 200, 10_000 * block + 300, call)
    with pytest.raises(SourceError, match="by the correlation ids no call here launched any of its GPU tasks"):
        recorder.read(tmp_path)
