"""Fields of many protobuf messages at once, as columns: where they lie in a buffer, and what they hold.

Messages are ranges of one buffer. Of all of them the first field is decoded together, then the second, and so on: as
many rounds of numpy as the longest message has fields. Encoding: protobuf.dev/programming-guides/encoding.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Bytes = NDArray[np.uint8]

VARINT, FIXED64, LENGTH, FIXED32 = 0, 1, 2, 5
PADDING = 16
"""Bytes that must follow the last message in a buffer, so that decoding a damaged one does not leave it."""
MOST_FIELDS = 2048
"""Of a message. Each takes a round, so that one of a million fields would take a minute."""
_LONGEST_VARINT = 10


@dataclass(frozen=True)
class Fields:
    """A row per field: the number of its message, its own number, its value, and where that ends. The value of a field
    with a length is where its content begins; `stop` is 0 for all others."""

    message: Ints
    number: Ints
    value: Ints
    stop: Ints

    def of(self, number: int, *, nested: bool = False) -> Fields:
        """The fields of that number, with a length if `nested`, without one if not; in the order of the messages,
        whatever their place in each."""
        rows = np.flatnonzero((self.number == number) & ((self.stop > 0) == nested))
        rows = rows[np.argsort(self.message[rows], kind="stable")]
        return Fields(*(column[rows] for column in (self.message, self.number, self.value, self.stop)))

    def column(self, number: int, messages: int, default: int = 0) -> Ints:
        """The value of that field in each of so many messages: the last one, as protobuf has it."""
        values = np.full(messages, default, np.int64)
        found = self.of(number)
        values[found.message] = found.value
        return values


def fields(buffer: Bytes, begin: Ints, stop: Ints) -> tuple[Fields, NDArray[np.bool_]]:
    """The fields of the messages from `begin` to `stop`, and which messages are whole; the fields of one that is not
    end before its damage, or are the first `MOST_FIELDS`. `PADDING` bytes follow the last one in the buffer."""
    rounds: list[tuple[Ints, Ints, Ints, Ints]] = []
    whole = np.ones(len(begin), np.bool_)
    message = np.arange(len(begin))
    at = begin
    message, at, stop = (column[at < stop] for column in (message, at, stop))
    while len(message) and len(rounds) < MOST_FIELDS:
        key, at = varints(buffer, at)
        kind = key & 7
        value, after = varints(buffer, at)
        nested = kind == LENGTH
        end = np.where(nested, after + value, after)
        end = np.where(kind == FIXED64, at + 8, np.where(kind == FIXED32, at + 4, end))
        known = nested | (kind == VARINT) | (kind == FIXED64) | (kind == FIXED32)
        good = known & (end <= stop) & (end > at) & ~(nested & (value < 0))
        whole[message[~good]] = False
        content = np.where(nested, after, value)
        rounds.append(tuple(c[good] for c in (message, key >> 3, content, np.where(nested, end, 0))))
        further = good & (end < stop)
        message, at, stop = message[further], end[further], stop[further]
    whole[message] = False
    columns = zip(*rounds, strict=True) if rounds else [(np.zeros(0, np.int64),)] * 4
    return Fields(*(np.concatenate(column) for column in columns)), whole


def varints(buffer: Bytes, at: Ints) -> tuple[Ints, Ints]:
    """The varints that begin at `at`, as signed 64-bit numbers, and where each ends."""
    byte = buffer[at].astype(np.int64)
    value = byte & 0x7F
    end = at + 1
    more = np.flatnonzero(byte & 0x80)
    for place in range(1, _LONGEST_VARINT):
        if not len(more):
            break
        byte = buffer[end[more]].astype(np.int64)
        value[more] |= (byte & 0x7F) << (7 * place)
        end[more] += 1
        more = more[(byte & 0x80) > 0]
    return value, end


def texts(buffer: Bytes, begin: Ints, stop: Ints) -> pl.Series:
    """The contents from `begin` to `stop` as text. A NUL, which no name holds, becomes a question mark."""
    if not len(begin):
        return pl.Series(dtype=pl.String)
    lengths = stop - begin + 1
    last = np.cumsum(lengths)
    places = np.arange(last[-1]) + np.repeat(begin - last + lengths, lengths)
    joined = buffer[places]
    joined[joined == 0] = ord("?")
    joined[last - 1] = 0
    return pl.Series([joined[:-1].tobytes().decode("utf-8", "replace")]).str.split("\0").explode()
