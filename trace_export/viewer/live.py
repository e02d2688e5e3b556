"""A page that changes: the server sends it each new state.

The page learns of a state by server-sent events (https://html.spec.whatwg.org/multipage/server-sent-events.html). A
browser that loses the connection asks again, so the server may be restarted.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from typing import Self

from trace_export.errors import TraceExportError, UsageError
from trace_export.viewer.server import LOOPBACK, Resource, Server

STAY_HERE = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""Content security policy: the page, its own server, and nothing else."""
BEAT_S = 15.0
"""After so long without news a comment is sent, by which a page notices a server that is gone."""
LAST_PORT = (1 << 16) - 1


class LiveServer(Server):
    """The server of `resources` and of the events at /events.

    `port` None: `usual`, or where that is taken another one; 0: a free one. Raises UsageError when there is no such
    port, TraceExportError when it is taken.
    """

    def __init__(self, resources: Mapping[str, Resource], usual: int, port: int | None = None) -> None:
        if port is not None and not 0 <= port <= LAST_PORT:
            raise UsageError(
                f"{port} is not a port", f"choose one up to {LAST_PORT}, or 0 for a free one", parameter="port"
            )
        events = Resource("text/event-stream; charset=utf-8", lambda _: self._events())
        try:
            super().__init__({**resources, "/events": events}, usual if port is None else port, policy=STAY_HERE)
        except OSError as error:
            if port is not None:
                what = f"port {port} of {LOOPBACK} is taken ({error.strerror})"
                raise TraceExportError(what, "choose another `port`") from error
            self.server_close()
            super().__init__({**resources, "/events": events}, policy=STAY_HERE)
        self.news = threading.Condition()
        self.number = 0
        self.state = b"{}"
        self.ended = False

    def __enter__(self) -> Self:
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.1}, daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        with self.news:
            self.ended = True
            self.news.notify_all()
        self.shutdown()
        self.server_close()

    def publish(self, state: bytes) -> None:
        """Sends a state (one line of text) to all pages, now and to those that come later."""
        with self.news:
            self.state, self.number = state, self.number + 1
            self.news.notify_all()

    def _events(self) -> Iterator[bytes]:
        """The state, and each new one, until the server ends."""
        sent = -1
        while True:
            with self.news:
                if self.number == sent and not self.ended:
                    self.news.wait(BEAT_S)
                if self.ended:
                    return
                event = b": no news\n\n" if self.number == sent else b"data: " + self.state + b"\n\n"
                sent = self.number
            yield event
