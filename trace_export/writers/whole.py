"""A file is whole or absent: written under a temporary name beside its place, then renamed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from trace_export.errors import OutputError


@contextmanager
def whole(path: Path) -> Iterator[Path]:
    """A temporary path in the folder of `path` (made if need be), renamed to `path` when the block ends well.

    Else it is removed. Raises OutputError when the file cannot be written (folder read-only, disk full, ...).
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        if path.is_dir():
            raise IsADirectoryError("it is a folder")
        path.parent.mkdir(parents=True, exist_ok=True)
        yield temporary
        temporary.replace(path)
    except OSError as error:
        reason = error.strerror or str(error)
        raise OutputError(path, f"cannot be written: {reason}", "name another place with --out") from error
    finally:
        with suppress(OSError):
            temporary.unlink()
