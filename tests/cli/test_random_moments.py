"""Signals at moments drawn over a whole run: the exit code, whole files or none, no traceback, nothing left."""

import os
import random
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path

import psutil
import pytest

from tests.cli.test_signals import INTERRUPTED
from tests.conftest import ROOT
from tests.support.wait import HANGS_S, wait_for_end

PROGRAM = """
import os, sys
from trace_export.cli import main, signals
descriptor = sys.argv.pop(1)
at_once = signals.end_at_once
def begun():
    signals.end_at_once = at_once
    at_once()
    os.write(int(descriptor), b'begun ')
signals.end_at_once = begun
ignore = signals.ignore
def over():
    os.write(int(descriptor), b'over')
    ignore()
signals.ignore = over
main(sys.argv[1:])
"""
"""The command, which says when its handlers stand, and when it gives them up because nothing is left to end."""

COMMANDS = (
    "export {samples}/ascend --format perfetto,chrome,csv,svg,html --detail kernels --out {out}",
    "export {samples}/paddle/two_machines --jobs 2 --format perfetto,parquet --out {out}",
    "report {samples}/paddle/single --format html --out {out}/why.html",
    "overview {samples}/paddle/two_machines --format html,parquet --out {out}",
)
MOMENTS = [1, pytest.param(100, marks=pytest.mark.slow)]


class _Started:
    """A command as a process, in whose `temporary` folder its temporary files go."""

    def __init__(self, words: list[str], temporary: Path) -> None:
        self.read, write = os.pipe()
        command = [sys.executable, "-c", PROGRAM, str(write), *words]
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(temporary)}
        self.process = subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, pass_fds=[write]
        )
        os.close(write)
        assert os.read(self.read, 6) == b"begun "
        self.begun = time.monotonic()

    def signalled(self, number: signal.Signals, after_s: float) -> bool:
        """Whether the signal came before the program gave its handlers up."""
        over, _, _ = select.select([self.read], [], [], after_s)
        if over:
            return False
        self.workers = psutil.Process(self.process.pid).children(recursive=True)
        self.process.send_signal(number)
        return not select.select([self.read], [], [], 0)[0]

    def ended(self) -> tuple[int, str]:
        """The exit code, and what was said on standard error, once no worker is left."""
        _, said = self.process.communicate(timeout=HANGS_S)
        os.close(self.read)
        wait_for_end(getattr(self, "workers", []))
        return self.process.returncode, said


Whole = Callable[[str], tuple[float, dict[str, int]]]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, samples: Path) -> Whole:
    """How long a command takes that nothing disturbs, and its files."""

    @cache
    def run(command: str) -> tuple[float, dict[str, int]]:
        folder = tmp_path_factory.mktemp("whole")
        started = _Started(command.format(samples=samples, out=folder / "out").split(), folder)
        code, said = started.ended()
        assert code == 0, said
        return time.monotonic() - started.begun, _files(folder / "out")

    return run


@pytest.mark.parametrize("count", MOMENTS)
@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP"])
def test_a_signal_at_any_moment(name: str, count: int, whole: Whole, samples: Path, tmp_path: Path) -> None:
    draw = random.Random(f"{name} {count}")
    number = getattr(signal, name)
    hits = 0
    for turn in range(10 * count):
        command = draw.choice(COMMANDS)
        length_s, files = whole(command)
        after_s = draw.uniform(0, length_s)
        temporary, out = tmp_path / f"temporary{turn}", tmp_path / f"out{turn}"
        temporary.mkdir()
        started = _Started(command.format(samples=samples, out=out).split(), temporary)
        hit = started.signalled(number, after_s)
        code, said = started.ended()
        where = f"{command}, {name} after {after_s:.4f} s"
        if hit:
            hits += 1
            assert (code, said) == (128 + number, INTERRUPTED if number == signal.SIGINT else ""), where
        else:
            assert code in (0, 128 + number), where
        assert _files(out).items() <= files.items(), where
        assert list(temporary.iterdir()) == [], where
        if hits == count:
            return
    raise AssertionError(f"only {hits} signals came while a command ran")


def _files(folder: Path) -> dict[str, int]:
    """The files of a folder, hidden ones too, with their sizes."""
    return {str(path.relative_to(folder)): path.stat().st_size for path in folder.rglob("*") if path.is_file()}
