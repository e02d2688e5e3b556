"""The server of a page that changes: who may ask, what pages are sent, and that it ends."""

import http.client

import pytest

from tests.support.wait import HANGS_S
from trace_export.errors import NothingToExportError, TraceExportError
from trace_export.viewer.live import LiveServer
from trace_export.viewer.server import Resource


def nothing(_: str) -> bytes:
    raise NothingToExportError("there is none yet")


def broken(_: str) -> bytes:
    raise ZeroDivisionError("a fault\nof ours")


RESOURCES = {
    "/broken": Resource("image/svg+xml", broken),
    "/": Resource("text/html", lambda _: b"<p>page</p>"),
    "/none": Resource("image/svg+xml", nothing),
    "/query": Resource("text/plain", str.encode),
}


def ask(server: LiveServer, path: str, method: str = "GET", **headers: str) -> http.client.HTTPResponse:
    connection = http.client.HTTPConnection(*server.server_address[:2], timeout=HANGS_S)
    connection.request(method, path, headers={"Host": server.host} | headers)
    return connection.getresponse()


def test_its_own_page_gets_the_resources() -> None:
    with LiveServer(RESOURCES, 0) as server:
        answer = ask(server, "/")
        assert (answer.status, answer.read()) == (200, b"<p>page</p>")
        assert "default-src 'none'" in answer.headers["Content-Security-Policy"]
        assert ask(server, "/?7").status == 200
        assert ask(server, "/query?a-7").read() == b"a-7"
        assert ask(server, "/etc/passwd").status == 404
        answer = ask(server, "/none")
        assert (answer.status, answer.read()) == (503, b"there is none yet")


def test_a_fault_of_ours_is_one_sentence_and_not_the_end(capsys: pytest.CaptureFixture[str]) -> None:
    with LiveServer(RESOURCES, 0) as server:
        answer = ask(server, "/broken")
        assert (answer.status, answer.read()) == (500, rb"internal error, ZeroDivisionError: a fault\nof ours")
        assert ask(server, "/").status == 200
    assert "trace-export: internal error, ZeroDivisionError: a fault\\nof ours\n" in capsys.readouterr().err


@pytest.mark.parametrize(
    "headers",
    [{"Host": "evil.example"}, {"Origin": "https://evil.example"}, {"Sec-Fetch-Site": "cross-site"}],
    ids=["foreign name", "foreign page", "foreign request"],
)
@pytest.mark.parametrize("path", ["/", "/events"])
def test_others_get_nothing(path: str, headers: dict[str, str]) -> None:
    with LiveServer(RESOURCES, 0) as server:
        assert ask(server, path, **headers).status == 403


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "LOCALHOST", "[::1]"])
@pytest.mark.parametrize("port", ["", ":9000", ":{}"])
def test_every_name_of_this_machine_and_every_port_that_is_forwarded_to_it(host: str, port: str) -> None:
    """As a browser asks after `ssh -L 9000:127.0.0.1:8123`; a page from there may ask for the rest, others may not."""
    with LiveServer(RESOURCES, 0) as server:
        name = host + port.format(server.server_address[1])
        assert ask(server, "/", Host=name).status == 200
        assert ask(server, "/events", Host=name, Origin=f"http://{name}").status == 200
        assert ask(server, "/events", Host=name, Origin="http://localhost:1").status == 403


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE"])
def test_nothing_can_be_sent_to_it(method: str) -> None:
    with LiveServer(RESOURCES, 0) as server:
        assert ask(server, "/", method).status == 405


def test_a_page_gets_the_state_at_once_and_each_new_one() -> None:
    with LiveServer(RESOURCES, 0) as server:
        server.publish(b'{"n":1}')
        stream = ask(server, "/events")
        assert stream.headers["Content-Type"].startswith("text/event-stream")
        assert [stream.readline() for _ in range(2)] == [b'data: {"n":1}\n', b"\n"]
        server.publish(b'{"n":2}')
        assert [stream.readline() for _ in range(2)] == [b'data: {"n":2}\n', b"\n"]
    assert stream.read() == b""  # the server has ended, and the connection with it


def test_the_usual_port_is_taken() -> None:
    with LiveServer(RESOURCES, 0) as one:
        taken = int(one.server_address[1])
        with LiveServer(RESOURCES, taken) as other:
            assert other.server_address[1] != taken
        with pytest.raises(TraceExportError, match=rf"port {taken} of 127.0.0.1 is taken.*`port`"):
            LiveServer(RESOURCES, 0, taken)
