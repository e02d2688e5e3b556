"""Opening files while a signal may arrive."""

from __future__ import annotations

import errno
import os
import sys
import warnings
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from trace_export.files import open_file

FOLLOWED = {function.__code__.co_filename for function in (open_file, os.fdopen)}


class _Interrupted:
    """Runs `open_file` and raises KeyboardInterrupt before one of its instructions, as a signal does."""

    def __init__(self, place: int) -> None:
        self.left = place

    def open(self, path: Path) -> bool:
        """Whether it was interrupted; there are fewer instructions where it was not."""
        before = sys.gettrace()
        sys._getframe().f_trace_opcodes = True  # Python 3.12 looks for it when the function is set
        sys.settrace(self._begin)
        try:
            open_file(path).close()
        except KeyboardInterrupt:
            return True
        finally:
            sys.settrace(before)
        return False

    def _begin(self, frame: FrameType, event: str, argument: Any) -> Any:
        if frame.f_code.co_filename not in FOLLOWED:
            return None
        frame.f_trace_opcodes = True
        return self._step

    def _step(self, frame: FrameType, event: str, argument: Any) -> Any:
        if event == "opcode":
            self.left -= 1
            if self.left < 0:
                self.left = 1 << 30
                raise KeyboardInterrupt
        return self._step


def test_an_interrupt_at_any_instruction_closes_a_descriptor_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Closing it twice fails, and the interrupt would become the error of a file that cannot be read; or it closes a
    file that another thread has opened meanwhile."""
    path = tmp_path / "log"
    path.write_text("x")
    reported: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", reported.append)
    place = 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        while _Interrupted(place).open(path):
            place += 1
    assert place > 20
    assert [one.exc_value for one in reported] == []  # type: ignore[attr-defined]


def test_what_is_no_file_is_not_opened(tmp_path: Path) -> None:
    with pytest.raises(IsADirectoryError) as failed:
        open_file(tmp_path)
    assert failed.value.errno == errno.EISDIR
