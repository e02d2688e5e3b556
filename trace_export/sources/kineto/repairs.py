"""Events that their writer left as no JSON, made readable.

Kineto has written numbers that JSON lacks (`inf` for the bandwidth of a copy of no duration, pytorch/kineto#105; `N/A`,
#131) and does not escape everything in names (quotation marks, pytorch/kineto#1459; backslashes of Windows,
pytorch/pytorch#98432; line breaks, pytorch/pytorch#113001). Python's json writes `NaN` and `Infinity`.
"""

from __future__ import annotations

import re

import orjson

_NUMBER = re.compile(rb'((?:"\s*:|[\[,])\s*)(?:-?(?:inf|nan|Infinity|NaN)(?:\(\w*\))?|N/A)(?=\s*[,}\]])')
_NAME = re.compile(rb'("name": ")(.*?)(", "pid": )', re.DOTALL)
_QUOTE = re.compile(rb'(?<!\\)"')
_CONTROL = re.compile(rb"[\x00-\x1f]")


def with_numbers(events: bytes) -> bytes:
    """`events` with null for numbers that JSON lacks."""
    return _NUMBER.sub(rb"\1null", events)


def with_names(event: bytes) -> bytes:
    """One event in Kineto's layout with its name escaped."""
    return _NAME.sub(_escaped, event, count=1)


def _escaped(match: re.Match[bytes]) -> bytes:
    """The name as a string in JSON: backslashes may have been escaped where quotation marks were not."""
    for text in (match[2], match[2].replace(b"\\", b"\\\\")):
        escaped = _CONTROL.sub(lambda found: b"\\u%04x" % found[0][0], _QUOTE.sub(rb"\"", text))
        if _is_string(escaped):
            return match[1] + escaped + match[3]
    return match[0]


def _is_string(text: bytes) -> bool:
    try:
        orjson.loads(b'"%b"' % text.decode("utf-8", "replace").encode())
    except orjson.JSONDecodeError:
        return False
    return True
