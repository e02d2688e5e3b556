"""The one reader of Chrome trace JSON: events in pieces, never the whole file.

An object with `traceEvents`, or their list alone, packed or not: in Kineto's layout, a line for each few fields, or in
that of any other program. The events are decoded with msgspec, which makes nothing of the fields that no reader looks
at. Format: "Trace Event Format" of the Chromium project; libkineto/src/output_json.cpp in pytorch/kineto.
"""

from __future__ import annotations

import codecs
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from operator import attrgetter
from pathlib import Path
from typing import Any, Generic, Self, TypeVar, get_args

import msgspec
import numpy as np
import orjson
import polars as pl

from trace_export.errors import SourceError
from trace_export.files import EMPTY, Unpacked, end_of, is_empty
from trace_export.model import Note
from trace_export.units import thousandths

READ_BYTES = 1 << 20
"""With larger pieces the memory would go back to the system and be fetched again for each, a fifth of the time."""
PIECE_BYTES = 1 << 18
"""The unit of `ReadOptions.beginning`; as much is read of the end."""
DECODED_BYTES = 2 << 20
"""This many of the wanted events are decoded together, some 8,000."""
MAX_EVENT = 4 << 20
MAX_HEADER = 8 << 20
"""The fields before the events hold the process groups of the whole cluster, of 100,000 ranks some MB."""
MAX_TRAILER = 4 << 20
"""How much of the end of a trace is looked at. distributedInfo lists the ranks of all groups of one rank."""
TRIES = 3
"""How many places are tried as the end of the last whole event before more of the file is read."""
AGAIN = "collect or copy it again"

_BETWEEN = re.compile(rb"\}\s*,\s*\{")
_LINES = b"\n  },\n  {"
"""How Kineto separates events. JSON has no line breaks inside strings, so this is never inside one."""
_KINETOS_END = b"\n  ],"
"""How Kineto ends the list of events."""

Value = int | float | str | None
"""A field of an event."""
ABSENT = msgspec.Raw(b"")
"""Stands for an absent field."""
Kind = TypeVar("Kind")
_Structure = TypeVar("_Structure", bound=msgspec.Struct)
_WHOLE = msgspec.json.Decoder(list[msgspec.Raw])
_FIELDS = msgspec.json.Decoder(dict[str, msgspec.Raw])
_NO_JSON = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


@dataclass(frozen=True)
class Events(Generic[Kind]):
    """Which events of a trace are read, and as what: `kind`, a structure with the fields that are, or a dictionary of
    all; `keep` gives those among them that are wanted. `text`: what the text of each of these has inside, as a regular
    expression for Polars. `shorten` takes others out of a list before it is decoded, or gives None. `fields`: those
    beside the list of events for which the end of the file is read where its begin lacks them. `number` makes numbers
    with a point of their texts."""

    kind: type[Kind]
    keep: Callable[[list[Kind]], list[Kind]]
    text: str = ""
    shorten: Callable[[bytes], bytes | None] = lambda _: None
    fields: frozenset[str] = field(default_factory=frozenset)
    number: Callable[[str], Any] = float

    @cached_property
    def _decoder(self) -> msgspec.json.Decoder[list[Kind]]:
        return msgspec.json.Decoder(list[self.kind], float_hook=None if self.number is float else self.number)  # type: ignore[name-defined]

    def decoded(self, body: bytes) -> list[Kind] | None:
        """The wanted events of a comma-separated list. None when it is no such list."""
        try:
            events = self._decoder.decode(b"[" + body + b"]")
        except UnicodeDecodeError:
            return self.decoded(body.decode("utf-8", "replace").encode())
        except msgspec.ValidationError:
            whole = _whole(body)
            if whole is None:
                return None
            events = [_what_is_right(self.kind, event) for event in whole]  # type: ignore[type-var]
        except _NO_JSON:
            return None
        return self.keep(events)


class TraceFile:
    """A trace that is open, packed or not, to be read once. `truncated`: it ends before its format does; `malformed`
    counts its events that cannot be read. `shortened`: only its beginning was read, as asked for, and where `has_end`
    also a piece at its end. Raises SourceError where it cannot be opened."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.truncated = False
        self.malformed = 0
        self.shortened = False
        self.has_end = True
        try:
            self._file = Unpacked(path)
        except OSError as error:
            raise _unreadable(path, error) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._file.__exit__(*error)

    def _read(self, size: int) -> bytes:
        """The next bytes, none at the end; damaged compressed data end where the damage begins."""
        try:
            return self._file.read(size)
        except OSError as error:
            raise _unreadable(self.path, error) from error

    @property
    def damaged(self) -> bool:
        """Whether its packed data break off."""
        return self._file.damaged

    def losses(self) -> Iterator[Note]:
        """What is to be said of events that are missing, once it was read."""
        where = str(self.path)
        if self.damaged and not self.truncated:
            text = "its gzip data are damaged: events may be missing or wrong"
            yield Note("trace-damaged", "warning", text, where)
        if self.truncated:
            yield Note("trace-truncated", "warning", "truncated trace; its last events are missing", where)
        if self.malformed:
            text = "events that cannot be read, left out"
            yield Note("events-malformed", "warning", text, where, self.malformed)


class JsonTrace(TraceFile, Generic[Kind]):
    """A trace in JSON: `header` has the fields around the events, `pieces` goes through these.

    What is read is in `_buffer` until it is known where its last whole event ends; the events before that wait in
    `_taken` until there are enough to decode them together:

        {"schemaVersion": 1, "traceEvents": [ e1, e2, e3, e4, e5 ], "traceName": …}
        header ─────────────────────────────┘ taken ┘ buffer: e3 may go on

    Afterwards `truncated` is whether the list of events ends in the middle, `damaged` whether packed data do, and
    `malformed` how many events are no JSON.
    """

    def __init__(self, path: Path, wanted: Events[Kind], beginning: int = 0) -> None:
        """`beginning`: only the events in this many first pieces, and in Kineto's layout, where it is not packed, in a
        last one; 0: all of them. Raises SourceError.
        """
        super().__init__(path)
        self.wanted = wanted
        self._missing = beginning * PIECE_BYTES
        self._at_once = PIECE_BYTES if beginning else READ_BYTES
        self._inside_object = True
        self._in_lines = False
        self._taken: list[bytes] = []
        self._any_taken = False
        try:
            self.header, self._buffer = self._read_header()
        except SourceError as error:
            self._file.__exit__(type(error), error, None)
            raise

    def pieces(self) -> Iterator[list[Kind]]:
        """The wanted events in the file's order. Raises SourceError when there is no list of events."""
        in_beginning = self._missing > 0
        while data := self._read(self._at_once):
            self._buffer += data
            if not self._take_whole_events() and len(self._buffer) > MAX_EVENT:
                raise SourceError(self.path, "the list of events is not valid JSON", AGAIN)
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
        """Leaves out everything before the events of the last piece."""
        left = self._file.left()
        if left is not None and left <= PIECE_BYTES:
            return
        self.shortened, self._buffer = True, b""
        if left is not None:
            self._file.skip(0, PIECE_BYTES)
            end = self._read(READ_BYTES)
            self._buffer = end[at + len(_LINES) - 1 :] if (at := end.find(_LINES)) >= 0 else b""
        self.has_end = bool(self._buffer)

    def _read_header(self) -> tuple[dict[str, Any], bytes]:
        """The fields around the events, and the part of the events that was read."""
        start = self._read(self._at_once)
        if (document := start.removeprefix(codecs.BOM_UTF8).lstrip()).startswith(b"["):
            self._inside_object = False
            return {}, document[1:]
        while (match := re.search(rb'"traceEvents"\s*:\s*\[', start)) is None:
            data = self._read(self._at_once)
            if not data or len(start) > MAX_HEADER:
                empty = not start and is_empty(self.path)
                raise SourceError(self.path, EMPTY if empty else "holds no list of trace events", AGAIN)
            start += data
        try:
            header = orjson.loads(start[: match.start()].removeprefix(codecs.BOM_UTF8) + b'"traceEvents":[]}')
        except orjson.JSONDecodeError as error:
            what = "is not a trace: what stands before its events is not valid JSON"
            raise SourceError(self.path, what, AGAIN) from error
        del header["traceEvents"]
        if not header.keys() >= self.wanted.fields:
            try:
                header |= fields_after_events(self.path, match.end())
            except OSError as error:
                raise _unreadable(self.path, error) from error
        return header, start[match.end() :]

    def _take_whole_events(self) -> bool:
        """Takes the events up to the last that is whole from the buffer; whether there was one."""
        for end, start in _cuts(self._buffer):
            if self._take(self._buffer[:end]):
                self._buffer = self._buffer[start:]
                return True
        return False

    def _take_last_events(self) -> None:
        """Takes the rest at the end of the file: events, a bracket and the fields after them."""
        if _LINES in self._buffer:  # without those whose names are not escaped the bracket is found
            self._take_whole_events()
        at = list_end(self._buffer, inside_object=self._inside_object)
        fields = None if at is None else _parsed_after(self._buffer[at:], inside_object=self._inside_object)
        if fields is not None and self._take(self._buffer[:at].rstrip().removesuffix(b",")):
            return
        self.truncated = True
        self._take_whole_events()
        if self._buffer.rstrip().endswith(b"}"):
            self._take(self._buffer)
        if not self._any_taken and self._buffer.strip():
            raise SourceError(self.path, "has no whole event: it is cut short, or not valid JSON", AGAIN)

    def _take(self, body: bytes) -> bool:
        """Takes the wanted events of a comma-separated list, unless it is not one; in Kineto's layout, where an event
        ends is certain, and those that are malformed are found later."""
        rest = self.wanted.shorten(body)
        events = body if rest is None else rest
        self._in_lines |= _LINES in body
        if not self._in_lines and not is_list(events) and not is_list(events := with_numbers(events)):
            return False
        self._any_taken = True
        if events and not events.isspace():
            self._taken.append(events)
        return True

    def _decoded(self) -> list[Kind]:
        """The events that were taken since the last time."""
        body, self._taken = b",\n  ".join(self._taken), []
        events = self.wanted.decoded(body)
        if events is None:
            body = with_numbers(body)
            events = self.wanted.decoded(body)
        if events is None:
            events = self.wanted.decoded(self._without_malformed(body))
        return events or []

    def _without_malformed(self, body: bytes) -> bytes:
        """The events in Kineto's layout that are JSON. Those that are not are counted if they are wanted."""
        texts = body.split(_LINES)
        good = []
        for number, text in enumerate(texts):
            event = b"{" * (number > 0) + text + b"}" * (number < len(texts) - 1)
            if is_list(event) or is_list(event := with_name(event)):
                good.append(event)
            else:
                self.malformed += pl.Series([event.decode("utf-8", "replace")]).str.contains(self.wanted.text)[0]
        return b",".join(good)


def _unreadable(path: Path, error: OSError) -> SourceError:
    return SourceError(path, f"cannot be read ({error.strerror})")


def _cuts(buffer: bytes) -> list[tuple[int, int]]:
    """Places that seem to be between two events, the last first: (end of one, start of the next)."""
    at = buffer.rfind(_LINES)
    if at >= 0:
        return [(at + len(b"\n  }"), at + len(b"\n  },\n  "))]
    size = 1 << 12
    while True:
        begin = max(len(buffer) - size, 0)
        matches = deque(_BETWEEN.finditer(buffer, begin), maxlen=TRIES)
        if len(matches) == TRIES or not begin:
            return [(match.start() + 1, match.end() - 1) for match in reversed(matches)]
        size *= 16


def is_list(body: bytes) -> bool:
    """Whether it is a comma-separated list in JSON."""
    return _whole(body) is not None


def _whole(body: bytes) -> list[msgspec.Raw] | None:
    try:
        return _WHOLE.decode(b"[" + body + b"]")
    except _NO_JSON:
        return None


def _what_is_right(kind: type[_Structure], text: msgspec.Raw) -> _Structure:
    """An object without those fields whose values have another type than they should."""
    right: dict[str, Any] = {}
    with suppress(*_NO_JSON):
        values = _FIELDS.decode(text)
        for one in msgspec.structs.fields(kind) if issubclass(kind, msgspec.Struct) else ():
            inner = next((t for t in get_args(one.type) if isinstance(t, type) and issubclass(t, msgspec.Struct)), None)
            if inner is not None and one.encode_name in values:
                right[one.name] = _what_is_right(inner, values[one.encode_name])
            elif one.encode_name in values:
                with suppress(*_NO_JSON):
                    right[one.name] = msgspec.json.decode(values[one.encode_name], type=one.type)
    return kind(**right)


# Events as columns


class Event(msgspec.Struct, gc=False):
    """An event as it is written, its times as text: as floats they would lose nanoseconds."""

    ph: Value = None
    name: Value = None
    pid: Value = None
    tid: Value = None
    ts: msgspec.Raw = ABSENT
    dur: msgspec.Raw = ABSENT


def arguments(*names: str) -> type[msgspec.Struct]:
    """The structure of the arguments of an event that have these names in the file, in this order."""
    fields = {f"argument_{number}": name for number, name in enumerate(names)}
    return msgspec.defstruct("Arguments", [(field, Value, None) for field in fields], rename=fields, gc=False)


def argument_columns(events: Sequence[Any], none: msgspec.Struct) -> list[list[Value]]:
    """The arguments of events (`args`), field by field; `none` stands for those of an event without any."""
    rows = [msgspec.structs.astuple(event.args or none) for event in events] or [msgspec.structs.astuple(none)]
    return [list(column[: len(events)]) for column in zip(*rows, strict=True)]


def texts_of(events: Sequence[Event], *fields: str) -> list[pl.Series]:
    """These fields of events as columns of text."""
    return [texts(name, list(map(attrgetter(name), events))) for name in fields]


def times(events: Sequence[Event]) -> pl.DataFrame:
    """`start` and `end` in ns of `ts` and `dur` in µs as they are written: as floats they would lose nanoseconds. An
    event without `dur` ends as it starts; null where a time is not a number."""
    length = thousandths(pl.col("dur"))
    return pl.DataFrame([_as_written(name, map(attrgetter(name), events)) for name in ("ts", "dur")]).select(
        start=thousandths(pl.col("ts")),
        end=thousandths(pl.col("ts")) + pl.when(pl.col("dur") == "").then(0).otherwise(length),
    )


def _as_written(name: str, values: Iterable[msgspec.Raw]) -> pl.Series:
    """Numbers as they are written, without quotation marks; "" where there is none."""
    parts = list(values)
    if not parts:
        return pl.Series(name, [], pl.String)
    text = b"\0".join(parts).replace(b'"', b"").decode(errors="replace")  # what is not UTF-8 is not a number
    return pl.Series(name, [text]).str.split("\0").explode()


def texts(name: str, values: Sequence[Value]) -> pl.Series:
    """Values as text. Numbers alone are turned into text by Polars, a value at a time takes twenty times as long."""
    kinds = set(map(type, values))
    if str not in kinds:
        with suppress(TypeError, OverflowError):
            return numbers(name, values, pl.Int64, strict=True).cast(pl.String)
    if float in kinds:
        values = [int(value) if isinstance(value, float) and value.is_integer() else value for value in values]
    return numbers(name, values, pl.String)


def numbers(name: str, values: Sequence[Value], kind: type[pl.DataType], *, strict: bool = False) -> pl.Series:
    """Values as a column of that type, null where they are of another."""
    if values.count(None) == len(values):  # as most columns are
        return pl.Series(name, [None], kind).new_from_index(0, len(values))
    return pl.Series(name, values, kind, strict=strict)


# The fields after the events: between 2024-05 and 2025-03 (PyTorch 2.4 to 2.6) Kineto wrote `baseTimeNanoseconds`
# there, and traces taken on demand have `distributedInfo` there still (libkineto/src/output_json.cpp, finalizeTrace).

_ESCAPED = re.compile(rb"\\.", re.DOTALL)
_QUOTE = 2
_MEANINGS = bytearray(256)
_MEANINGS[ord("]")] = _MEANINGS[ord("}")] = 1
_MEANINGS[ord("[")] = _MEANINGS[ord("{")] = 255
_MEANINGS[ord('"')] = _QUOTE
"""What each character adds to the depth, from the end of a text to its begin, as a signed byte; and quotation marks."""


def fields_after_events(path: Path, begin: int) -> dict[str, Any]:
    """The fields after the list of events, which begins at the byte `begin` of a trace, packed or not; none where the
    trace is truncated.

    Packed data are unpacked for it from begin to end. Raises OSError when the file cannot be read.
    """
    text = end_of(path, begin, MAX_TRAILER)
    at = list_end(text, inside_object=True)
    fields = None if at is None else _parsed_after(text[at:], inside_object=True)
    if fields is None and (at := text.rfind(_KINETOS_END)) >= 0:  # quotation marks without escapes are counted wrong
        fields = _parsed_after(text[at:].lstrip(), inside_object=True)
    return fields or {}


def list_end(text: bytes, *, inside_object: bool) -> int | None:
    """Where in `text`, the last bytes of a JSON document, the list ends in which they begin: the document itself or,
    `inside_object`, the value of one of its fields. None when they begin elsewhere.

    Counted from the end, because what is before `text` is unknown; whatever the strings hold and however long they are.
    """
    unescaped = _ESCAPED.sub(b"__", text) if b"\\" in text else text
    meanings = np.frombuffer(unescaped.translate(_MEANINGS), np.int8)
    offsets = np.flatnonzero(meanings)[::-1]
    quotes = meanings[offsets] == _QUOTE
    brackets = offsets[~quotes & (np.cumsum(quotes) % 2 == 0)]
    outside = np.flatnonzero(np.cumsum(meanings[brackets], dtype=np.int32) < (2 if inside_object else 1))
    last = int(outside[-1]) + 1 if len(outside) else 0
    at = int(brackets[last]) if last < len(brackets) else None
    return at if at is not None and text[at : at + 1] == b"]" else None


def _parsed_after(rest: bytes, *, inside_object: bool) -> dict[str, Any] | None:
    """The fields in `rest`, which begins with the bracket that ends the list of events; None when it is not JSON, with
    the backslashes of a path in Windows, which Kineto does not escape, or without."""
    for text in (rest, rest.replace(b"\\", b"/")):
        with suppress(orjson.JSONDecodeError):
            content = orjson.loads((b'{"traceEvents":[' if inside_object else b"[") + text)
            return {name: value for name, value in content.items() if name != "traceEvents"} if inside_object else {}
    return None


# Events that are no JSON, made readable: Kineto has written numbers that JSON lacks (`inf` for the bandwidth of a copy
# of no duration, pytorch/kineto#105; `N/A`, #131) and does not escape everything in names (quotation marks,
# pytorch/kineto#1459; backslashes of Windows, pytorch/pytorch#98432; line breaks, pytorch/pytorch#113001). Python's
# json writes `NaN` and `Infinity`.

_NUMBER = re.compile(rb'((?:"\s*:|[\[,])\s*)(?:-?(?:inf|nan|Infinity|NaN)(?:\(\w*\))?|N/A)(?=\s*[,}\]])')
_NAME = re.compile(rb'("name": ")(.*?)(", "pid": )', re.DOTALL)
_BARE_QUOTE = re.compile(rb'(?<!\\)"')
_CONTROL = re.compile(rb"[\x00-\x1f]")


def with_numbers(events: bytes) -> bytes:
    """`events` with null for numbers that JSON lacks."""
    return _NUMBER.sub(rb"\1null", events)


def with_name(event: bytes) -> bytes:
    """One event in Kineto's layout with its name escaped."""
    return _NAME.sub(_escaped, event, count=1)


def _escaped(match: re.Match[bytes]) -> bytes:
    """The name as a string in JSON: backslashes may have been escaped where quotation marks were not."""
    for text in (match[2], match[2].replace(b"\\", b"\\\\")):
        escaped = _CONTROL.sub(lambda control: b"\\u%04x" % control[0][0], _BARE_QUOTE.sub(rb"\"", text))
        with suppress(orjson.JSONDecodeError):
            orjson.loads(b'"%b"' % escaped.decode("utf-8", "replace").encode())
            return match[1] + escaped + match[3]
    return match[0]
