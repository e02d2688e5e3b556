"""Ctrl-C at any moment is exit code 130 and one sentence; what the user chose to ignore stays ignored."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.support.wait import HANGS_S

INTERRUPTED = "trace-export: interrupted; files already written are complete\n"


def while_importing(module: str, code: str, folder: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    """The command, in whose process `code` runs instead of the import of `module`."""
    (folder / f"{module}.py").write_text(f"import os, signal, sys\n{code}\n")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), str(ROOT)])}
    command = [sys.executable, "-m", "trace_export", *map(str, arguments)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=HANGS_S, check=False)


KILL = "os.kill(os.getpid(), signal.{})"


@pytest.mark.parametrize("module", ["typer", "polars"])
def test_ctrl_c_while_the_program_loads(module: str, samples: Path, tmp_path: Path) -> None:
    done = while_importing(module, KILL.format("SIGINT"), tmp_path, samples / "paddle" / "single")
    assert (done.returncode, done.stdout, done.stderr) == (130, "", INTERRUPTED)


@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP"])
def test_the_end_of_a_job_right_at_the_beginning(name: str, samples: Path) -> None:
    """Before anything is loaded that could be undone; the process has an exit code and does not die of the signal."""
    code = f"""
import os, signal, sys
from trace_export.cli import main, signals
def at_once(before=signals.end_at_once):
    before()
    os.kill(os.getpid(), signal.{name})
signals.end_at_once = at_once
main(sys.argv[1:])
"""
    command = [sys.executable, "-c", code, str(samples / "paddle" / "single")]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=HANGS_S, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (128 + getattr(signal, name), "", "")


def test_a_second_ctrl_c_does_not_wait_for_the_first(samples: Path, tmp_path: Path) -> None:
    code = f"try: {KILL.format('SIGINT')}\nfinally: {KILL.format('SIGINT')}\nraise SystemExit('went on')"
    done = while_importing("polars", code, tmp_path, samples / "paddle" / "single")
    assert (done.returncode, done.stderr) == (130, INTERRUPTED)


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP"])
def test_a_signal_while_python_frees_its_modules_changes_no_exit_code(name: str, samples: Path, tmp_path: Path) -> None:
    """What `sys` holds goes late, after Python has taken its handlers off."""
    late = f"def __del__(self, kill=os.kill, own=os.getpid(), number=signal.{name}): kill(own, number)"
    code = f"sys.late = type('Late', (), {{}})()\n{late}\ntype(sys.late).__del__ = __del__\n{KILL.format('SIGINT')}"
    done = while_importing("polars", code, tmp_path, samples / "paddle" / "single")
    assert (done.returncode, done.stderr) == (130, INTERRUPTED)


def test_ctrl_c_in_code_that_is_made_from_text(samples: Path, tmp_path: Path) -> None:
    """As in a dataclass that is being made: Python notes that, and would end by the signal after all."""
    done = while_importing("polars", f"exec({KILL.format('SIGINT')!r})", tmp_path, samples / "paddle" / "single")
    assert (done.returncode, done.stderr) == (130, INTERRUPTED)


def test_ctrl_c_that_becomes_another_error_is_still_ctrl_c(samples: Path, tmp_path: Path) -> None:
    """Python up to 3.11 turns what is raised while a class is made into a RuntimeError."""
    code = f"""
class Name:
    def __set_name__(self, owner, name): {KILL.format("SIGINT")}
class Owner:
    name = Name()
"""
    done = while_importing("polars", code, tmp_path, samples / "paddle" / "single")
    assert (done.returncode, done.stderr) == (130, INTERRUPTED)


def test_ctrl_c_between_the_opening_of_a_file_and_the_statement_that_closes_it(samples: Path, tmp_path: Path) -> None:
    """With PYTHONWARNINGS=error Python would print "Exception ignored in" and the file."""
    code = (
        f"import warnings\nwarnings.simplefilter('error')\ndef read():\n    file = open(__file__)\n    {KILL}\nread()"
    )
    done = while_importing("polars", code.format("SIGINT"), tmp_path, samples / "paddle" / "single")
    assert (done.returncode, done.stderr) == (130, INTERRUPTED)


@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP"])
def test_the_end_of_a_job_or_a_terminal_unwinds_the_program(name: str, samples: Path, tmp_path: Path) -> None:
    code = f"try: {KILL.format(name)}\nfinally: print('cleaned up', file=sys.stderr)"
    done = while_importing("polars", code, tmp_path, samples / "paddle" / "single")
    assert (done.returncode, done.stderr) == (128 + getattr(signal, name), "cleaned up\n")


@pytest.mark.parametrize("name", ["SIGINT", "SIGHUP"])
def test_what_was_ignored_stays_ignored(name: str, samples: Path, tmp_path: Path) -> None:
    """As under nohup, or behind & in a script."""
    code = f"{KILL.format(name)}\nraise SystemExit('went on')"
    before = signal.signal(getattr(signal, name), signal.SIG_IGN)
    try:
        done = while_importing("polars", code, tmp_path, samples / "paddle" / "single")
    finally:
        signal.signal(getattr(signal, name), before)
    assert (done.returncode, done.stderr) == (1, "went on\n")


def test_a_command_that_is_run_ignores_no_signal() -> None:
    """Python ignores SIGPIPE and SIGXFSZ; the training command must not inherit that."""
    done = subprocess.run(
        [sys.executable, "-m", "trace_export", "run", "--", "grep", "SigIgn", "/proc/self/status"],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    expected = (1 << 31) - 1  # not 32 and 33, which the C library ignores where Python 3.13 starts a process
    assert int(done.stdout.split()[1], 16) & expected == 0


IN_A_FINALIZER = """
import os, signal, sys, time
from trace_export.cli import signals

class Held:
    def __del__(self):
        os.kill(os.getpid(), signal.Signals[sys.argv[1]])
        sum(range(1000))

signals.end_in_order()
held = Held()
try:
    del held
    for _ in range(10_000):
        time.sleep(0.001)
except (KeyboardInterrupt, SystemExit) as error:
    print(type(error).__name__)
"""


@pytest.mark.parametrize(("name", "raised"), [("SIGINT", "KeyboardInterrupt"), ("SIGTERM", "SystemExit")])
def test_a_signal_within_a_finalizer_unwinds_after_it(name: str, raised: str) -> None:
    """Python drops what is raised there."""
    done = subprocess.run([sys.executable, "-c", IN_A_FINALIZER, name], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == (f"{raised}\n", "")
