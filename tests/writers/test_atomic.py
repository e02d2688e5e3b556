"""A file is whole or absent, and takes no other's place without asking."""

import errno
import os
import re
from pathlib import Path

import pytest

from trace_export.errors import OutputError
from trace_export.writers.atomic import PREFIX, replacing


def free(path: Path) -> None:
    """The place may be written."""


def test_the_file_appears_only_when_it_is_whole(tmp_path: Path) -> None:
    target = tmp_path / "a.json"
    target.write_text("old")
    with replacing(target, free) as temporary:
        temporary.write_text("new")
        assert target.read_text() == "old"
        assert len(list(tmp_path.iterdir())) == 2
    assert target.read_text() == "new"
    assert list(tmp_path.iterdir()) == [target]


def test_the_file_has_the_rights_of_any_new_file(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        with replacing(tmp_path / "a.json", free) as temporary:
            temporary.write_text("new")
    finally:
        os.umask(before)
    assert (tmp_path / "a.json").stat().st_mode & 0o777 == 0o640


def test_a_link_in_the_place_is_replaced_and_its_target_stays(tmp_path: Path) -> None:
    (tmp_path / "kept").write_text("old")
    (tmp_path / "a.json").symlink_to("kept")
    with replacing(tmp_path / "a.json", free) as temporary:
        temporary.write_text("new")
    assert not (tmp_path / "a.json").is_symlink()
    assert [(tmp_path / name).read_text() for name in ("a.json", "kept")] == ["new", "old"]


@pytest.mark.parametrize("error", [ValueError("no"), KeyboardInterrupt()])
def test_nothing_is_left_when_the_writer_stops(tmp_path: Path, error: BaseException) -> None:
    with pytest.raises(type(error)), replacing(tmp_path / "a.json", free) as temporary:
        temporary.write_text("half")
        raise error
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_is_one_sentence(tmp_path: Path) -> None:
    with (
        pytest.raises(OutputError, match=r"a\.json cannot be written: No space left") as caught,
        replacing(tmp_path / "a.json", free) as temporary,
    ):
        temporary.write_text("half")
        raise OSError(errno.ENOSPC, "No space left on device")
    assert caught.value.path == tmp_path / "a.json"
    assert list(tmp_path.iterdir()) == []


def test_a_folder_in_the_way(tmp_path: Path) -> None:
    (tmp_path / "taken").mkdir()
    with (
        pytest.raises(OutputError, match="taken cannot be written: Is a directory"),
        replacing(tmp_path / "taken", free) as t,
    ):
        t.write_text("new")
    assert [*tmp_path.iterdir(), *(tmp_path / "taken").iterdir()] == [tmp_path / "taken"]


def test_missing_folders_are_made_and_a_file_in_their_place_is_said(tmp_path: Path) -> None:
    with replacing(tmp_path / "new" / "er" / "a.json", free) as temporary:
        temporary.write_text("x")
    assert (tmp_path / "new" / "er" / "a.json").read_text() == "x"
    with (
        pytest.raises(OutputError, match="cannot be written"),
        replacing(tmp_path / "new" / "er" / "a.json" / "b", free),
    ):
        pytest.fail("not reached")


def test_whether_it_may_be_replaced_is_asked_at_the_last_moment(tmp_path: Path) -> None:
    """By then a file of somebody else may lie there."""
    path = tmp_path / "a.json"

    def refuse(path: Path) -> None:
        assert path.read_text() == "planted"
        raise OutputError(path, "is not ours")

    with pytest.raises(OutputError, match="is not ours"), replacing(path, refuse) as temporary:
        temporary.write_text("new")
        path.write_text("planted")
    assert {p.name: p.read_text() for p in tmp_path.iterdir()} == {"a.json": "planted"}


def test_a_file_that_comes_after_the_last_check_stays(tmp_path: Path) -> None:
    target = tmp_path / "a.json"

    def check(path: Path) -> None:
        if path.exists():
            raise OutputError(path, "is not ours")
        path.write_text("theirs")

    with pytest.raises(OutputError, match="is not ours"), replacing(target, check) as temporary:
        temporary.write_text("new")
    assert target.read_text() == "theirs"
    assert list(tmp_path.iterdir()) == [target]


def test_no_name_can_be_foreseen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All names that it makes differ from run to run, and nothing of another process is opened, followed or removed."""
    before = {f".a.json.{os.getpid()}.tmp", f"{PREFIX}0123"}
    for name in before:
        (tmp_path / name).symlink_to("victim")
    (tmp_path / "victim").write_text("theirs")
    names: list[str] = []
    replace = Path.replace

    def noted(self: Path, to: Path) -> Path:
        names.append(str(self.relative_to(tmp_path)))
        return replace(self, to)

    monkeypatch.setattr(Path, "replace", noted)
    (tmp_path / "a.json").write_text("old")
    for _ in range(2):
        with replacing(tmp_path / "a.json", free) as temporary:
            temporary.write_text("new")
    assert len(set(names)) == 2
    assert all(re.match(re.escape(PREFIX) + "[a-z0-9_]{8,16}(/|$)", name) for name in names)
    assert (tmp_path / "victim").read_text() == "theirs"
    assert {p.name for p in tmp_path.iterdir()} == {*before, "victim", "a.json"}


def test_two_runs_into_one_folder_both_end(tmp_path: Path) -> None:
    with replacing(tmp_path / "a.csv", free) as first, replacing(tmp_path / "a.csv", free) as second:
        first.write_text("first")
        second.write_text("second")
    assert {p.name: p.read_text() for p in tmp_path.iterdir()} == {"a.csv": "first"}


def test_a_file_with_a_name_lies_where_no_other_user_comes(tmp_path: Path) -> None:
    with replacing(tmp_path / "a.db", free) as temporary:
        temporary.write_text("new")
        assert temporary.parent.parent == tmp_path
        assert temporary.parent.stat().st_mode & 0o777 == 0o700
        (temporary.parent / "a.db-journal").write_text("what SQLite leaves")
    assert [p.name for p in tmp_path.iterdir()] == ["a.db"]
