"""A stub of the `nvtx` package: it records the calls instead of passing them to a profiler."""

import json
import os
import sys
import threading
import time
import types
from pathlib import Path

CALLS: list[tuple[str, str, int, int]] = []


def _call(what: str, name: str) -> None:
    CALLS.append((what, name, time.time_ns(), threading.get_ident()))


def install() -> None:
    """Stands in for the device library, and switches all marks to it."""
    nvtx = types.ModuleType("nvtx")
    nvtx.push_range = lambda name: _call("push", name)  # type: ignore[attr-defined]
    nvtx.pop_range = lambda: _call("pop", "")  # type: ignore[attr-defined]
    sys.modules["nvtx"] = nvtx
    os.environ["TRACE_EXPORT_MARKS"] = "nvtx"


def write(out: Path) -> None:
    """The calls of this process, for the test to read."""
    out.mkdir(parents=True, exist_ok=True)
    (out / f"rank{os.environ['RANK']}.json").write_text(json.dumps(CALLS))
