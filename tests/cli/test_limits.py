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
from tests.support.rows import crossed
from tests.support.wait import HANGS_S
from trace_export.cli import limits

SAMPLES = ("paddle/single", "nsys", "kineto", "ascend", "mindspore")


def limited(kind: int, value: int, *arguments: object, threads: object = 2) -> subprocess.CompletedProcess[str]:
    """The command under a limit; Polars with this many threads, whatever machine this is."""
    command = [sys.executable, "-m", "trace_export", *map(str, arguments)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "POLARS_MAX_THREADS": str(threads)}
    limit: Callable[[], None] = lambda: resource.setrlimit(kind, (value, value))  # noqa: E731
    return subprocess.run(
        command, env=environment, preexec_fn=limit, capture_output=True, text=True, timeout=HANGS_S, check=False
    )


LITTLE = [
    (resource.RLIMIT_AS, 150, "virtual memory is limited to 150 MiB, and with 2 threads 1552 MiB are needed"),
    (resource.RLIMIT_AS, 250, "virtual memory is limited to 250 MiB"),
    (resource.RLIMIT_AS, 600, "virtual memory is limited to 600 MiB"),
    (resource.RLIMIT_DATA, 150, "data segment is limited to 150 MiB, and with 2 threads 528 MiB are needed"),
]
ASKED = [("export", "paddle/single"), ("report", "paddle/single"), ("export --detail kernels", "nsys")]


@pytest.mark.parametrize(("little", "asked"), crossed(LITTLE, ASKED))
def test_too_little_memory_is_refused(little: tuple[int, int, str], asked: tuple[str, str], samples: Path) -> None:
    (kind, mib, what), (command, sample) = little, asked
    done = limited(kind, mib << 20, *command.split(), samples / sample)
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


@pytest.mark.parametrize("threads", ["0", "-1", "abc", "1.5", "1025", "99999", "9" * 30])
def test_threads_that_cannot_be_started_are_refused(threads: str, samples: Path) -> None:
    """Under a limit on processes: a program that tried to start them all would fail, not slow the machine down."""
    processes = resource.getrlimit(resource.RLIMIT_NPROC)[0]
    most = 4000 if processes == resource.RLIM_INFINITY else min(4000, processes)
    done = limited(resource.RLIMIT_NPROC, most, "report", samples / "paddle" / "single", threads=threads)
    sentence = f"trace-export: POLARS_MAX_THREADS is {threads}, which is not a number of threads from 1 to 1024"
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(sentence)
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("threads", ["", "1"])
def test_threads_that_can_be_started_are_taken(threads: str, samples: Path) -> None:
    done = limited(resource.RLIMIT_NOFILE, 256, "report", samples / "paddle" / "single", threads=threads)
    assert done.returncode == 0, done.stderr


def test_commands_without_tables_need_no_memory() -> None:
    for command in (["docs", "nsys"], ["run", "--", "true"]):
        assert limited(resource.RLIMIT_AS, 200 << 20, *command).returncode == 0
