"""`open --server`: the trace processor is started, answers on this machine alone, and ends with the command.

A small program stands in for the trace processor, which no package on PyPI contains.
"""

from __future__ import annotations

import socket
import sys
from pathlib import Path

import pytest

from trace_export.errors import TraceExportError
from trace_export.viewer import trace_processor

STAND_IN = """#!{python}
import pathlib, socket, sys, time
pathlib.Path("{said}").write_text(" ".join(sys.argv[1:]))
assert sys.argv[1:3] == ["--httpd", "--http-port"]
{first}
server = socket.create_server(("{host}", int(sys.argv[3])))
while True:
    server.accept()[0].close()
"""


@pytest.fixture
def port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def stand_in(folder: Path, name: str = "trace_processor", **text: str) -> Path:
    """A program in the folder `bin` of `folder`; the file that will have the arguments it was called with."""
    program, said = folder / "bin" / name, folder / "said"
    program.parent.mkdir()
    values = {"host": "127.0.0.1", "first": "", "python": sys.executable, "said": str(said)} | text
    program.write_text(STAND_IN.format(**values), encoding="utf-8")
    program.chmod(0o755)
    return said


def installed(folder: Path, monkeypatch: pytest.MonkeyPatch, name: str = "trace_processor", **text: str) -> Path:
    """The same, alone on the PATH."""
    monkeypatch.setenv("PATH", str(folder / "bin"))
    return stand_in(folder, name, **text)


def test_it_ends_where_the_block_fails(tmp_path: Path, port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    installed(tmp_path, monkeypatch, first="import signal; signal.signal(signal.SIGTERM, signal.SIG_DFL)")
    with pytest.raises(KeyboardInterrupt), trace_processor.serving(tmp_path, port) as process:
        raise KeyboardInterrupt
    assert process.returncode is not None


def test_one_that_fails_says_why(tmp_path: Path, port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    installed(tmp_path, monkeypatch, first='sys.exit("no such trace")')
    with pytest.raises(TraceExportError, match="ended with code 1: no such trace"):
        trace_processor.serving(tmp_path, port).__enter__()


def test_a_port_that_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = installed(tmp_path, monkeypatch)
    with socket.create_server(("127.0.0.1", 0)) as other:
        number = other.getsockname()[1]
        with pytest.raises(TraceExportError, match=f"port {number} of 127.0.0.1 is taken"):
            trace_processor.serving(tmp_path, number).__enter__()
    assert not said.exists()
