"""What the tests share: the command run as a user runs it, and where recorded profiles lie when they are there."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import settings

if "PYTEST_XDIST_WORKER" in os.environ:  # the workers already use all cores; before anything imports Polars
    os.environ.setdefault("POLARS_MAX_THREADS", "1")

settings.register_profile("untimed", deadline=None)  # a busy machine fails no test
settings.load_profile("untimed")

ROOT = Path(__file__).resolve().parent.parent
Cli = Callable[..., subprocess.CompletedProcess[str]]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--slow", action="store_true", help="run the long tests too")
    parser.addoption("--mutants", type=int, default=200, help="broken inputs for each reader")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not config.getoption("--slow"):
        for item in items:
            if "slow" in item.keywords:
                item.add_marker(pytest.mark.skip(reason="long run, needs --slow"))


@pytest.fixture(scope="session")
def run_cli() -> Cli:
    """Runs `trace-export` with the arguments given, in a process of its own; returns what subprocess.run returns."""

    def run(*arguments: object, timeout: float = 120, **kwargs: object) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "error", "NO_COLOR": "1"}
        command = [sys.executable, "-m", "trace_export", *map(str, arguments)]
        options = {"capture_output": True, "text": True, "stdin": subprocess.DEVNULL, "env": environment, **kwargs}
        return subprocess.run(command, timeout=timeout, check=False, **options)  # type: ignore[call-overload, no-any-return]

    return run


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of recorded profiles with expected values, which is not part of the project."""
    folder = Path(os.environ.get("TRACE_EXPORT_SHARED", ROOT.parent / "shared"))
    if not (folder / "data").is_dir():
        pytest.skip(f"recorded profiles are not here ({folder})")
    return folder


@pytest.fixture(scope="session")
def samples() -> Path:
    """The samples of the project."""
    return ROOT / "samples"
