"""Hostile sizes: processor time and memory in proportion to the file, and figures or one sentence.

The system ends a run that goes beyond its bounds, which are no wider than trace_export/docs/scale.md states.
"""

import json
import resource
from pathlib import Path

import pytest

from tests.faults.sizes import SIZES
from tests.support.limits import limited

MEMORY = 640 << 20
"""What every run may have (RLIMIT_DATA counts what is reserved: the stacks of threads, the pools of allocators, without
which the command does not start)."""
FILE_FACTOR = 20
"""And this many times the size of its files."""
SECONDS, SECONDS_PER_MB = 10, 3
"""Of processors: a third of what is stated, so that small inputs show what takes time in proportion to their square."""


def size_of(*folders: Path) -> int:
    """Of all files below them."""
    return sum(path.stat().st_size for folder in folders for path in folder.rglob("*") if path.is_file())


def bounds(memory: float, seconds: float) -> dict[int, int]:
    """Of private memory and processor time."""
    return {resource.RLIMIT_DATA: round(memory), resource.RLIMIT_CPU: round(seconds)}


def arguments(folder: Path) -> list[object]:
    """Of the command that draws what lies in `folder`."""
    source = list(folder.glob("spans.*")) or [folder, "--detail", "kernels"]
    out = folder.with_name("out")
    return ["export", *source, "--out", out, "--format", "perfetto,chrome", "--jobs", 1, "--align", "none"]


def check(code: int, said: str) -> None:
    """The command ended by itself, and in few words."""
    assert code in (0, 1, 3), f"ended by signal {-code}: {said[-500:]}"
    for words in ("internal error", "enough memory", "panicked", "data segment"):
        assert words not in said, said[-500:]
    assert len(said) < 10_000


def allowed(folder: Path) -> tuple[int, float]:
    """The memory and the seconds of processors for what lies in `folder`."""
    size = size_of(folder)
    return MEMORY + FILE_FACTOR * size, SECONDS + SECONDS_PER_MB * size / 1e6


ALONE = ("mindspore: events of eight bytes",)
"""It takes most of what its file may."""
LARGE = ("nsys", "ascend", "kineto", "primus", "megascan")
"""Formats with sizes that take much time or memory; the others share a process."""
GROUPS: dict[str, list[str]] = {}
for _what in SIZES:
    _kind = _what.partition(":")[0]
    GROUPS.setdefault(_what if _what in ALONE else _kind if _kind in LARGE else "others", []).append(_what)
EACH = """
import json, resource, sys
from tests.support.command import command
for memory, seconds, words in map(json.loads, sys.argv[1:]):
    used = sum(resource.getrusage(resource.RUSAGE_SELF)[:2])
    for kind, bound in ((resource.RLIMIT_DATA, memory), (resource.RLIMIT_CPU, round(used + seconds))):
        resource.setrlimit(kind, (bound, resource.getrlimit(kind)[1]))
    done = command(*words)
    print(json.dumps((done.returncode, done.stderr)), flush=True)
"""
"""Draws one file after the other, each in the bounds of its own size; loading the program takes longer than most."""


@pytest.mark.parametrize("group", GROUPS)
def test_a_hostile_size_takes_no_more_than_its_file_may(
    group: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """A quarter of the sizes of each format; all with --slow."""
    chosen = GROUPS[group][:: 1 if request.config.getoption("--slow") else 4]
    made = {what: tmp_path / str(n) / "logs" for n, what in enumerate(chosen)}
    for what, folder in made.items():
        folder.mkdir(parents=True)
        SIZES[what].make(folder)
    folders = dict(sorted(made.items(), key=lambda item: size_of(item[1])))  # what one frees the next may still have
    jobs = [(*allowed(folder), list(map(str, arguments(folder)))) for folder in folders.values()]
    ended = limited({}, *map(json.dumps, jobs), code=EACH)
    lines = ended.stdout.splitlines()
    failed = [*folders, "at the end"][len(lines)]
    assert ended.returncode == 0, f"{failed}: {ended.returncode}, {ended.stderr[-500:]}"
    for (what, folder), (memory, _, _), line in zip(folders.items(), jobs, lines, strict=True):
        code, said = json.loads(line)
        check(code, said)
        assert SIZES[what].says in said if SIZES[what].says else code == 0, (what, said)
        assert size_of(folder.with_name("out")) < memory, what


def test_records_of_a_dynamic_graph_take_microseconds_each(tmp_path: Path) -> None:
    """With 0.1 ms for each line, these would take 10 s."""
    lines = [
        json.dumps({"name": f"{kind}{n % 8}", "cat": "pipeline timeline", "ph": ph, "pid": 0, "tid": 1,
                    "ts": 1_700_000_000_000 + 20 * n + shift})
        for n in range(25_000) for kind, ph, shift in (("F", "B", 0), ("F", "E", 9), ("B", "B", 10), ("B", "E", 19))
    ]  # fmt: skip
    (tmp_path / "profile_record_tmp_file_for_rank_0").write_text("\n".join(lines))
    words = (tmp_path, "--out", tmp_path / "out", "--format", "csv", "--jobs", 1)
    result = limited(bounds(2 << 30, 5), *words)
    assert result.returncode == 0, result.stderr
    assert (tmp_path / "out" / "pipeline_profile.csv").read_bytes().count(b"\n") == 1 + len(lines) // 2
