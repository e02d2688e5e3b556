"""A file is whole or absent."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT
from trace_export.errors import OutputError
from trace_export.writers import atomic as module
from trace_export.writers.atomic import whole


@pytest.fixture(params=["unnamed", "named"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    """With files that have no name, and as where the system has none."""
    if request.param == "named":
        monkeypatch.delattr(os, "O_TMPFILE", raising=False)
    elif module._unnamed(tmp_path) is None:
        pytest.skip("the system has no files without a name here")
    return str(request.param)


def test_the_file_appears_only_when_it_is_whole(way: str, tmp_path: Path) -> None:
    target = tmp_path / "a.json"
    target.write_text("old")
    with whole(target) as temporary:
        temporary.write_text("new")
        assert target.read_text() == "old"
        assert len(list(tmp_path.iterdir())) == (1 if way == "unnamed" else 2)
    assert target.read_text() == "new"
    assert list(tmp_path.iterdir()) == [target]


@pytest.mark.usefixtures("way")
def test_the_file_has_the_rights_of_any_new_file(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        with whole(tmp_path / "a.json") as temporary:
            temporary.write_text("new")
    finally:
        os.umask(before)
    assert (tmp_path / "a.json").stat().st_mode & 0o777 == 0o640


@pytest.mark.usefixtures("way")
def test_a_link_in_the_place_is_replaced_and_its_target_stays(tmp_path: Path) -> None:
    (tmp_path / "kept").write_text("old")
    (tmp_path / "a.json").symlink_to("kept")
    with whole(tmp_path / "a.json") as temporary:
        temporary.write_text("new")
    assert not (tmp_path / "a.json").is_symlink()
    assert [(tmp_path / name).read_text() for name in ("a.json", "kept")] == ["new", "old"]


def test_a_killed_process_leaves_nothing(tmp_path: Path) -> None:
    if module._unnamed(tmp_path) is None:
        pytest.skip("the system has no files without a name here")
    code = f"""
import os, pathlib, signal
from trace_export.writers.atomic import whole
with whole(pathlib.Path({str(tmp_path / "a.json")!r})) as temporary:
    temporary.write_text("half")
    os.kill(os.getpid(), signal.SIGKILL)
"""
    ended = subprocess.run([sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": str(ROOT)}, check=False)
    assert ended.returncode == -signal.SIGKILL
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("error", [ValueError("no"), KeyboardInterrupt()])
def test_nothing_is_left_when_the_writer_stops(tmp_path: Path, error: BaseException) -> None:
    with pytest.raises(type(error)), whole(tmp_path / "a.json") as temporary:
        temporary.write_text("half")
        raise error
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("way")
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
