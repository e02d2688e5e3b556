"""`trace-export open` as a user runs it, and the page in a real browser."""

import fcntl
import http.client
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
from playwright.sync_api import Browser

import trace_export
from tests.conftest import ROOT, Cli
from tests.support.charts import write_trace
from tests.support.wait import HANGS_S, wait_until
from tests.writers.pictures.test_picture import run_of
from trace_export.chart.layout import lay_out
from trace_export.viewer import serve
from trace_export.viewer.first_step import track_to_pin
from trace_export.writers.traces import perfetto

STEP_NS = 10_000_000
"""ZB-H1 with p = 2, m = 3 and F = B = W = 1 ms: m (F + B + W) + (p - 1)(F + B - W)."""


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "pipeline_profile.pftrace"
    write_trace(perfetto, lay_out(run_of("zb-h1", 2, 3, steps=2)), path)
    return path


@contextmanager
def command(*arguments: object, **environment: str) -> Iterator[subprocess.Popen[str]]:
    """`trace-export open` with the arguments, running."""
    clean = {k: v for k, v in os.environ.items() if k not in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER")}
    process = subprocess.Popen(
        [sys.executable, "-u", "-m", "trace_export", "open", *map(str, arguments)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**clean, "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "error", "NO_COLOR": "1", **environment},
    )  # fmt: skip
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def link_of(process: subprocess.Popen[str]) -> str:
    assert process.stdout
    return process.stdout.readline().split()[-1]


def fetch(url: str, origin: str) -> int:
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.netloc, timeout=HANGS_S)
    connection.request("GET", parts.path, headers={"Origin": origin})
    answer = connection.getresponse()
    answer.read()
    connection.close()
    return answer.status


def taken(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return True
    return False


@pytest.fixture
def port_of_the_ui(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The port that the public UI asks, for one test at a time of all processes of this session."""
    with (tmp_path_factory.getbasetemp().parent / "port 9001").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if taken(9001):
            pytest.skip("port 9001 is taken on this machine")
        yield


@pytest.mark.usefixtures("port_of_the_ui")
def test_serves_to_the_public_ui_and_ends(trace: Path, run_cli: Cli) -> None:
    with command(trace, "--no-browser") as process:
        link = link_of(process)
        assert link == (
            "https://ui.perfetto.dev/#!/?url=http://127.0.0.1:9001/pipeline_profile.pftrace"
            f"&referrer=trace-export&visStart=0&visEnd={STEP_NS}"
        )
        second = run_cli("open", trace, "--no-browser")
        assert second.returncode == 1
        assert re.search(r"port 9001 of 127\.0\.0\.1 is taken .* --offline", second.stderr)
        assert "Traceback" not in second.stderr
        url = parse_qs(urlsplit(link).fragment.partition("?")[2])["url"][0]
        assert fetch(url, "https://evil.example") == 403
        assert fetch(url, "https://ui.perfetto.dev") == 200
        assert process.wait(timeout=HANGS_S) == 0


def test_open_ends_when_no_browser_asks(trace: Path) -> None:
    with command(trace, "--offline", "--no-browser", "--timeout", "300ms") as process:
        _, errors = process.communicate(timeout=HANGS_S)
        assert process.returncode == 1
        assert "no browser requested pipeline_profile.pftrace within 300ms; open the link" in errors


def test_ctrl_c_ends_it(trace: Path) -> None:
    with command(trace, "--offline", "--no-browser") as process:
        link_of(process)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=HANGS_S)
        assert process.returncode == 130
        assert "Traceback" not in errors


def test_opens_the_users_browser(trace: Path, tmp_path: Path) -> None:
    program = tmp_path / "browser"
    program.write_text(f'#!/bin/sh\necho "$1" > "{tmp_path}/opened"\n')
    program.chmod(0o755)
    with command(trace, "--offline", BROWSER=str(program)) as process:
        link, opened = link_of(process), tmp_path / "opened"
        wait_until(lambda: opened.exists() and opened.read_text())
        assert opened.read_text().strip() == link


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [("report.html", b"<!doctype html>", "a web browser opens it by itself"),
     ("chart.svg", b"<svg/>", "a web browser opens it by itself"),
     ("spans.parquet", b"PAR1", "read it with Polars"),
     ("empty.json", b"", "is empty")],
)  # fmt: skip
def test_other_files_get_a_sentence(name: str, content: bytes, sentence: str, tmp_path: Path, run_cli: Cli) -> None:
    (tmp_path / name).write_bytes(content)
    result = run_cli("open", tmp_path / name, "--no-browser")
    assert result.returncode == 1
    assert result.stderr.startswith(f"trace-export: {tmp_path / name}")
    assert sentence in result.stderr
    assert result.stderr.count("\n") == 1


def test_impossible_time_out(trace: Path, run_cli: Cli) -> None:
    for value in ("0", "-3s", "soon"):
        result = run_cli("open", trace, "--timeout", value)
        assert result.returncode == 2
        assert "--timeout" in result.stderr


def test_the_critical_path_is_pinned_where_there_is_one(tmp_path: Path) -> None:
    run = trace_export.simulate("1f1b", 2, 4)
    for wanted in (True, False):
        for path in run.write(tmp_path, ["perfetto", "chrome"], critical_path=wanted, gzip=wanted, force=True):
            assert track_to_pin(path) == ("critical path" if wanted else "")


def test_only_the_public_ui_can_fetch_in_a_browser(trace: Path, browser: Browser) -> None:
    """What CORS does with our answers, as Chromium understands it; the pages themselves are stood in for."""
    server = serve.TraceServer({"/x.pftrace": trace}, "/x.pftrace", origin=serve.PUBLIC_UI)
    thread = threading.Thread(target=server.serve, args=(HANGS_S,), kwargs={"once": True})
    thread.start()
    context = browser.new_context(service_workers="block")
    context.set_default_timeout(1000 * HANGS_S)
    script = "(url) => fetch(url).then((r) => r.arrayBuffer()).then((b) => b.byteLength).catch((e) => e.name)"
    try:
        for origin, expected in (("https://evil.example", "TypeError"), (serve.PUBLIC_UI, trace.stat().st_size)):
            context.grant_permissions(["local-network-access"], origin=origin)
            page = context.new_page()
            page.route(f"{origin}/**", lambda route: route.fulfill(body="<p>", content_type="text/html"))
            page.goto(f"{origin}/")
            assert page.evaluate(script, server.address + server.trace) == expected
        thread.join(timeout=HANGS_S)
        assert not thread.is_alive()
    finally:
        context.close()
        server.last_answer = float("-inf")
        thread.join()
        server.server_close()
