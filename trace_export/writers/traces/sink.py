"""The output of the trace writers: a file, plain or gzipped, written while the next bytes are encoded."""

from __future__ import annotations

import gzip
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Final

Write = Callable[[memoryview | bytes], object]

_WAITING: Final = 2
"""Pieces that may wait for the disk; more would only take memory."""


@contextmanager
def opened(path: Path, compress: bool) -> Iterator[Write]:
    """A function that appends bytes to `path`; they must not change afterwards.

    Gzip takes level 1 (higher ones take several times as long for a tenth of the size) and no time stamp, so that the
    same trace gives the same bytes. Raises OSError when the file cannot be written, at the latest at the end.
    """
    with path.open("wb") as file:
        if not compress:
            with _in_background(file.write) as write:
                yield write
            return
        with (
            gzip.GzipFile(filename="", mode="wb", fileobj=file, compresslevel=1, mtime=0) as packed,
            _in_background(packed.write) as write,
        ):
            yield write


@contextmanager
def _in_background(write: Write) -> Iterator[Write]:
    """`write` in a thread of its own, in order: both compression and the disk release the interpreter."""
    waiting: deque[Future[object]] = deque()
    with ThreadPoolExecutor(1) as thread:

        def enqueue(data: memoryview | bytes) -> None:
            waiting.append(thread.submit(write, data))
            while len(waiting) > _WAITING:
                waiting.popleft().result()

        yield enqueue
        for piece in waiting:
            piece.result()
