"""Over inputs, outputs, links, formats and options drawn at random: no file that existed is changed unless it carried
the mark or --force was given, and inputs never are.

The same worlds are drawn each time; `--slow` draws 300.
"""

import json
import os
import random
import shutil
import stat
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest

from samples.generators import ascend as generate_ascend
from samples.generators import paddle as generate_paddle
from tests.faults.inputs import INPUTS
from tests.support.command import command
from trace_export import Run
from trace_export.run import Request
from trace_export.writers import atomic, mark

OURS = mark.CSV + "microbatch\n"
EXTENSIONS = {"perfetto": "pftrace", "chrome": "json", "svg": "svg", "html": "html", "parquet": "parquet", "csv": "csv"}
NAMES = ("pipeline_profile", "x", "one.pt.trace")
Identity = tuple[int, int]


@dataclass
class World:
    """A folder with everything in it, the inputs among it, and a command. `unsettled` is called after the outputs were
    checked for the first time, and before the first of them gets its name."""

    root: Path
    chance: random.Random
    inputs: list[Path] = field(default_factory=list)
    arguments: list[object] = field(default_factory=list)
    unsettled: Callable[[], None] = lambda: None

    @property
    def forced(self) -> bool:
        return "--force" in self.arguments

    def places(self) -> list[Path]:
        """Where outputs may go."""
        files = [f"{name}.{ending}" for name in NAMES for ending in EXTENSIONS.values()]
        files += ["pipeline_profile.json.gz", "pipeline_profile.pftrace.gz", "clock_alignment.json"]
        files += ["pipeline_report.html", "pipeline_profile.steps0.json", "envlog.0", "rules.toml"]
        folders = ("logs", "out", "out/step_task_info/r0/ASCEND_PROFILER_OUTPUT")
        return [self.root / folder / file for folder in folders for file in (*files, "ascend_pytorch_profiler_0.db")]


def put(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def inputs(world: World) -> Path:
    """Inputs that can be read."""
    logs = world.root / "logs"
    logs.mkdir()
    kind = world.chance.choice(["paddle", "kineto", "nsys", "ascend", "table"])
    if kind == "paddle":
        generate_paddle.write(logs, stages=2, microbatches=2, steps=2, machines=2, clock_errors_us=(0, 900))
    elif kind == "ascend":
        generate_ascend.write(logs, stages=2, microbatches=2, steps=1, hosts=1)
    elif kind == "table":
        generate_paddle.write(logs, stages=2, microbatches=2, steps=2)
        assert command(logs, "--format", "csv").returncode == 0
        (logs / "truth.csv").unlink()
        for path in logs.glob("workerlog.*"):
            path.unlink()
        world.inputs.append(logs / "pipeline_profile.csv")
        return logs / "pipeline_profile.csv"
    else:
        INPUTS[kind].make(logs)
        if kind == "kineto" and world.chance.random() < 0.5:
            (logs / "one.pt.trace.json").rename(logs / "pipeline_profile.json")
    world.inputs += [p for p in logs.rglob("*") if p.is_file() and p.name != "truth.csv"]
    return logs


def any_file(world: World) -> Path:
    return world.chance.choice([path for path in world.root.rglob("*") if path.is_file()])


def clutter(world: World, path: Path) -> None:
    """Puts something to where an output may go, if nothing is there."""
    if os.path.lexists(path):
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    what = world.chance.choice(
        ["theirs", "theirs", "ours", "ours", "soft", "soft", "hard", "nowhere", "folder", "pipe"]
    )
    if what in ("theirs", "ours"):
        path.write_text("mine" if what == "theirs" else OURS + path.name)
    elif what == "soft":
        target = any_file(world)
        path.symlink_to(target if world.chance.random() < 0.5 else os.path.relpath(target, path.parent))
    elif what == "hard":
        path.hardlink_to(any_file(world))
    elif what == "nowhere":
        path.symlink_to(world.root / "nowhere")
    elif what == "folder":
        path.mkdir()
    else:
        os.mkfifo(path)


def options(world: World, logs: Path) -> None:
    """Draws a command and its options; the files that they name are inputs."""
    chance, root = world.chance, world.root
    name = chance.choice(["export", "export", "export", "report", "compare", "simulate"])
    formats = chance.sample(list(EXTENSIONS), chance.choice([1, 1, 2, 3]))
    out = chance.choice([None, root / "logs", root / "out", root / "linked", root / "new" / "er"])
    if name == "report":
        formats, out = ["html"], chance.choice([out, root / "out" / "x.html", root / "logs" / "x.html"])
    elif len(formats) == 1 and chance.random() < 0.5:
        out = root / chance.choice(["logs", "out"]) / f"{chance.choice(NAMES)}.{EXTENSIONS[formats[0]]}"
    given: list[object] = ["--format", ",".join(formats), "--quiet", *(("--out", out) if out else ())]
    if name == "simulate":
        given += ["--schedule", "1f1b", "--stages", 2, "--microbatches", 2]
        world.inputs.clear()
    elif chance.random() < 0.3:
        place = root / chance.choice(["logs", "out"]) / "clock_alignment.json"
        if not os.path.lexists(place):
            put(place, json.dumps({"hosts": {}, "t0_ns": 0}))
        if place.is_file():
            given += ["--align", place]
            world.inputs.append(place)
    if name == "compare":
        given += ["--steps-a", "0-9"]
    if name in ("export", "report") and chance.random() < 0.2:
        rules = root / chance.choice(["logs", "out"]) / chance.choice(["rules.toml", "x.csv"])
        if not os.path.lexists(rules):
            given += ["--marker", put(rules, "[[marker]]\npattern = 'F'\nkind = 'F'\n")]
            world.inputs.append(rules)
    if name == "export":
        given += [flag for flag in ("--gzip", "--step-task-info") if chance.random() < 0.25]
        given += ["--max-slices", 5] if chance.random() < 0.2 else []
    given += ["--force"] if chance.random() < 0.4 else []
    world.arguments = [name, *([] if name == "simulate" else [logs]), *given]


def drawn(root: Path, chance: random.Random) -> World:
    world = World(root, chance)
    logs = inputs(world)
    (root / "out").mkdir()
    (root / "linked").symlink_to(chance.choice(["logs", "out"]), target_is_directory=True)
    if chance.random() < 0.2:
        (root / "out" / "step_task_info").symlink_to(root / "logs", target_is_directory=True)
    options(world, logs)
    places = world.places()
    for path in chance.sample(places, 20):
        with suppress(FileExistsError):
            clutter(world, path)
    if chance.random() < 0.3:
        late = chance.sample(places, 20)
        world.unsettled = lambda: [clutter(world, path) for path in late] and None
    return world


@dataclass(frozen=True)
class Entry:
    """What is at a path: itself and, where that is a link, what it leads to."""

    lstat: tuple[int, int, int]
    content: object
    identity: Identity | None
    marked: bool


def entries(root: Path) -> dict[Path, Entry]:
    result = {}
    for path in root.rglob("*"):
        status = path.lstat()
        content: object = None
        if stat.S_ISLNK(status.st_mode):
            content = path.readlink()
        elif stat.S_ISREG(status.st_mode):
            content = path.read_bytes()
        elif stat.S_ISDIR(status.st_mode):
            continue
        identity, marked = None, False
        with suppress(OSError):
            target = path.stat()
            identity = (target.st_dev, target.st_ino)
            marked = stat.S_ISREG(target.st_mode) and mark.is_marked(path)
        result[path] = Entry((status.st_ino, status.st_mode, status.st_mtime_ns), content, identity, marked)
    return result


def check(world: World, run: Callable[[World], CompletedProcess[str]]) -> CompletedProcess[str]:
    """Runs the command and looks at everything that was there before it."""
    before: dict[Path, Entry] = {}
    protected: set[Identity] = set()
    meanwhile = world.unsettled

    def settle() -> None:
        world.unsettled = lambda: None
        meanwhile()
        before.update(entries(world.root))

    protected |= {(s.st_dev, s.st_ino) for s in (path.stat() for path in world.inputs)}
    before.update(entries(world.root))
    world.unsettled = settle
    ended = run(world)
    after = entries(world.root)
    for path, was in before.items():
        now = after.get(path)
        if now is not None and (now.lstat, now.content) == (was.lstat, was.content):
            continue
        sentence = f"{path.relative_to(world.root)} changed: {world.arguments}: {ended}"
        assert was.identity not in protected, f"an input, {sentence}"
        assert was.marked or world.forced, sentence
        assert now is not None and stat.S_ISREG(now.lstat[1]) and now.marked, sentence
        assert stat.S_ISREG(was.lstat[1]) or stat.S_ISLNK(was.lstat[1]), sentence
    names = ("pipeline_profile.", "pipeline_report.html", "clock_alignment.json", "ascend_", "one.", "x.")
    assert all(path.name.startswith(names) for path in after if path not in before), world.arguments
    assert not list(world.root.rglob(atomic.PREFIX + "*"))
    assert ended.returncode in (0, 1, 2, 3), ended
    return ended


@contextmanager
def loading(world: World) -> Iterator[None]:
    """While it lasts, the world is unsettled once the inputs were read."""
    read = Request.read

    def loaded(*arguments: Any, **named: Any) -> Run:
        run = read(*arguments, **named)
        world.unsettled()
        return run

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Request, "read", loaded)
        yield


def test_no_file_is_lost(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    codes: Counter[int] = Counter()
    for seed in range(300 if request.config.getoption("--slow") else 12):
        root = tmp_path / f"seed {seed}"
        root.mkdir()
        world = drawn(root, random.Random(seed))
        with loading(world):
            codes[check(world, lambda world: command(*world.arguments, cwd=world.root)).returncode] += 1
        shutil.rmtree(root)  # of a world that fails it stays
    assert codes[0] and codes[2]  # both what is allowed and what is not came up
