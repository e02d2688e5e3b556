"""Which code a process runs: two processes may exchange tables and errors only if they run the same."""

from __future__ import annotations

import hashlib
import importlib.metadata
import platform
from functools import cache
from pathlib import Path
from typing import NamedTuple

import polars as pl


class Identity(NamedTuple):
    """`code` is a digest of the modules of this package. `version` is for messages only: a checkout has none."""

    version: str
    code: str
    python: str
    polars: str

    def differences(self, other: Identity) -> str:
        """The differences of `other` from this one in words; empty where there are none."""
        unlike = []
        if self.code != other.code:
            unlike.append(
                f"trace_export {other.version} (code {other.code}) instead of {self.version} (code {self.code})"
            )
        for name, ours, theirs in (("Python", self.python, other.python), ("Polars", self.polars, other.polars)):
            if ours != theirs:
                unlike.append(f"{name} {theirs} instead of {ours}")
        return ", ".join(unlike)


@cache
def identity() -> Identity:
    """The identity of this process; of Python the first two numbers, since a patch release changes no pickle."""
    try:
        version = importlib.metadata.version("trace-export")
    except importlib.metadata.PackageNotFoundError:  # run from a checkout
        version = "of a checkout"
    return Identity(version, _digest(), ".".join(platform.python_version_tuple()[:2]), pl.__version__)


def _digest() -> str:
    """Twelve digits over the names and contents of all modules."""
    package = Path(__file__).parents[1]
    digest = hashlib.sha256()
    for path in sorted(package.rglob("*.py")):
        content = path.read_bytes()
        digest.update(f"{path.relative_to(package)}\0{len(content)}\0".encode() + content)
    return digest.hexdigest()[:12]
