"""A file is whole or absent."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from trace_export.errors import OutputError
from trace_export.writers.whole import whole


def test_the_file_appears_only_when_it_is_whole(tmp_path: Path) -> None:
    target = tmp_path / "a.json"
    target.write_text("old")
    with whole(target) as temporary:
        temporary.write_text("new")
        assert target.read_text() == "old"
        assert temporary.parent == tmp_path
    assert target.read_text() == "new"
    assert list(tmp_path.iterdir()) == [target]


@pytest.mark.parametrize("error", [ValueError("no"), KeyboardInterrupt()])
def test_nothing_is_left_when_the_writer_stops(tmp_path: Path, error: BaseException) -> None:
    with pytest.raises(type(error)), whole(tmp_path / "a.json") as temporary:
        temporary.write_text("half")
        raise error
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_is_one_sentence(tmp_path: Path) -> None:
    with (
        pytest.raises(OutputError, match=r"a\.json: cannot be written: No space left") as caught,
        whole(tmp_path / "a.json") as temporary,
    ):
        temporary.write_text("half")
        raise OSError(errno.ENOSPC, "No space left on device")
    assert caught.value.path == tmp_path / "a.json"
    assert list(tmp_path.iterdir()) == []


def test_a_folder_in_the_way(tmp_path: Path) -> None:
    (tmp_path / "taken").mkdir()
    with pytest.raises(OutputError, match="taken: cannot be written: it is a folder"), whole(tmp_path / "taken"):
        pytest.fail("not reached")


def test_missing_folders_are_made_and_a_file_in_their_place_is_said(tmp_path: Path) -> None:
    with whole(tmp_path / "new" / "er" / "a.json") as temporary:
        temporary.write_text("x")
    assert (tmp_path / "new" / "er" / "a.json").read_text() == "x"
    with pytest.raises(OutputError, match="cannot be written"), whole(tmp_path / "new" / "er" / "a.json" / "b"):
        pytest.fail("not reached")
