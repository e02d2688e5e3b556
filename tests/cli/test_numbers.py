"""Every option that takes a number, with numbers that fit nowhere: files, or one sentence and none."""

from collections.abc import Callable
from pathlib import Path

import pytest

from samples.generators import nsys as generate_nsys
from samples.generators import paddle as generate_paddle
from tests.support.command import command

NUMBERS = ("0", "-1", "999999999", str(2**62 - 1), str(2**63), "9" * 40, "1e400", "nan", "0.5", "")
ALL = ("--format", "perfetto,chrome,csv,svg", "--bubbles")
SIMULATE = ("simulate", "--schedule", "dualpipe", "--microbatches=8", "--stages=4", "--format", "chrome,svg,csv")


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("paddle")
    generate_paddle.write(folder, stages=2, microbatches=2, steps=2)
    return folder


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("nsys")
    generate_nsys.write(folder, stages=2, microbatches=2, steps=1)
    return folder


OPTIONS: dict[str, Callable[[Path, Path, str], list[object]]] = {
    **{
        f"--{name}": lambda logs, hosts, n, name=name: [logs, f"--{name}={n}", "--format", "chrome"]  # type: ignore[misc]
        for name in ("pp", "tp", "dp", "cp", "max-slices", "devices", "ranks", "steps", "stages")
    },
    "--steps to": lambda logs, hosts, n: [logs, f"--steps=0-{n}", "--format", "chrome"],
    "--time": lambda logs, hosts, n: [hosts, f"--time={n}ns-{n}s", "--format", "chrome"],
    "--offset": lambda logs, hosts, n: [
        hosts, f"--offset=node0={n}ns", f"--offset=node1=-{n}ns", "--format", "chrome",
    ],
    "--offset without alignment": lambda logs, hosts, n: [
        hosts, f"--offset=node0={n}ns", f"--offset=node1=-{n}ns", "--align=none", "--detail=kernels", "--jobs=1", *ALL,
    ],
    "--max-clock-error": lambda logs, hosts, n: [hosts, f"--max-clock-error={n}s", "--format", "chrome"],
    "simulate --stages": lambda logs, hosts, n: [*SIMULATE, f"--stages={n}"],
    "simulate --microbatches": lambda logs, hosts, n: [*SIMULATE, f"--microbatches={n}"],
    "simulate --chunks": lambda logs, hosts, n: [*SIMULATE, f"--chunks={n}"],
    "simulate --comm": lambda logs, hosts, n: [*SIMULATE, f"--comm={n}ns"],
    "simulate --overlap": lambda logs, hosts, n: [*SIMULATE, f"--overlap={n}"],
    "simulate --times": lambda logs, hosts, n: [*SIMULATE, f"--times=F={n}ns,B={n}ns"],
}  # fmt: skip


@pytest.mark.parametrize("option", OPTIONS)
def test_a_number_that_fits_nowhere(
    option: str, logs: Path, hosts: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    some = slice(None) if request.config.getoption("--slow") else slice([*OPTIONS].index(option) % 5, None, 5)
    for position, number in enumerate(NUMBERS[some]):
        out = tmp_path / str(position)
        ended = command(*OPTIONS[option](logs, hosts, number), "--out", out, "--quiet")
        assert ended.returncode in (0, 1, 2, 3), number
        assert len(ended.stderr) < 1500, number
        assert ended.returncode in (0, 3) or not out.exists() or not list(out.iterdir()), number
