"""simulate, report and compare as a user runs them."""

from __future__ import annotations

import json
import re
from html import unescape
from pathlib import Path

import numpy as np
import polars as pl
import pytest

import trace_export
from tests.conftest import Cli
from trace_export.analysis.verdict import Sentence, step_sentence
from trace_export.chart.colours import DIFFERENT
from trace_export.cli import terminal
from trace_export.errors import SourceError
from trace_export.model import SPANS
from trace_export.schedules.schedule import schedule
from trace_export.schedules.simulate import Costs, as_profile, durations, simulate, start_and_end
from trace_export.sources import span_table
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


def test_simulate_on_the_terminal(run_cli: Cli, tmp_path: Path) -> None:
    made = run_cli(
        "simulate", "--schedule", "ZBV", "--stages", 4, "--microbatches", 8, "--comm", "1ms", "--format", "csv",
        "--out", tmp_path / "model.csv",
    )  # fmt: skip
    assert made.returncode == 0, made.stderr
    assert "ZB-V" in made.stdout
    assert "model.csv" in made.stdout
    written = pl.read_csv(tmp_path / "model.csv")
    expected = simulate(schedule("zb-v", 4, 8), Costs(10**7, 10**7, 10**7, 10**6)).spans
    assert sorted(written["end_ns"]) == sorted(expected["end_ns"])
    assert set(written["origin"]) == {"model"}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--schedule", "nonsense", "--stages", 4, "--microbatches", 8), "no schedule"),
        (("--schedule", "dualpipe", "--stages", 3, "--microbatches", 8), "even number of stages"),
        (("--schedule", "interleaved", "--stages", 4, "--microbatches", 5, "--chunks", 3), "never ends"),
        (("--schedule", "1f1b", "--stages", 4, "--microbatches", 8, "--times", "F:10"), "KIND=TIME"),
        (("--schedule", "1f1b", "--stages", 4, "--microbatches", 8, "--times", "F=10ms,F=20ms"), "F has two times"),
        (
            ("--schedule", "1f1b", "--stages", 4, "--microbatches", 8, "--times", "F=-1ms"),
            "-1 ms is negative, which a duration cannot be",
        ),
        (("--schedule", "1f1b", "--stages", 4, "--microbatches", 8, "--comm", "soon"), "not a time"),
        (("--schedule", "1f1b", "--stages", 4, "--microbatches", 8, "--format", "gif"), "gif"),
    ],
)
def test_impossible_models_get_a_sentence(
    run_cli: Cli, tmp_path: Path, options: tuple[object, ...], words: str
) -> None:
    made = run_cli("simulate", *options, "--out", tmp_path)
    assert made.returncode == 2
    assert words in made.stderr
    assert "Traceback" not in made.stderr
    assert not list(tmp_path.iterdir())


@pytest.fixture
def tables(tmp_path: Path) -> tuple[Path, Path]:
    """Two runs as span tables; the second has slower backwards."""
    paths = tmp_path / "a.parquet", tmp_path / "b.csv"
    write_parquet(simulate(schedule("1f1b", 4, 8), Costs(10_000_000, 20_000_000)), paths[0])
    write_csv(simulate(schedule("1f1b", 4, 8), Costs(10_000_000, 25_000_000)), paths[1])
    return paths


def test_report_on_the_terminal_and_as_a_page(run_cli: Cli, tables: tuple[Path, Path], tmp_path: Path) -> None:
    done = run_cli("report", tables[0])
    assert done.returncode == 0, done.stderr
    for words in ("27.27", "1F1B", "--full"):
        assert words in done.stdout
    full = run_cli("report", tables[0], "--full")
    for words in ("27.27", "warm-up", "1F1B", "What if", "first start to"):
        assert words in full.stdout
    page = run_cli("report", tables[0], "--format", "html", "--out", tmp_path)
    assert page.returncode == 0, page.stderr
    text = (tmp_path / "pipeline_report.html").read_text()
    for words in ("What if", "27.27", "waiting for backward"):
        assert words in text


def test_report_as_a_heat_map(run_cli: Cli, tables: tuple[Path, Path], tmp_path: Path) -> None:
    made = run_cli("report", tables[0], "--format", "svg", "--out", tmp_path)
    assert made.returncode == 0, made.stderr
    picture = tmp_path / "pipeline_slowdown.svg"
    assert "Slowdown by rank: a.parquet" in picture.read_text()
    assert f"wrote {picture}" in made.stdout.replace("\n", "")
    wrong = run_cli("report", tables[0], "--format", "png", "--out", picture)
    assert (wrong.returncode, "give a name that ends in .png" in wrong.stderr) == (2, True)


def test_compare_writes_one_trace_with_both(run_cli: Cli, tables: tuple[Path, Path], tmp_path: Path) -> None:
    out = tmp_path / "both.json"
    done = run_cli("compare", *tables, "--json", "--format", "chrome", "--out", out)
    assert done.returncode == 0, done.stderr
    blocks = json.loads(done.stdout)["blocks"]
    changes = {(row["kind"], row["change"]) for row in blocks}
    assert changes == {("F", 0.0), ("B", 0.25)}
    events = json.loads(out.read_text())["traceEvents"]
    names = {e["args"]["name"] for e in events if e["ph"] == "M" and e["name"] == "thread_name"}
    assert {f"stage {s} · rank {s} ({side})" for s in range(4) for side in ("a.parquet", "b.csv")} <= names
    tracks = {e["tid"]: e["args"]["name"] for e in events if e["ph"] == "M" and e["name"] == "thread_name"}
    starts = {
        side: min(e["ts"] for e in events if e["ph"] == "X" and tracks[e["tid"]].endswith("(b.csv)") == side)
        for side in (True, False)
    }
    assert starts[True] == starts[False]


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
        " In a step, b.csv has 40 ms more from the work of a rank, 15 ms more from waits of the schedule itself."
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


def test_the_next_command_is_on_what_was_read(capsys: pytest.CaptureFixture[str]) -> None:
    terminal.answer([Sentence("late-rank", {}, "It is late.", "see trace-export export DIR --ranks 3")], "'run 1'")
    assert "see trace-export export 'run 1' --ranks 3" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("lengths", "others"),
    [([1540, 233, None], "1-2"), ([233, 240, 236], ""), ([900, 233, 236, 231], "1-3")],
)
def test_steps_far_longer_than_the_others_come_with_their_comparison(lengths: list[int | None], others: str) -> None:
    steps = pl.DataFrame({"step": range(len(lengths)), "step_ns": lengths, "pipeline_ns": lengths}).with_columns(
        whole=True
    )
    said = step_sentence(steps, 1.0, 1.0, 0.3, host=False)
    command = f"trace-export compare DIR --steps-a {others} --steps-b 0"
    assert said.next == (f"to see why step 0 took longer: {command}" if others else "")


def test_files_that_are_no_span_table(tmp_path: Path, run_cli: Cli) -> None:
    other = tmp_path / "other.csv"
    other.write_text("time,value\n1,2\n")
    with pytest.raises(SourceError, match="no column rank"):
        span_table.read(other)
    broken = tmp_path / "broken.parquet"
    broken.write_bytes(b"PAR1 not really")
    with pytest.raises(SourceError, match="cannot be read"):
        span_table.read(broken)
    holes = tmp_path / "holes.csv"
    holes.write_text("rank,kind,start_ns,end_ns\n0,F,1,\n")
    with pytest.raises(SourceError, match="no rank or no time"):
        span_table.read(holes)
    done = run_cli("report", other)
    assert done.returncode == 1
    assert "no column rank" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_span_table_read_back_is_what_was_written(tables: tuple[Path, Path]) -> None:
    expected = simulate(schedule("1f1b", 4, 8), Costs(10_000_000, 20_000_000))
    profile = span_table.read(tables[0]).validate()
    columns = [c for c in SPANS if c not in ("id", "run", "phase", "labels")]
    assert profile.spans.select(columns).equals(expected.spans.sort("start_ns", "rank").select(columns))
    assert profile.ranks.select("rank", "stage", "device").equals(expected.ranks.select("rank", "stage", "device"))


def test_the_page_of_a_comparison_has_its_sentences_and_tables(samples: Path, run_cli: Cli, tmp_path: Path) -> None:
    a, b = samples / "paddle" / "single", samples / "paddle" / "two_machines"
    page = tmp_path / "both.html"
    assert run_cli("compare", a, b, "--format", "html", "--out", page).returncode == 0
    found = trace_export.compare(a, b).comparison
    text = unescape(page.read_text("utf-8"))
    assert "<h1>Comparison: single and two_machines</h1>" in text
    assert all(f"<li>{sentence.text}</li>" in text for sentence in found.verdict)
    assert re.findall(r"<h2>(.*?)</h2>", text) == [table.title for table in found.tables()] == [
        "Steps", "What the difference is made of", "Causes", "Blocks",
    ]  # fmt: skip
    assert "two_machines</th>" in text  # as the folder is called
    shown = text.partition("<h2>Blocks</h2>")[2]
    assert shown.count("<tr") == 1 + found.blocks.height
