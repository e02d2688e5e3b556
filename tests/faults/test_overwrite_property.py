"""Over inputs, outputs, links, formats and options drawn at random: no file that existed is changed unless it carried
the mark or --force was given, and inputs never are.

Two tests draw from the same worlds: one leaves out reading and drawing, so that thousands of draws are quick; the other
runs all of the program. They draw the same worlds each time; `--slow` draws 10,000 of the first and 300 of the second.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import stat
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from subprocess import CompletedProcess
from types import SimpleNamespace
from typing import Any

import polars as pl
import pytest

from samples.generators import ascend as generate_ascend
from samples.generators import paddle as generate_paddle
from tests.faults.inputs import INPUTS
from tests.support.command import command
from tests.support.profiles import table, two_stages
from trace_export import Run, run, step_tasks
from trace_export import write as files
from trace_export.analysis.bubbles import Bubbles
from trace_export.analysis.report import report_of
from trace_export.chart.chart import Put
from trace_export.chart.layout import lay_out
from trace_export.model import CLOCKS, Declared
from trace_export.pipeline import completeness
from trace_export.pipeline.interpret import interpret_table
from trace_export.requests import Request
from trace_export.selection import Numbers
from trace_export.writers import atomic, mark
from trace_export.writers.formats import OutputFormat
from trace_export.writers.pictures import picture

MADE = replace(two_stages(), clocks=table([{"host": "a"}, {"host": "b"}], CLOCKS))
CHART = lay_out(MADE)
REPORT = report_of(interpret_table(MADE, Declared()))
OURS = mark.CSV + "microbatch\n"
EXTENSIONS = {"perfetto": "pftrace", "chrome": "json", "svg": "svg", "html": "html", "parquet": "parquet", "csv": "csv"}
NAMES = ("pipeline_profile", "x", "one.pt.trace")
KINETO = '{"schemaVersion": 1, "deviceProperties": [], "traceEvents": []}'
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


def tiny_inputs(world: World) -> Path:
    """Inputs that are found but hold nothing; returns the log_dir."""
    logs = world.root / "logs"
    logs.mkdir()
    kind = world.chance.choice(["paddle", "kineto", "nsys", "ascend", "table"])
    if kind == "paddle":
        world.inputs += [put(logs / "workerlog.0", "log"), put(logs / "envlog.0", "PADDLE_LOCAL_RANK=0")]
    elif kind == "kineto":
        names = ["one.pt.trace.json", "pipeline_profile.json", "x.json", "clock_alignment.json"]
        world.inputs.append(put(logs / world.chance.choice(names), KINETO))
    elif kind == "nsys":
        names = ["node0.sqlite", "node0.sqlite-wal"][: world.chance.choice([1, 2])]
        world.inputs += [put(logs / name, "") for name in names]
    elif kind == "ascend":
        database = logs / "r0" / "ASCEND_PROFILER_OUTPUT" / "ascend_pytorch_profiler_0.db"
        world.inputs += [put(database, ""), put(logs / "r0" / "profiler_info_0.json", "{}")]
    else:
        name = world.chance.choice(["spans.csv", "pipeline_profile.csv", "pipeline_profile.parquet", "x.csv"])
        world.inputs.append(put(logs / name, OURS))
        return logs / name
    return logs


def whole_inputs(world: World) -> Path:
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


def drawn(root: Path, chance: random.Random, inputs: Callable[[World], Path]) -> World:
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
    found = {}
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
        found[path] = Entry((status.st_ino, status.st_mode, status.st_mtime_ns), content, identity, marked)
    return found


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


def only_files(patch: pytest.MonkeyPatch, world: World) -> None:
    """Nothing is read or drawn: writers write a mark and nothing else."""

    def write(*arguments: Any, **named: Any) -> None:
        world.unsettled()
        (path,) = [argument for argument in arguments if isinstance(argument, Path)]
        path.write_text(OURS + "new")

    @contextmanager
    def writing(*arguments: Any, **named: Any) -> Iterator[Put]:
        write(*arguments)
        yield lambda part: None

    def write_step_tables(wanted: Request, out: Any, outputs: Any, *rest: Any, **named: Any) -> None:
        for path in step_tasks.databases(wanted):
            with outputs.file(step_tasks.copy(path, wanted.source.log_dir, out), named=True) as temporary:
                write(temporary)

    steps = [(Numbers(((step, step),)), MADE) for step in (0, 1)]
    patch.setattr(Request, "run", lambda self, _: Run(MADE, self.source, _clocks="one", _inputs=self.found.inputs))
    patch.setattr(step_tasks, "write", write_step_tables)
    patch.setattr(completeness, "mark_whole_steps", lambda profile, **_: profile)
    patch.setattr(run, "announce", lambda *a: [])
    patch.setattr(files, "draw", lambda *a: CHART)
    patch.setattr(files, "pieces", lambda *a: steps if a[-1] else [(None, MADE)])
    patch.setattr(Bubbles, "ranks", pl.DataFrame())
    patch.setattr(files.alignment_file, "write", write)
    patch.setattr(picture, "write_page", write)
    patch.setattr(OutputFormat, "load", lambda self: writing if self.kind == "trace" else write)
    patch.setattr(Run, "report", lambda self, **_: REPORT)
    patch.setattr(Run, "summary", lambda *a: None)
    patch.setattr(
        run,
        "compared",
        lambda *a: SimpleNamespace(
            causes=pl.DataFrame(), verdict=(), names=("a", "b"), tables=list, json=str, gate=None
        ),
    )
    if world.chance.random() < 0.3:
        patch.delattr(os, "O_TMPFILE", raising=False)


def all_of_it(patch: pytest.MonkeyPatch, world: World) -> None:
    """The whole program."""
    read = Request.read

    def loaded(*arguments: Any, **named: Any) -> Run:
        run = read(*arguments, **named)
        world.unsettled()
        return run

    patch.setattr(Request, "read", loaded)


def explore(draws: int, folder: Path, inputs: Callable[[World], Path], prepare: Callable[..., None]) -> Counter[int]:
    """Checks so many worlds; returns how often the commands ended with which code."""
    codes: Counter[int] = Counter()
    for seed in range(draws):
        root = folder / f"seed {seed}"
        root.mkdir()
        world = drawn(root, random.Random(seed), inputs)
        with pytest.MonkeyPatch.context() as patch:
            prepare(patch, world)
            codes[check(world, lambda world: command(*world.arguments, cwd=world.root)).returncode] += 1
        shutil.rmtree(root)  # of a world that fails it stays
    return codes


def test_no_file_is_lost(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    draws = 10_000 if request.config.getoption("--slow") else 80
    codes = explore(draws, tmp_path, tiny_inputs, only_files)
    assert min(codes[0], codes[2]) > draws / 20  # both what is allowed and what is not came up often


def test_no_file_is_lost_by_the_whole_program(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    draws = 300 if request.config.getoption("--slow") else 6
    codes = explore(draws, tmp_path, whole_inputs, all_of_it)
    assert codes[0] and codes[2]
