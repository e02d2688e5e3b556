"""Broken inputs all the way to the files: a chart of what is sound, or one sentence, and nothing half-written."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import orjson
import pytest

from samples.generators import ascend as generate_ascend
from samples.generators import nsys as generate_nsys
from samples.generators import paddle as generate_paddle
from tests.faults.mutate import mutant
from trace_export.api import export
from trace_export.errors import TraceExportError

SHARE = 20
"""One whole way for this many of `--mutants`: it costs as much as twenty readings."""
STAGES, MICROBATCHES, STEPS = 2, 2, 2


@dataclass(frozen=True)
class Run:
    """A run of two ranks on two hosts; `broken` matches the files of which one is broken each time."""

    make: Callable[[Path], object]
    broken: str


def _paddle(folder: Path) -> None:
    generate_paddle.write(
        folder, stages=STAGES, microbatches=MICROBATCHES, steps=STEPS, machines=2, clock_errors_us=(0, 900)
    )


def _nsys(folder: Path) -> None:
    generate_nsys.write(folder, stages=STAGES, microbatches=MICROBATCHES, steps=1)


def _ascend(folder: Path, text: bool = False) -> None:
    generate_ascend.write(folder, STAGES, MICROBATCHES, STEPS, hosts=STAGES, text=text)


def _text(folder: Path) -> None:
    _ascend(folder, text=True)


RUNS = {
    "paddle": Run(_paddle, "machine*/workerlog.*"),
    "nsys": Run(_nsys, "*.sqlite"),
    "ascend": Run(_ascend, "*/ASCEND_PROFILER_OUTPUT/*.db"),
    "mindspore": Run(_text, "*/ASCEND_PROFILER_OUTPUT/*"),
}


@pytest.mark.parametrize("kind", RUNS)
def test_a_broken_source_ends_in_files_or_a_sentence(kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    mutants = request.config.getoption("--mutants") // SHARE
    logs, out = tmp_path / "logs", tmp_path / "out"
    RUNS[kind].make(logs)
    files = sorted(logs.glob(RUNS[kind].broken))
    assert len(files) >= STAGES
    draw = partial(export, logs, out, "perfetto,chrome,csv", jobs=1, bubbles=True)
    done = draw()
    assert done.run.ranks.height == STAGES
    drawn = 0
    for seed in range(mutants):
        chance = random.Random(seed)
        file = chance.choice(files)
        content = file.read_bytes()
        file.write_bytes(mutant(content, chance))
        for path in done.files:
            path.unlink(missing_ok=True)
        try:
            done = draw()
            drawn += 1
        except TraceExportError as error:
            assert str(error).isprintable()
        except BaseException as error:
            raise AssertionError(f"{kind}, seed {seed}: {type(error).__name__}") from error
        internal = [str(f) for f in done.run.failures if "internal error" in str(f)]
        assert not internal, f"{kind}, seed {seed}: {internal}"
        assert set(out.iterdir()) <= set(done.files), f"{kind}, seed {seed}: something half-written"
        for path in done.files:
            if path.suffix == ".json" and path.exists():
                orjson.loads(path.read_bytes())
        file.write_bytes(content)
    assert drawn > mutants // 2
