"""What the tests share: the command run as a user runs it, samples, golden files and generated profiles."""

import gc
import os
import signal
import subprocess
import sys
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
from hypothesis import HealthCheck, settings

from samples.generators.ascend import Truth, record
from tests.support.ascend_jobs import JOBS
from tests.support.command import command
from tests.support.wait import HANGS_S

pytest_plugins = ["tests.support.browser"]

if "PYTEST_XDIST_WORKER" in os.environ:  # the workers already use all cores; before anything imports Polars
    os.environ.setdefault("POLARS_MAX_THREADS", "1")


def _stay(number: int, frame: object) -> None:
    """For a signal that is to end neither the tests, which `nohup` started, nor be ignored by programs they start."""


for number, usual in (
    (signal.SIGINT, signal.default_int_handler),
    (signal.SIGQUIT, signal.SIG_DFL),
    (signal.SIGHUP, _stay),
):
    if signal.getsignal(number) is signal.SIG_IGN:  # behind & or nohup; programs inherit that, but no handler
        signal.signal(number, usual)

UNTIMED = (HealthCheck.too_slow,)  # a busy machine fails no test
settings.register_profile("fresh examples", deadline=None, suppress_health_check=UNTIMED)
settings.register_profile(
    "same examples", settings.get_profile("fresh examples"), derandomize=True, database=None, max_examples=40
)

ROOT = Path(__file__).resolve().parent.parent
Cli = Callable[..., subprocess.CompletedProcess[str]]
AscendRun = Callable[[str], tuple[Path, Truth]]

RECORDED = os.environ.get("TRACE_EXPORT_RECORDED")
"""A folder of profiles that other tools recorded, for the extra suite in `tests/recorded`."""
collect_ignore = [] if RECORDED else ["recorded"]

WHOLE = ["agents", "api", "cli", "end_to_end", "faults", "live", "pairs", "recorded", "scale", "verdicts", "workers"]
"""Folders of tests that run whole commands."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--slow", action="store_true", help="run the long tests too")
    parser.addoption("--fast", action="store_true", help="one row of each test, and none of whole commands")
    parser.addoption("--mutants", type=int, default=30, help="broken inputs for each reader")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """With `--fast`, folders of whole commands are not even loaded."""
    whole = collection_path.parent == ROOT / "tests" and collection_path.name in WHOLE
    return True if whole and config.getoption("--fast") else None


def pytest_configure(config: pytest.Config) -> None:
    settings.load_profile("fresh examples" if config.getoption("--slow") else "same examples")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: "running_browser" not in getattr(item, "fixturenames", ()))  # one process starts it
    if config.getoption("--slow"):
        return
    kept = [item for item in items if "slow" not in item.keywords]
    if config.getoption("--fast"):
        kept = list({item.nodeid.partition("[")[0]: item for item in reversed(kept)}.values())[::-1]
    left_out = set(items).difference(kept)
    config.hook.pytest_deselected(items=[item for item in items if item in left_out])
    items[:] = kept


def pytest_collection_finish() -> None:
    """The thousands of tests stay to the end: they need not be searched for cycles (5 % of the processor time)."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)


@pytest.fixture(scope="session")
def run_cli() -> Cli:
    """Runs `trace-export` with the arguments given; returns what subprocess.run returns.

    It runs in this process, which saves the start of another; in a process of its own with a parameter of
    subprocess.run other than `cwd` (`env`, `timeout`), and for `trace-export run`, which replaces its process.
    """

    def run(*arguments: object, **kwargs: Any) -> subprocess.CompletedProcess[str]:
        if kwargs.keys() <= {"cwd"} and arguments[:1] != ("run",):
            return command(*arguments, **kwargs)
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "error", "NO_COLOR": "1"}
        words = [sys.executable, "-m", "trace_export", *map(str, arguments)]
        defaults = {
            "capture_output": True,
            "text": True,
            "stdin": subprocess.DEVNULL,
            "env": environment,
            "timeout": HANGS_S,
        }
        return subprocess.run(words, check=False, **(defaults | kwargs))  # type: ignore[call-overload, no-any-return]

    return run


@pytest.fixture
def no_process_left() -> Iterator[None]:
    """At its end no process is there that the test started. Others may be, which tests before it share."""
    before = psutil.Process().children()
    yield
    assert [child for child in psutil.Process().children() if child not in before] == []


@pytest.fixture(scope="session")
def golden() -> Path:
    """The orders of schedules and what follows from them, see the README there."""
    return ROOT / "tests" / "golden" / "schedules"


@pytest.fixture(scope="session")
def ascend_run(tmp_path_factory: pytest.TempPathFactory) -> AscendRun:
    """The folder and the truth of a job of `ascend_jobs.JOBS`, recorded once; nobody may change the folder."""
    made: dict[str, tuple[Path, Truth]] = {}

    def run(name: str) -> tuple[Path, Truth]:
        if name not in made:
            folder = tmp_path_factory.mktemp("ascend")
            made[name] = folder, record(folder, JOBS[name])
        return made[name]

    return run


@contextmanager
def unchanged(folder: Path) -> Iterator[Path]:
    """The folder, in which no file may be another one or of another time or content when all tests have ended."""

    def state() -> dict[Path, tuple[int, int, int]]:
        files = {p: p.stat() for p in folder.rglob("*") if p.is_file() and p.suffix not in (".py", ".pyc")}
        return {path: (s.st_ino, s.st_mtime_ns, zlib.crc32(path.read_bytes())) for path, s in files.items()}

    before = state()
    yield folder
    assert state() == before, f"a test changed something in {folder}"


@pytest.fixture(scope="session")
def samples() -> Iterator[Path]:
    """The samples of the project."""
    with unchanged(ROOT / "samples") as folder:
        yield folder
