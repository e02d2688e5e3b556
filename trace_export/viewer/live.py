"""A page that changes: a small web server on this machine's loopback address, which sends its page each new state.

The page learns of a state by server-sent events (https://html.spec.whatwg.org/multipage/server-sent-events.html). A
browser that loses the connection asks again, so the server may be restarted.
"""

from __future__ import annotations

import socketserver
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from typing import Self

from trace_export.errors import TraceExportError, UsageError, printable
from trace_export.viewer.loopback import LOOPBACK, refusal

STAY_HERE = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""Content security policy: the page, its own server, and nothing else."""
BEAT_S = 15.0
"""After so long without news a comment is sent, by which a page notices a server that is gone."""

LAST_PORT = (1 << 16) - 1

Content = Callable[[str], bytes]
"""What a resource holds, by the query in its address."""


@dataclass(frozen=True)
class Resource:
    """What is at a path: its media type and its content now. `content` raises TraceExportError where there is none."""

    kind: str
    content: Content


class LiveServer(socketserver.ThreadingTCPServer):
    """HTTP on 127.0.0.1 for `resources` (URL path → resource) and for the events at /events.

    `port` None: `usual`, or where that is taken another one; 0: a free one. Raises UsageError when there is no such
    port, TraceExportError when it is taken.
    """

    allow_reuse_address = True
    daemon_threads = True
    block_on_close = False

    def __init__(self, resources: Mapping[str, Resource], usual: int, port: int | None = None) -> None:
        if port is not None and not 0 <= port <= LAST_PORT:
            raise UsageError(
                f"{port} is not a port", f"choose one up to {LAST_PORT}, or 0 for a free one", parameter="port"
            )
        try:
            super().__init__((LOOPBACK, usual if port is None else port), _Handler)
        except OSError as error:
            if port is not None:
                what = f"port {port} of {LOOPBACK} is taken ({error.strerror})"
                raise TraceExportError(what, "choose another one with --port") from error
            self.server_close()
            super().__init__((LOOPBACK, 0), _Handler)
        self.resources = resources
        self.host = f"{LOOPBACK}:{self.server_address[1]}"
        self.address = f"http://{self.host}"
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

    def handle_error(self, request: object, client_address: object) -> None:
        """A page that is closed in the middle of an answer is its own affair."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)  # type: ignore[arg-type]


class _Handler(BaseHTTPRequestHandler):
    server: LiveServer
    timeout = 30
    server_version = "trace-export"
    sys_version = ""

    def do_GET(self) -> None:
        if why := refusal(self.headers, None):
            self.send_error(HTTPStatus.FORBIDDEN, why)
            return
        path, _, query = self.path.partition("?")
        if path == "/events":
            self._send_events()
        elif path in self.server.resources:
            self._send(self.server.resources[path], query)
        else:
            self.send_error(HTTPStatus.NOT_FOUND)

    def _send(self, resource: Resource, query: str) -> None:
        try:
            content = resource.content(query)
        except TraceExportError as error:
            self._send_sentence(HTTPStatus.SERVICE_UNAVAILABLE, str(error))
            return
        except Exception as error:  # a fault of ours: this answer fails, and the server goes on
            sentence = f"internal error, {type(error).__name__}: {printable(error)}"
            print(f"trace-export: {sentence}", file=sys.stderr)
            self._send_sentence(HTTPStatus.INTERNAL_SERVER_ERROR, sentence)
            return
        self._head(HTTPStatus.OK, resource.kind, len(content))
        self.wfile.write(content)

    def _send_sentence(self, status: HTTPStatus, sentence: str) -> None:
        self._head(status, "text/plain; charset=utf-8")
        self.wfile.write(sentence.encode())

    def _send_events(self) -> None:
        server = self.server
        self._head(HTTPStatus.OK, "text/event-stream; charset=utf-8")
        sent = -1
        while True:
            with server.news:
                if server.number == sent and not server.ended:
                    server.news.wait(BEAT_S)
                if server.ended:
                    return
                event = b": no news\n\n" if server.number == sent else b"data: " + server.state + b"\n\n"
                sent = server.number
            self.wfile.write(event)

    def _head(self, status: HTTPStatus, kind: str, length: int | None = None) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        if length is not None:
            self.send_header("Content-Length", str(length))
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Cross-Origin-Resource-Policy", "same-origin")
        self.send_header("Content-Security-Policy", STAY_HERE)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """The terminal belongs to the command."""
