"""Who may ask a server on this machine's loopback address: every web page can send requests to it."""

from __future__ import annotations

import re
from email.message import Message

LOOPBACK = "127.0.0.1"
NAMES = {LOOPBACK, "localhost", "[::1]"}
"""What a browser on this machine, or one that forwards a port of its own to it, may call the address."""
_HOST = re.compile(r"(?P<name>\[[\da-f:]+\]|[^:]+)(?::\d{1,5})?", re.IGNORECASE)


def refusal(headers: Message, origin: str | None) -> str:
    """Why a request to a server on this machine's loopback address is refused, "" where it is not.

    Its Host header must name that address, with any port, since a forwarded one may be another (a foreign name that was
    pointed at 127.0.0.1 has another one: DNS rebinding), and it must come from a page of `origin`, or where that is
    None, from a page of the server itself.
    """
    origins, hosts = headers.get_all("Origin", []), headers.get_all("Host", [])
    name = _HOST.fullmatch(hosts[0]) if len(hosts) == 1 else None
    if name is None or name["name"].lower() not in NAMES:
        return "wrong Host"
    if origin is not None:
        return "" if origins == [origin] else f"only for pages of {origin}"
    own = origins in ([], [f"http://{hosts[0]}"]) and headers.get("Sec-Fetch-Site", "none") in ("none", "same-origin")
    return "" if own else "not for other pages"
