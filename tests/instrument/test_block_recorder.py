"""The recorder: what it writes is what was marked, and nothing that goes wrong with it reaches the training run."""

from __future__ import annotations

import errno
import itertools
import json
import os
import subprocess
import sys
import textwrap
import threading
import time
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import trace_export.instrument as ti
from tests.conftest import Cli
from tests.support.wait import HANGS_S
from trace_export.instrument import marks
from trace_export.instrument.backends.block_file import BlockFile
from trace_export.instrument.backends.block_recorder import BlockRecorder
from trace_export.instrument.backends.recorder import Recorder
from trace_export.sources.find import find
from trace_export.sources.read import read
from trace_export.sources.source import ReadOptions

ROOT = Path(__file__).resolve().parents[2]
LABELS = ["kind", "step", "microbatch", "chunk", "microbatch_b", "chunk_b"]


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """A process of rank 3 in which nothing has been marked yet, which shall record to a folder that is not there."""
    for name in (*marks.RANK_VARIABLES, *marks.SIZE_VARIABLES, "TRACE_EXPORT_RECORD_LIMIT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("TRACE_EXPORT_MARKS", "off")
    monkeypatch.setenv("TRACE_EXPORT_RECORD", str(tmp_path / "record"))
    monkeypatch.setattr(marks, "state", marks._State())
    marks._thread.block = None
    yield
    marks._thread.block = None


@pytest.fixture
def record(tmp_path: Path) -> Path:
    return tmp_path / "record"


def spans(folder: Path) -> pl.DataFrame:
    (source,) = (source for source in find(folder).sources if source.path.suffix == ".blocks")
    profile = read(source, ReadOptions())
    assert [note.code for note in profile.notes if note.level == "warning"] == []
    return profile.spans


def one_step(number: int, microbatches: int = 4) -> None:
    with ti.step(number):
        for i in range(microbatches):
            with ti.forward(microbatch=i, chunk=1, stage=2):
                pass
            with ti.backward(microbatch=i, chunk=0):
                pass
        with ti.forward_backward(5, 0, 2, 1):
            pass
        with ti.weight():
            pass
        with ti.optimizer():
            pass


def test_the_file_has_what_the_marks_said(record: Path) -> None:
    in_memory = Recorder()
    ti.auto(in_memory)
    before = time.time_ns()
    one_step(7)
    one_step(8)
    result = spans(record)
    told = [m for m in in_memory.marks if m.mark.kind != "STEP"]
    assert result.select(LABELS).rows() == [(m.mark.kind, m.where.step, *m.mark[1:5]) for m in told]
    assert result["origin"].unique().to_list() == ["host"]
    for row, mark in zip(result.iter_rows(named=True), told, strict=True):  # one reading lies within the other
        assert abs(row["start_ns"] - mark.start_ns) < 10**9
        assert row["end_ns"] >= row["start_ns"]
    assert abs(result["start_ns"][0] - before) < 10**10
    assert result["start_ns"].is_sorted()


class Unhashable:
    """As an array of one number is."""

    __hash__ = None  # type: ignore[assignment]

    def __str__(self) -> str:
        return "3"


@pytest.mark.parametrize("number", [3, Unhashable(), True])
def test_numbers_of_other_libraries(number: object, record: Path) -> None:
    ti.auto(Recorder())
    for step in range(2):
        with ti.step(step), ti.forward(microbatch=number):
            pass
    lines = [line for line in next(record.iterdir()).read_text().splitlines() if not line.startswith("#")]
    assert [line.split(",")[:4] for line in lines] == [["F", str(step), str(number), ""] for step in range(2)]


def test_a_header_says_where_the_rank_is(record: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "8")
    with ti.forward(microbatch=0):
        pass
    marks.state.layout.update(pp_size=4, tp=1)
    with ti.backward(microbatch=0, stage=2):
        pass
    text = (record / "rank3.blocks").read_text()
    headers = [json.loads(line[1:]) for line in text.splitlines() if line.startswith("#")]
    assert [(h["rank"], h["world"], h.get("stage"), h.get("pp_size"), h.get("tp")) for h in headers] == [
        (3, 8, None, None, None),
        (3, 8, 2, 4, 1),
    ]
    assert len({(h["host"], h["boot"], h["pid"], h["unix_ns"], h["clock_ns"]) for h in headers}) == 1
    (source,) = find(record).sources
    profile = read(source, ReadOptions())
    assert profile.ranks.select("rank", "stage", "tp").rows() == [(3, 2, 1)]
    assert (profile.declared.pp, profile.declared.world) == (4, 8)


def test_without_a_rank_the_process_names_the_file(record: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RANK")
    one_step(0)
    assert [path.name for path in record.iterdir()] == [f"process{os.getpid()}.blocks"]
    assert find(record).sources[0].rank_origin == "assumed"


def test_a_rank_that_the_framework_numbers_otherwise(record: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one_step(0)
    monkeypatch.setenv("RANK", "5")
    one_step(1)
    (other, last) = (read(source, ReadOptions()) for source in find(record).sources)
    assert [(p.ranks["rank"][0], p.spans["step"].unique().to_list()) for p in (other, last)] == [(3, [0]), (5, [1])]


def test_the_newest_blocks_are_kept_within_the_limit(record: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    limit = 20_000
    monkeypatch.setenv("TRACE_EXPORT_RECORD_LIMIT", str(limit / 1e6))
    for number in range(500):
        one_step(number, microbatches=1)
        assert sum(path.stat().st_size for path in record.iterdir()) <= limit
    assert sorted(path.name for path in record.iterdir()) == ["rank3.blocks", "rank3.blocks.earlier"]
    result = spans(record)
    lines = sum(path.read_text().count("\n") for path in record.iterdir()) - 2
    assert result.height == lines
    steps = result["step"].unique().sort().to_list()
    assert steps == list(range(steps[0], 500))
    assert len(steps) > 40  # half of the limit, at 45 bytes a block and 5 blocks a step


def test_an_earlier_start_is_kept_beside(record: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one_step(1)
    before = (record / "rank3.blocks").read_bytes()
    monkeypatch.setattr(marks, "state", marks._State())
    one_step(2)
    assert (record / "rank3.blocks.earlier").read_bytes() == before
    assert spans(record)["step"].unique().to_list() == [2]


# --- what goes wrong


def stays_marked(recorder: Recorder, caplog: pytest.LogCaptureFixture, *, says: str) -> None:
    """The marks go on, and the log has one sentence."""
    recorder.marks.clear()
    one_step(9)
    assert len(recorder.marks) == 12
    (message,) = caplog.messages
    assert message.startswith("trace_export: the recording to ")
    assert says in message


@pytest.fixture
def marked() -> Recorder:
    recorder = Recorder()
    ti.auto(recorder)
    return recorder


def test_a_folder_that_cannot_be_made(record: Path, marked: Recorder, caplog: pytest.LogCaptureFixture) -> None:
    record.write_text("a file in its place")
    one_step(0)
    stays_marked(marked, caplog, says="FileExistsError")
    assert record.read_text() == "a file in its place"


def test_a_limit_that_is_no_number(
    record: Path, marked: Recorder, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRACE_EXPORT_RECORD_LIMIT", "much")
    one_step(0)
    stays_marked(marked, caplog, says="TRACE_EXPORT_RECORD_LIMIT=much is not a number of megabytes")
    assert not record.exists()


@pytest.mark.parametrize("room", [0, 1, 20])  # the shortest line, soon after a machine's start, has 25 bytes
def test_a_full_disk(
    room: int, record: Path, marked: Recorder, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This many bytes of the next line find room, as a file system does it."""
    one_step(0)
    whole = spans(record)
    write = os.write

    def full(file: int, content: bytes) -> int:
        if room == 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(file, content[:room])

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        one_step(1)
    stays_marked(marked, caplog, says="No space left on device")
    (source,) = find(record).sources
    assert read(source, ReadOptions()).spans.equals(whole)


def test_another_process_that_takes_the_name(
    record: Path, marked: Recorder, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRACE_EXPORT_RECORD_LIMIT", "0.004")
    one_step(0)
    (record / "rank3.blocks").unlink()
    (record / "rank3.blocks").write_text("of the other")
    for number in range(20):
        one_step(number)
    stays_marked(marked, caplog, says="another process records as the same rank")
    assert (record / "rank3.blocks").read_text() == "of the other"


def test_the_users_ctrl_c_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(file: int, content: bytes) -> int:
        raise KeyboardInterrupt

    one_step(0)
    monkeypatch.setattr(os, "write", interrupted)
    with pytest.raises(KeyboardInterrupt):
        one_step(1)


def python(code: str, record: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "COV", "TRACE_EXPORT"))}
    environment |= {"PYTHONPATH": str(ROOT), "TRACE_EXPORT_RECORD": str(record), "TRACE_EXPORT_MARKS": "off"}
    environment |= {"PYTHONDONTWRITEBYTECODE": "1"}  # Python would keep what of it fits into a limited file
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), *arguments],
        env=environment, capture_output=True, text=True, timeout=HANGS_S, check=False,
    )  # fmt: skip


LOOP = """
import os, signal, sys, threading
import trace_export.instrument as ti
def one_step(number):
    with ti.step(number):
        for i in range(4):
            with ti.forward(microbatch=i): pass
            with ti.backward(microbatch=i): pass
"""


def test_a_file_that_may_not_grow(record: Path) -> None:
    """As the system says it: the last line that finds room is cut, perhaps of its end alone."""
    code = LOOP + textwrap.dedent("""
        import resource
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
        for number in range(20):
            one_step(number)
        print("trained")
    """)
    done = python(code, record)
    assert (done.returncode, done.stdout) == (0, "trained\n")
    assert done.stderr.count("\n") == 1
    assert "the recording to " in done.stderr
    (source,) = find(record).sources
    result = read(source, ReadOptions()).spans
    order = [(step, i // 2, "FB"[i % 2]) for step in range(20) for i in range(8)]
    assert result.select("step", "microbatch", "kind").rows() == order[: result.height]
    assert result.height == sum(line.endswith(",h") for line in (record / "rank3.blocks").read_text().splitlines())


def test_a_rank_that_is_killed_has_written_all_that_has_ended(record: Path) -> None:
    code = LOOP + "one_step(0)\nwith ti.forward(microbatch=9): os.kill(os.getpid(), signal.SIGKILL)"
    done = python(code, record)
    assert done.returncode == -9
    assert spans(record)["microbatch"].to_list() == [0, 0, 1, 1, 2, 2, 3, 3]


def test_a_forked_process_has_no_part_in_the_file(record: Path) -> None:
    code = LOOP + textwrap.dedent("""
        one_step(0)
        child = os.fork()
        one_step(1)
        if child == 0:
            os._exit(0)
        os.waitpid(child, 0)
        one_step(2)
    """)
    done = python(code, record)
    assert (done.returncode, done.stderr) == (0, "")
    assert spans(record).group_by("step", maintain_order=True).len().rows() == [(0, 8), (1, 8), (2, 8)]


def test_forked_ranks_record_each_for_itself(record: Path) -> None:
    """As torch.multiprocessing starts them where nothing was marked before."""
    code = LOOP + textwrap.dedent("""
        ti.auto()
        children = []
        for rank in range(2):
            children.append(os.fork())
            if children[-1] == 0:
                os.environ["RANK"] = str(rank)
                one_step(rank)
                os._exit(0)
        for child in children:
            os.waitpid(child, 0)
    """)
    done = python(code, record)
    assert (done.returncode, done.stderr) == (0, "")
    assert [source.rank for source in find(record).sources] == [0, 1]


def test_threads_write_whole_lines(record: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRACE_EXPORT_RECORD_LIMIT", "0.03")

    def work(chunk: int) -> None:
        for i in range(200):
            with ti.forward(microbatch=i, chunk=chunk):
                pass

    marks.begin_pass()
    threads = [threading.Thread(target=work, args=(chunk,)) for chunk in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    result = spans(record)
    assert result.height == sum(path.read_text().count("\n") for path in record.iterdir()) - 2
    last = result.group_by("chunk").agg(pl.col("microbatch").max())
    assert 199 in last["microbatch"]


def test_lines_of_a_thread_that_comes_between_take_room(tmp_path: Path) -> None:
    """Another thread, or a signal handler, may append wherever a function is called."""
    line, limit = f"{'x' * 49}\n", 1000

    class Content(bytes):
        def __len__(self) -> int:
            file.append(line)
            return super().__len__()

    class Interrupted(str):
        def encode(self, encoding: str = "utf-8", errors: str = "strict") -> bytes:
            return Content(super().encode(encoding, errors))

    file = BlockFile(tmp_path / "rank0.blocks", limit, lambda: "#\n")
    for _ in range(40):
        file.append(Interrupted(line))
        assert max(path.stat().st_size for path in tmp_path.iterdir()) <= limit // 2


def test_the_first_blocks_of_several_threads_go_to_one_file(tmp_path: Path) -> None:
    def work() -> None:
        together.wait()
        for i in range(20):
            with ti.forward(microbatch=i):
                pass

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for start in range(20):
            folder, together = tmp_path / str(start), threading.Barrier(4)
            marks.state.backend = BlockRecorder(str(folder), None)
            marks.begin_pass()
            threads = [threading.Thread(target=work) for _ in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            (path,) = folder.iterdir()
            assert sum(not line.startswith("#") for line in path.read_text().splitlines()) == 4 * 20
    finally:
        sys.setswitchinterval(before)


# --- the device's times


class Device:
    """A made-up device of torch: a clock of its own, and streams that pass their events when their work is done."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.host_ns = 10**12
        self.busy: dict[object, int] = {}
        """Stream → when its work will be done, in the host's time."""
        self.capturing = False
        self.events = 0
        device = self

        class Event:
            def __init__(self, enable_timing: bool) -> None:
                assert enable_timing
                device.events += 1

            def record(self, stream: object = "compute") -> None:
                assert not device.capturing
                device.host_ns += 2000
                self.passed = max(device.busy.get(stream, 0), device.host_ns + 5000)

            def query(self) -> bool:
                assert not device.capturing
                return self.passed <= device.host_ns

            def elapsed_time(self, end: Event) -> float:
                assert self.query()
                assert end.query()
                return (end.passed - self.passed) / 1e6

        cuda = types.SimpleNamespace(
            Event=Event, Stream=lambda: "own", is_initialized=lambda: True, current_device=lambda: 1,
            is_current_stream_capturing=lambda: self.capturing,
        )  # fmt: skip
        monkeypatch.setitem(sys.modules, "torch", types.SimpleNamespace(cuda=cuda))  # type: ignore[arg-type]
        for module in ("device_times", "block_recorder"):
            monkeypatch.setattr(f"trace_export.instrument.backends.{module}.clock", lambda: self.host_ns)

    def run(self, launch_ns: int, work_ns: int) -> tuple[int, int]:
        """The host takes `launch_ns` to launch work of `work_ns`; when that begins and ends."""
        begin = max(self.busy.get("compute", 0), self.host_ns + 5000)
        self.host_ns += launch_ns
        self.busy["compute"] = begin + work_ns
        return begin, begin + work_ns


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Device:
    return Device(monkeypatch)


def train(device: Device, step: int, **launch: int) -> list[tuple[int, int]]:
    result = []
    with ti.step(step):
        for i in range(8):
            with ti.forward(microbatch=i):
                result.append(device.run(**launch))
    return result


def test_blocks_have_the_times_of_the_device(device: Device, record: Path) -> None:
    """The host runs ahead by more than a step, so that its own times are far off."""
    truth = [train(device, step, launch_ns=100_000, work_ns=3_000_000) for step in range(4)]
    device.host_ns = device.busy["compute"] + 10_000
    truth += [train(device, step, launch_ns=100_000, work_ns=3_000_000) for step in range(4, 6)]
    result = spans(record).with_columns(pl.col("start_ns", "end_ns") - 10**12)
    assert result["origin"].unique().to_list() == ["device"]
    assert result["step"].unique().sort().to_list() == [0, 1, 2, 3]  # the others are not over yet
    anchor = result["start_ns"][0] - truth[0][0][0]
    for row, (begin, end) in zip(result.iter_rows(named=True), itertools.chain(*truth[:4]), strict=True):
        assert row["start_ns"] - anchor == pytest.approx(begin, abs=8_000)
        assert row["end_ns"] - anchor == pytest.approx(end, abs=8_000)


def test_events_are_used_again(device: Device) -> None:
    for step in range(50):
        train(device, step, launch_ns=100_000, work_ns=50_000)
    assert device.events <= 4 * (2 * 8 + 1)


def test_a_step_that_the_device_has_not_passed_is_not_waited_for(device: Device, record: Path) -> None:
    train(device, 0, launch_ns=1000, work_ns=10**12)
    train(device, 1, launch_ns=1000, work_ns=10**12)
    assert not record.exists()


def test_what_is_captured_into_a_graph_does_not_run(device: Device, record: Path) -> None:
    train(device, 0, launch_ns=100_000, work_ns=1000)
    device.capturing = True
    train(device, 1, launch_ns=100_000, work_ns=1000)
    device.capturing = False
    train(device, 2, launch_ns=100_000, work_ns=1000)
    device.host_ns += 10_000
    train(device, 3, launch_ns=100_000, work_ns=1000)
    assert spans(record)["step"].unique().sort().to_list() == [0, 2]


def test_a_device_that_fails_ends_the_recording_only(
    device: Device, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, marked: Recorder
) -> None:
    def failing(self: object, stream: object = None) -> None:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    one_step(0)
    monkeypatch.setattr(sys.modules["torch"].cuda.Event, "record", failing)
    one_step(1)
    stays_marked(marked, caplog, says="illegal memory access")


# --- trace-export run


def test_run_records_to_a_folder(tmp_path: Path, run_cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRACE_EXPORT_RECORD")
    code = "import trace_export.instrument as ti\nwith ti.step(2), ti.forward(microbatch=1): pass"
    arguments: list[Any] = ["run", "--record", "here", "--", sys.executable, "-c", code]
    done = run_cli(*arguments, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert spans(tmp_path / "here").select("kind", "step", "microbatch").rows() == [("F", 2, 1)]
