"""Closed and full standard streams, encodings that lack a character, and control characters in names."""

import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from samples.generators import paddle as generate_paddle
from tests.conftest import ROOT
from tests.support.command import command as in_process
from tests.support.wait import HANGS_S
from trace_export.cli import streams, terminal

NO_SPACE = (
    "trace-export: standard output cannot be written: No space left on device; files already written are complete\n"
)
CLOSED = NO_SPACE.replace("No space left on device", "Bad file descriptor")
FILES = {"pipeline_profile.json", "pipeline_profile.pftrace"}


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    generate_paddle.write(tmp_path / "logs", stages=2, microbatches=2, steps=2)
    (tmp_path / "logs" / "truth.csv").unlink()
    return tmp_path / "logs"


def redirected(redirection: str, *arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    """`trace-export ARGUMENTS REDIRECTION` as a shell runs it."""
    command = ["sh", "-c", f'exec "$@" {redirection}', "sh", sys.executable, "-m", "trace_export"]
    variables = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "error", "NO_COLOR": "1", **environment}
    done = subprocess.run(
        [*command, *map(str, arguments)], env=variables, capture_output=True, timeout=HANGS_S, check=False
    )
    encoding = "utf-8" if "--json" in arguments else environment.get("PYTHONIOENCODING", "utf-8").partition(":")[0]
    texts = done.stdout.decode(encoding), done.stderr.decode(encoding)
    return subprocess.CompletedProcess(done.args, done.returncode, *texts)


@pytest.mark.parametrize(
    ("command", "redirection", "said"),
    [
        ("export", ">/dev/full", NO_SPACE),
        ("docs", ">/dev/full", NO_SPACE),
        ("inspect", ">&-", CLOSED),
        ("export", ">&- 2>&-", ""),
    ],
)
def test_a_closed_output_is_an_error(command: str, redirection: str, said: str, logs: Path, tmp_path: Path) -> None:
    where = {"export": [logs, "--out", tmp_path / "out"], "docs": ["nsys"]}.get(command, [logs])
    done = redirected(redirection, command, *where)
    assert done.returncode == 1
    assert done.stderr.endswith(said)
    assert "internal error" not in done.stderr
    if command == "export":
        assert {path.name for path in (tmp_path / "out").iterdir()} == FILES


def test_files_are_written_without_a_standard_stream_but_the_output(logs: Path, tmp_path: Path) -> None:
    done = redirected("<&- 2>&-", logs, "--out", tmp_path / "out")
    assert done.returncode == 0
    assert "pipeline_profile.json" in done.stdout
    assert {path.name for path in (tmp_path / "out").iterdir()} == FILES


@pytest.mark.parametrize("redirection", ["2>/dev/full", "2>&-"])
def test_a_closed_stderr_does_not_stop_the_command(redirection: str, logs: Path, tmp_path: Path) -> None:
    done = redirected(redirection, "inspect", logs)
    assert done.returncode == 0
    assert done.stdout == in_process("inspect", logs).stdout
    done = redirected(redirection, tmp_path / "absent")
    assert done.returncode == 2
    assert done.stdout == f"trace-export: {tmp_path / 'absent'}: {done.stdout.partition('absent: ')[2]}"


def test_a_reader_that_has_seen_enough_stops_nothing(logs: Path, tmp_path: Path) -> None:
    done = redirected("| true", logs, "--out", tmp_path / "out")
    assert "rror" not in done.stderr
    assert {path.name for path in (tmp_path / "out").iterdir()} == FILES


@pytest.mark.parametrize(("command", "encoding"), [("report", "ascii:strict"), ("docs", "latin-1")])
def test_characters_that_the_terminal_lacks_are_replaced(command: str, encoding: str, logs: Path) -> None:
    where: list[object] = ["ascend"] if command == "docs" else [logs]
    wanted = in_process(command, *where).stdout
    done = redirected("", command, *where, PYTHONIOENCODING=encoding)
    codec = encoding.partition(":")[0]
    assert (done.returncode, done.stdout) == (0, wanted.encode(codec, "replace").decode(codec))


def test_json_is_utf_8_in_every_terminal(logs: Path, tmp_path: Path) -> None:
    odd = tmp_path / "Profil–é"
    logs.rename(odd)
    done = redirected("", "inspect", odd, "--json", PYTHONIOENCODING="ascii")
    assert {Path(source["path"]).parent for source in json.loads(done.stdout)["sources"]} == {odd}


def test_json_has_no_character_that_a_terminal_obeys(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    text = json.dumps({"name": "\x1b]0;title\x07 \x9b31m \x7f \u202e \u2066 é"}, ensure_ascii=False)
    terminal.json(text)
    shown = capfdbinary.readouterr().out.decode()
    assert all(character.isprintable() for character in shown.removesuffix("\n"))
    assert "é" in shown
    assert json.loads(shown) == json.loads(text)


def test_what_rust_prints_before_it_panics_stays_hidden(tmp_path: Path) -> None:
    """The user gets the sentence; with --debug, everything."""
    (tmp_path / "sitecustomize.py").write_text(
        "import polars, os\n"
        "def panic(*given, **named):\n"
        "    os.write(2, b'thread main panicked')\n"
        "    raise polars.exceptions.PanicException('lost its nerve')\n"
        "polars.read_csv = polars.scan_csv = panic\n"
    )
    table = tmp_path / "spans.csv"
    table.write_text("rank\n0\n")
    path = os.pathsep.join([str(tmp_path), str(ROOT)])
    done = redirected("", table, PYTHONPATH=path)
    assert done.returncode == 1
    assert done.stderr.startswith(f"trace-export: {table} cannot be read")
    assert "panicked" not in done.stderr
    assert "panicked" in redirected("", table, "--debug", PYTHONPATH=path).stderr


def test_names_that_look_like_markup_are_shown_as_they_are(tmp_path: Path) -> None:
    """Rich would make them bold, a picture, a link, or an error."""
    names = ["[bold]", ":bug:", "[link=file:~]", "[]"]
    for number, name in enumerate(names):
        job = generate_paddle.Job(2, 2, range(2), seed=number)
        generate_paddle.write_logs(tmp_path / "machines" / name, job)
    for command in ("inspect", "report"):
        done = in_process(command, tmp_path / "machines")
        assert done.returncode == 0, done.stderr
        assert "rror" not in done.stderr
        assert command == "report" or [name for name in names if name not in done.stdout] == []


@pytest.mark.parametrize("columns", ["0", "1"])
def test_a_terminal_without_width_shows_the_report(columns: str, logs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    done = in_process("report", logs)
    assert done.returncode == 0
    assert "bubble" in done.stdout


def test_the_server_for_agents_needs_an_input(logs: Path) -> None:
    pytest.importorskip("mcp")
    done = redirected("<&-", "mcp", logs)
    assert done.returncode == 1
    assert done.stderr.startswith("trace-export: standard input is closed, and the agent asks there")


def test_a_last_sentence_folds_on_a_terminal_and_nowhere_else(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    path = "/a/path/that-is/longer-than/one-line-of-this/narrow-terminal/of-50-columns"
    sentence = f"trace-export: {path} is not what it should be; {'give another one ' * 6}"
    monkeypatch.setenv("COLUMNS", "50")
    for stream, lines in ((Terminal(), 5), (io.StringIO(), 1)):
        monkeypatch.setattr(sys, "stderr", stream)
        streams.say(sentence)
        said = stream.getvalue().splitlines()
        assert len(said) == lines
        assert path in stream.getvalue()
        assert " ".join(" ".join(said).split()) == sentence.strip()
