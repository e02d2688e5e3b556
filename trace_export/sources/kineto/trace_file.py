"""The file of a trace while it is read, in whichever format it is written."""

from __future__ import annotations

from pathlib import Path
from typing import Self

from trace_export.errors import SourceError
from trace_export.files import Unpacked

MAX_HEADER = 8 << 20
"""Of JSON: the fields before its events hold the process groups of the whole cluster, of 100,000 ranks some MB."""


class TraceFile:
    """A trace that is open, packed or not, to be read once. `truncated`: it ends before its format does; `malformed`
    counts its events that cannot be read. `shortened`: only its beginning was read, as asked for, and where `has_end`
    also a piece at its end. Raises SourceError where it cannot be opened."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.truncated = False
        self.malformed = 0
        self.shortened = False
        self.has_end = True
        try:
            self._file = Unpacked(path)
        except OSError as error:
            raise SourceError(path, f"cannot be read ({error.strerror})") from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._file.__exit__(*error)

    @property
    def damaged(self) -> bool:
        """Whether its packed data break off."""
        return self._file.damaged
