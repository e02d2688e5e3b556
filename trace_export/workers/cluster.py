"""A Dask cluster as the user names it: its scheduler, and which machine reads which folder of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from trace_export.errors import UsageError
from trace_export.files import read_toml

EVERY: Final = "*"
"""Stands for every machine."""


@dataclass(frozen=True)
class Cluster:
    """The Dask scheduler at `address`, and which machine reads which folder of its own, in order.

    A machine is called by the name or address of its workers or by its host name; `*` stands for every machine. No
    folders: every worker sees the log_dir under the same name.
    """

    address: str
    folders: tuple[tuple[str, Path], ...] = ()
    plans: tuple[Path, ...] = ()
    """The TOML files that name folders."""

    @staticmethod
    def parse(address: str, entries: Sequence[str]) -> Cluster:
        """`entries` are `MACHINE:FOLDER`, or a TOML file with a table `machines` that holds `MACHINE = "FOLDER"` or a
        list of folders. Raises UsageError."""
        folders: list[tuple[str, Path]] = []
        plans = tuple(Path(entry) for entry in entries if entry.endswith(".toml"))
        for entry in entries:
            if entry.endswith(".toml"):
                folders += _plan(Path(entry))
                continue
            machine, colon, folder = entry.partition(":")
            if not (machine and colon and folder):
                what = f'"{entry}" is not MACHINE:FOLDER'
                raise UsageError(what, "write it like node1:/scratch/profiles", parameter="at")
            folders.append((machine, Path(folder)))
        return Cluster(address, tuple(folders), plans)


def _plan(file: Path) -> list[tuple[str, Path]]:
    try:
        machines = read_toml(file)["machines"]
        named = [(m, [f] if isinstance(f, str) else f) for m, f in machines.items()]
        return [(machine, Path(folder)) for machine, folders in named for folder in folders]
    except OSError as error:
        raise UsageError(f"{file} cannot be read ({error.strerror})", parameter="at") from error
    except (ValueError, KeyError, AttributeError, TypeError) as error:
        why = f" ({error})" if isinstance(error, ValueError) else ""
        remedy = 'it needs a table [machines] with lines like node1 = "/scratch/profiles"'
        raise UsageError(f"{file} is not a plan{why}", remedy, parameter="at") from error
