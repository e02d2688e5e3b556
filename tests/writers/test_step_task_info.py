"""StepTaskInfo: row for row what msprof-analyze writes, wherever it is right."""

import hashlib
import os
import re
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest

from samples.generators.ascend import Truth, record
from tests.conftest import ROOT, AscendRun, Cli
from tests.sources.ascend.test_reader import understood
from tests.support import mindspeed
from tests.support.ascend_jobs import JOBS
from trace_export import step_tasks
from trace_export.errors import NothingToExportError, OutputError
from trace_export.model import INT, SPANS, TEXT, TIME, Profile, conform
from trace_export.progress import silent
from trace_export.read import LoadOptions
from trace_export.run import Request
from trace_export.selection import Numbers, Selection
from trace_export.writers import step_task_info
from trace_export.writers.mark import is_marked
from trace_export.writers.outputs import Outputs


def written(path: Path) -> list[tuple[object, ...]]:
    with closing(sqlite3.connect(f"file:{path}?mode=ro&immutable=1", uri=True)) as db:
        return db.execute("SELECT name, startNs, endNs, type FROM StepTaskInfo ORDER BY rowid").fetchall()


def reference_rows(name: str, truth: Truth) -> dict[int, list[tuple[object, ...]]]:
    """What msprof-analyze's pp_chart writes for each rank: FP and BP, in DualPipeV numbers and phase (it has no names
    for DualPipeV without fused blocks)."""
    result: dict[int, list[tuple[object, ...]]] = {}
    for rank in range(truth.job.ranks):
        blocks = [b for b in truth.blocks if b.rank == rank and b.kind != "OPT"]
        names = [("FP", 0) if b.kind == "F" else ("BP", 1) for b in blocks]
        if name.startswith("dualpipev"):
            order = mindspeed.dualpipev(truth.job.stages, truth.job.microbatches)[truth.stage(rank)]
            names = [(name, phase) for _, name, phase in order] * truth.job.steps
        result[rank] = [(n, b.start_ns, b.end_ns, t) for (n, t), b in zip(names, blocks, strict=True)]
    return result


@pytest.mark.parametrize("name", [name for name in JOBS if "text" not in name and "not fused" not in name])
def test_rows_are_those_of_the_reference(ascend_run: AscendRun, name: str) -> None:
    folder, truth = ascend_run(name)
    rows = step_task_info.rows(understood(folder))
    for rank, wanted in reference_rows(name, truth).items():
        assert rows.filter(pl.col("rank") == rank).drop("rank").rows() == wanted


def copies(folder: Path, out: Path, steps: str = "all") -> list[Path]:
    """The copies of the databases that the command makes."""
    outputs, part = Outputs(), Selection(steps=Numbers.parse(steps, "steps"))
    step_tasks.write(Request(LoadOptions(folder), part=part), out, outputs, silent)
    return outputs.written


def test_copies_leave_the_input_alone(ascend_run: AscendRun, tmp_path: Path) -> None:
    folder, _ = ascend_run("1f1b")
    profile = understood(folder)
    paths = copies(folder, tmp_path)
    assert [p.relative_to(tmp_path / "step_task_info") for p in paths] == [
        Path(source).relative_to(folder) for source in profile.ranks["source"]
    ]
    assert [len(written(p)) for p in paths] == [32, 32, 32, 32]
    assert {p for p in tmp_path.rglob("*") if p.is_file()} == set(paths)
    assert all(map(is_marked, paths))
    with closing(sqlite3.connect(paths[0])) as db:
        assert db.execute("SELECT count(*) FROM TASK").fetchone()[0] > 0


def test_copies_are_not_read_as_captures(tmp_path: Path) -> None:
    folder = tmp_path / "cluster"
    record(folder, JOBS["level 0"])
    profile = understood(folder)
    copies(folder, folder)
    again = understood(folder)
    assert again.ranks.rows() == profile.ranks.rows()
    assert again.notes == profile.notes


def test_a_locked_database_is_an_error_and_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "ascend_pytorch_profiler_0.db"
    connect = sqlite3.connect
    with closing(connect(path)) as db:
        db.execute("CREATE TABLE TASK (startNs INTEGER)")
        before = hashlib.sha256(path.read_bytes()).digest()
        db.execute("BEGIN EXCLUSIVE")
        monkeypatch.setattr(step_task_info.sqlite3, "connect", lambda *a, **k: connect(*a, **{**k, "timeout": 0}))
        with pytest.raises(OutputError, match=r"ascend_pytorch_profiler_0\.db: .*locked"):
            step_task_info.write_in_place(one_rank(path), {0: path}, Outputs())
        db.execute("ROLLBACK")
    assert hashlib.sha256(path.read_bytes()).digest() == before


def ranks_of(*paths: Path) -> tuple[Profile, dict[int, Path]]:
    """A profile of one rank for each database."""
    one = one_rank(paths[0])
    spans = [one.spans.with_columns(rank=pl.lit(rank, INT)) for rank in range(len(paths))]
    return replace(one, spans=pl.concat(spans)), dict(enumerate(paths))


@pytest.fixture
def databases(tmp_path: Path) -> list[Path]:
    paths = [tmp_path / f"ascend_pytorch_profiler_{rank}.db" for rank in range(3)]
    for path in paths:
        with closing(sqlite3.connect(path)) as db:
            db.execute("CREATE TABLE StepTaskInfo (name TEXT)")
    return paths


def test_in_place_changes_all_databases_or_none(databases: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """The last one is being read by another program."""
    connect = sqlite3.connect
    before = [path.read_bytes() for path in databases]
    monkeypatch.setattr(step_task_info.sqlite3, "connect", lambda *a, **k: connect(*a, **{**k, "timeout": 0}))
    profile, of_rank = ranks_of(*databases)
    with closing(connect(databases[2])) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM StepTaskInfo").fetchall()
        outputs = Outputs()
        with pytest.raises(OutputError, match=r"profiler_2\.db: .*locked; close programs that have it open$"), outputs:
            step_task_info.write_in_place(profile, of_rank, outputs)
        assert [path.read_bytes() for path in databases] == before
    step_task_info.write_in_place(profile, of_rank, outputs)
    assert [len(written(path)) for path in databases] == [2, 2, 2]
    assert outputs.written == databases


def test_in_place_says_what_is_done_where_the_last_step_fails(
    databases: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk that fails as a change is made permanent cannot be foreseen."""

    class Failing(sqlite3.Connection):
        def execute(self, sql: str, *rest: object) -> sqlite3.Cursor:
            (path,) = super().execute("SELECT file FROM pragma_database_list").fetchone()
            if sql == "COMMIT" and path == str(databases[1]):
                raise sqlite3.OperationalError("disk I/O error")
            return super().execute(sql, *rest)

    connect = sqlite3.connect
    monkeypatch.setattr(step_task_info.sqlite3, "connect", lambda *a, **k: connect(*a, **k, factory=Failing))
    outputs = Outputs()
    done = re.escape(f"(already written: {databases[0]})")
    with pytest.raises(OutputError, match=rf"profiler_1\.db: .*disk I/O error; .* {done}$"), outputs:
        step_task_info.write_in_place(*ranks_of(*databases), outputs)
    monkeypatch.undo()
    assert len(written(databases[0])) == 2
    for path in databases[1:]:
        with closing(sqlite3.connect(path)) as db:
            assert [name for _, name, *_ in db.execute("PRAGMA table_info(StepTaskInfo)")] == ["name"]


def test_in_place_opens_more_files_than_a_process_usually_may(tmp_path: Path) -> None:
    """In a process of its own, which may open 40 files."""
    code = f"""
import resource, sqlite3
from pathlib import Path
from tests.writers.test_step_task_info import ranks_of, written
from trace_export.writers import step_task_info
from trace_export.writers.outputs import Outputs
paths = [Path({str(tmp_path)!r}, f"{{rank}}.db") for rank in range(100)]
for path in paths:
    path.touch()
resource.setrlimit(resource.RLIMIT_NOFILE, (40, 1000))
step_task_info.write_in_place(*ranks_of(*paths), Outputs())
assert all(len(written(path)) == 2 for path in paths)
assert resource.getrlimit(resource.RLIMIT_NOFILE) == (40, 1000)
"""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "POLARS_MAX_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def one_rank(path: Path) -> Profile:
    spans = pl.DataFrame(
        {
            "rank": [0, 0],
            "kind": ["F", "B"],
            "start_ns": [10, 30],
            "end_ns": [20, 45],
            "marker": ["forward_step", None],
        },
        schema={"rank": INT, "kind": TEXT, "start_ns": TIME, "end_ns": TIME, "marker": TEXT},
    )
    empty = Profile()
    ranks = pl.DataFrame([{"rank": 0, "source": str(path), "kind": "ascend"}])
    return replace(empty, spans=conform(spans, SPANS), ranks=conform(ranks, empty.ranks.schema))  # type: ignore[arg-type]


def test_steps_limit_every_kind_of_row(ascend_run: AscendRun, tmp_path: Path) -> None:
    """The reference's --step_id leaves forwards and backwards of all steps in."""
    folder, truth = ascend_run("dualpipev")
    paths = copies(folder, tmp_path, "1")
    for rank, path in enumerate(paths):
        wanted = [b.start_ns for b in truth.blocks if (b.rank, b.step) == (rank, 1) and b.kind != "OPT"]
        assert [start for _, start, _, _ in written(path)] == wanted


def test_a_folder_without_a_database_is_an_error(samples: Path, tmp_path: Path) -> None:
    with pytest.raises(NothingToExportError, match=r"no database here .*; collect ascend or mindspore profiles"):
        copies(samples / "mindspore", tmp_path)


def test_the_command_writes_copies_or_in_place(samples: Path, tmp_path: Path, run_cli: Cli) -> None:
    cluster = tmp_path / "cluster"
    shutil.copytree(samples / "ascend", cluster)
    before = {p: p.read_bytes() for p in cluster.rglob("*.db")}
    result = run_cli(
        "export", "--source", "ascend", "--log_dir", cluster, "--out", tmp_path / "out", "--step-task-info"
    )
    assert result.returncode == 0, result.stderr
    made = sorted((tmp_path / "out" / "step_task_info").rglob("*.db"))
    assert [len(written(p)) for p in made] == [24] * 4
    assert {p: p.read_bytes() for p in cluster.rglob("*.db")} == before
    result = run_cli(
        "export",
        "--source",
        "ascend",
        "--log_dir",
        cluster,
        "--out",
        tmp_path / "out",
        "--step-task-info",
        "--in-place",
    )
    assert result.returncode == 0, result.stderr
    assert [written(p) for p in sorted(cluster.rglob("*.db"))] == [written(p) for p in made]
    assert run_cli("export", "--source", "ascend", "--log_dir", cluster, "--in-place").returncode == 2
