"""A small web server on this machine's loopback address, for pages that show a run.

What it holds is private, but every web page can send requests to it. So it knows its resources
by their whole URL path (a request never becomes a path on the disk), answers only requests whose Host header names this
machine, with any port, since a forwarded one may be another (a foreign name that was pointed at 127.0.0.1 has another
one: DNS rebinding), and only those of the pages that may read it.
"""

from __future__ import annotations

import os
import re
import socket
import socketserver
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from email.message import Message
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from pathlib import Path

from trace_export.errors import TraceExportError, printable
from trace_export.files import open_file

LOOPBACK = "127.0.0.1"
NAMES = {LOOPBACK, "localhost", "[::1]"}
"""What a browser on this machine, or one that forwards a port of its own to it, may call the address."""
_HOST = re.compile(r"(?P<name>\[[\da-f:]+\]|[^:]+)(?::\d{1,5})?", re.IGNORECASE)
METHODS = "GET, HEAD, OPTIONS"


@dataclass(frozen=True)
class Resource:
    """What is at a path: its media type, and its content by the query in the address: bytes, a file, or a stream of
    bytes. `content` raises TraceExportError where there is none now."""

    kind: str
    content: Callable[[str], bytes | Path | Iterator[bytes]]


def refusal(headers: Message, origin: str | None) -> str:
    """Why a request is refused, "" where it is not: its Host header must name this machine, and it must come from a
    page of `origin`, or where that is None, from a page of the server itself."""
    origins, hosts = headers.get_all("Origin", []), headers.get_all("Host", [])
    name = _HOST.fullmatch(hosts[0]) if len(hosts) == 1 else None
    if name is None or name["name"].lower() not in NAMES:
        return "wrong Host"
    if origin is not None:
        return "" if origins == [origin] else f"only for pages of {origin}"
    ours = origins in ([], [f"http://{hosts[0]}"]) and headers.get("Sec-Fetch-Site", "none") in ("none", "same-origin")
    return "" if ours else "not for other pages"


class Server(socketserver.ThreadingTCPServer):
    """HTTP on 127.0.0.1 for `resources` (URL path → resource), to pages of `origin`; without one, to its own pages,
    which obey the content security `policy`. Raises OSError when `port` is taken.

    `asked_s`: when it was last asked for a resource; `sent`: the files that were sent whole; `unreadable`: why others
    cannot be read.
    """

    allow_reuse_address = True
    daemon_threads = True
    block_on_close = False  # a client that does not read must not hold up the end
    timeout = 0.1

    def __init__(
        self, resources: Mapping[str, Resource], port: int = 0, *, policy: str = "", origin: str | None = None
    ) -> None:
        super().__init__((LOOPBACK, port), _Handler)
        self.resources, self.policy, self.origin = resources, policy, origin
        self.asked_s = time.monotonic()
        self.sent: set[str] = set()
        self.unreadable: dict[str, str] = {}
        self.host = f"{LOOPBACK}:{self.server_address[1]}"
        self.address = f"http://{self.host}"

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that hangs up or stalls is its own affair: the next one is served."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)  # type: ignore[arg-type]


class _Handler(BaseHTTPRequestHandler):
    server: Server
    timeout = 10  # seconds for one read or write: a slow client costs a thread for a while, nothing else
    server_version = "trace-export"
    sys_version = ""

    def do_GET(self) -> None:
        path, _, query = self.path.partition("?")
        if resource := self._resource(path):
            self.server.asked_s = time.monotonic()
            self._send(path, resource, query)

    do_HEAD = do_GET

    def do_OPTIONS(self) -> None:
        """What a browser asks before a page of the internet may fetch from this machine."""
        if self._resource(self.path):
            allowed = {"Allow": METHODS, "Access-Control-Allow-Methods": "GET, HEAD"}
            self._head(HTTPStatus.NO_CONTENT, allowed | {"Access-Control-Allow-Private-Network": "true"})

    def do_POST(self) -> None:
        self.send_response(HTTPStatus.METHOD_NOT_ALLOWED)
        self.send_header("Allow", METHODS)
        self.end_headers()

    do_PUT = do_DELETE = do_PATCH = do_POST

    def _resource(self, path: str) -> Resource | None:
        """The resource at a path for whoever may read it; for others it is None, and they have their answer."""
        if why := refusal(self.headers, self.server.origin):
            self.send_error(HTTPStatus.FORBIDDEN, why)
            return None
        if path not in self.server.resources:
            self.send_error(HTTPStatus.NOT_FOUND)
        return self.server.resources.get(path)

    def _send(self, path: str, resource: Resource, query: str) -> None:
        try:
            content = resource.content(query)
        except TraceExportError as error:
            self._sentence(HTTPStatus.SERVICE_UNAVAILABLE, str(error))
            return
        except Exception as error:  # a fault of ours: this answer fails, and the server goes on
            sentence = f"internal error, {type(error).__name__}: {printable(error)}"
            print(f"trace-export: {sentence}", file=sys.stderr)
            self._sentence(HTTPStatus.INTERNAL_SERVER_ERROR, sentence)
            return
        kind = {"Content-Type": resource.kind}
        if isinstance(content, Path):
            self._send_file(path, content, kind)
            return
        self._head(HTTPStatus.OK, kind | ({"Content-Length": str(len(content))} if isinstance(content, bytes) else {}))
        if self.command == "GET":
            for part in [content] if isinstance(content, bytes) else content:
                self.wfile.write(part)

    def _send_file(self, path: str, name: Path, kind: dict[str, str]) -> None:
        try:
            file = open_file(name)
        except OSError as error:
            self.send_error(HTTPStatus.GONE, error.strerror)
            self.server.unreadable[path] = error.strerror or str(error)
            return
        with file:
            size = os.fstat(file.fileno()).st_size
            self._head(HTTPStatus.OK, kind | {"Content-Length": str(size)})
            if self.command == "GET" and (self.connection.sendfile(file, 0, size) if size else 0) == size:
                self.connection.shutdown(socket.SHUT_WR)
                self.server.sent.add(path)

    def _sentence(self, status: HTTPStatus, sentence: str) -> None:
        self._head(status, {"Content-Type": "text/plain; charset=utf-8"})
        self.wfile.write(sentence.encode())

    def _head(self, status: HTTPStatus, headers: dict[str, str]) -> None:
        self.send_response(status)
        headers |= {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}
        if self.server.origin is not None:
            headers |= {"Access-Control-Allow-Origin": self.server.origin, "Vary": "Origin"}
        else:
            headers |= {"Cross-Origin-Resource-Policy": "same-origin", "Content-Security-Policy": self.server.policy}
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """The terminal belongs to the command."""
