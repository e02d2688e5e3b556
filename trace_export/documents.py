"""What the JSON documents have in common: the units of their fields, rows of tables, and how they are written.

The type of a document stands beside the code that fills it. docs/schemas has the JSON Schema of each, made from these
types.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypedDict, TypeVar, cast

import orjson
import polars as pl
from msgspec import Meta

Time = Annotated[int, Meta(description="nanoseconds of the Unix epoch, on the aligned clock")]
Ns = Annotated[int, Meta(description="nanoseconds")]
MeanNs = Annotated[float, Meta(description="nanoseconds, a mean or median")]
Share = Annotated[float, Meta(description="a share, from 0 to 1")]
Ratio = Annotated[float, Meta(description="a ratio: 1 is equal")]

VERSION: Literal[2] = 2
Version = Annotated[
    Literal[2],
    Meta(description="grows where a field is removed or its meaning changes; new fields may come without it"),
]

Row = TypeVar("Row")


class NoteRow(TypedDict):
    """A note: programs tell them apart by `code` (docs/messages.md), never by `text`. `where` is a path, perhaps with a
    line; `count` the number of cases."""

    code: str
    level: Literal["detail", "note", "warning"]
    text: str
    where: str
    count: int


class SentenceRow(TypedDict):
    """A sentence of the verdict. `code` is the same in every version, `facts` are the numbers in `text`; `next`: what
    to do about it, or empty."""

    code: str
    facts: dict[str, Any]
    text: str
    next: str


def rows(table: pl.DataFrame, row: type[Row]) -> list[Row]:
    """The rows of a table, with the columns that the TypedDict `row` names."""
    return [] if table.is_empty() else cast(list[Row], table.select(*row.__annotations__).to_dicts())


def encode(document: Mapping[str, Any]) -> str:
    """The document as text; NaN becomes null."""
    return orjson.dumps(document, option=orjson.OPT_INDENT_2).decode()
