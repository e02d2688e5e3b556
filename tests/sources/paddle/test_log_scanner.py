"""Records are found wherever they stand in a log, whatever surrounds them and wherever a chunk ends."""

import re
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.conftest import UNTIMED
from trace_export.sources.paddle import log_scanner
from trace_export.sources.paddle.log_scanner import LONGEST, Scanner, drain

PLAIN = re.compile(
    rb"Profiler Info: Job \((\d+)\), type = ([^,\r\n]+), micro_batch_id = (\d+), "
    rb"job_start_time = (\d+\.\d{6})(?!\d), job_end_time = (\d+\.\d{6})(?!\d)"
)
"""The format's own pattern, applied to a whole file at once: slow, but plainly right."""

RECORD = (
    "Profiler Info: Job (0), type = forward, micro_batch_id = 0, job_start_time = 1.000000, job_end_time = 2.000000\n"
)


class Log:
    """What a scan finds in a log."""

    def __init__(self, scanner: Scanner) -> None:
        self.records = drain({0: scanner}).drop("log")
        self.malformed, self.first_malformed = scanner.malformed, scanner.first_malformed
        self.steps = scanner.steps()


def scan(path: Path) -> Log:
    return Log(log_scanner.scan(path)[0])


times = st.integers(1_600_000_000_000_000, 1_800_000_000_000_000)
jobs = st.sampled_from(["forward", "backward_b1", "forward(chunk0)", "optimizer", "recv_forward", "前向"])
garbage = st.one_of(
    st.binary(max_size=40),
    st.sampled_from(
        [
            b"Profiler ",
            b"Profiler Info: Job (",
            b"Profiler start at step two",
            b"P" * (log_scanner.TRIES + 1),
            b"\r\n",
            b"\n",
            b"\x00",
            "进度 10%".encode(),
            b"1234.567890",
            b"type = x, ",
        ]
    ),
)
records = st.builds(
    lambda thread, job, mb, start, end: (
        f"I1206 02:31:51.177920 {thread:5d} standalone_executor.cc:246] "
        f"Profiler Info: Job ({mb}), type = {job}, micro_batch_id = {mb}, "
        f"job_start_time = {start / 1000:.6f}, job_end_time = {end / 1000:.6f}"
    ).encode(),
    st.integers(1, 99999),
    jobs,
    st.integers(0, 999),
    times,
    times,
)


@settings(max_examples=60, deadline=None, suppress_health_check=[*UNTIMED, HealthCheck.function_scoped_fixture])
@given(pieces=st.lists(st.one_of(garbage, records), max_size=30), chunk=st.sampled_from([64, 97, 600, 4096]))
def test_equals_the_plain_pattern_for_any_text_and_chunk(tmp_path: Path, pieces: list[bytes], chunk: int) -> None:
    content = b"".join(pieces)
    path = tmp_path / "workerlog.0"
    path.write_bytes(content)
    with mock.patch.object(log_scanner, "READ_BYTES", chunk):
        log = scan(path)
    expected = [
        (job.decode("utf-8", "replace"), int(mb), round(float(start) * 1000), round(float(end) * 1000))
        for _, job, mb, start, end in PLAIN.findall(content)
    ]
    result = log.records.select("job", "microbatch", "start_us", "end_us").rows()
    assert result == expected
    assert log.malformed == content.count(b"Profiler Info: Job (") - len(expected)


def test_thread_ids_come_from_the_prefix_even_across_chunks(tmp_path: Path) -> None:
    path = tmp_path / "workerlog.0"
    line = "I1206 02:31:51.177920 {thread:5d} a.cc:1] " + RECORD
    path.write_text("".join(line.format(thread=i % 3 + 7) for i in range(40)) + RECORD)
    with mock.patch.object(log_scanner, "READ_BYTES", 100):
        assert scan(path).records["thread"].to_list() == [i % 3 + 7 for i in range(40)] + [None]


def test_announcements_and_their_changes(tmp_path: Path) -> None:
    """Of steps that go on, as where some steps are profiled every now and then; and of earlier ones, by a new start."""
    announce = "10%|# INFO:root:Schedule Profiler start at step {} and end at step {}\n"
    path = tmp_path / "workerlog.0"
    parts = [announce.format(*steps) + RECORD for steps in ((1, 3), (1, 3), (3, 5), (8, 9), (2, 4))]
    path.write_text("".join([RECORD, *parts]))
    result = scan(path).records.select("announced", "announcement", "section").rows()
    assert result == [(None, 0, 0), (1, 0, 0), (1, 0, 0), (3, 0, 1), (8, 0, 2), (2, 1, 3)]


def test_an_announcement_without_a_number_is_none(tmp_path: Path) -> None:
    path = tmp_path / "workerlog.0"
    path.write_bytes(b"Profiler start at step two and end at step three\n")
    log = scan(path)
    assert (log.records.height, log.malformed, log.steps) == (0, 0, None)


@pytest.mark.parametrize("before", [0, 1, 2, log_scanner.TRIES - 1, log_scanner.TRIES, log_scanner.TRIES + 1])
@pytest.mark.parametrize("between", [b"", b" \n"])
def test_a_record_is_found_behind_its_first_letter(before: int, between: bytes, tmp_path: Path) -> None:
    path = tmp_path / "workerlog.0"
    path.write_bytes((b"P" + between) * before + RECORD.encode() + b"." * 2 * LONGEST)
    assert scan(path).records.height == 1
