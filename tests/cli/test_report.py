"""simulate, report and compare as a user runs them."""

import json
import re
from dataclasses import replace
from html import unescape
from pathlib import Path

import numpy as np
import polars as pl
import pytest

import trace_export
from samples.generators.data_parallel import WRITERS, Job
from samples.generators.pipeline import MS
from tests.conftest import Cli
from trace_export.analysis.verdict import step_sentence
from trace_export.chart.colours import DIFFERENT
from trace_export.schedules.schedule import schedule
from trace_export.schedules.simulate import Costs, as_profile, durations, simulate, start_and_end
from trace_export.writers.tables import write_csv, write_parquet

ALL_FORMATS = "perfetto,chrome,svg,html,parquet,csv"


def test_simulate_export_report_gives_the_formula(run_cli: Cli, tmp_path: Path) -> None:
    """1F1B with p = 4, m = 8: the bubble is 3 (F + B) of 11 (F + B)."""
    made = run_cli(
        "simulate", "--schedule", "1f1b", "--stages", 4, "--microbatches", 8, "--times", "F=10ms,B=20ms",
        "--format", ALL_FORMATS, "--out", tmp_path, "--json",
    )  # fmt: skip
    assert made.returncode == 0, made.stderr
    printed = json.loads(made.stdout)
    (model,) = printed["schedules"]
    assert (model["step_ns"], model["bubble"], model["formula_idle_ns"]) == (330_000_000, 3 / 11, 90_000_000)
    assert sorted(Path(f).suffix for f in printed["files"]) == [
        ".csv",
        ".html",
        ".json",
        ".parquet",
        ".pftrace",
        ".svg",
    ]
    done = run_cli("report", tmp_path / "pipeline_profile.parquet", "--json")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert [step["bubble"] for step in document["steps"]] == [3 / 11]
    assert {stage["global_ns"] for stage in document["stages"]} == {90_000_000}
    assert document["schedule"]["name"] == "1f1b"
    assert document["closed_form"]["idle_ns"] == 90_000_000


@pytest.fixture
def tables(tmp_path: Path) -> tuple[Path, Path]:
    """Two runs as span tables; the second has slower backwards."""
    paths = tmp_path / "a.parquet", tmp_path / "b.csv"
    write_parquet(simulate(schedule("1f1b", 4, 8), Costs(10_000_000, 20_000_000)), paths[0])
    write_csv(simulate(schedule("1f1b", 4, 8), Costs(10_000_000, 25_000_000)), paths[1])
    return paths


def test_a_picture_of_two_runs_has_the_bubble_of_each(run_cli: Cli, tables: tuple[Path, Path], tmp_path: Path) -> None:
    """Beside the rows of each run stand the shares that a picture of it alone has."""

    def shares(*command: object) -> dict[str, str]:
        made = run_cli(*command, "--format", "svg", "--out", tmp_path / "picture.svg")
        assert made.returncode == 0, made.stderr
        texts = re.findall(r'<text x="[^"]*" y="([^"]*)" class="end">([^<]*)<', (tmp_path / "picture.svg").read_text())
        rows: dict[str, list[str]] = {}
        for y, words in texts:
            rows.setdefault(y, []).append(words)
        return {row[0]: row[1] for row in rows.values()}

    s = schedule("1f1b", 4, 8)
    lengths = durations(s, Costs(10_000_000, 20_000_000)) * np.where(s.ops["stage"].to_numpy() == 2, 1.3, 1.0)
    write_csv(as_profile(s, *start_and_end(s, lengths)), tables[1])
    alone = [shares(table) for table in tables]
    assert alone[0] != alone[1]
    both = shares("compare", *tables)
    sides = zip(alone, ("a.parquet", "b.csv"), strict=True)
    assert both == {f"{row} ({side})": share for rows, side in sides for row, share in rows.items()}


def test_a_picture_of_two_runs_marks_what_differs(run_cli: Cli, tables: tuple[Path, Path], tmp_path: Path) -> None:
    """All backwards of the second run are a quarter longer; its rows lie on another ground."""
    made = run_cli("compare", *tables, "--format", "svg", "--out", tmp_path / "picture.svg")
    assert made.returncode == 0, made.stderr
    text = (tmp_path / "picture.svg").read_text()
    assert text.count('class="idle other"') == 4
    marks = {fill: re.findall(rf'<path fill="{fill}" d="([^"]*)"', text) for fill in DIFFERENT.values()}
    assert [path.count("M") for path in marks[DIFFERENT[1]]] == [4 * 8]
    assert marks[DIFFERENT[-1]] == []
    assert "longer than in the first run by more than 10%" in text
    assert float(re.findall(r'<svg [^>]*width="([\d.]+)"', text)[0]) <= 1600


def test_a_run_is_not_compared_with_itself(run_cli: Cli, tables: tuple[Path, Path]) -> None:
    for arguments in ((tables[0],), (tables[0], tables[0]), (tables[0], "--steps-a", "0", "--steps-b", "0")):
        done = run_cli("compare", *arguments)
        assert done.returncode == 2
        assert "would be compared with itself" in done.stderr


def test_compare_says_first_what_has_changed(run_cli: Cli, tables: tuple[Path, Path]) -> None:
    done = run_cli("compare", *tables, "--verbose")
    assert done.returncode == 0, done.stderr
    answer = " ".join(done.stdout.partition("\n\n")[0].split())
    assert answer == (
        "The pipeline time is 385 ms in b.csv, 55 ms (16.7%) more than in a.parquet; the bubble is 27.3% in both."
        " In a step, b.csv has 40 ms more from the work of a rank and 15 ms more from waits of the schedule itself."
        " No cause differs by 1% of a step or more."
    )
    assert done.stderr.count("schedule-recognised") == 1  # what holds for both is said once
    assert max(map(len, done.stdout.splitlines())) <= 80


@pytest.mark.parametrize(
    ("longer_ns", "said"),
    [
        (0, "The step time is the same in a.parquet and b.parquet: 350 ms."),
        (100, "nearly the same in a.parquet and b.parquet: 350 ms in b.parquet, 100 ns (less than 0.01%) more."),
        (1_050_000, "nearly the same in a.parquet and b.parquet: 351 ms in b.parquet, 1.05 ms (0.30%) more."),
    ],
)
def test_compare_says_how_little_two_runs_differ(run_cli: Cli, tmp_path: Path, longer_ns: int, said: str) -> None:
    """Two steps of one block each, the second step begins later in the other run."""
    for name, more in (("a", 0), ("b", longer_ns)):
        starts = [1_000_000_000, 1_350_000_000 + more]
        pl.DataFrame(
            {"kind": ["F", "F"], "step": [0, 1], "stage": 0, "rank": 0, "microbatch": 0, "start_ns": starts}
        ).with_columns(end_ns=pl.col("start_ns") + 300_000_000).write_parquet(tmp_path / f"{name}.parquet")
    done = run_cli("compare", "a.parquet", "b.parquet", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert said in " ".join(done.stdout.split())


def test_the_culprit_of_64_stages_is_on_the_first_screen(run_cli: Cli, tmp_path: Path) -> None:
    """80 columns and 24 lines: what is wrong, how much it costs, and where; and the slow stage in each table."""
    s = schedule("1f1b", 64, 64)
    lengths = durations(s, Costs(10_000_000, 20_000_000)) * np.where(s.ops["stage"].to_numpy() == 37, 1.3, 1.0)
    write_parquet(as_profile(s, *start_and_end(s, lengths)), tmp_path / "run.parquet")
    done = run_cli("report", tmp_path / "run.parquet")
    assert done.returncode == 0, done.stderr
    screen = done.stdout.splitlines()[:24]
    assert max(map(len, screen)) <= 80
    assert "Stage 37 is slow (rank 37" in "\n".join(screen)
    for title in ("Stages",):
        table = done.stdout.partition(f"\n{title}\n")[2].partition("\n\n")[0].splitlines()
        assert table[1].split()[0] == "37"  # the worst row comes first


def test_of_many_steps_the_slowest_and_the_fastest_are_shown(run_cli: Cli, tmp_path: Path) -> None:
    """From start to start; of the last one nobody knows that."""
    begun = [0]
    for length in (100, 100, 180, 100, 100, 90, 100, 100):
        begun.append(begun[-1] + length * 1_000_000)
    frame = pl.DataFrame({"kind": "F", "step": range(9), "stage": 0, "rank": 0, "microbatch": 0, "start_ns": begun})
    frame.with_columns(end_ns=pl.col("start_ns") + 60_000_000).write_parquet(tmp_path / "run.parquet")
    done = run_cli("report", tmp_path / "run.parquet")
    assert done.returncode == 0, done.stderr
    rows = done.stdout.partition("\nSteps\n")[2].partition("\n\n")[0].splitlines()
    for step, words in (("0", "first"), ("2", "slowest"), ("5", "fastest"), ("8", "last")):
        assert [row.split()[0] for row in rows if words in row] == [step]


@pytest.mark.parametrize(
    ("lengths", "others"),
    [([1540, 233, None], "1-2"), ([233, 240, 236], ""), ([900, 233, 236, 231], "1-3")],
)
def test_steps_far_longer_than_the_others_come_with_their_comparison(lengths: list[int | None], others: str) -> None:
    steps = pl.DataFrame({"step": range(len(lengths)), "step_ns": lengths, "pipeline_ns": lengths}).with_columns(
        whole=True, counts=True
    )
    said = step_sentence(steps, 1.0, 1.0, 0.3, host=False)
    command = f"trace-export compare DIR --steps-a {others} --steps-b 0"
    assert said.next == (f"to see why step 0 took longer: {command}" if others else "")


def test_the_page_of_a_comparison_has_its_sentences_and_tables(samples: Path, run_cli: Cli, tmp_path: Path) -> None:
    a, b = samples / "paddle" / "single", samples / "paddle" / "two_machines"
    page = tmp_path / "both.html"
    assert run_cli("compare", a, b, "--format", "html", "--out", page).returncode == 0
    result = trace_export.compare(a, b).comparison
    text = unescape(page.read_text("utf-8"))
    assert "<h1>Comparison: single and two_machines</h1>" in text
    assert all(f"<li>{sentence.text}</li>" in text for sentence in result.verdict)
    assert re.findall(r"<h2>(.*?)</h2>", text) == [table.title for table in result.tables()] == [
        "Steps", "What the difference is made of", "Causes", "Blocks",
    ]  # fmt: skip
    assert "two_machines</th>" in text  # as the folder is called
    shown = text.partition("<h2>Blocks</h2>")[2]
    assert shown.count("<tr") == 1 + result.blocks.height


def test_a_run_without_passes_is_said_to_have_no_step(run_cli: Cli, tmp_path: Path) -> None:
    table, page = tmp_path / "opt.csv", tmp_path / "why.html"
    table.write_text("r,k,s,e\n0,OPT,0,1\n1,OPT,0,1\n")
    for more in ((), ("--out", page)):
        done = run_cli("report", table, "--columns", "rank=r,kind=k,start=s:ms,end=e:ms", *more)
        assert (done.returncode, done.stdout.startswith("opt.csv: no step")) == (0, True), done.stderr
        assert "trace-export inspect" in done.stdout
    assert "No step has a forward" in page.read_text()


def test_commands_to_run_next_name_what_was_read(run_cli: Cli, tmp_path: Path) -> None:
    """In text and pages, of one run and of two, and of one in Markdown and JSON, too; a name with a space is quoted."""
    usual = Job(stages=4, replicas=1, microbatches=8, steps=4)
    WRITERS["paddle"](tmp_path / "usual", usual)
    WRITERS["paddle"](tmp_path / "warm up", replace(usual, warm_up=(6.0,), held={(0, 2): 2 * MS}))
    commands = {
        "report": (["warm up"], "trace-export compare 'warm up' --steps-a"),
        "overview": (["warm up"], "trace-export compare 'warm up' --steps-a"),
        "compare": (["usual", "warm up"], "trace-export export 'warm up' --ranks"),
    }
    for command, (inputs, said) in commands.items():
        forms = [[], ["--format", "html", "--out", f"{command}.html"]]
        forms += [["--json"], ["--format", "markdown"]] if command == "report" else []
        for form in forms:
            done = run_cli(command, *inputs, *form, cwd=tmp_path)
            assert done.returncode == 0, done.stderr
            page = tmp_path / form[-1] if "html" in form else None
            text = " ".join((unescape(page.read_text("utf-8")) if page else done.stdout).split())
            assert said in text, (command, form)
            assert " DIR" not in text, (command, form)
