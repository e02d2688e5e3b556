"""Ranks in file names, names of hosts and jobs, and how long a name may be."""

from __future__ import annotations

import re
from collections.abc import Iterable
from hashlib import blake2s
from pathlib import Path

LONGEST_NAME = 1024
"""Characters of a text to which any number of rows may refer, and of a host's name. Longer texts are cut as they are
read; otherwise a small file could stand for texts of any total size. Names of kernels are a tenth as long."""

_RANK = re.compile(r"(?<![tpdce]p[_-])(?<!local[_-])(?<!node[_-])rank[_-]?(\d{1,7})(?!\d)", re.IGNORECASE)
WINDOW_FOLDER = re.compile(r"(?:iteration|iter|global_step|step)[_-]?\d{1,12}", re.IGNORECASE)
"""A folder of one window of a run, as torchtitan makes them; the files in each have the same names."""
_NO_HOSTS = {"", "localhost", "localhost.localdomain", "(none)"}


def rank_in(file_name: str) -> int | None:
    """The number after "rank" in a file's name, unless it counts within a host (local_rank), hosts (node_rank) or a
    kind of parallelism (pp_rank)."""
    match = _RANK.search(file_name)
    return int(match[1]) if match else None


def rank_of(path: Path, host: str) -> int | None:
    """The number after "rank" in the name of a file, or else in that of its folder below the one that was given, after
    which its host is called."""
    return next((rank for name in (path.stem, Path(host).name) if (rank := rank_in(name)) is not None), None)


def rank_in_folders(root: Path, folder: Path) -> int | None:
    """The same of the nearest folder that names a rank, from `folder` up to but without `root`."""
    inside = folder.relative_to(root).parts if folder.is_relative_to(root) else (folder.name,)
    return next((rank for name in reversed(inside) if (rank := rank_in(name)) is not None), None)


def is_host(name: str) -> bool:
    """Whether a name identifies a host: many machines call themselves localhost."""
    return name.strip().lower() not in _NO_HOSTS


def job_of(texts: Iterable[object]) -> str | None:
    """`RANKS.job` of the variables that name the start of a job, which are private; None where none is set."""
    shortened = [None if text in (None, "") else str(text)[:LONGEST_NAME] for text in texts]
    return blake2s(repr(shortened).encode(), digest_size=8).hexdigest() if any(shortened) else None


def shortened(name: object) -> str:
    """A name of the user's, for a message."""
    return text if len(text := str(name)) <= 60 else f"{text[:59]}…"
