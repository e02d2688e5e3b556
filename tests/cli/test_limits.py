"""Limits of memory under which the libraries would abort or hang are refused in a sentence."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.support.wait import HANGS_S
from trace_export.cli import limits

SAMPLES = ("paddle/single", "nsys", "kineto", "ascend", "mindspore")


def limited(kind: int, value: int, *arguments: object, threads: int = 2) -> subprocess.CompletedProcess[str]:
    """The command under a limit; Polars with so many threads, whatever machine this is."""
    command = [sys.executable, "-m", "trace_export", *map(str, arguments)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "POLARS_MAX_THREADS": str(threads)}
    limit: Callable[[], None] = lambda: resource.setrlimit(kind, (value, value))  # noqa: E731
    return subprocess.run(
        command, env=environment, preexec_fn=limit, capture_output=True, text=True, timeout=HANGS_S, check=False
    )


@pytest.mark.parametrize(
    ("kind", "mib", "what"),
    [
        (resource.RLIMIT_AS, 150, "virtual memory is limited to 150 MiB, and with 2 threads 1552 MiB are needed"),
        (resource.RLIMIT_AS, 250, "virtual memory is limited to 250 MiB"),
        (resource.RLIMIT_AS, 600, "virtual memory is limited to 600 MiB"),
        (resource.RLIMIT_DATA, 150, "data segment is limited to 150 MiB, and with 2 threads 528 MiB are needed"),
    ],
)
@pytest.mark.parametrize(
    ("command", "sample"),
    [(["export"], "paddle/single"), (["report"], "paddle/single"), (["export", "--detail", "kernels"], "nsys")],
)
def test_too_little_memory_is_refused(
    kind: int, mib: int, what: str, command: list[str], sample: str, samples: Path
) -> None:
    done = limited(kind, mib << 20, *command, samples / sample)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(f"trace-export: the {what}")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(("kind", "base"), [(kind, base) for _, _, kind, base in limits.MEMORY])
@pytest.mark.parametrize("threads", [2, pytest.param(64, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", [SAMPLES[1], *(pytest.param(name, marks=pytest.mark.slow) for name in SAMPLES)])
def test_what_is_asked_for_is_enough(
    kind: int, base: int, threads: int, name: str, samples: Path, tmp_path: Path
) -> None:
    everything = "--format perfetto,chrome,csv,parquet,svg,html --detail kernels --bubbles --model --tracks rank"
    value = base + limits.THREAD_MIB * threads << 20
    done = limited(kind, value, samples / name, "--out", tmp_path, *everything.split(), threads=threads)
    assert done.returncode == 0, done.stderr


def test_commands_without_tables_need_no_memory() -> None:
    for command in (["docs", "nsys"], ["run", "--", "true"]):
        assert limited(resource.RLIMIT_AS, 200 << 20, *command).returncode == 0
