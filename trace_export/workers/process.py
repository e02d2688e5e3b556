"""A worker process of `pool`: it reads one item at a time and sends each result back.

It runs as a script of the standard library alone, and takes its parent's `sys.path` before it imports anything else.
"""

from __future__ import annotations

import gc
import os
import sys
import threading
from contextlib import suppress
from multiprocessing.connection import Connection


def main(descriptor: int) -> None:
    """Worker main loop: receives `sys.path` and the thresholds of the garbage collector, the function, and then items
    until the parent closes the connection. Sends None when it is ready, or the error that prevents that, then results.

    Ends silently when the parent is gone.
    """
    threading.Thread(target=_end_with_parent, daemon=True).start()
    with Connection(descriptor) as connection, suppress(EOFError, OSError):
        sys.path[:], thresholds = connection.recv()
        gc.set_threshold(*thresholds)
        try:
            from trace_export.workers.attempt import attempt

            function = connection.recv()
        except BaseException as error:
            connection.send(f"{type(error).__name__}: {error}")
            return
        connection.send(None)
        while True:
            connection.send(attempt(function, connection.recv()))


def _end_with_parent() -> None:
    os.read(sys.stdin.fileno(), 1)  # returns when the parent is gone, or closes it
    os._exit(0)


if __name__ == "__main__":
    main(int(sys.argv[1]))
