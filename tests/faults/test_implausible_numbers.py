"""Numbers that a file states and its blocks do not bear out: nothing is sized by them."""

import json
import resource
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from samples.generators.ascend import Job, record
from tests.support.ascend_jobs import JOBS
from tests.support.limits import limited

LARGEST = 2**31 - 1
LIMIT = {resource.RLIMIT_AS: 3 << 30}
"""Virtual memory. A small export takes about half of it; a pipeline of 3,000 stages built in full took 8 GB."""


BOTH = """
import sys
from trace_export.cli import main
out, *places = sys.argv[1:]
DRAW = ["--format", "perfetto,svg,html,csv", "--bubbles", "--model", "--force", "--out", out]
for place in places:
    for command in ([place, *DRAW], ["report", place]):
        try:
            main(command)
        except SystemExit as end:
            if end.code:
                sys.exit(f"{place}: {end.code}")
"""


def exported(out: Path, *places: Path) -> str:
    """What is said while everything that asks for the schedule is drawn, and reported, of one place after the other."""
    done = limited(LIMIT, out, *places, code=BOTH)
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def dynamic_graph_record(folder: Path, rank: int, tid: int) -> None:
    """Two forwards and two backwards of a rank on stage `tid` - 1."""
    folder.mkdir(exist_ok=True)
    lines = []
    for number, name in enumerate(("F0", "B0", "F1", "B1")):
        for ph, time in (("B", 10 * number), ("E", 10 * number + 9)):
            event = {"name": name, "cat": "pipeline timeline", "ph": ph, "pid": 0, "tid": tid, "ts": 1_700_000 + time}
            lines.append(json.dumps(event))
    (folder / f"profile_record_tmp_file_for_rank_{rank}").write_text("\n".join(lines))


def with_metadata(folder: Path, name: str, change: Callable[[Any], None]) -> None:
    """Changes the JSON text of a row of META_DATA in all databases."""
    for path in folder.rglob("ascend_pytorch_profiler_*.db"):
        with closing(sqlite3.connect(path)) as db:
            (text,) = db.execute("SELECT value FROM META_DATA WHERE name = ?", [name]).fetchone()
            value = json.loads(text)
            change(value)
            db.execute("UPDATE META_DATA SET value = ? WHERE name = ?", [json.dumps(value), name])
            db.commit()


def group_of_stages(folder: Path, stages: int = 2_000) -> None:
    """Two ranks of a job whose groups of pipeline ranks are said to have 2,000 members, and `stages` stages."""

    def enlarge(groups: Any) -> None:
        for group in groups.values():
            group["global_ranks"] = [*group["global_ranks"], *range(2, 2_000)]

    def deepen(sizes: Any) -> None:
        sizes["pipeline_model_parallel_size"] = stages

    record(folder, Job(2, 4, 1, hosts=1))
    with_metadata(folder, "parallel_group_info", enlarge)
    with_metadata(folder, "distributed_args", deepen)


def schedule_of_a_hundred_million_microbatches(folder: Path) -> None:
    """The metadata say so; the numbers of the forwards say ten."""

    def enlarge(information: Any) -> None:
        information["microbatch_num"] = 100_000_000

    record(folder, JOBS["dualpipev"])
    with_metadata(folder, "pp_info", enlarge)


def test_numbers_of_metadata(tmp_path: Path) -> None:
    """Of a stage in eight lines, of a group of ranks, and of a schedule."""
    few, many, group, schedule = (tmp_path / name for name in ("few", "many", "group", "schedule"))
    dynamic_graph_record(few, 0, 100)
    dynamic_graph_record(many, 0, 999_999)
    group_of_stages(group)
    schedule_of_a_hundred_million_microbatches(schedule)
    said = exported(tmp_path / "out", few, many, group, schedule)
    assert "declare 100 stages" not in said
    assert "declare 999999 stages, but only 1 of them" in said
    assert "declare 2000 stages, but only 2 of them" in said
    table = pl.read_csv(tmp_path / "out" / "pipeline_profile.csv")
    assert table["microbatch"].max() == 9


@pytest.mark.parametrize("stages", [5_000_000_000, 1 << 63])
def test_a_number_of_stages_that_no_column_holds(stages: int, tmp_path: Path) -> None:
    group_of_stages(tmp_path / "group", stages)
    assert "2 ranks" in exported(tmp_path / "out", tmp_path / "group")


TABLE = """rank,host,device,stage,step,kind,microbatch,chunk,start_ns,end_ns
0,a,0,0,0,F,0,0,0,90
0,a,0,0,0,F,1,0,100,190
0,a,0,0,0,B,0,0,300,390
0,a,0,0,0,B,1,0,500,590
{rank},a,1,{stage},{step},F,{microbatch},{chunk},200,290
{rank},a,1,{stage},{step},B,{microbatch},{chunk},300,390
"""
PLAUSIBLE = {"rank": 1, "stage": 1, "step": 0, "microbatch": 0, "chunk": 0}


def test_numbers_of_a_span_table(tmp_path: Path) -> None:
    changes: list[dict[str, int]] = [
        *({name: LARGEST} for name in PLAUSIBLE), dict.fromkeys(PLAUSIBLE, LARGEST), {"chunk": 60_000},
        {"stage": 255, "chunk": 200}, dict.fromkeys(PLAUSIBLE, -1),
    ]  # fmt: skip
    tables = [tmp_path / f"{'; '.join(f'{name} {n}' for name, n in numbers.items())}.csv" for numbers in changes]
    for path, numbers in zip(tables, changes, strict=True):
        path.write_text(TABLE.format(**{**PLAUSIBLE, **numbers}))
    exported(tmp_path / "out", *tables)


@pytest.mark.parametrize(
    ("schedule", "stages", "microbatches", "said"),
    [
        ("zb-v", 1_000_000, 1, "1000000 stages are too many; give at most 4096"),
        ("zb-v", 64, 50_000, "are too many blocks; stages × micro-batches × chunks may be at most"),
        ("1f1b", 4096, 1, None),
        pytest.param("zb-v", 4096, 1, None, marks=pytest.mark.slow),
    ],
)
def test_simulation_is_bounded(schedule: str, stages: int, microbatches: int, said: str | None, tmp_path: Path) -> None:
    arguments = ["--schedule", schedule, "--stages", stages, "--microbatches", microbatches, "--format", "csv"]
    done = limited(LIMIT, "simulate", *arguments, "--out", tmp_path)
    assert done.returncode == (0 if said is None else 2), done.stderr
    assert (said or "") in " ".join(done.stderr.split())
