"""What lies where an output would go: inputs are never replaced, files of others only with --force.

Never: exit code 0 and a file that is not what it was.
"""

import hashlib
import os
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from samples.generators import ascend as generate_ascend
from samples.generators import paddle as generate_paddle
from tests.faults.inputs import INPUTS
from tests.support.command import command
from tests.support.rows import crossed
from trace_export import read as reading
from trace_export.errors import OutputError
from trace_export.writers import mark, step_task_info

FORMATS = ("perfetto", "chrome", "svg", "png", "html", "parquet", "csv")
THEIRS = '{"mine": "by hand"}\n'
NOT_OURS = "exists, and trace-export did not write it"
State = dict[str, tuple[object, ...]]


def state(folder: Path) -> State:
    """Of all that lies in a folder: what it is, when it was changed, and its content or where it leads."""
    result: State = {}
    for path in sorted(folder.rglob("*")):
        status = path.lstat()
        if path.is_symlink():
            content: object = path.readlink()
        else:
            content = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else None
        if not path.is_dir() or path.is_symlink():
            result[str(path.relative_to(folder))] = (status.st_ino, status.st_mtime_ns, content)
    return result


def changed(before: State, after: State) -> set[str]:
    """What was there before and is not as it was."""
    return {name for name, what in before.items() if after.get(name) != what}


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path


@pytest.fixture
def kineto(place: Path) -> Path:
    """A trace of torch.profiler in a folder of its own."""
    folder = place / "kineto"
    folder.mkdir()
    INPUTS["kineto"].make(folder)
    return folder / "one.pt.trace.json"


def paddle_logs(place: Path, **clocks: Any) -> Path:
    folder = place / "logs"
    generate_paddle.write(folder, stages=2, microbatches=2, steps=2, **clocks)
    (folder / "truth.csv").unlink()
    return folder


@pytest.fixture
def single(place: Path) -> Path:
    """Logs of one machine, whose clock needs no alignment."""
    return paddle_logs(place)


@pytest.fixture
def hosts(place: Path) -> Path:
    """Logs of two machines, whose clocks are aligned."""
    return paddle_logs(place, machines=2, clock_errors_us=(0, 900))


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the span table of two machines, two steps long; nobody may change it."""
    root = tmp_path_factory.mktemp("tables")
    generate_paddle.write(root / "logs", stages=2, microbatches=2, steps=2, machines=2, clock_errors_us=(0, 900))
    done = command(root / "logs", "--format", "parquet,csv", "--out", root / "out")
    assert done.returncode == 0, done.stderr
    (root / "out" / "clock_alignment.json").unlink()
    return root / "out"


@pytest.fixture
def table(tables: Path, place: Path) -> Path:
    """A copy of the span table."""
    shutil.copytree(tables, place / "tables")
    return place / "tables" / "pipeline_profile.parquet"


@pytest.fixture
def ascend(place: Path) -> Path:
    """The databases of two ranks."""
    folder = place / "ascend"
    generate_ascend.write(folder, stages=2, microbatches=2, steps=2, hosts=2)
    (folder / "truth.csv").unlink()
    return folder


def refused(place: Path, *arguments: object, because: str = "input", cwd: Path | None = None) -> None:
    """The command ends with code 2 and one sentence, with --force too if an input is why, and nothing is changed."""
    before = state(place)
    for more in ((), ("--force",)) if because == "input" else ((),):
        done = command(*arguments, *more, cwd=cwd)
        assert done.returncode == 2, done.stdout + done.stderr
        assert because in done.stderr and "--out" in done.stderr
        assert done.stderr.count("\n") == 1
        assert state(place) == before


@pytest.mark.parametrize(
    ("name", "out"),
    crossed(["same", "symbolic", "hard", "chain", "through a folder"], ["a file", "a folder", "nothing"]),
)
def test_an_input_is_refused_under_any_name(kineto: Path, place: Path, name: str, out: str) -> None:
    target = kineto.with_name("pipeline_profile.json")
    if name == "same":
        kineto = kineto.rename(target)
    elif name == "symbolic":
        target.symlink_to(kineto.name)
    elif name == "hard":
        target.hardlink_to(kineto)
    elif name == "chain":
        (place / "first").symlink_to(kineto)
        target.symlink_to(place / "first")
    else:
        kineto = kineto.rename(target)
        (place / "linked").symlink_to("kineto")
        target = place / "linked" / target.name
    where = {"a file": ("--out", target), "a folder": ("--out", target.parent), "nothing": ()}[out]
    refused(place, kineto.parent, "--format", "chrome", *where)


@pytest.mark.parametrize(("suffix", "formats"), [("parquet", FORMATS), ("csv", ("parquet", "csv"))])
def test_a_table_is_drawn_into_files_beside_it(table: Path, place: Path, suffix: str, formats: tuple[str, ...]) -> None:
    source = place / "elsewhere" / f"spans.{suffix}"
    source.parent.mkdir()
    shutil.copyfile(table.with_suffix(f".{suffix}"), source)
    before = state(source.parent)
    done = command(source, "--steps", 2, "--format", ",".join(formats))
    assert done.returncode == 0, done.stderr
    after = state(source.parent)
    assert changed(before, after) == set()
    made = set(after) - set(before)
    assert len(made) == len(formats)
    assert all(name.startswith("pipeline_profile.") for name in made)
    refused(place, table.with_suffix(f".{suffix}"), "--steps", 2, "--format", suffix)


def test_one_file_asked_for_is_one_file_written(hosts: Path, place: Path) -> None:
    out = place / "out"
    out.mkdir()
    for ours in (False, True):
        (out / "clock_alignment.json").write_text(
            '{\n  "format": "trace_export clock alignment 1"\n}' if ours else "{}"
        )
        before = state(place)
        done = command(hosts, "--format", "perfetto", "--out", out / "x.pftrace")
        assert done.returncode == 0, done.stderr
        assert set(state(place)) - set(before) <= {"out/x.pftrace"}
        assert changed(before, state(place)) <= {"out/x.pftrace"}


Make = Callable[[Path, Path], tuple[object, ...]]
COMMANDS: dict[str, tuple[str, Make]] = {
    "export": ("pipeline_profile.json", lambda source, place: (source,)),
    "csv": ("notes.csv", lambda source, place: (source, "--format", "csv", "--out", source / "notes.csv")),
    "gzip": ("pipeline_profile.pftrace.gz", lambda source, place: (source, "--gzip")),
    "report": ("pipeline_report.html", lambda source, place: ("report", source, "--format", "html")),
    "report to a file": (
        "my.html", lambda source, place: ("report", source, "--format", "html", "--out", source / "my.html"),
    ),
    "alignment": ("clock_alignment.json", lambda source, place: (source,)),
    "steps": ("pipeline_profile.steps3.json", lambda source, place: (source, "--max-slices", 12)),
    "compare": (
        "pipeline_profile.svg",
        lambda source, place: ("compare", source, "--steps-a", 2, "--out", source, "--format", "svg"),
    ),
    "simulate": (
        "pipeline_profile.json",
        lambda source, place: ("simulate", "--schedule", "1f1b", "--stages", 2, "--microbatches", 2),
    ),
}  # fmt: skip
"""What the user's own file is called, and the command that would write there."""


LINKED = ("export", "alignment")


@pytest.mark.parametrize(("name", "link"), [*((name, False) for name in COMMANDS), *((name, True) for name in LINKED)])
def test_a_file_of_the_user_is_replaced_with_force_only(
    request: pytest.FixtureRequest, place: Path, name: str, link: bool
) -> None:
    file, arguments = COMMANDS[name]
    logs = request.getfixturevalue("hosts" if name == "alignment" else "single")
    kept = logs / file
    if link:
        kept = place / "kept"
        (logs / file).symlink_to(kept)
    kept.write_text(THEIRS)
    refused(place, *arguments(logs, place), because=NOT_OURS, cwd=logs)
    before = state(place)
    done = command(*arguments(logs, place), "--force", cwd=logs)
    assert done.returncode == 0, done.stderr
    assert changed(before, state(place)) == {f"logs/{file}"}
    assert not link or kept.read_text() == THEIRS
    assert mark.is_marked(logs / file)  # now it is one of ours


def test_a_copy_of_a_database_that_somebody_changed_is_kept(ascend: Path, place: Path) -> None:
    assert command(ascend, "--step-task-info", "--out", place / "out").returncode == 0
    assert command(ascend, "--step-task-info", "--out", place / "out").returncode == 0
    copy = next((place / "out").rglob("*.db"))
    copy.unlink()
    with closing(sqlite3.connect(copy)) as database:
        database.execute("CREATE TABLE mine (x)")
    refused(place, ascend, "--step-task-info", "--out", place / "out", because=NOT_OURS)


def test_nothing_is_read_before_the_outputs_are_known_to_be_free(hosts: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An hour of reading is not thrown away for a file in the way."""
    (hosts / "pipeline_profile.json").write_text(THEIRS)
    (hosts / "machine0" / "a.csv").write_text(THEIRS)
    monkeypatch.setattr(reading, "read_all", lambda *a: pytest.fail("it was read"))
    assert command(hosts).returncode == 2
    assert command(hosts, "--format", "csv", "--out", hosts / "machine0" / "a.csv").returncode == 2


@pytest.mark.parametrize(
    ("obstacle", "bad"), crossed(["folder", "link to a folder", "pipe", "nothing may be made"], ["first", "last"])
)
def test_one_bad_target_among_several(hosts: Path, place: Path, bad: str, obstacle: str) -> None:
    """Nothing is written at all, and one sentence says what is in the way."""
    formats = ("chrome", "csv", "svg")
    name = {"chrome": "json"}.get(formats[0 if bad == "first" else -1], "svg")
    out = place / "out"
    out.mkdir()
    if obstacle == "folder":
        (out / f"pipeline_profile.{name}").mkdir()
    elif obstacle == "link to a folder":
        (out / f"pipeline_profile.{name}").symlink_to(".")
    elif obstacle == "pipe":
        os.mkfifo(out / f"pipeline_profile.{name}")
    else:
        out.rmdir()
        out.write_text("")
        out = out / "below"
    before = [p.name for p in place.rglob("*")]
    for more in ((), ("--force",)):
        done = command(hosts, "--format", ",".join(formats), "--out", out, *more)
        assert done.returncode == 1, done.stderr
        assert "cannot be written: " in done.stderr and done.stderr.count("\n") == 1
        assert [p.name for p in place.rglob("*")] == before


def test_a_table_that_no_database_can_take_is_known_before_anything_is_written(hosts: Path, place: Path) -> None:
    done = command(hosts, "--step-task-info", "--out", place / "out")
    assert done.returncode == 1
    assert "no database here to put the table StepTaskInfo into" in done.stderr
    assert not (place / "out").exists()


def test_an_error_names_some_of_many_files(tmp_path: Path) -> None:
    error = OutputError(tmp_path, "no")
    error.written = tuple(Path(str(i)) for i in range(10))
    assert str(error) == f"{tmp_path}: no (already written: 0, 1, 2, 3, 4, 5, 6, 7 and 2 more, the last 9)"


def test_an_error_names_the_files_that_were_written_before_it(
    ascend: Path, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The charts are, then a database is in use: none of them is changed."""
    monkeypatch.setattr(step_task_info, "LOCKED_S", 0.0)
    first, second = sorted(ascend.rglob("*.db"))
    before = state(ascend)
    with closing(sqlite3.connect(second)) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM sqlite_master").fetchall()
        done = command(ascend, "--step-task-info", "--in-place", "--out", place / "out", "--format", "csv,svg")
    assert done.returncode == 1
    assert f"{second}: the table StepTaskInfo cannot be written: database is locked" in done.stderr
    written = [place / "out" / f"pipeline_profile.{suffix}" for suffix in ("csv", "svg")]
    assert f"(already written: {written[0]}, {written[1]}" in done.stderr
    assert str(first) not in done.stderr
    assert changed(before, state(ascend)) == set()
