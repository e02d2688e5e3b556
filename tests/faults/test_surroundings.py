"""What lies around the program: odd files, odd names, full and read-only disks, other programs, the end of the process.

Never: a traceback, a hang, a changed input, a half-written output, anything written outside `--out`.
"""

import hashlib
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import orjson
import psutil
import pytest

from samples.generators import paddle as generate_paddle
from tests.conftest import ROOT, Cli
from tests.faults.inputs import INPUTS
from tests.support.command import command
from tests.support.limits import limited
from tests.support.wait import HANGS_S, wait_for_end, wait_until
from trace_export.errors import SourceError
from trace_export.sources.read import read
from trace_export.sources.source import ReadOptions

READS = 15
"""How often an input is read while its file changes; one takes up to 0.04 s."""


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    """The logs of a small run."""
    folder = tmp_path / "logs"
    generate_paddle.write(folder, stages=2, microbatches=2, steps=2)
    (folder / "truth.csv").unlink()
    return folder


def state(folder: Path) -> dict[str, tuple[float, str]]:
    """Time of change and content of every file, to see whether anything was touched."""
    files = [p for p in sorted(folder.rglob("*")) if p.is_file() and not p.is_symlink()]
    return {str(p): (p.stat().st_mtime, hashlib.sha256(p.read_bytes()).hexdigest()) for p in files}


def test_nothing_is_written_but_the_output(logs: Path, tmp_path: Path, run_cli: Cli) -> None:
    before = state(logs)
    for name in ("here", "tmp"):
        (tmp_path / name).mkdir()
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "TMPDIR": str(tmp_path / "tmp"),
        "HOME": str(tmp_path / "here"),
    }
    options = ("--detail", "kernels", "--jobs", 2, "--out", tmp_path / "out")
    result = run_cli("--log_dir", logs, *options, cwd=tmp_path / "here", env=environment)
    assert result.returncode == 0, result.stderr
    assert state(logs) == before
    assert not [*(tmp_path / "here").iterdir(), *(tmp_path / "tmp").iterdir()]
    assert {p.name for p in (tmp_path / "out").iterdir()} == {"pipeline_profile.pftrace", "pipeline_profile.json"}


def test_what_is_no_file_is_passed_over(logs: Path, tmp_path: Path, run_cli: Cli) -> None:
    """Pipes, folders, links in a circle and into nothing, called like logs; a pipe that is opened would hang."""
    os.mkfifo(logs / "workerlog.2")
    (logs / "workerlog.3").mkdir()
    (logs / "workerlog.4").symlink_to(logs / "workerlog.4")
    (logs / "workerlog.5").symlink_to("nowhere")
    (logs / "workerlog.6").symlink_to("/dev/zero")
    (logs / "circle").symlink_to(logs)
    (logs / "circles").mkdir()
    (logs / "circles" / "up").symlink_to(tmp_path)
    result = run_cli("--log_dir", logs, "--out", tmp_path / "out", "--json")
    assert result.returncode == 0, result.stderr
    assert orjson.loads(result.stdout)["ranks"] == 2


def test_ten_million_ranks(tmp_path: Path) -> None:
    """A rank is a name, not a number of things to make room for."""
    folder = tmp_path / "logs"
    generate_paddle.write(folder, stages=2, microbatches=2, steps=1)
    (folder / "workerlog.1").rename(folder / "workerlog.9999999")
    (folder / "envlog.0").write_text("PADDLE_GLOBAL_RANK=9999998\nPADDLE_LOCAL_RANK=0\n")
    bounds = {resource.RLIMIT_DATA: 640 << 20, resource.RLIMIT_CPU: 30}
    result = limited(bounds, folder, "--out", tmp_path / "out", "--json", "--tracks", "rank")
    assert result.returncode == 0, result.stderr
    assert orjson.loads(result.stdout)["ranks"] == 2


@pytest.fixture
def without_rights() -> list[str]:
    """The beginning of a command whose process may read no file that its permissions forbid, be it of root."""
    if os.geteuid() != 0:
        return []
    rights = "-dac_override,-dac_read_search"
    prefix = ["setpriv", "--bounding-set", rights, "--inh-caps", rights]
    if shutil.which("setpriv") is None or subprocess.run([*prefix, "true"], check=False).returncode:
        pytest.skip("root cannot give up its rights here")
    return prefix


def test_files_and_folders_without_permission(without_rights: list[str], logs: Path, tmp_path: Path) -> None:
    def run(*arguments: object) -> subprocess.CompletedProcess[str]:
        command = [*without_rights, sys.executable, "-m", "trace_export", "--log_dir", str(logs), *map(str, arguments)]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=HANGS_S, check=False)

    (logs / "workerlog.1").chmod(0)
    logs.chmod(0o555)
    result = run("--out", tmp_path / "out")
    assert result.returncode == 3, result.stderr
    assert f"{logs}/workerlog.1 cannot be read (Permission denied)" in result.stderr
    result = run()
    assert result.returncode == 1
    assert "with --out" in result.stderr
    assert "Traceback" not in result.stderr
    assert sorted(p.name for p in logs.iterdir()) == ["workerlog.0", "workerlog.1"]
    logs.chmod(0o755)
    machine = logs / "machine1"
    machine.mkdir()
    machine.chmod(0)
    result = run("--out", tmp_path / "out")
    assert "a folder that cannot be read" in result.stderr
    assert f"({machine}) [folder-unreadable]" in result.stderr
    (logs / "workerlog.0").rename(tmp_path / "workerlog.0")
    (logs / "workerlog.1").unlink()
    result = run("--out", tmp_path / "out")
    assert result.returncode == 1
    assert f"{machine} is a folder that cannot be read" in result.stderr
    logs.chmod(0)
    result = run()
    logs.chmod(0o755)
    assert result.returncode in (1, 2)
    assert "Permission denied" in result.stderr or "is not readable" in result.stderr
    assert "Traceback" not in result.stderr


@contextmanager
def small_disk(place: Path, size: str) -> Iterator[Path]:
    """A file system of that size; skips the test where none can be mounted."""
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(place)]
    if os.geteuid() != 0 or subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("no file system can be mounted here")
    try:
        yield place
    finally:
        subprocess.run(["umount", str(place)], check=True)


PLACES: dict[str, Callable[[Path, Path], list[object]]] = {
    "log_dir": lambda logs, place: ["export", place],
    "table": lambda logs, place: ["export", place.with_suffix(".csv")],
    "out": lambda logs, place: ["export", logs, "--out", place],
    "out file": lambda logs, place: ["export", logs, "--format", "chrome", "--out", place.with_suffix(".json")],
    "page": lambda logs, place: ["report", logs, "--format", "html", "--out", place.with_suffix(".html")],
    "align": lambda logs, place: ["export", logs, "--align", place],
    "marker": lambda logs, place: ["export", logs, "--marker", place.with_suffix(".toml")],
    "other run": lambda logs, place: ["compare", logs, place],
    "trace": lambda logs, place: ["open", place.with_suffix(".json"), "--no-browser"],
}


@pytest.mark.parametrize("what", PLACES)
def test_a_path_that_is_too_long_for_any_file(what: str, logs: Path, tmp_path: Path) -> None:
    ended = command(*PLACES[what](logs, tmp_path / ("x" * 300)))
    assert ended.returncode in (1, 2), ended
    assert "xxx" in ended.stderr


@pytest.mark.parametrize("what", PLACES)
def test_a_link_to_itself(what: str, logs: Path, tmp_path: Path) -> None:
    for name in ("x", "x.csv", "x.json", "x.html", "x.toml"):
        (tmp_path / name).symlink_to(name)
    ended = command(*PLACES[what](logs, tmp_path / "x"))
    assert ended.returncode in (1, 2), ended
    assert str(tmp_path / "x") in ended.stderr


EACH_PLACE = """
import json, sys
from pathlib import Path
from tests.faults.test_surroundings import PLACES
from tests.support.command import command
logs, place = map(Path, sys.argv[1:])
ended = {what: command(*arguments(logs, place)) for what, arguments in PLACES.items()}
print(json.dumps({what: (done.returncode, done.stderr) for what, done in ended.items()}))
"""


def test_a_path_in_a_folder_without_permission(without_rights: list[str], logs: Path, tmp_path: Path) -> None:
    place = tmp_path / "closed" / "x"
    place.parent.mkdir(mode=0)
    result = subprocess.run(
        [*without_rights, sys.executable, "-c", EACH_PLACE, logs, place],
        env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=HANGS_S, check=False,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    for what, (code, said) in orjson.loads(result.stdout).items():
        assert code in (1, 2), what
        assert str(place) in said, what


def test_a_full_disk_for_temporary_files(tmp_path: Path, run_cli: Cli) -> None:
    folder = tmp_path / "logs"
    folder.mkdir()
    INPUTS["nsys"].make(folder)
    with small_disk(tmp_path / "disk", "4k") as disk:
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(disk)}
        result = run_cli("--log_dir", folder, "--detail", "kernels", "--out", tmp_path / "out", env=environment)
        assert "Traceback" not in result.stderr
        assert "internal error" not in result.stderr
        assert result.returncode in (0, 1, 3)
        assert not list(disk.iterdir())


def test_a_file_that_vanishes_grows_and_shrinks(tmp_path: Path) -> None:
    """In a process of its own: a file that is mapped into memory and then cut short would kill it."""
    result = subprocess.run(
        [sys.executable, "-W", "error", "-c", DISTURBED, tmp_path],
        env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=HANGS_S, check=False,
    )  # fmt: skip
    kinds = result.stdout.split()
    assert result.returncode == 0, f"{kinds[-1:]}: exit code {result.returncode}: {result.stderr}"
    assert kinds == list(INPUTS)


DISTURBED = """
import sys
from pathlib import Path
from tests.faults.test_surroundings import INPUTS, disturbed
for kind in INPUTS:
    print(kind, flush=True)
    disturbed(kind, Path(sys.argv[1]) / kind)
"""


def disturbed(kind: str, place: Path) -> None:
    """Reads an input again and again, while another thread cuts its file, restores it and takes it away."""
    place.mkdir()
    source = INPUTS[kind].source(place)
    path = next(place.rglob(INPUTS[kind].files[0]))
    content = path.read_bytes()
    ended = threading.Event()

    def disturb() -> None:
        chance = random.Random(1)
        while not ended.is_set():
            with suppress(OSError):
                os.truncate(path, chance.randrange(len(content)))
            ended.wait(0.002)
            with path.open("ab") as file:
                file.write(content[: chance.randrange(len(content))])
            ended.wait(0.002)
            path.unlink()
            ended.wait(0.002)
            path.write_bytes(content)
            ended.wait(0.01)

    thread = threading.Thread(target=disturb)
    thread.start()
    try:
        for _ in range(READS):
            with suppress(SourceError):
                read(source, ReadOptions())
    finally:
        ended.set()
        thread.join()


@pytest.mark.parametrize(
    ("how", "code", "words"),
    [
        (signal.SIGTERM, 143, ""),
        (signal.SIGINT, 130, "trace-export: interrupted; files already written are complete\n"),
        (signal.SIGKILL, -9, ""),
    ],
)
def test_a_run_that_is_ended_leaves_nothing(how: signal.Signals, code: int, words: str, tmp_path: Path) -> None:
    """As a batch system, a terminal or a user ends a job: workers stop at once, and their files are removed, but by
    SIGKILL."""
    logs, scratch = tmp_path / "logs", tmp_path / "scratch"
    logs.mkdir()
    scratch.mkdir()
    for n in range(2):
        with (logs / f"workerlog.{n}").open("wb") as file:
            file.truncate(200 << 30)  # hours of zeros to read, no space on the disk
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(scratch)}
    command = [sys.executable, "-m", "trace_export", str(logs), "--out", str(tmp_path / "out"), "--jobs", "2"]
    process = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)
    try:
        wait_until(lambda: reading(process, logs / "workerlog.1"), by=process)
        children = psutil.Process(process.pid).children()
        assert list(scratch.iterdir())
        process.send_signal(how)
        _, said = process.communicate(timeout=HANGS_S)
    finally:
        process.kill()
    assert (process.returncode, said) == (code, words)
    wait_for_end(children)
    assert bool(list(scratch.iterdir())) == (how == signal.SIGKILL)
    assert not (tmp_path / "out").exists()


def reading(process: subprocess.Popen[str], path: Path) -> bool:
    """Whether a child of the process has the file open."""
    with suppress(psutil.NoSuchProcess):
        return any(str(path) == file.path for p in psutil.Process(process.pid).children() for file in p.open_files())
    return False


DRAW = """
import signal, sys
from trace_export.api import export

def pause(what, done, total):
    if what.startswith("writing"):
        print(what, flush=True)
        signal.pause()

export(sys.argv[1], sys.argv[2], detail="kernels", jobs=1, progress=pause)
"""


def test_device_tasks_go_with_the_process_that_draws_them(samples: Path, tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path / "scratch")}
    (tmp_path / "scratch").mkdir()
    command = [sys.executable, "-c", DRAW, str(samples / "nsys"), str(tmp_path / "out")]
    pipe, nothing = subprocess.PIPE, subprocess.DEVNULL
    with subprocess.Popen(command, env=environment, stdout=pipe, stderr=nothing, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("writing")
        assert list((tmp_path / "scratch").rglob("*.arrow"))
        process.send_signal(signal.SIGINT)
    assert not list((tmp_path / "scratch").iterdir())
