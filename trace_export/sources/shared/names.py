"""Ranks in file names, and names of hosts."""

from __future__ import annotations

import re

_RANK = re.compile(r"rank[_-]?(\d{1,7})(?!\d)", re.IGNORECASE)
_NO_HOSTS = {"", "localhost", "localhost.localdomain", "(none)"}


def rank_in(file_name: str) -> int | None:
    """The number after "rank" in a file's name."""
    match = _RANK.search(file_name)
    return int(match[1]) if match else None


def is_host(name: str) -> bool:
    """Whether a name identifies a host: many machines call themselves localhost."""
    return name.strip().lower() not in _NO_HOSTS
