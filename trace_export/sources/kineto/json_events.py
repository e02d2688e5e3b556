"""The wanted events of a list in JSON, as columns.

Decoded with msgspec, which makes nothing of the fields that no reader looks at: measured on a trace of 54 MB, a third
of the time of orjson, and less than Polars' JSON reader takes for the kernels of that trace alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from operator import attrgetter
from typing import Any, TypeVar

import msgspec
import polars as pl
from msgspec.structs import astuple

from trace_export.sources.shared.timestamps import NO_TIME_NS
from trace_export.units import thousandths

NUMBERS = (
    "correlation", "External id", "Src Rank", "Dst Rank", "Seq", "In msg nelems", "Out msg nelems", "Sequence number"
)  # fmt: skip
TEXTS = ("stream", "device", "Collective name", "Process Group Name", "dtype", "args name")
"""What is read of an event's `args`: the columns of Int64, and those of String. `args name` is the `name` of a
thread."""
SCHEMA = (
    dict.fromkeys(("cat", "name", "pid", "tid"), pl.String())
    | dict.fromkeys(("start", "end", *NUMBERS), pl.Int64())
    | dict.fromkeys(TEXTS, pl.String())
)
"""The columns of events. Times are ns, both NO_TIME_NS where they cannot be read."""
THREAD_NAME = "thread_name"
"""The name of the events that name threads, and their category in a frame."""
FRAME = "python_function"
"""The category of the frames of Python (`with_stack`), which only rules of the user call passes."""
COMMON_CATEGORIES = {
    "Kernel": "kernel", "Memcpy": "gpu_memcpy", "Memset": "gpu_memset", "Runtime": "cuda_runtime",
    "Operator": "user_annotation", "mtia_ccp_events": "kernel", "mlu_memcpy": "gpu_memcpy", "mlu_memset": "gpu_memset",
    "GCU_MEMCPY": "gpu_memcpy", "GCU_MEMSET": "gpu_memset",
}  # fmt: skip
"""Categories of 2021 (PyTorch 1.8 and 1.9), which had one for operators and annotations, and of devices that have their
own, as those of CUDA today. ROCm, XPU and the devices of PrivateUse1 (NPU, HPU) share CUDA's `kernel` and
`gpu_mem…`."""

_MOST_CATEGORIES = 1000
_Value = int | float | str | None
_ABSENT = msgspec.Raw(b"")


def _attribute(column: str) -> str:
    return column.lower().replace(" ", "_")


_IN_FILE = {_attribute(column): column for column in NUMBERS + TEXTS} | {"args_name": "name"}


class _Arguments(msgspec.Struct, gc=False, rename=_IN_FILE):
    """A field for each of `NUMBERS` and `TEXTS`, in their order."""

    correlation: _Value = None
    external_id: _Value = None
    src_rank: _Value = None
    dst_rank: _Value = None
    seq: _Value = None
    in_msg_nelems: _Value = None
    out_msg_nelems: _Value = None
    sequence_number: _Value = None
    stream: _Value = None
    device: _Value = None
    collective_name: _Value = None
    process_group_name: _Value = None
    dtype: _Value = None
    args_name: _Value = None


class Event(msgspec.Struct, gc=False):
    """An event as it is written, its times as text: as floats they would lose nanoseconds."""

    ph: _Value = None
    cat: _Value = None
    name: _Value = None
    pid: _Value = None
    tid: _Value = None
    ts: msgspec.Raw = _ABSENT
    dur: msgspec.Raw = _ABSENT
    args: _Arguments | None = None


_EVENTS = msgspec.json.Decoder(list[Event])
_WHOLE = msgspec.json.Decoder(list[msgspec.Raw])
_FIELDS = msgspec.json.Decoder(dict[str, msgspec.Raw])
_NO_ARGUMENTS = _Arguments()
_NO_JSON = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
_Structure = TypeVar("_Structure", bound=msgspec.Struct)


@dataclass(frozen=True)
class Wanted:
    """Complete events (`ph` X) whose category `categories` matches, a regular expression, or whose name begins with
    `marks`; with `threads` also the names of threads."""

    categories: str
    marks: str | None = None
    threads: bool = False

    @cached_property
    def text(self) -> str:
        """What the text of each of them has inside, as a regular expression for Polars."""
        parts = [rf'"cat"\s*:\s*"(?:{self.categories})"']
        if self.marks is not None:
            parts.append(rf'"name"\s*:\s*"{self.marks}')
        if self.threads:
            parts.append(f'"{THREAD_NAME}"')
        return "|".join(parts)

    @cached_property
    def _common(self) -> _Common:
        return _Common(self.categories)

    def has(self, category: str) -> bool:
        return self._common[category] is not None

    def of(self, events: Sequence[Event]) -> list[Event]:
        """Those among `events`, with their common categories."""
        common, kept = self._common, []
        for event in events:
            if event.ph == "X":
                category = common[event.cat] or self._category_of_mark(event)
            else:
                category = THREAD_NAME if self.threads and event.ph == "M" and event.name == THREAD_NAME else None
            if category is not None:
                event.cat = category
                kept.append(event)
        return kept

    def _category_of_mark(self, event: Event) -> _Value:
        marked = self.marks is not None and isinstance(event.name, str) and event.name.startswith(self.marks)
        return event.cat if marked else None


class _Common(dict[_Value, str | None]):
    """Category in the file → the common one, None where it is not wanted."""

    def __init__(self, categories: str) -> None:
        self._wanted = re.compile(categories)

    def __missing__(self, category: _Value) -> str | None:
        found = None
        if isinstance(category, str) and self._wanted.fullmatch(category):
            found = COMMON_CATEGORIES.get(category, category)
        if len(self) < _MOST_CATEGORIES:
            self[category] = found
        return found


def decoded(body: bytes, wanted: Wanted) -> list[Event] | None:
    """The wanted events of a comma-separated list. None when it is no such list."""
    try:
        events = _EVENTS.decode(b"[" + body + b"]")
    except UnicodeDecodeError:
        return decoded(body.decode("utf-8", "replace").encode(), wanted)
    except msgspec.ValidationError:
        whole = _whole(body)
        if whole is None:
            return None
        events = [_what_is_right(Event, event) for event in whole]
    except _NO_JSON:
        return None
    return wanted.of(events)


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
    found: dict[str, Any] = {}
    with suppress(*_NO_JSON):
        fields = _FIELDS.decode(text)
        for field in msgspec.structs.fields(kind):
            if field.encode_name == "args" and "args" in fields:
                found["args"] = _what_is_right(_Arguments, fields["args"])
            elif field.encode_name in fields:
                with suppress(*_NO_JSON):
                    found[field.name] = msgspec.json.decode(fields[field.encode_name], type=field.type)
    return kind(**found)


def columns_of(events: Sequence[Event]) -> pl.DataFrame:
    """`events` with the columns of `SCHEMA`."""
    columns = [_texts(name, list(map(attrgetter(name), events))) for name in ("cat", "name", "pid", "tid")]
    rows = [astuple(event.args or _NO_ARGUMENTS) for event in events] or [astuple(_NO_ARGUMENTS)]
    for name, column in zip(NUMBERS + TEXTS, zip(*rows, strict=True), strict=True):
        values = list(column[: len(events)])
        columns.append(_texts(name, values) if name in TEXTS else _series(name, values, pl.Int64))
    ends = [_as_written(name, map(attrgetter(name), events)) for name in ("ts", "dur")]
    start, length = thousandths(pl.col("ts")), thousandths(pl.col("dur"))
    times = pl.DataFrame(ends).select(
        start=start, end=start + pl.when(pl.col("dur").is_in(["", "null"])).then(0).otherwise(length)
    )
    known = pl.col("end").is_not_null()
    times = times.select(pl.when(known).then(c).otherwise(NO_TIME_NS).alias(c) for c in ("start", "end"))
    return pl.DataFrame([*columns, *times]).with_columns(pl.col("name").fill_null("")).select(*SCHEMA)


def _as_written(name: str, values: Iterable[msgspec.Raw]) -> pl.Series:
    """Numbers as they are written, without quotation marks; "" where there is none."""
    parts = list(values)
    if not parts:
        return pl.Series(name, [], pl.String)
    text = b"\0".join(parts).replace(b'"', b"").decode()
    return pl.Series(name, [text]).str.split("\0").explode()


def _texts(name: str, found: list[_Value]) -> pl.Series:
    """Values as text. Numbers alone are turned into text by Polars, a value at a time takes twenty times as long."""
    if found.count(None) == len(found):  # as most columns are
        return pl.Series(name, [None], pl.String).new_from_index(0, len(found))
    kinds = set(map(type, found))
    if str not in kinds:
        with suppress(TypeError, OverflowError):
            return _series(name, found, pl.Int64, strict=True).cast(pl.String)
    if float in kinds:
        found = [int(value) if isinstance(value, float) and value.is_integer() else value for value in found]
    return _series(name, found, pl.String)


def _series(name: str, values: list[_Value], kind: type[pl.DataType], *, strict: bool = False) -> pl.Series:
    if values.count(None) == len(values):  # as most columns are
        return pl.Series(name, [None], kind).new_from_index(0, len(values))
    return pl.Series(name, values, kind, strict=strict)


def thread() -> pl.Expr:
    """Of events: threads are numbers, or names of which only the equality counts."""
    tid = pl.col("tid").fill_null("")
    return pl.coalesce(tid.cast(pl.Int64, strict=False), -(tid.hash() // 2).cast(pl.Int64)).alias("thread")
