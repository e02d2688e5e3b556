"""Notes for how long the process did not run while a mark was set, beside what the recorder and the profiler say."""

from __future__ import annotations

import atexit
import json
import os
import time
from pathlib import Path
from typing import Any

from trace_export.instrument.backends.block_recorder import BlockRecorder
from trace_export.instrument.marks import Mark, Where

VARIABLE = "OFF_CORE"
"""Environment variable that names the folder to write to, a file for each rank."""


def install() -> None:
    """From here on, of each block that BlockRecorder takes: the nanoseconds in which another thread had the core,
    while the block's begin was marked, and while its end was. The recorder and the profiler read their clocks there."""
    folder = os.environ.get(VARIABLE)
    if folder is None:
        return
    begin, end = BlockRecorder.begin, BlockRecorder.end
    blocks: list[list[int]] = []

    def watched_begin(self: BlockRecorder, mark: Mark, where: Where) -> Any:
        before = _now()
        token = begin(self, mark, where)
        if mark.kind != "STEP":
            blocks.append([_off_core_since(before)])
        return token

    def watched_end(self: BlockRecorder, token: Any) -> None:
        before = _now()
        end(self, token)
        if token[1] is not None:
            blocks[-1].append(_off_core_since(before))

    BlockRecorder.begin, BlockRecorder.end = watched_begin, watched_end  # type: ignore[method-assign]
    path = Path(folder, f"off_core{os.environ['RANK']}.json")
    atexit.register(lambda: path.write_text(json.dumps(blocks)))


def _now() -> tuple[int, int]:
    return time.perf_counter_ns(), time.thread_time_ns()


def _off_core_since(before: tuple[int, int]) -> int:
    ran = time.thread_time_ns() - before[1]
    return max(time.perf_counter_ns() - before[0] - ran, 0)
