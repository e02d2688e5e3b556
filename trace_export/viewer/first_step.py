"""What a finished trace says to show first, in the attributes at its head; and what is not a trace."""

from __future__ import annotations

import re
from pathlib import Path

from trace_export.chart.descriptions import FIRST_STEP, PINNED
from trace_export.errors import SourceError
from trace_export.files import Unpacked, is_folder

HEAD_BYTES = 4096
"""Bytes (after unpacking) that hold the first attributes."""
_TEXT = rb'(?:":"|\x1a.)'
"""Between the name of an attribute and its text: in JSON, and in a TraceAttribute (key of string_value, length)."""
_FIRST_STEP = re.compile(FIRST_STEP.encode() + _TEXT + rb"(\d{1,19})-(\d{1,19})", re.DOTALL)
_PINNED = re.compile(PINNED.encode() + _TEXT + rb'([^"\n]+)', re.DOTALL)

_TRACES = (257, b"ustar"), (0, b"\x0a"), (0, b"{"), (0, b"["), (0, b"PK\x03\x04")
"""Where the bytes stand by which a trace, or an archive of traces, is known. A tar archive begins with the name of a
file, any text."""
_NOT_TRACES = (
    (b"<", "is a page or a picture", "a web browser opens it by itself"),
    (b"\x89PNG", "is a picture", "any picture viewer opens it"),
    (b"PAR1", "is a table of spans", "read it with Polars, pandas or DuckDB"),
    (b"SQLite format 3\0", "is a profile, not a trace", "turn it into one with trace-export first"),
)


def trace_in(path: Path) -> Path:
    """The only trace in a folder; a file itself, and a folder with none or several."""
    if not is_folder(path):
        return path
    traces = [*path.glob("*.pftrace"), *path.glob("*.pftrace.gz")]
    return traces[0] if len(traces) == 1 else path


def first_step(path: Path) -> tuple[int, int] | None:
    """Start and end of the first step in nanoseconds of the trace's own time; None where the trace does not say. Raises
    SourceError, with what to do, where the Perfetto UI does not read the file."""
    match = _FIRST_STEP.search(_head(path))
    return None if match is None else (int(match[1]), int(match[2]))


def track_to_pin(path: Path) -> str:
    """The name of the track that a trace wants at the top, "" where it names none. Raises as `first_step` does."""
    match = _PINNED.search(_head(path))
    return "" if match is None else match[1].decode(errors="replace")


def _head(path: Path) -> bytes:
    if is_folder(path):
        raise SourceError(path, "is a folder", "name the trace file in it, for instance pipeline_profile.pftrace")
    try:
        with Unpacked(path) as file:
            head = file.read(HEAD_BYTES)
    except OSError as error:
        raise SourceError(path, f"cannot be read ({error.strerror or error})") from error
    if file.damaged:
        raise SourceError(path, "is damaged: its packed data break off", "export it again")
    if not head:
        raise SourceError(path, "is empty")
    for magic, what, remedy in _NOT_TRACES:
        if head.startswith(magic):
            raise SourceError(path, what, remedy)
    if not any(head.startswith(magic, at) for at, magic in _TRACES):
        raise SourceError(path, "is not a trace", "open shows the .pftrace and .json files that trace-export writes")
    return head
