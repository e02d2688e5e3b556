"""Events that need not be decoded, known by their first bytes.

Most events of a trace are operators and Python functions, which few readers want. Kineto writes their phase and their
category first (libkineto/src/output_json.cpp), and so do most programs that write a trace anew:

    {"ph": "X", "cat": "cpu_op", "name": "aten::linear", …}

with the same blanks and line breaks in every event, so that these stand at fixed places.
"""

from __future__ import annotations

import re
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from trace_export.sources.kineto.json_events import Wanted

_EVENT = re.compile(
    rb'(?P<between>\}\s*,\s*\{\s*")(?P<phase>ph"\s*:\s*")X'
    rb'(?P<category>"\s*,\s*"cat"\s*:\s*")[^"\\]*(?P<name>"\s*,\s*"name"\s*:\s*")'
)
_KINETO = b"\n  },\n  {"
"""Between two events in Kineto's layout."""
_VALUE = b'": '
"""Before an object that is the value of a field there."""
_LONGEST = 64
"""Of a match; others are in layouts that are not looked at. Also how far behind an event's begin is looked."""
_SEARCHED = 1 << 16
_KEY = 16
"""Categories are told apart by this many bytes; events of longer ones are kept."""
_MOST_CATEGORIES = 100

Positions = NDArray[np.int64]


def without_others(body: bytes, wanted: Wanted) -> bytes | None:
    """A list of events without most of those that are not `wanted`. None where its events do not all begin alike, or
    may have events inside."""
    match = _EVENT.search(body, 0, _SEARCHED)
    if match is None or len(match[0]) > _LONGEST:
        return None
    text = _Text(body)
    begins = text.events(match["between"])
    if begins is None:
        return None
    kept = ~_others(text, begins, match, wanted)
    bounds = np.append(begins, len(body))
    changes = bounds[np.flatnonzero(np.diff(kept, prepend=False, append=False))]
    runs = [body[first:stop] for first, stop in changes.reshape(-1, 2).tolist()]
    return b"".join(runs).rstrip().removesuffix(b",")


def _others(text: _Text, begins: Positions, layout: re.Match[bytes], wanted: Wanted) -> NDArray[np.bool_]:
    """Which of the events are not wanted, as far as their first bytes say it. Of a category that is not wanted, events
    are whose names begin with `marks`. Where kernels are wanted, and the marks `te:`:

    | event | its first bytes | not wanted |
    |---|---|---|
    | a kernel | as the layout says, category `kernel` | no |
    | an operator | the same, category `cpu_op`, name `aten::add` | yes |
    | a mark | the same, category `cpu_op`, name `te:F3` | no |
    | a counter | the phase is neither X nor M | yes |
    | one in another layout | something else | no: it is decoded |
    """
    before_phase = layout["between"][layout["between"].index(b"{") :] + layout["phase"]
    before_category = before_phase + b"X" + layout["category"]
    told = text.at(begins, before_category)
    rest, unknown = np.flatnonzero(told), np.flatnonzero(~told)
    others = np.zeros(len(begins), np.bool_)
    phase = text.characters[begins[unknown] + len(before_phase)]
    others[unknown] = text.at(begins[unknown], before_phase) & (phase != ord("X")) & (phase != ord("M"))
    keys = [text.words[begins + len(before_category) + offset] for offset in range(0, _KEY, 8)]
    for _ in range(_MOST_CATEGORIES):
        if not len(rest):
            break
        same = np.logical_and.reduce([key[rest] == key[rest[0]] for key in keys])
        events, rest = rest[same], rest[~same]
        at = begins[events] + len(before_category)
        category, end, _ = text.content[at[0] : at[0] + _KEY].partition(b'"')
        if end and b"\\" not in category and wanted.common(category.decode("utf-8", "replace")) is None:
            others[events] = True
            if wanted.marks is not None:
                name = at + len(category)
                mark = text.at(name, layout["name"] + wanted.marks.encode())
                others[events] = text.at(name, layout["name"]) & ~mark
    return others


class _Text:
    """A text, its `characters`, and its `words`: the eight bytes at each place as one number."""

    def __init__(self, content: bytes) -> None:
        self.content = content
        padded = content + bytes(4 * _LONGEST)
        self.characters = np.frombuffer(padded, np.uint8)
        self.words: NDArray[np.uint64] = np.ndarray(len(padded) - 7, "<u8", padded, strides=(1,))

    def events(self, between: bytes) -> Positions | None:
        """Where each event begins: with a brace outside all others. None where these are not those after `between`, for
        then an object inside an event looks like one, or strings have braces without their counterparts."""
        opening = np.flatnonzero(self.characters == ord("{"))
        if between.startswith(_KINETO.lstrip()) and (starts := self._of_kineto(opening)) is not None:
            return starts
        closing = np.flatnonzero(self.characters == ord("}"))
        if not len(opening) or len(opening) != len(closing) or (closing < opening).any():
            return None
        outside = closing[:-1] < opening[1:]
        if not np.array_equal(outside, self.at(opening[1:] - between.index(b"{"), between)):
            return None
        begins: Positions = opening[np.append(True, outside)]
        return begins

    def _of_kineto(self, opening: Positions) -> Positions | None:
        """The opening braces that follow Kineto's separator, which has line breaks and is in no string. None where
        another one opens anything but the value of a field: it may be an event in another layout."""
        begin = np.append(True, self.at(opening[1:] - (len(_KINETO) - 1), _KINETO))[: len(opening)]
        begins: Positions = opening[begin]
        return begins if self.at(opening[~begin] - len(_VALUE), _VALUE).all() else None

    def at(self, positions: Positions, what: bytes) -> NDArray[np.bool_]:
        """Whether `what` stands at each of the places."""
        stands = np.ones(len(positions), np.bool_)
        for begin, stop in pairwise([*range(0, len(what), 8), len(what)]):
            part = what[begin:stop]
            mask = np.uint64((1 << 8 * len(part)) - 1)
            stands &= (self.words[positions + begin] & mask) == int.from_bytes(part, "little")
        return stands
