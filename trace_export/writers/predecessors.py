"""The charts of the scripts that came with a framework and that this program takes the place of.

They have the name of an output, `pipeline_profile.json`, and carry no mark, so they are recognised by all of their
content. Two scripts of PaddlePaddle 2.6 to 3.3 write them: `profiler_helper_static.py` an object with begin and end
events of each job in the order of the keys below, then those of the steps; `profiler_helper.py` an array of the lines
of its records. The first also writes PERFETTO_COPY, the same with the numbers and names of threads.
"""

from __future__ import annotations

import mmap
import os
import re
import stat
from contextlib import closing, suppress
from pathlib import Path
from typing import Final

PERFETTO_COPY: Final = "pipeline_profile_perfetto.json"

_TIME: Final = rb"\d+(?:\.\d+)?(?:e\+\d+)?"
_THREAD: Final = rb'(?:"GPU\d+(?:\(machine:\d+\))?"|"Step"|\d+)'
_COLOUR: Final = rb'(?:, "cname": "\w+")?'
_JOB: Final = (
    rb'\{"name": "\w+", "cat": "\w+", "ph": "B", "ts": ' + _TIME + rb', "pid": 0, "tid": ' + _THREAD + _COLOUR + rb"\}"
    rb'|\{"name": "\w+", "cat": "\w+", "ph": "E", "pid": 0, "ts": ' + _TIME + rb', "tid": ' + _THREAD + _COLOUR + rb"\}"
    rb'|\{"name": "step\d+", "cat": "step", "ph": "E", "ts": ' + _TIME + rb', "pid": 0, "tid": ' + _THREAD + _COLOUR
    + rb"\}"
)  # fmt: skip
_THREAD_NAME: Final = (
    rb'\{"args": \{"name": "(?:STEP|GPU:\d+(?:\(machine:\d+\))?)"\}, "cat": "__metadata", "name": "thread_name", '
    rb'"ph": "M", "pid": 0, "tid": \d+, "ts": 0\}'
)
_RECORD: Final = (
    rb'\{"name": "[FB]\d+(?:_VP\d+)?", "cat": "(?:virtual )?pipeline timeline", "ph": "[BE]", "pid": 0, "tid": \d+, '
    rb'"ts": \d+, "cname": "\w+"\}'
)


def _listed(event: bytes, between: bytes, last: bytes = b"") -> bytes:
    """Events with `between` between any two, and after them those of the form `last`."""
    first = b"(?:" + event + b")"
    ending = b"(?:" + between + b"(?:" + last + b"))++" if last else b""
    return first + b"(?:" + between + first + b")*+" + ending


_CHART: Final = (
    rb'\{"traceEvents": \[' + _listed(_JOB, b", ") + rb"\]\}|\[ ?" + _listed(_RECORD, rb",\s*+") + rb" ?\]\s*+"
)
_COPY: Final = rb'\{"traceEvents": \[' + _listed(_JOB, b", ", _THREAD_NAME) + rb"\]\}"


def is_chart(path: Path) -> bool:
    """Whether the file is a script's chart as the script left it."""
    return _is(path, _CHART)


def copy_of_script(path: Path) -> Path | None:
    """PERFETTO_COPY in the folder of `path`, where a script left it."""
    copy = path.with_name(PERFETTO_COPY)
    return copy if _is(copy, _COPY) else None


def _is(path: Path, form: bytes) -> bool:
    """Whether all of the file has the form. One that is not a regular file, or cannot be read, has not."""
    with suppress(OSError, ValueError):  # an empty file cannot be mapped
        if stat.S_ISREG(path.stat().st_mode):
            with (
                os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb") as file,
                closing(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)) as content,
            ):
                return re.fullmatch(form, content) is not None
    return False
