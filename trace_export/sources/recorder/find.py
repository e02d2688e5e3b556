"""Finds the files of the recorder: `rankN.blocks`, or any `*.blocks` that begins like one, and the `*.blocks.earlier`
that an earlier start of the rank left."""

from __future__ import annotations

import re
from pathlib import Path

from trace_export.files import open_text
from trace_export.sources.folders import Folder, SearchResult, Unrecognised, host_of
from trace_export.sources.recorder.lines import LONGEST_LINE, MAGIC, Header, WrongVersion, header
from trace_export.sources.source import Source

SUFFIX = ".blocks"
EARLIER = ".earlier"
"""The recorder appends this to the name of a file that has reached its limit, or that it finds as it starts."""
NAME = re.compile(r"rank(\d{1,7})\.blocks(?:\.earlier)?")


def files(root: Path, folders: list[Folder]) -> SearchResult:
    """All files of the recorder. The rank is the one in the header, else that in the name."""
    sources: list[Source] = []
    unrecognised: list[Unrecognised] = []
    machines: dict[str, int] = {}
    for folder in folders:
        for name in folder.files:
            path = folder.path / name
            if not name.removesuffix(EARLIER).endswith(SUFFIX) or (name.endswith(EARLIER) and not is_other(path)):
                continue
            named = NAME.fullmatch(name)
            line = _first_line(path)
            if not named and not line.startswith(MAGIC):
                unrecognised.append(Unrecognised("recorder", str(path), "no file of the recorder", sure=False))
                continue
            header = _header(line)
            host = header.clock if header else host_of(root, folder.path)
            rank = header.rank if header and header.rank is not None else int(named[1]) if named else None
            origin = "assumed" if rank is None else "recorded"
            rank = len(sources) if rank is None else rank
            machine = machines.setdefault(host, len(machines))
            sources.append(Source("recorder", path, host, machine, rank, origin))
    return SearchResult(tuple(sources), unrecognised=tuple(unrecognised))


def is_other(earlier: Path) -> bool:
    """Whether a file `*.earlier` is of another start of the rank than the file beside it."""
    before, now = header_of(earlier), header_of(earlier.with_name(earlier.name.removesuffix(EARLIER)))
    return before is None or now is None or before.process != now.process


def header_of(path: Path) -> Header | None:
    """The header that a file begins with; None if there is no readable one."""
    return _header(_first_line(path))


def _header(line: bytes) -> Header | None:
    try:
        return header(line)
    except WrongVersion:  # said when the file is read
        return None


def _first_line(path: Path) -> bytes:
    """Without its end; empty where the file cannot be read."""
    try:
        with open_text(path) as file:
            return file.readline(LONGEST_LINE).removesuffix(b"\n")
    except OSError:
        return b""
