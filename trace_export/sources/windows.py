"""Files beside each other that are windows of one rank, as of a profiler that writes a file every few steps.

The windows of a rank do not overlap in time, whereas the ranks of a job run at the same time.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise
from operator import itemgetter
from pathlib import Path

import polars as pl

from trace_export.model import Note, Profile

_NUMBER = re.compile(
    r"(?<![a-z])(?:rank|stage|pp|tp|dp|cp|ep|gpu|device|node|host|worker|replica)[_-]?\d+|(?P<other>\d+)", re.IGNORECASE
)
"""A number in a file's name; `other` where it counts no part of a job."""


def superseded(parts: Sequence[Profile]) -> list[Profile]:
    """Those of `parts` that a later window of the same ranks follows: files of one folder and host with the same
    recorded ranks, whose names differ in their numbers alone, none of which is that of a place in the job, and of which
    each ends before the next begins."""
    alike: dict[tuple[object, ...], list[Profile]] = {}
    for part in parts:
        if set(part.ranks["rank_origin"]) == {"recorded"}:
            path, host = _place(part)
            key = (path.parent, _without_numbers(path.name), host, *part.ranks["rank"])
            alike.setdefault(key, []).append(part)
    older = []
    for windows in alike.values():
        timed = [(times, part) for part in windows if (times := _extent(part)) is not None] if windows[1:] else []
        timed.sort(key=itemgetter(0))
        if len(timed) == len(windows) and all(end <= begin for ((_, end), _), ((begin, _), _) in pairwise(timed)):
            older += [part for _, part in timed[:-1]]
    return older


def superseded_note(older: Sequence[Profile]) -> list[Note]:
    """A note that these windows were left out, if there are any."""
    if not older:
        return []
    text = (
        "recorded by the same rank before a file beside it with another number in its name: an earlier window, left out"
    )
    return [Note("window-superseded", "note", text, str(_place(older[0])[0]), len(older))]


def one_after_another(parts: Sequence[Profile]) -> list[Note]:
    """A warning where files of one folder, host and stage whose ranks are assumed were recorded one after the other, as
    windows of one rank are."""
    alike: dict[tuple[object, ...], list[Profile]] = {}
    for part in parts:
        if set(part.ranks["rank_origin"]) == {"assumed"}:
            path, host = _place(part)
            alike.setdefault((path.parent, host, *part.ranks["stage"]), []).append(part)
    later = [path for files in alike.values() if len(files) > 1 for path in _after_another(files)]
    if not later:
        return []
    text = "drawn as another rank, but recorded after a file beside it had ended: it may be a window of the same rank"
    return [Note("ranks-one-after-another", "warning", text, later[0], len(later))]


def _after_another(files: Sequence[Profile]) -> list[str]:
    """The sources of those files that begin after another has ended."""
    timed = sorted((*times, str(_place(part)[0])) for part in files if (times := _extent(part)) is not None)
    return [path for begin, _, path in timed if begin > min(end for _, end, _ in timed)]


def _without_numbers(name: str) -> str:
    """A file's name with 0 for each number that may be that of a window."""
    return _NUMBER.sub(lambda found: "0" if found["other"] else found[0], name)


def _place(part: Profile) -> tuple[Path, str]:
    """The first source of a profile, and its host."""
    path, host = (str(part.ranks[column].first()) for column in ("source", "host"))
    return Path(path), host


def _extent(part: Profile) -> tuple[int, int] | None:
    """From the first to the last block of a profile; None without any."""
    begin, end = part.spans.select(pl.col("start_ns").min(), pl.col("end_ns").max()).row(0)
    return None if begin is None or end is None else (begin, end)
