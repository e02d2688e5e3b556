"""The exceptions of the program. Each is one sentence for the user.

TraceExportError                 one sentence, perhaps a remedy; exit code 1
 ├── UsageError                  the command line asks for something that cannot be; exit code 2
 ├── SourceError                 one input cannot be read (the others still are)
 ├── NothingToExportError        no input gave a block
 ├── AlignmentError              --align strict refuses to merge
 └── OutputError                 a file cannot be written
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

_UNDECODABLE = re.compile("[\udc80-\udcff]")
"""How Python holds the bytes of a path that are no UTF-8 (PEP 383)."""


def path_text(path: object) -> str:
    """`path` as text that is valid Unicode, for tables and JSON: bytes that are no UTF-8 as \\xNN."""
    return _UNDECODABLE.sub(lambda byte: f"\\x{ord(byte[0]) - 0xDC00:02x}", str(path))


def printable(text: object) -> str:
    """`text` on one line, with control characters escaped: file names and log text may hold anything."""
    whole = path_text(text)
    if whole.isprintable():
        return whole
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "backslashreplace").decode() for c in whole)


def in_column(error: BaseException) -> str:
    """Where Polars met a wrong value, as " (column NAME)"; "" where it does not say. Never the value: it is the
    user's, of any length."""
    named = re.search(r"in column '([^'\n]{1,60})'", str(error)[:1000])
    return f" (column {named[1]})" if named else ""


_NAMED = 8
"""Files that an error names; there may be thousands."""


_PREDICATE = re.compile(
    r"(?:is|was|has|had|holds|lacks|gives|names|needs|takes|does|cannot|counts|writes|exists|helps|sets|moves)\b"
)
"""What is said of a file or an option without a colon between the two."""


def about(subject: object, what: str) -> str:
    """`what` is wrong with a file or an option: `logs/a.json is not JSON`, `logs/a.json: no pipeline event`."""
    return f"{subject} {what}" if _PREDICATE.match(what) else f"{subject}: {what}"


class TraceExportError(Exception):
    """An error with a sentence for the user, and a remedy where there is one. What it says of other parameters of the
    API has their names in backquotes; the command line puts its options in their places."""

    exit_code = 1
    written: tuple[Path, ...] = ()
    """The outputs that were written before it."""

    def __init__(self, what: str, remedy: str = "") -> None:
        super().__init__(what, remedy)
        self.what = what
        self.remedy = remedy

    def __str__(self) -> str:
        sentence = f"{self.what}; {self.remedy}" if self.remedy else self.what
        names = ", ".join(map(str, self.written[:_NAMED]))
        if (more := len(self.written) - _NAMED) > 0:
            names += f" and {more} more, the last {self.written[-1]}"
        return printable(f"{sentence} (already written: {names})" if names else sentence)


class UsageError(TraceExportError):
    """The options contradict each other or name something that does not exist."""

    exit_code = 2
    parameter: str
    """The parameter of the API whose value is wrong: the sentence begins with it. Empty if it is not about one."""

    def __init__(self, what: str, remedy: str = "", *, parameter: str = "") -> None:
        super().__init__(what, remedy)
        self.parameter = parameter

    def __str__(self) -> str:
        return about(self.parameter, super().__str__()) if self.parameter else super().__str__()


def missing_extra(what: str, extra: str, otherwise: str = "") -> UsageError:
    """The error of something that needs a package of the extra `extra`, with the command of this very Python."""
    install = f"install it: {sys.executable} -m pip install 'trace-export[{extra}]'"
    return UsageError(f"{what} needs the extra {extra}, which is not installed", install + otherwise)


class _FileError(TraceExportError):
    """An error of the file or folder at `path`."""

    def __init__(self, path: Path, what: str, remedy: str = "") -> None:
        super().__init__(about(path, what), remedy)
        self.args = (path, what, remedy)  # so that the error survives the way back from a worker process
        self.path = path


class SourceError(_FileError):
    """One input cannot be read; `path` is the file or folder."""


class OutputError(_FileError):
    """An output cannot be written; `path` is the file or folder."""


class NothingToExportError(TraceExportError):
    """Everything was looked at and no pipeline block was found."""


class AlignmentError(TraceExportError):
    """The hosts' clocks cannot be aligned as well as was asked for."""
