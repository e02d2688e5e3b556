"""What lies where an output would go: inputs are never replaced, files of others only with --force.

Never: exit code 0 and a file that is not what it was.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sqlite3
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import trace_export
from samples.generators import ascend as generate_ascend
from samples.generators import paddle as generate_paddle
from tests.conftest import Cli
from tests.faults.inputs import INPUTS
from tests.support.command import command
from tests.support.wait import HANGS_S
from trace_export import read as reading
from trace_export.errors import OutputError, UsageError
from trace_export.writers import step_task_info

FORMATS = ("perfetto", "chrome", "svg", "png", "html", "parquet", "csv")
THEIRS = '{"mine": "by hand"}\n'
NOT_OURS = "exists and is not known to be an output of trace-export"
State = dict[str, tuple[object, ...]]


def state(folder: Path) -> State:
    """Of all that lies in a folder: what it is, when it was changed, and its content or where it leads."""
    found: State = {}
    for path in sorted(folder.rglob("*")):
        status = path.lstat()
        if path.is_symlink():
            content: object = path.readlink()
        else:
            content = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else None
        if not path.is_dir() or path.is_symlink():
            found[str(path.relative_to(folder))] = (status.st_ino, status.st_mtime_ns, content)
    return found


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


@pytest.mark.parametrize("out", [(), ("--out",)])
def test_a_trace_that_has_the_name_of_an_output(kineto: Path, place: Path, out: tuple[str, ...]) -> None:
    kineto.rename(kineto.with_name("pipeline_profile.json"))
    refused(place, kineto.parent, *out, *(kineto.parent for _ in out))


@pytest.mark.parametrize("link", ["none", "symbolic", "hard"])
def test_out_that_is_the_trace(kineto: Path, place: Path, link: str) -> None:
    out = kineto if link == "none" else kineto.with_name("out.json")
    if link == "symbolic":
        out.symlink_to(kineto.name)
    elif link == "hard":
        out.hardlink_to(kineto)
    refused(place, kineto.parent, "--format", "chrome", "--out", out)


@pytest.mark.parametrize("link", ["symbolic", "hard"])
def test_an_output_name_that_leads_to_the_trace(kineto: Path, place: Path, link: str) -> None:
    name = kineto.with_name("pipeline_profile.json")
    if link == "symbolic":
        name.symlink_to(kineto.name)
    else:
        name.hardlink_to(kineto)
    refused(place, kineto.parent)


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


def test_a_table_alone_is_drawn_in_the_usual_formats(table: Path) -> None:
    done = command(table)
    assert done.returncode == 0, done.stderr
    assert {p.suffix for p in table.parent.iterdir()} == {".parquet", ".csv", ".pftrace", ".json"}


def test_a_table_in_the_folder_of_the_outputs(table: Path, place: Path) -> None:
    out = table.parent
    refused(place, table, "--steps", 2, "--format", "parquet", "--out", out)
    refused(place, table, "--steps", 2, "--format", "csv,parquet", "--out", out)
    refused(place, table, "--steps", 2, "--format", "parquet", "--out", table)


def test_both_sides_of_a_comparison(table: Path, place: Path) -> None:
    out, other = table.parent, table.with_suffix(".csv")
    refused(place, "compare", table, "--steps-a", 2, "--steps-b", 3, "--out", out, "--format", "parquet")
    refused(place, "compare", table, other, "--steps-a", 2, "--out", other, "--format", "csv")
    (place / "b").mkdir()
    other = other.rename(place / "b" / other.name)
    refused(place, "compare", table, other, "--out", place / "b", "--format", "csv")


@pytest.mark.parametrize("out", [True, False])
def test_the_file_of_align(hosts: Path, place: Path, out: bool) -> None:
    """Its hosts of other runs and what was added by hand would be lost."""
    folder = place / "out" if out else hosts
    folder.mkdir(exist_ok=True)
    known = {f"machine{i}": {"offset_ns": i, "drift": 0.0, "by": "hand"} for i in range(12)}
    said = {"format": "trace_export clock alignment 1", "t0_ns": 0, "hosts": known}
    (folder / "clock_alignment.json").write_text(json.dumps(said, indent=2))
    align = ("--align", folder / "clock_alignment.json")
    refused(place, hosts, *align, *(("--out", folder) if out else ()))
    refused(place, "compare", hosts, "--steps-a", 2, *align, "--out", folder)


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


def test_a_file_of_marker_rules(kineto: Path, place: Path) -> None:
    rules = place / "rules.csv"
    rules.write_text("[[marker]]\npattern = 'F(?P<microbatch>[0-9]+)'\nkind = 'F'\n")
    refused(place, kineto.parent, "--marker", rules, "--format", "csv", "--out", rules)


@pytest.mark.parametrize("where", ["log_dir", "out"])
def test_copies_behind_a_link_to_the_databases(ascend: Path, place: Path, where: str) -> None:
    out = ascend if where == "log_dir" else place / "out"
    out.mkdir(exist_ok=True)
    (out / "step_task_info").symlink_to(ascend, target_is_directory=True)
    refused(place, ascend, "--step-task-info", *(("--out", out) if where == "out" else ()))


@pytest.mark.parametrize("unnamed", [True, False])
def test_links_planted_at_names_that_could_be_guessed(
    ascend: Path, place: Path, unnamed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as the outputs' with the number of the process, where files have no names and where they have."""
    if not unnamed:
        monkeypatch.delattr(os, "O_TMPFILE", raising=False)
    victim, out = place / "victim.txt", place / "out"
    victim.write_text(THEIRS)
    guesses = [out / f"pipeline_profile.{suffix}" for suffix in ("json", "csv", "pftrace")]
    guesses += [out / "step_task_info" / path.relative_to(ascend) for path in ascend.rglob("*.db")]
    for path in guesses:
        path.parent.mkdir(parents=True, exist_ok=True)
        for ending in (f".{os.getpid()}.tmp", ".tmp", ".part", f".{os.getpid()}"):
            path.with_name(f".{path.name}{ending}").symlink_to(victim)
    before = state(place)
    done = command(ascend, "--format", "perfetto,chrome,csv", "--out", out, "--step-task-info")
    assert done.returncode == 0, done.stderr
    assert changed(before, state(place)) == set()
    assert all(path.is_file() and not path.is_symlink() for path in guesses)


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
    done = command(*arguments(logs, place), cwd=logs)
    assert done.returncode == 0, done.stderr  # now it is one of ours
    assert not link or kept.read_text() == THEIRS


def test_a_copy_of_a_database_that_somebody_changed_is_kept(ascend: Path, place: Path) -> None:
    assert command(ascend, "--step-task-info", "--out", place / "out").returncode == 0
    assert command(ascend, "--step-task-info", "--out", place / "out").returncode == 0
    copy = next((place / "out").rglob("*.db"))
    copy.unlink()
    with closing(sqlite3.connect(copy)) as database:
        database.execute("CREATE TABLE mine (x)")
    refused(place, ascend, "--step-task-info", "--out", place / "out", because=NOT_OURS)


def test_the_library_follows_the_same_rule(hosts: Path, table: Path, place: Path) -> None:
    before = state(place)
    for force in (False, True):
        with pytest.raises(UsageError, match="is an input"):
            trace_export.load(table).write(table, force=force)
        with pytest.raises(UsageError, match="the same file as the input"):
            (place / "link.csv").symlink_to(table.with_suffix(".csv"))
            trace_export.load(table.with_suffix(".csv")).write(place / "link.csv", force=force)
        (place / "link.csv").unlink()
        (place / "align.json").write_text('{"hosts": {}}')
        with pytest.raises(UsageError, match="is an input"):
            trace_export.load(hosts).align(str(place / "align.json")).write(place / "align.json", force=force)
        (place / "align.json").unlink()
    (place / "mine.csv").write_text(THEIRS)
    with pytest.raises(UsageError, match=NOT_OURS):
        trace_export.load(hosts).write(place / "mine.csv")
    assert (place / "mine.csv").read_text() == THEIRS
    (place / "mine.csv").unlink()
    assert state(place) == before
    assert trace_export.load(table).write(place / "new.csv", force=True) == [place / "new.csv"]


def test_nothing_is_read_before_the_outputs_are_known_to_be_free(hosts: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An hour of reading is not thrown away for a file in the way."""
    (hosts / "pipeline_profile.json").write_text(THEIRS)
    (hosts / "machine0" / "a.csv").write_text(THEIRS)
    monkeypatch.setattr(reading, "read_all", lambda *a: pytest.fail("it was read"))
    assert command(hosts).returncode == 2
    assert command(hosts, "--format", "csv", "--out", hosts / "machine0" / "a.csv").returncode == 2


@pytest.mark.parametrize("bad", ["first", "last"])
@pytest.mark.parametrize("obstacle", ["folder", "pipe", "nothing may be made"])
def test_one_bad_target_among_several(hosts: Path, place: Path, bad: str, obstacle: str) -> None:
    """Nothing is written at all, and one sentence says what is in the way."""
    formats = ("chrome", "csv", "svg")
    name = {"chrome": "json"}.get(formats[0 if bad == "first" else -1], "svg")
    out = place / "out"
    out.mkdir()
    if obstacle == "folder":
        (out / f"pipeline_profile.{name}").mkdir()
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


def test_two_exports_at_once_into_one_folder(hosts: Path, place: Path, run_cli: Cli) -> None:
    """Each file is whole and of one of them; neither run fails for the other's files."""
    alone, out = place / "alone", place / "out"
    formats = ("--format", "perfetto,chrome,csv")
    assert command(hosts, *formats, "--out", alone).returncode == 0
    with ThreadPoolExecutor() as threads:
        ended = list(threads.map(lambda _: run_cli(hosts, *formats, "--out", out, timeout=HANGS_S), range(2)))
    assert [done.returncode for done in ended] == [0, 0], [done.stderr for done in ended]
    assert {p.name: p.read_bytes() for p in out.iterdir()} == {p.name: p.read_bytes() for p in alone.iterdir()}


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
