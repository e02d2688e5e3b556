"""The walk over the folders that the detectors look at."""

from pathlib import Path

import pytest

from trace_export.sources import folders
from trace_export.sources.folders import host_of, walk


def visited(root: Path, *, follow_links: bool = False) -> list[str]:
    return [folder.path.relative_to(root).as_posix() for folder in walk(root, follow_links=follow_links)[0]]


def test_folders_and_files_come_in_natural_order(tmp_path: Path) -> None:
    for name in ("machine10", "machine2"):
        (tmp_path / name).mkdir()
        for log in ("log.10", "log.9"):
            (tmp_path / name / log).touch()
    assert visited(tmp_path) == [".", "machine2", "machine10"]
    assert [folder.files for folder in walk(tmp_path)[0]] == [(), ("log.9", "log.10"), ("log.9", "log.10")]
    assert [host_of(tmp_path, folder.path) for folder in walk(tmp_path)[0]] == ["machine0", "machine2", "machine10"]


def test_a_cycle_of_links_is_visited_once(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "back").symlink_to(tmp_path)
    (tmp_path / "itself").symlink_to(tmp_path / "itself")
    assert visited(tmp_path, follow_links=True) == [".", "a"]


def test_no_folder_below_the_depth_of_any_layout_is_visited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folders, "DEPTH", 2)
    (tmp_path / "a" / "b" / "c").mkdir(parents=True)
    assert visited(tmp_path) == [".", "a", "a/b"]
