"""Where the trace writers put their bytes: a file, plain or gzipped."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from trace_export.writers.wire import Write


@contextmanager
def opened(path: Path, compress: bool) -> Iterator[Write]:
    """A function that appends bytes to `path`. Gzip takes level 1 (the next one costs four times as much for a tenth
    of the size) and no time stamp, so that the same trace gives the same bytes."""
    with path.open("wb") as file:
        if not compress:
            yield file.write
            return
        with gzip.GzipFile(filename="", mode="wb", fileobj=file, compresslevel=1, mtime=0) as packed:
            yield packed.write
