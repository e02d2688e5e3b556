"""Broken inputs, made from sound ones: the same seed breaks the same input in the same way."""

import random
import re
import sqlite3
from collections.abc import Callable
from contextlib import closing

Mutation = Callable[[bytes, random.Random], bytes]

NUMBERS = (
    b"0", b"-1", b"1", b"4294967295", b"9223372036854775807", b"9223372036854775808", b"-9223372036854775808",
    b"10000000", b"9" * 40, b"1e308", b"1e-320", b"nan", b"0.0000001", b"0x10", b"1764246877073569.640\t", b"",
)  # fmt: skip
CELLS: tuple[object, ...] = (
    0, -1, 1, 2**31, 2**32 - 1, 2**53, 2**63 - 1, -(2**63), 10_000_000, 0.5, 1e308, float("inf"), None, "", "text", "7",
    "9" * 400, b"\xff\xfe", "new\nline \x1b[31m \x00 end", "{'name': ", "F99999999999.0.0", "[" * 2000,
    "iter_10000000_0",
)  # fmt: skip


def flip(data: bytes, chance: random.Random) -> bytes:
    """One to eight bits changed."""
    broken = bytearray(data)
    for _ in range(chance.randint(1, 8)):
        broken[chance.randrange(len(broken))] ^= 1 << chance.randrange(8)
    return bytes(broken)


def truncate(data: bytes, chance: random.Random) -> bytes:
    return data[: chance.randrange(len(data))]


def zero(data: bytes, chance: random.Random) -> bytes:
    """A piece overwritten with zeros, as after a crash of the file system."""
    start = chance.randrange(len(data))
    length = min(chance.choice((1, 4, 16, 512, 4096)), len(data) - start)
    return data[:start] + bytes(length) + data[start + length :]


def scramble(data: bytes, chance: random.Random) -> bytes:
    """A piece overwritten with noise."""
    start = chance.randrange(len(data))
    length = min(chance.choice((1, 2, 8, 64, 512)), len(data) - start)
    return data[:start] + chance.randbytes(length) + data[start + length :]


def repeat(data: bytes, chance: random.Random) -> bytes:
    """A piece that comes twice, or another piece in its place."""
    start, other = chance.randrange(len(data)), chance.randrange(len(data))
    length = chance.choice((16, 256, 4096))
    return data[:start] + data[other : other + length] + data[start + chance.choice((0, length)) :]


def renumber(data: bytes, chance: random.Random) -> bytes:
    """A number of a text replaced by one that nobody expects."""
    numbers = list(re.finditer(rb"\d+(?:\.\d+)?", data))
    broken = data
    for match in sorted(chance.sample(numbers, min(3, len(numbers))), key=lambda m: -m.start()):
        broken = broken[: match.start()] + chance.choice(NUMBERS) + broken[match.end() :]
    return broken


def retell(data: bytes, chance: random.Random) -> bytes:
    """Lines of a text lost, doubled, in another order, or with strange characters in them."""
    lines = data.split(b"\n")
    at = chance.randrange(len(lines))
    line = lines[at]
    odd = chance.choice(
        (b"\x00", b"\x1b[2J", b"\r", "点".encode("gbk"), b"\xf0\x9f", b"\xef\xbb\xbf", b'"', b"{" * 300)
    )
    cut = chance.randrange(len(line) + 1)
    lines[at : at + 1] = chance.choice(
        ([], [line, line], [line[:cut]], [line[:cut] + odd + line[cut:]], lines[at : at + 2][::-1], [line[::-1]])
    )
    return b"\n".join(lines)


def rewrite(data: bytes, chance: random.Random) -> bytes:
    """A sound database with content that nobody expects: odd values, other types, lost or renamed parts."""
    with closing(sqlite3.connect(":memory:")) as db:
        db.deserialize(data)
        for _ in range(chance.randint(1, 3)):
            _rewrite_once(db, chance)
        db.commit()
        return db.serialize()


def _rewrite_once(db: sqlite3.Connection, chance: random.Random) -> None:
    tables = [name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name")]
    table = chance.choice(tables)
    column = chance.choice([row[1] for row in db.execute(f'PRAGMA table_info("{table}")')])
    some = chance.choice(
        ("1", "rowid % 2", "rowid = (SELECT min(rowid) FROM {0})", "rowid = (SELECT max(rowid) FROM {0})")
    )
    where = some.format(f'"{table}"')
    deed = chance.choice(("set", "set", "set", "set", "shift", "delete", "double", "drop", "drop column", "rename"))
    try:
        if deed == "set":
            db.execute(f'UPDATE "{table}" SET "{column}" = ? WHERE {where}', [chance.choice(CELLS)])
        elif deed == "shift":
            db.execute(f'UPDATE "{table}" SET "{column}" = "{column}" + ?', [chance.choice((2**62, -(2**60), 0.25, 1))])
        elif deed == "delete":
            db.execute(f'DELETE FROM "{table}" WHERE {where}')
        elif deed == "double":
            db.execute(f'INSERT INTO "{table}" SELECT * FROM "{table}" WHERE {where}')
        elif deed == "drop":
            db.execute(f'DROP TABLE "{table}"')
        elif deed == "drop column":
            db.execute(f'ALTER TABLE "{table}" DROP COLUMN "{column}"')
        else:
            db.execute(f'ALTER TABLE "{table}" RENAME COLUMN "{column}" TO "{column}_2"')
    except sqlite3.Error:  # a key or the last column: then this mutant has one deed less
        return


BYTES: tuple[Mutation, ...] = (flip, truncate, zero, scramble, repeat)
TEXT: tuple[Mutation, ...] = (*BYTES, renumber, renumber, retell, retell)
DATABASE: tuple[Mutation, ...] = (*BYTES, rewrite, rewrite, rewrite, rewrite, rewrite)


def mutant(data: bytes, chance: random.Random) -> bytes:
    """`data` broken in one of the ways that its format invites."""
    return chance.choice(DATABASE if data.startswith(b"SQLite format 3") else TEXT)(data, chance)
