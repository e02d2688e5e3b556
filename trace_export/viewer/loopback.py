"""Who may ask a server on this machine's loopback address: every web page can send requests to it."""

from __future__ import annotations

from email.message import Message

LOOPBACK = "127.0.0.1"


def refusal(headers: Message, host: str, origin: str | None) -> str:
    """Why a request to the server at `host` (address:port) is refused, "" where it is not.

    Its Host header must name that address (a foreign name that was pointed at 127.0.0.1 has another one: DNS
    rebinding), and it must come from a page of `origin`, or where that is None, from a page of the server itself.
    """
    origins = headers.get_all("Origin", [])
    if headers.get_all("Host", []) != [host]:
        return "wrong Host"
    if origin is not None:
        return "" if origins == [origin] else f"only for pages of {origin}"
    own = origins in ([], [f"http://{host}"]) and headers.get("Sec-Fetch-Site", "none") in ("none", "same-origin")
    return "" if own else "not for other pages"
