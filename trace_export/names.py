"""The order of names of files, folders and streams."""

from __future__ import annotations

import re

DIGITS = 18
"""A longer row of digits is no number that something was counted with: it is sorted as text."""


def natural(text: str) -> tuple[tuple[int, int | str], ...]:
    """A sort key that puts machine2 before machine10."""
    parts = (part for part in re.split(r"(\d+)", text) if part)
    return tuple((0, int(part)) if part.isdecimal() and len(part) <= DIGITS else (1, part) for part in parts)
