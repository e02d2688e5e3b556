"""What may be written where: never over an input, over a stranger's file only when forced to."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from trace_export.errors import OutputError, UsageError
from trace_export.writers import mark
from trace_export.writers.outputs import Outputs

OURS = mark.CSV + "microbatch\n"
THEIRS = "my notes\n"


def write(outputs: Outputs, path: Path) -> None:
    with outputs.file(path) as temporary:
        temporary.write_text(OURS + "new")


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "logs" / "trace.json"
    path.parent.mkdir()
    path.write_text(THEIRS)
    return path


def test_a_new_file_and_one_of_ours_are_written(tmp_path: Path) -> None:
    outputs = Outputs()
    for _ in range(2):
        outputs.check([tmp_path / "new" / "a.csv"])
        write(outputs, tmp_path / "new" / "a.csv")
    assert outputs.written == [tmp_path / "new" / "a.csv"] * 2


def test_checking_makes_nothing(tmp_path: Path) -> None:
    Outputs().check([tmp_path / "new" / "a.csv"])
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("force", [False, True])
@pytest.mark.parametrize("name", ["same", "dotted", "symbolic", "hard", "chain", "through a folder"])
def test_an_input_is_refused_under_any_name(source: Path, tmp_path: Path, name: str, force: bool) -> None:
    target = tmp_path / "a.json"
    if name == "same":
        target = source
    elif name == "dotted":
        target = source.parent / ".." / "logs" / "trace.json"
    elif name == "symbolic":
        target.symlink_to(source)
    elif name == "hard":
        target.hardlink_to(source)
    elif name == "chain":
        (tmp_path / "first").symlink_to(source)
        target.symlink_to("first")
    else:
        (tmp_path / "linked").symlink_to("logs")
        target = tmp_path / "linked" / "trace.json"
    outputs = Outputs([source], force=force)
    for attempt in (lambda: outputs.check([target]), lambda: write(outputs, target)):
        with pytest.raises(UsageError, match="input") as caught:
            attempt()
        assert str(target) in str(caught.value) and "name another place with `path`" in str(caught.value)
    assert source.read_text() == THEIRS
    assert outputs.written == []


def test_an_input_that_carries_the_mark_is_refused_too(source: Path) -> None:
    source.write_text(OURS)
    with pytest.raises(UsageError, match="is an input, and inputs are never replaced"):
        Outputs([source]).check([source])


def test_an_input_that_is_a_link_is_one_and_its_target_too(source: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(source)
    for target in (tmp_path / "link", source):
        with pytest.raises(UsageError, match="input"):
            Outputs([tmp_path / "link"], force=True).check([target])


@pytest.mark.parametrize("kind", ["file", "link", "link to nothing"])
def test_what_somebody_else_wrote_is_replaced_by_force_only(tmp_path: Path, kind: str) -> None:
    target, kept = tmp_path / "a.csv", tmp_path / "kept"
    if kind == "file":
        target.write_text(THEIRS)
    else:
        target.symlink_to("kept")
        if kind == "link":
            kept.write_text(THEIRS)
    before = os.lstat(target).st_ino
    for attempt in (lambda: Outputs().check([target]), lambda: write(Outputs(), target)):
        with pytest.raises(UsageError, match=r"a\.csv: exists and is not known .*`force`") as caught:
            attempt()
        assert caught.value.exit_code == 2
    assert os.lstat(target).st_ino == before
    forced = Outputs(force=True)
    forced.check([target])
    write(forced, target)
    assert target.read_text() == OURS + "new" and not target.is_symlink()
    assert kind != "link" or kept.read_text() == THEIRS


def test_a_link_to_a_file_of_ours_is_replaced_and_the_file_stays(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").write_text(OURS)
    (tmp_path / "a.csv").symlink_to("elsewhere")
    write(Outputs(), tmp_path / "a.csv")
    assert not (tmp_path / "a.csv").is_symlink()
    assert (tmp_path / "elsewhere").read_text() == OURS


@pytest.mark.parametrize("force", [False, True])
@pytest.mark.parametrize("kind", ["folder", "pipe", "socket", "link to a folder"])
def test_what_is_no_file_is_never_replaced(tmp_path: Path, kind: str, force: bool) -> None:
    target = tmp_path / "a.csv"
    if kind == "folder":
        target.mkdir()
    elif kind == "pipe":
        os.mkfifo(target)
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(target))
    else:
        target.symlink_to(".")
    before = os.lstat(target).st_ino
    for attempt in (lambda o: o.check([target]), lambda o: write(o, target)):
        with pytest.raises(OutputError, match=r"a\.csv: cannot be written: it is (a folder|not a regular file)"):
            attempt(Outputs(force=force))
    assert os.lstat(target).st_ino == before


def test_what_is_planted_meanwhile_is_seen(source: Path, tmp_path: Path) -> None:
    """After the check and while the output is made."""
    target = tmp_path / "a.csv"
    outputs = Outputs([source], force=True)
    outputs.check([target])
    with pytest.raises(UsageError, match="the same file as the input"), outputs.file(target) as temporary:
        temporary.write_text(OURS)
        target.symlink_to(source)
    assert target.is_symlink() and source.read_text() == THEIRS
    other = tmp_path / "b.csv"
    with pytest.raises(UsageError, match="not known to be an output"), Outputs().file(other) as temporary:
        temporary.write_text(OURS)
        other.write_text(THEIRS)
    assert other.read_text() == THEIRS


def test_two_runs_into_one_folder_both_end(tmp_path: Path) -> None:
    target = tmp_path / "a.csv"
    with Outputs().file(target) as first, Outputs().file(target) as second:
        first.write_text(OURS + "first")
        second.write_text(OURS + "second")
    assert target.read_text() == OURS + "first"
    assert list(tmp_path.iterdir()) == [target]


def test_a_folder_that_cannot_be_written_is_known_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="cannot be written: Not a directory"):
        Outputs().check([tmp_path / "file" / "a.csv"])
    asked: list[Path] = []
    monkeypatch.setattr(os, "access", lambda path, mode: asked.append(path))  # root may write everywhere
    with pytest.raises(
        OutputError, match=r"new/er/a\.csv: cannot be written: Permission denied; name another place with `path`"
    ):
        Outputs().check([tmp_path / "new" / "er" / "a.csv"])
    assert asked == [tmp_path]
