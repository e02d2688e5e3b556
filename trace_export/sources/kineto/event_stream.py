"""Streaming parser of torch.profiler (Kineto) JSON: frames of events, never the whole file.

An object with `traceEvents`, or their list alone: in Kineto's layout, a line for each few fields, or in that of another
program that wrote it anew. Times are microseconds with three decimals, after `baseTimeNanoseconds` where that is given:
as floats they would lose nanoseconds, so they are read as text. Format: libkineto/src/output_json.cpp in
pytorch/kineto.
"""

from __future__ import annotations

import codecs
import io
import re
from collections import deque
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import orjson
import polars as pl

from trace_export.errors import SourceError
from trace_export.sources.kineto import trailer
from trace_export.sources.kineto.trace_file import TraceFile
from trace_export.sources.shared.timestamps import NO_TIME_NS
from trace_export.units import thousandths

READ_BYTES = 3 << 19
PIECE_BYTES = 1 << 18
"""What `ReadOptions.beginning` counts, and how much is read of the end."""
MAX_HEADER = 8 << 20
"""A header holds the process groups of the whole cluster: of 100,000 ranks some MB."""
MAX_EVENT = 4 << 20
CLOCK_AND_RANK = {"baseTimeNanoseconds", "distributedInfo"}
"""Fields for which the end of the trace is read where its begin lacks them."""
TRIES = 3
"""How many places are tried as the end of the last whole event before more of the file is read."""
MOST_OBJECTS = 1 << 16
"""And lists, in one piece of JSON: an event takes some 300 bytes as a row, be it two in the file, and a list 100."""

FIELDS = (
    "correlation", "External id", "stream", "device", "Collective name", "Process Group Name", "Src Rank", "Dst Rank",
    "Seq", "dtype", "In msg nelems", "Out msg nelems", "Sequence number",
)  # fmt: skip
"""What is read of an event's `args`, as text."""
THREAD_NAME = "thread_name"
"""The name of the events that name threads."""

_EVENT = {
    "ph": pl.String(), "cat": pl.String(), "name": pl.String(), "tid": pl.String(), "ts": pl.String(),
    "dur": pl.String(), "args": pl.Struct(dict.fromkeys((*FIELDS, "name"), pl.String())),
}  # fmt: skip
COMMON_CATEGORIES = {
    "Kernel": "kernel", "Memcpy": "gpu_memcpy", "Memset": "gpu_memset", "Runtime": "cuda_runtime",
    "Operator": "user_annotation", "mtia_ccp_events": "kernel", "mlu_memcpy": "gpu_memcpy", "mlu_memset": "gpu_memset",
    "GCU_MEMCPY": "gpu_memcpy", "GCU_MEMSET": "gpu_memset",
}  # fmt: skip
"""Categories of 2021 (PyTorch 1.8 and 1.9), which had one for operators and annotations, and of devices that have their
own, as those of CUDA today. ROCm, XPU and the devices of PrivateUse1 (NPU, HPU) share CUDA's `kernel` and
`gpu_mem…`."""
_NUMBER, _QUOTED = r'"(ts|dur)"\s*:\s*([-+0-9.eE]+)', '"$1":"$2"'
_BETWEEN = re.compile(rb"\}\s*,\s*\{")
_FIRST_KEY = re.compile(rb'\s*\{\s*("[^"\\]*")')
_LINES = b"\n  },\n  {"
"""How Kineto separates events. JSON has no line breaks inside strings, so this is never inside one."""


class Trace(TraceFile):
    """One trace, to be read once: `header` has the fields around the events, `events` goes through them.

    Afterwards `truncated` is whether the list of events ends in the middle, `damaged` whether packed data do, and
    `malformed` how many events are no JSON.
    """

    def __init__(self, path: Path, wanted: str, beginning: int = 0) -> None:
        """Events whose text lacks `wanted`, a regular expression for Polars, may be left out. `beginning`: only the
        events in so many first pieces, and in Kineto's layout, where it is not packed, in a last one; 0: all of them.
        Raises SourceError.
        """
        super().__init__(path)
        self.wanted = wanted
        self._missing = beginning * PIECE_BYTES
        self._inside_object = True
        try:
            self.header, self._buffer = self._read_header()
        except SourceError as error:
            self._file.__exit__(type(error), error, None)
            raise

    @property
    def offset_ns(self) -> int:
        """What turns its time into unix time. Before Kineto had a base the times were unix microseconds."""
        base = self.header.get("baseTimeNanoseconds")
        return base if isinstance(base, int) and 0 <= base < 1 << 62 else 0

    def events(self) -> Iterator[pl.DataFrame]:
        """The complete events (`ph` X) in the file's order: cat, name, tid, start, end in ns (Int64), and `FIELDS`. And
        where they are wanted, those that name a thread, with cat THREAD_NAME and `thread name`.
        Both times are NO_TIME_NS where they cannot be read.

        Raises SourceError when there is no list of events.
        """
        in_beginning = self._missing > 0
        while data := self._read(PIECE_BYTES if in_beginning else READ_BYTES):
            self._buffer += data
            body = self._whole_events()
            if body is not None:
                yield body
            elif len(self._buffer) > MAX_EVENT:
                raise SourceError(self.path, "the list of events is not valid JSON", "collect or copy it again")
            self._missing -= len(data)
            if in_beginning and self._missing <= 0:
                in_beginning = False
                self._skip_to_end()
                if not self.has_end:
                    return
        last = self._last_events()
        if last is not None:
            yield last

    def _skip_to_end(self) -> None:
        """Leaves out what is before the events of the last piece."""
        left = self._file.left()
        if left is not None and left <= PIECE_BYTES:
            return
        self.shortened, self._buffer = True, b""
        if left is not None:
            self._file.skip(0, PIECE_BYTES)
            end = self._read()
            self._buffer = end[at + len(_LINES) - 1 :] if (at := end.find(_LINES)) >= 0 else b""
        self.has_end = bool(self._buffer)

    def _read(self, size: int = READ_BYTES) -> bytes:
        """The next bytes, none at the end; damaged compressed data end where the damage begins."""
        try:
            return self._file.read(size)
        except OSError as error:
            raise SourceError(self.path, f"cannot be read ({error.strerror})") from error

    def _read_header(self) -> tuple[dict[str, Any], bytes]:
        """The fields around the events, and what was read of the events."""
        start = self._read()
        if (document := start.removeprefix(codecs.BOM_UTF8).lstrip()).startswith(b"["):
            self._inside_object = False
            return {}, document[1:]
        while (at := _event_list(start)) is None:
            data = self._read()
            if not data or len(start) > MAX_HEADER:
                raise SourceError(self.path, "is not a torch.profiler trace: it has no list traceEvents")
            start += data
        name, bracket = at
        try:
            header = orjson.loads(start[:name].removeprefix(codecs.BOM_UTF8) + b'"traceEvents":[]}')
        except orjson.JSONDecodeError as error:
            raise SourceError(self.path, "is not a torch.profiler trace: its header is not valid JSON") from error
        del header["traceEvents"]
        if not header.keys() >= CLOCK_AND_RANK:
            header |= self._fields_after(bracket + 1)
        return header, start[bracket + 1 :]

    def _fields_after(self, begin: int) -> dict[str, Any]:
        try:
            return trailer.fields_after_events(self.path, begin)
        except OSError as error:
            raise SourceError(self.path, f"cannot be read ({error.strerror})") from error

    def _whole_events(self) -> pl.DataFrame | None:
        """The events of the buffer up to the last that is whole; they leave it. None when more must be read."""
        for end, start in _cuts(self._buffer):
            found = self._frame(self._buffer[:end])
            if found is not None:
                self._buffer = self._buffer[start:]
                return found
        return None

    def _last_events(self) -> pl.DataFrame | None:
        """What is left at the end of the file: events, a bracket and the fields after them."""
        at = trailer.list_end(self._buffer, inside_object=self._inside_object)
        if at is not None and trailer.parsed_after(self._buffer[at:], inside_object=self._inside_object) is not None:
            found = self._frame(self._buffer[:at])
            if found is not None:
                return found
        self.truncated = True
        whole = self._whole_events()
        rest = self._frame(self._buffer) if self._buffer.rstrip().endswith(b"}") else None
        parts = [part for part in (whole, rest) if part is not None]
        return pl.concat(parts) if parts else None

    def _frame(self, body: bytes) -> pl.DataFrame | None:
        """The events of a comma-separated list; None when it is none."""
        between = _LINES if _LINES in body else _separator(body)
        if between is None:
            return _parsed(body)
        whole = pl.Series([body.decode("utf-8", "replace")])
        if between == _LINES and not whole.str.contains(self.wanted)[0]:
            return _parsed(b"")  # Kineto writes all operators first, and many pieces have nothing else
        text = whole.str.split(between.decode()).explode()
        if between != _LINES and not _are_events(text, between):
            return _parsed(body)
        texts = pl.DataFrame({"text": text}).with_row_index()
        first, last = pl.col("index") == 0, pl.col("index") == len(text) - 1
        brace = pl.concat_str(
            pl.when(first).then(pl.lit("")).otherwise(pl.lit(_begin(between))),
            "text",
            pl.when(last).then(pl.lit("")).otherwise(pl.lit("}")),
        )
        kept = texts.filter(pl.col("text").str.contains(self.wanted)).select(brace).to_series()
        found = _parsed(kept.str.join(",")[0].encode())
        if found is not None:
            return found
        if between != _LINES:
            return _parsed(body)
        good = [event for event in kept if _is_json(event)]
        self.malformed += len(kept) - len(good)
        return _parsed(",".join(good).encode())


def _separator(body: bytes) -> bytes | None:
    """What separates the events of a list in another layout than Kineto's, with the first key of an event: `},{"ph"`.
    The quotation mark cannot be inside a string. None where no event begins like the first."""
    key = _FIRST_KEY.match(body)
    found = key and re.compile(_BETWEEN.pattern + rb"\s*" + re.escape(key[1])).search(body)
    return found[0] if found else None


def _are_events(text: pl.Series, between: bytes) -> bool:
    """Whether the parts of a list between `between` are whole events, and not of lists inside them. Strings with
    brackets may make it say no."""
    braces, brackets = (
        text.str.count_matches(opening, literal=True).cast(pl.Int32)
        - text.str.count_matches(closing, literal=True).cast(pl.Int32)
        for opening, closing in ("{}", "[]")
    )
    inner = braces[1:-1] != 0
    ends = braces[0] == 1 and braces[-1] == -1
    return ends and not inner.any() and not (brackets != 0).any() and _is_json(_begin(between) + text[-1])


def _begin(between: bytes) -> str:
    """What a separator takes of the event after it."""
    return between[between.rindex(b"{") :].decode()


def _event_list(start: bytes) -> tuple[int, int] | None:
    """Where in the file's start the field traceEvents is named, and where its list opens."""
    match = re.search(rb'"traceEvents"\s*:\s*\[', start)
    return (match.start(), match.end() - 1) if match else None


def _cuts(buffer: bytes) -> list[tuple[int, int]]:
    """Places that seem to be between two events, the last first: (end of one, start of the next)."""
    at = buffer.rfind(_LINES)
    if at >= 0:
        return [(at + len(b"\n  }"), at + len(b"\n  },\n  "))]
    found = deque(_BETWEEN.finditer(buffer), maxlen=TRIES)
    return [(match.start() + 1, match.end() - 1) for match in reversed(found)]


def _is_json(event: str) -> bool:
    try:
        orjson.loads(event)
    except orjson.JSONDecodeError:
        return False
    return True


def _parsed(body: bytes) -> pl.DataFrame | None:
    """The frame of `Trace.events` for a comma-separated list of events; None when it is no JSON of that kind. In pieces
    of about MOST_OBJECTS, each of which is read again where it seems to end inside an event."""
    objects = body.count(b"{") + body.count(b"[")
    size = len(body) * MOST_OBJECTS // max(objects, MOST_OBJECTS)
    parts: list[pl.DataFrame] = []
    start = 0
    while len(body) - start > size:
        for match in islice(_BETWEEN.finditer(body, start + size), TRIES):
            if (part := _rows(body[start : match.start() + 1])) is not None:
                parts.append(part)
                start = match.end() - 1
                break
        else:
            break
    rest = _rows(body[start:])
    return None if rest is None else pl.concat([*parts, rest])


def _rows(body: bytes) -> pl.DataFrame | None:
    """The same, all at once."""
    quoted = pl.Series([body.decode("utf-8", "replace")]).str.replace_all(_NUMBER, _QUOTED)[0]
    try:
        raw = pl.read_json(io.BytesIO(f"[{quoted}]".encode()), schema=_EVENT)
    except pl.exceptions.PolarsError:
        return None
    start, length = thousandths(pl.col("ts")), thousandths(pl.col("dur"))
    names_thread = (pl.col("ph") == "M") & (pl.col("name") == THREAD_NAME)
    return (
        raw.with_columns(cat=pl.when(names_thread).then(pl.lit(THREAD_NAME)).otherwise("cat"))
        .filter(((pl.col("ph") == "X") & pl.col("cat").is_not_null()) | names_thread)
        .with_columns(pl.col("dur").fill_null("0"))
        .select(
            pl.col("cat").replace(COMMON_CATEGORIES),
            pl.col("name").fill_null(""),
            "tid",
            start=start,
            end=start + length,
            args=pl.col("args").struct.rename_fields([*FIELDS, "thread name"]),
        )
        .with_columns(
            pl.when(pl.col("end").is_not_null()).then(c).otherwise(NO_TIME_NS).alias(c) for c in ("start", "end")
        )
        .unnest("args")
    )


def thread() -> pl.Expr:
    """Of events: threads are numbers, or names of which only the equality counts."""
    tid = pl.col("tid").fill_null("")
    return pl.coalesce(tid.cast(pl.Int64, strict=False), -(tid.hash() // 2).cast(pl.Int64)).alias("thread")
