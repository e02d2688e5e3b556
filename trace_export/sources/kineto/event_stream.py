"""Streaming parser of torch.profiler (Kineto) JSON: frames of events, never the whole file.

An object with `traceEvents`, or their list alone: in Kineto's layout, a line for each few fields, or in that of another
program that wrote it anew. Times are microseconds with three decimals, after `baseTimeNanoseconds` where that is given:
as floats they would lose nanoseconds, so they are read as text. Format: libkineto/src/output_json.cpp in
pytorch/kineto.
"""

from __future__ import annotations

import codecs
import re
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import polars as pl

from trace_export.errors import SourceError
from trace_export.sources.kineto import heads, trailer
from trace_export.sources.kineto.json_events import Event, Wanted, columns_of, decoded, is_list
from trace_export.sources.kineto.repairs import with_names, with_numbers
from trace_export.sources.kineto.trace_file import MAX_HEADER, TraceFile

READ_BYTES = 1 << 20
"""Of more the memory would go back to the system and be fetched again with each piece, a fifth of the time."""
PIECE_BYTES = 1 << 18
"""What `ReadOptions.beginning` counts, and how much is read of the end."""
DECODED_BYTES = 2 << 20
"""So many of wanted events are decoded together, some 8,000."""
MAX_EVENT = 4 << 20
CLOCK_AND_RANK = {"baseTimeNanoseconds", "distributedInfo"}
"""Fields for which the end of the trace is read where its begin lacks them."""
TRIES = 3
"""How many places are tried as the end of the last whole event before more of the file is read."""
_BETWEEN = re.compile(rb"\}\s*,\s*\{")
_LINES = b"\n  },\n  {"
"""How Kineto separates events. JSON has no line breaks inside strings, so this is never inside one."""


class Trace(TraceFile):
    """One trace, to be read once: `header` has the fields around the events, `events` goes through them.

    Afterwards `truncated` is whether the list of events ends in the middle, `damaged` whether packed data do, and
    `malformed` how many events are no JSON.
    """

    def __init__(self, path: Path, wanted: Wanted, beginning: int = 0) -> None:
        """`beginning`: only the events in so many first pieces, and in Kineto's layout, where it is not packed, in a
        last one; 0: all of them. Raises SourceError.
        """
        super().__init__(path)
        self.wanted = wanted
        self._missing = beginning * PIECE_BYTES
        self._at_once = PIECE_BYTES if beginning else READ_BYTES
        self._inside_object = True
        self._in_lines = False
        self._taken: list[bytes] = []
        try:
            self.header, self._buffer = self._read_header()
        except SourceError as error:
            self._file.__exit__(type(error), error, None)
            raise

    @property
    def offset_ns(self) -> int:
        """What turns its time into unix time. Before Kineto had a base the times were unix microseconds."""
        base = whole_number(self.header.get("baseTimeNanoseconds"))
        return base if base is not None and 0 <= base < 1 << 62 else 0

    def events(self) -> Iterator[pl.DataFrame]:
        """The wanted events in the file's order, with the columns of `json_events.SCHEMA`.

        Raises SourceError when there is no list of events.
        """
        return map(columns_of, self.pieces())

    def pieces(self) -> Iterator[list[Event]]:
        """The events of `events`, before they become columns."""
        in_beginning = self._missing > 0
        while data := self._read(self._at_once):
            self._buffer += data
            if not self._take_whole_events() and len(self._buffer) > MAX_EVENT:
                raise SourceError(self.path, "the list of events is not valid JSON", "collect or copy it again")
            if sum(map(len, self._taken)) > DECODED_BYTES:
                yield self._decoded()
            self._missing -= len(data)
            if in_beginning and self._missing <= 0:
                in_beginning = False
                self._skip_to_end()
                if not self.has_end:
                    break
        else:
            self._take_last_events()
        yield self._decoded()

    def _skip_to_end(self) -> None:
        """Leaves out what is before the events of the last piece."""
        left = self._file.left()
        if left is not None and left <= PIECE_BYTES:
            return
        self.shortened, self._buffer = True, b""
        if left is not None:
            self._file.skip(0, PIECE_BYTES)
            end = self._read(READ_BYTES)
            self._buffer = end[at + len(_LINES) - 1 :] if (at := end.find(_LINES)) >= 0 else b""
        self.has_end = bool(self._buffer)

    def _read(self, size: int) -> bytes:
        """The next bytes, none at the end; damaged compressed data end where the damage begins."""
        try:
            return self._file.read(size)
        except OSError as error:
            raise SourceError(self.path, f"cannot be read ({error.strerror})") from error

    def _read_header(self) -> tuple[dict[str, Any], bytes]:
        """The fields around the events, and what was read of the events."""
        start = self._read(self._at_once)
        if (document := start.removeprefix(codecs.BOM_UTF8).lstrip()).startswith(b"["):
            self._inside_object = False
            return {}, document[1:]
        while (at := _event_list(start)) is None:
            data = self._read(self._at_once)
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

    def _take_whole_events(self) -> bool:
        """Takes the events up to the last that is whole from the buffer; whether there was one."""
        for end, start in _cuts(self._buffer):
            if self._take(self._buffer[:end]):
                self._buffer = self._buffer[start:]
                return True
        return False

    def _take_last_events(self) -> None:
        """Takes what is left at the end of the file: events, a bracket and the fields after them."""
        if _LINES in self._buffer:  # without those whose names are not escaped the bracket is found
            self._take_whole_events()
        at = trailer.list_end(self._buffer, inside_object=self._inside_object)
        fields = None if at is None else trailer.parsed_after(self._buffer[at:], inside_object=self._inside_object)
        if fields is not None and self._take(self._buffer[:at].rstrip().removesuffix(b",")):
            return
        self.truncated = True
        self._take_whole_events()
        if self._buffer.rstrip().endswith(b"}"):
            self._take(self._buffer)

    def _take(self, body: bytes) -> bool:
        """Takes the wanted events of a comma-separated list, unless it is none; in Kineto's layout, where an event ends
        is certain, and those that are malformed are found later."""
        rest = heads.without_others(body, self.wanted)
        events = body if rest is None else rest
        self._in_lines |= _LINES in body
        if not self._in_lines and not is_list(events) and not is_list(events := with_numbers(events)):
            return False
        if events and not events.isspace():
            self._taken.append(events)
        return True

    def _decoded(self) -> list[Event]:
        """The events that were taken since the last time."""
        body, self._taken = b",\n  ".join(self._taken), []
        found = decoded(body, self.wanted)
        if found is None:
            body = with_numbers(body)
            found = decoded(body, self.wanted)
        if found is None:
            found = decoded(self._without_malformed(body), self.wanted)
        return found or []

    def _may_be_wanted(self, text: bytes) -> bool:
        found: bool = pl.Series([text.decode("utf-8", "replace")]).str.contains(self.wanted.text)[0]
        return found

    def _without_malformed(self, body: bytes) -> bytes:
        """The events in Kineto's layout that are JSON. Those that are not are counted if they are wanted."""
        texts = body.split(_LINES)
        good = []
        for number, text in enumerate(texts):
            event = b"{" * (number > 0) + text + b"}" * (number < len(texts) - 1)
            if is_list(event) or is_list(event := with_names(event)):
                good.append(event)
            else:
                self.malformed += self._may_be_wanted(event)
        return b",".join(good)


def whole_number(value: object) -> int | None:
    """A number of the header, which other programs write as text where it does not fit a float; None for others."""
    if isinstance(value, str) and re.fullmatch(r"\d{1,19}", value):
        return int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _event_list(start: bytes) -> tuple[int, int] | None:
    """Where in the file's start the field traceEvents is named, and where its list opens."""
    match = re.search(rb'"traceEvents"\s*:\s*\[', start)
    return (match.start(), match.end() - 1) if match else None


def _cuts(buffer: bytes) -> list[tuple[int, int]]:
    """Places that seem to be between two events, the last first: (end of one, start of the next)."""
    at = buffer.rfind(_LINES)
    if at >= 0:
        return [(at + len(b"\n  }"), at + len(b"\n  },\n  "))]
    size = 1 << 12
    while True:
        begin = max(len(buffer) - size, 0)
        found = deque(_BETWEEN.finditer(buffer, begin), maxlen=TRIES)
        if len(found) == TRIES or not begin:
            return [(match.start() + 1, match.end() - 1) for match in reversed(found)]
        size *= 16
