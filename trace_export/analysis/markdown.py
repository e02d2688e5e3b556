"""A report or a comparison as Markdown, for an issue, a pull request or a chat: the verdict, then the tables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from trace_export.errors import printable
from trace_export.units import cells_of

if TYPE_CHECKING:
    from trace_export.answer import ReportTable, Sentence


def document(title: str, heading: str, verdict: Sequence[Sentence], tables: Sequence[ReportTable]) -> str:
    """The whole document."""
    lines = [f"# {_text(title)}", "", *([_text(heading), ""] if heading else [])]
    lines += [f"{number}. {_text(sentence.text)}{_next(sentence)}" for number, sentence in enumerate(verdict, 1)]
    for table in tables:
        lines += ["", f"## {table.title}", *_rows(table)]
    return "\n".join(lines) + "\n"


def _rows(table: ReportTable) -> Iterator[str]:
    """The table, flagged rows in bold, and its note."""
    rows = table.leading()
    if rows:
        columns = table.frame.get_columns()
        cells = [cells_of(column) for column in columns]
        yield ""
        yield "| " + " | ".join(_text(column.name) for column in columns) + " |"
        yield "|" + "|".join(" ---: " if column.dtype.is_numeric() else " --- " for column in columns) + "|"
        for row in rows:
            bold = "**" if row in table.flagged else ""
            yield "| " + " | ".join(f"{bold}{_text(column[row])}{bold}" for column in cells) + " |"
    if table.note:
        yield ""
        yield _text(table.note)
    if table.left_out:
        yield ""
        yield f"{table.left_out} more: --full"
    if more := table.frame.height - len(rows):
        yield f"{more} more rows in --json."


def _next(sentence: Sentence) -> str:
    return f" **Next:** {_text(sentence.next)}" if sentence.next else ""


def _text(words: str) -> str:
    """A text with its markup escaped."""
    escaped = "".join(f"\\{letter}" if letter in "\\`*_[]<>|#" else letter for letter in words)
    return printable(escaped).replace("\n", " ")
