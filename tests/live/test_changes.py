"""When a watch looks: at once, after changes, and on network disks without waiting for the system to report them."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path

import pytest
from watchfiles._rust_notify import WatchfilesRustInternalError

from tests.support.wait import HANGS_S
from trace_export.live import changes
from trace_export.live.changes import is_on_network, ticks

MOUNTS = """\
/dev/vda / ext4 rw 0 0
server:/home /home nfs4 rw 0 0
/dev/vdb /home/local\\040disk xfs rw 0 0
user@host: /data/far fuse.sshfs rw 0 0
tmpfs /tmp tmpfs rw 0 0
"""


@pytest.mark.parametrize(
    ("folder", "network"),
    [
        ("/", False), ("/var/logs", False), ("/home/me/logs", True), ("/home/local disk/logs", False),
        ("/data/far/logs", True), ("/data/farther", False), ("/tmp/logs", False),
    ],
)  # fmt: skip
def test_the_innermost_mount_says_whether_others_write_there(folder: str, network: bool, tmp_path: Path) -> None:
    table = tmp_path / "mounts"
    table.write_text(MOUNTS)
    assert is_on_network(Path(folder), table) is network


def test_a_system_without_a_table_of_mounts(tmp_path: Path) -> None:
    assert not is_on_network(tmp_path, tmp_path / "none")


@pytest.mark.parametrize("how", ["events", "no events", "network"])
def test_a_change_is_followed_by_a_look_and_a_stop_by_none(
    how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(changes, "LEAST_S", 0.05)
    monkeypatch.setattr(changes, "is_on_network", lambda folder: how == "network")
    if how == "no events":
        monkeypatch.setattr(changes, "_events", lambda folder, stop: None)
    stop = threading.Event()
    found: list[int] = []
    looked = threading.Semaphore(0)

    def watch() -> None:
        for number, _ in enumerate(ticks(tmp_path, stop)):
            found.append(number)
            looked.release()

    thread = threading.Thread(target=watch)
    thread.start()
    for number in range(3):
        assert looked.acquire(timeout=HANGS_S)
        (tmp_path / f"workerlog.{number}").write_text("a line\n")
    stop.set()
    thread.join(timeout=HANGS_S)
    assert not thread.is_alive()
    assert found[:3] == [0, 1, 2]


def test_what_changed_during_the_first_look_is_looked_at_without_a_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The system is asked for changes only after that look. Later ones without a change are left out."""
    reports = iter([set(), set(), set(), {(2, "workerlog.0")}, set()])
    monkeypatch.setattr(changes, "is_on_network", lambda folder: False)
    monkeypatch.setattr(changes, "_events", lambda folder, stop: reports)
    monkeypatch.setattr(changes, "LEAST_S", 0.0)
    monkeypatch.setattr(changes, "MOST_S", HANGS_S)
    looks = ticks(tmp_path, threading.Event())
    left = []
    for _ in range(3):
        next(looks)
        left.append(reports.__length_hint__())
    assert left == [5, 4, 1]


def test_a_folder_whose_name_is_no_utf8_is_looked_at_by_the_clock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = Path(os.fsdecode(bytes(tmp_path) + b"/\xff"))
    folder.mkdir()
    monkeypatch.setattr(changes, "LEAST_S", 0.01)
    looks = ticks(folder, threading.Event())
    assert [next(looks) for _ in range(3)] == [None] * 3


class _Notify:
    """The system's events as watchfiles gets them, which fail: at once, or after a first change."""

    made = 0

    def __init__(self, error: Exception, at_once: bool) -> None:
        self._error, self._at_once, self._watched = error, at_once, 0

    def __call__(self, *options: object) -> _Notify:
        type(self).made += 1
        if self._at_once:
            raise self._error
        return self

    def __enter__(self) -> _Notify:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def watch(self, *options: object) -> set[tuple[int, str]]:
        self._watched += 1
        if self._watched > 1:
            raise self._error
        return {(2, "workerlog.0")}


@pytest.mark.parametrize("at_once", [True, False])
@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, "OS file watch limit reached"),
        FileNotFoundError("No path was found."),
        WatchfilesRustInternalError("error in underlying watcher: Input/output error"),
    ],
    ids=["limit", "gone", "internal"],
)
def test_where_the_system_reports_no_changes_the_clock_says_when_to_look(
    error: Exception, at_once: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited: list[float] = []

    class Stop(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            waited.append(timeout or 0.0)
            return False

    monkeypatch.setattr(changes, "is_on_network", lambda folder: False)
    monkeypatch.setattr(_Notify, "made", 0)
    monkeypatch.setattr("watchfiles.main.RustNotify", _Notify(error, at_once))
    looks = ticks(tmp_path, Stop())
    assert [next(looks) for _ in range(5)] == [None] * 5
    assert _Notify.made == 1  # it is not asked again
    assert waited[-2:] == [changes.LEAST_S] * 2


def test_a_folder_that_is_gone_is_looked_at_by_the_clock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "logs"
    folder.mkdir()
    monkeypatch.setattr(changes, "LEAST_S", 0.01)
    looks = ticks(folder, threading.Event())
    next(looks)
    folder.rmdir()
    assert [next(looks) for _ in range(3)] == [None] * 3
