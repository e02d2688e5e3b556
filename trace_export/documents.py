"""What the JSON documents have in common: the units of their fields, how they are filled, and how they are written.

The type of a document stands beside the code that fills it, and is its only definition: docs/schemas has the JSON
Schema of each, made from these types.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeVar, get_args

import msgspec
import polars as pl
from msgspec import Meta, Struct

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

Made = TypeVar("Made", bound=Struct)


class Document(Struct, tag_field="document"):
    """What every document begins with: its name, which is the `tag` of its class, and its version."""

    version: Version


class NoteRow(Struct):
    """A note: programs tell them apart by `code` (docs/messages.md), never by `text`. `where` is a path, perhaps with a
    line; `count` the number of cases."""

    code: str
    level: Literal["detail", "note", "warning"]
    text: str
    where: str
    count: int


class SentenceRow(Struct):
    """A sentence of the verdict. `code` is the same in every version, `facts` are the numbers in `text`; `next`: what
    to do about it, or empty."""

    code: str
    facts: dict[str, Any]
    text: str
    next: str


def from_attributes(kind: type[Made], source: object, **given: object) -> Made:
    """A document, or a part of one: each of its fields as it is `given`, or else the attribute of `source`; of a table
    the rows, and of an object the part that the type of the field describes."""
    values = {"version": VERSION} | given
    return kind(**{
        field.name: _part(values[field.name] if field.name in values else getattr(source, field.name), field.type)
        for field in msgspec.structs.fields(kind)
    })  # fmt: skip


def rows(table: pl.DataFrame, row: type[Made]) -> list[Made]:
    """The rows of a table, with the columns that are fields of `row`."""
    if table.is_empty():  # it may have no columns either
        return []
    return [row(**values) for values in table.select(row.__struct_fields__).iter_rows(named=True)]


def _part(value: Any, kind: Any) -> Any:
    """The value of a field of the type `kind`, which is a Struct, a list of them, one of these or None, or neither."""
    inner = next(
        (each for each in (kind, *get_args(kind)) if isinstance(each, type) and issubclass(each, Struct)), None
    )
    if isinstance(value, pl.DataFrame):
        return rows(value, inner) if inner else value.to_dicts()
    if inner is None or value is None or isinstance(value, Struct):
        return value
    return [_part(each, inner) for each in value] if isinstance(value, list | tuple) else from_attributes(inner, value)


def encode(document: Struct) -> str:
    """The document as text; NaN becomes null."""
    return msgspec.json.format(msgspec.json.encode(document), indent=2).decode()
