"""What the terminal prints of notes: each level where it belongs, and nothing twice."""

from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from tests.conftest import Cli
from trace_export.cli import terminal
from trace_export.model import Note


@pytest.mark.parametrize("sample", ["ascend", "nsys/two_hosts", "kineto/two_hosts"])
def test_a_sound_run_has_nothing_to_note_but_what_it_guessed(run_cli: Cli, samples: Path, sample: str) -> None:
    """Samples that are whole and whose clocks agree once they are aligned."""
    said = run_cli("report", samples / sample, "--verbose").stderr.splitlines()
    details = [line for line in said if line.startswith("detail: ")]
    assert [line for line in said if line not in details and "[stages-inferred]" not in line] == []
    assert any("[clock-violations]" in line for line in details)


def test_warnings_come_first_and_details_on_request(capsys: pytest.CaptureFixture[str]) -> None:
    notes = [Note("c", "detail", "sound"), Note("b", "note", "guessed"), Note("a", "warning", "wrong", count=3)]
    terminal.notes(notes)
    assert capsys.readouterr().err == "warning: 3 × wrong [a]\nnote: guessed [b]\n"
    terminal.notes(notes, verbose=True)
    assert capsys.readouterr().err.endswith("detail: sound [c]\n")


def test_runs_that_were_not_read_are_named_and_not_counted(capsys: pytest.CaptureFixture[str]) -> None:
    terminal.notes([Note("runs-not-read", "note", "run 3 is read, not run 1, run 2", count=2)])
    assert capsys.readouterr().err == "note: run 3 is read, not run 1, run 2 [runs-not-read]\n"


def test_a_terminal_gets_whole_words_and_a_file_whole_lines() -> None:
    path = "/logs/of/a/long/path/with-hyphens/rank0.sqlite"
    text = f"blocks without GPU work, left out: F0, F1, F2, B0, B1 ({path}) [blocks-without-work]"
    narrow, piped = (Console(file=StringIO(), force_terminal=known, width=40) for known in (True, False))
    assert terminal.folded(piped, text, 6) == text
    lines = ("note: " + terminal.folded(narrow, text, len("note: "))).split("\n")
    assert " ".join(line.strip() for line in lines) == f"note: {text}"
    assert all(len(line) <= 40 or path in line for line in lines)
    assert all(line.startswith("  ") for line in lines[1:])


def test_the_same_note_of_every_host_is_printed_once(capsys: pytest.CaptureFixture[str]) -> None:
    hosts = [Note("outside", "note", f"tasks outside ({share}%)", f"/logs/node{n}.sqlite", 48 + n)
             for n, share in enumerate([0.2, 0.3, 1])]  # fmt: skip
    terminal.notes([*hosts, Note("outside", "note", "tasks outside elsewhere", "/logs/node9.sqlite")])
    assert capsys.readouterr().err == (
        "note: 147 × tasks outside (0.2%) (/logs/node0.sqlite and 2 more) [outside]\n"
        "note: tasks outside elsewhere (/logs/node9.sqlite) [outside]\n"
    )
    facts = [Note("missing", "warning", f"no rank of stage {n}") for n in (1, 2)]  # of the run, not of a source
    terminal.notes(facts)
    assert capsys.readouterr().err.count("missing") == 2


def test_what_a_note_names_it_does_not_count(capsys: pytest.CaptureFixture[str]) -> None:
    terminal.notes([Note("stages-missing", "warning", "no rank of stages 4-5 of 8 is in the data", count=2)])
    assert capsys.readouterr().err == "warning: no rank of stages 4-5 of 8 is in the data [stages-missing]\n"


def test_a_pipe_that_is_to_be_a_terminal_gets_colours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert isinstance(terminal.output(), Console)
