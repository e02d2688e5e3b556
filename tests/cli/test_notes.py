"""What the terminal prints of notes: each level where it belongs, and nothing twice."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import Cli
from trace_export.cli import terminal
from trace_export.model import Note


@pytest.mark.parametrize("sample", ["ascend", "nsys/two_hosts", "kineto/two_hosts"])
def test_a_sound_run_has_nothing_to_note_but_what_it_guessed(run_cli: Cli, samples: Path, sample: str) -> None:
    """Samples that are whole and whose clocks agree once they are aligned."""
    plain, verbose = (run_cli("report", samples / sample, *more) for more in ([], ["--verbose"]))
    assert [line for line in plain.stderr.splitlines() if "[stages-inferred]" not in line] == []
    assert "[clock-violations]" in verbose.stderr
    assert "detail: " in verbose.stderr


def test_warnings_come_first_and_details_on_request(capsys: pytest.CaptureFixture[str]) -> None:
    notes = [Note("c", "detail", "sound"), Note("b", "note", "guessed"), Note("a", "warning", "wrong", count=3)]
    terminal.notes(notes)
    assert capsys.readouterr().err == "warning: 3 × wrong [a]\nnote: guessed [b]\n"
    terminal.notes(notes, verbose=True)
    assert capsys.readouterr().err.endswith("detail: sound [c]\n")


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
