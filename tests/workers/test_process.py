"""The worker's side: it ends without a word whenever its parent goes."""

import gc
import multiprocessing
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.rows import crossed
from tests.support.wait import HANGS_S
from tests.support.worker_tasks import Task, perform
from trace_export.workers import process

MESSAGES = (sys.path, gc.get_threshold()), perform, Task(Path("a")), Task(Path("b"))


@pytest.mark.parametrize(("sent", "first"), crossed(range(len(MESSAGES) + 1), ["connection", "input"]))
def test_a_worker_whose_parent_goes_ends_in_silence(sent: int, first: str) -> None:
    """Whatever the parent had sent, and whichever of its ends the worker sees first. The answers are never read."""
    ours, theirs = multiprocessing.Pipe()
    with theirs:
        command = [sys.executable, "-P", process.__file__, str(theirs.fileno())]
        worker = subprocess.Popen(
            command, stdin=subprocess.PIPE, stderr=subprocess.PIPE, stdout=subprocess.PIPE, pass_fds=[theirs.fileno()]
        )
    for message in MESSAGES[:sent]:
        ours.send(message)
    if first == "connection":
        ours.close()
        with worker:
            assert worker.stdout is not None and worker.stderr is not None
            said = worker.stdout.read(), worker.stderr.read()  # its input is still open
    else:
        said = worker.communicate(timeout=HANGS_S)
        ours.close()
    assert (worker.returncode, *said) == (0, b"", b"")


def test_a_worker_takes_the_path_of_its_parent(tmp_path: Path) -> None:
    """And nothing beside its own file, where `dask` would be another module."""
    (tmp_path / "only_there.py").write_text("def here(item): import dask, sys; return dask.__name__, sys.path\n")
    path = [*sys.path, str(tmp_path)]
    code = f"import sys; sys.path[:] = {path!r}; import only_there; from tests.support.worker_tasks import tasks; "
    code += "from trace_export.workers.work import run; from trace_export.workers.sizing import Workers; "
    code += "results = run(only_there.here, tasks('a', 'b'), Workers(2)); print(results == [('dask', sys.path)] * 2)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("True\n", "")
