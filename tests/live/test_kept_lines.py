"""The lines that other programs read: whole ones or none, also where the disk is full."""

from __future__ import annotations

import json
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from samples.generators.paddle import Job
from tests.live.test_look import looks
from tests.support.growing_logs import GrowingLogs
from trace_export.live.watching import KeptLines


@contextmanager
def full_disk(size: int) -> Iterator[None]:
    """No file can grow beyond `size` bytes; writing is cut as on a disk without room."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def test_what_was_not_written_follows_with_the_next_look(tmp_path: Path) -> None:
    logs = GrowingLogs(tmp_path / "logs", Job(stages=2, microbatches=4, steps=range(4), announced=False))
    logs.write(0)
    result = looks(logs.folder, [lambda s=s: logs.write(s) for s in (1, 2)])  # type: ignore[misc]
    jsonl = tmp_path / "steps.jsonl"
    kept = KeptLines(jsonl)
    assert kept.put(result[0]) == []
    before = jsonl.read_text()
    with full_disk(len(before) + 10):
        assert [error.path for error in kept.put(result[1])] == [jsonl]
    assert jsonl.read_text() == before
    assert kept.put(result[2]) == []
    assert [json.loads(line)["step"] for line in jsonl.read_text().splitlines()] == [0, 1, 2]
