"""The fields that stand after the events of a trace.

Between 2024-05 and 2025-03 (PyTorch 2.4 to 2.6) Kineto wrote `baseTimeNanoseconds` there, and traces taken on demand
have `distributedInfo` there still (libkineto/src/output_json.cpp, finalizeTrace).
"""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from trace_export.files import end_of

MOST_BYTES = 4 << 20
"""How much of the end of a trace is looked at. distributedInfo lists the ranks of all groups of one rank."""

KINETOS_END = b"\n  ],"
"""How Kineto ends the list of events. JSON has no line breaks inside strings."""

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
    text = end_of(path, begin, MOST_BYTES)
    at = list_end(text, inside_object=True)
    fields = None if at is None else parsed_after(text[at:], inside_object=True)
    if (
        fields is None and (at := text.rfind(KINETOS_END)) >= 0
    ):  # quotation marks that are not escaped are counted wrong
        fields = parsed_after(text[at:].lstrip(), inside_object=True)
    return fields or {}


def list_end(text: bytes, *, inside_object: bool) -> int | None:
    """Where in `text`, the last bytes of a JSON document, the list ends in which they begin: the document itself or,
    `inside_object`, the value of one of its fields. None when they begin elsewhere.

    Counted from the end, because what is before `text` is unknown; whatever the strings hold and however long they are.
    """
    unescaped = _ESCAPED.sub(b"__", text) if b"\\" in text else text
    meanings = np.frombuffer(unescaped.translate(_MEANINGS), np.int8)
    places = np.flatnonzero(meanings)[::-1]
    quotes = meanings[places] == _QUOTE
    brackets = places[~quotes & (np.cumsum(quotes) % 2 == 0)]
    outside = np.flatnonzero(np.cumsum(meanings[brackets], dtype=np.int32) < (2 if inside_object else 1))
    last = int(outside[-1]) + 1 if len(outside) else 0
    at = int(brackets[last]) if last < len(brackets) else None
    return at if at is not None and text[at : at + 1] == b"]" else None


def parsed_after(rest: bytes, *, inside_object: bool) -> dict[str, Any] | None:
    """The fields in `rest`, which begins with the bracket that ends the list of events; None when it is not JSON, with
    the backslashes of a path in Windows, which Kineto does not escape, or without."""
    for text in (rest, rest.replace(b"\\", b"/")):
        with suppress(orjson.JSONDecodeError):
            found = orjson.loads((b'{"traceEvents":[' if inside_object else b"[") + text)
            return {name: value for name, value in found.items() if name != "traceEvents"} if inside_object else {}
    return None
