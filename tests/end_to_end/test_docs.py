"""What the documentation says is run: every command, every query, every option, every picture."""

import json
import os
import re
import runpy
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest

import trace_export
from tests.conftest import ROOT, Cli
from tests.support import architecture, gallery, library_reference
from tests.support.command_reference import PAGE, page
from tests.support.trace_processor import TraceProcessor
from trace_export import api, model
from trace_export.cli.commands import ROWS

README = ROOT / "README.md"
DOCS = ROOT / "trace_export" / "docs"
PAGES = [README, *sorted(DOCS.rglob("*.md"))]
SET_UP = ("bash ", "pip ", "git ", "python")
"""Lines that set a machine up; the set-up itself runs the tests."""
ELSEWHERE = ("open ", "run ", "watch ")
"""Commands that wait for a browser, start a training or follow one; they have tests of their own."""


def blocks(path: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", path.read_text(encoding="utf-8"), re.M | re.S)


def commands(path: Path) -> list[str]:
    """The lines of the page's sh blocks that call the program, without comments."""
    lines = [
        line.split("  #")[0].split(" # ")[0].strip() for block in blocks(path, "sh") for line in block.splitlines()
    ]
    return [line for line in lines if line.startswith("trace-export ")]


@pytest.fixture
def workplace(tmp_path: Path, samples: Path) -> Path:
    """A folder with the profiles that the documentation speaks of."""
    shutil.copytree(samples / "paddle" / "single", tmp_path / "logs")
    shutil.copytree(samples / "paddle" / "single", tmp_path / "other_logs")
    shutil.copytree(samples / "paddle" / "two_machines", tmp_path / "multi_machine_logs")
    shutil.copytree(samples / "ascend", tmp_path / "ascend_logs")
    return tmp_path


RUNNABLE = [
    (path, line)
    for line, path in {line: path for path in (README, *sorted(DOCS.glob("*.md"))) for line in commands(path)}.items()
    if not line.removeprefix("trace-export ").startswith(ELSEWHERE)
]
"""Each line once, with the last page that has it."""


def asked(line: str) -> set[str]:
    """The command of a line and its options."""
    first, *words = shlex.split(line)[1:]
    return {
        first if first in ROWS else "export",
        *(word for word in [first, *words] if word.startswith("--")),
    }


def apart(lines: list[str]) -> list[str]:
    """The lines but for those whose command another one has, with the same options and more."""
    return [line for line in lines if not any(asked(line) < asked(other) for other in lines)]


EVERY_RUN = apart([line for _, line in RUNNABLE])


@pytest.mark.parametrize(
    ("path", "line"),
    [
        pytest.param(p, line, id=f"{p.name}: {line}", marks=[] if line in EVERY_RUN else [pytest.mark.slow])
        for p, line in RUNNABLE
    ],
)
def test_a_documented_command_runs(path: Path, line: str, workplace: Path, run_cli: Cli) -> None:
    result = run_cli(*shlex.split(line)[1:], cwd=workplace)
    assert result.returncode == 0, result.stderr


def test_every_line_of_the_readme_is_a_command_or_set_up() -> None:
    lines = [line for block in blocks(README, "sh") for line in block.splitlines() if line and not line.startswith("#")]
    assert [line for line in lines if not line.startswith(("trace-export ", ".venv/bin/trace-export ", *SET_UP))] == []


def test_the_page_of_commands_is_what_help_says() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "write it anew: python -m tests.support.command_reference"


def test_the_files_that_the_architecture_names_exist() -> None:
    text = architecture.PAGE.read_text(encoding="utf-8")
    named = re.findall(r"`((?:\w+/)*\w+\.(?:py|md))`", text)
    assert len(named) > 20
    places = (architecture.PACKAGE, ROOT)
    assert [name for name in named if not any((place / name).exists() for place in places)] == []


def test_links_lead_somewhere() -> None:
    for path in PAGES:
        for target in re.findall(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)", path.read_text(encoding="utf-8")):
            assert (path.parent / target).exists(), f"{path.name} links to {target}"


def test_every_page_is_linked_from_the_readme() -> None:
    text = README.read_text(encoding="utf-8")
    assert [p.name for p in DOCS.glob("*.md") if f"({p.relative_to(ROOT)})" not in text] == []


QUERIES = re.findall(r"^\| .*\? \| `(select .*)` \|$", (DOCS / "formats.md").read_text("utf-8"), re.M)
VIEWS = [(DOCS / "sql" / "trace_export" / f"{name}.sql").read_text("utf-8") for name in ("blocks", "questions")]


@pytest.fixture(scope="module")
def sample_trace(tmp_path_factory: pytest.TempPathFactory, run_cli: Cli, samples: Path) -> Path:
    out = tmp_path_factory.mktemp("trace")
    assert run_cli(samples / "paddle" / "single", "--out", out, "--format", "perfetto,parquet").returncode == 0
    return out


def test_the_documented_queries_answer(sample_trace: Path) -> None:
    """After the statements of both files, as the page says for the UI; test_sql_package has the rest."""
    table = pl.read_parquet(sample_trace / "pipeline_profile.parquet")
    assert len(QUERIES) == 10
    with TraceProcessor(sample_trace / "pipeline_profile.pftrace") as trace:
        for statements in VIEWS:
            trace.query("".join(line for line in statements.splitlines(keepends=True) if "INCLUDE" not in line))
        answers = [trace.query(sql) for sql in QUERIES]
    work, forward, steps, gaps, hops, violations, path, busy, share, slow = answers
    assert work["blocks"].sum() == table.height
    assert forward.height == 8 * 4
    assert steps["name"].to_list() == ["step 2", "step 3", "step 4"]
    assert gaps["dur"].is_sorted(descending=True)
    assert hops["wait"].min() > 0
    assert violations.is_empty()
    assert path["name"].to_list() == ["F3"] * 4 + ["B3"] * 4
    assert busy["stages"].max() == 4
    assert share["percent"].is_between(50, 100).all()
    assert slow["ratio"].min() > 1


def test_the_picture_is_what_the_program_draws(run_cli: Cli, samples: Path, tmp_path: Path) -> None:
    """`trace-export samples/paddle/single --steps 2 --format svg --out trace_export/docs/pp_chart.svg` makes it."""
    out = tmp_path / "pp_chart.svg"
    run_cli(samples / "paddle" / "single", "--steps", "2", "--format", "svg", "--out", out)
    assert out.read_bytes() == (DOCS / "pp_chart.svg").read_bytes()


def test_the_gate_of_the_workflow_passes_and_fails(tmp_path: Path, samples: Path) -> None:
    """The step of a workflow in docs/compare.md, as a runner executes it."""
    text = (DOCS / "compare.md").read_text("utf-8")
    (line,) = re.findall(r"- run: (trace-export compare .*)", text)
    shutil.copytree(samples / "paddle" / "single", tmp_path / "logs")
    (tmp_path / "ci").mkdir()
    api.save_baseline(tmp_path / "logs", tmp_path / "ci" / "baseline.json")
    summary = tmp_path / "summary.md"
    environment = {**os.environ, "GITHUB_STEP_SUMMARY": str(summary), "PYTHONPATH": str(ROOT)}
    script = line.replace("trace-export", f"{shlex.quote(sys.executable)} -m trace_export", 1)
    assert subprocess.run(["bash", "-e", "-c", script], cwd=tmp_path, env=environment, check=False).returncode == 0
    baseline = tmp_path / "ci" / "baseline.json"
    half = re.sub(r'("pipeline_ns": )(\d+)', lambda m: f"{m[1]}{int(m[2]) // 2}", baseline.read_text("utf-8"))
    baseline.write_text(half, encoding="utf-8")
    assert subprocess.run(["bash", "-e", "-c", script], cwd=tmp_path, env=environment, check=False).returncode == 4
    assert "is 100% more" in summary.read_text("utf-8")


def test_the_example_by_hand_is_what_report_says(run_cli: Cli, tmp_path: Path) -> None:
    """Its figures are worked out on the page; three steps, so that a slow stage can be told from chance."""
    (picture,) = (block for block in blocks(DOCS / "slowdown.md", "text") if block.startswith("stage 0:"))
    lines = [re.findall(r"([FB])(\d) (\d+)-(\d+)", line) for line in picture.splitlines()]
    rows = [
        f"{stage},{kind},{microbatch},{step},{int(start) + 24 * step},{int(end) + 24 * step}"
        for stage, line in enumerate(lines)
        for kind, microbatch, start, end in line
        for step in range(3)
    ]
    (tmp_path / "blocks.csv").write_text("\n".join(("rank,kind,microbatch,step,start,end", *rows)), "utf-8")
    names = "rank=rank,stage=rank,kind=kind,microbatch=microbatch,step=step,start=start:ms,end=end:ms"
    document = json.loads(run_cli("report", tmp_path / "blocks.csv", "--columns", names, "--json").stdout)
    (cause,) = document["causes"]
    assert (cause["code"], cause["stage"]) == ("slow-stage", 1)
    assert (cause["gain_ns"], cause["even_ns"]) == (pytest.approx(6e6), pytest.approx(1.5e6))
    levels = {row["level"]: row["adds_ns"] / 1e6 for row in document["levels"] if row["adds_ns"]}
    assert levels == pytest.approx({"work": 15, "schedule": 7.5, "stages": 1.5})
    facts = next(sentence["facts"] for sentence in document["verdict"] if sentence["code"] == "step")
    assert facts["bubble"] == pytest.approx(0.375)


def test_the_gallery_is_what_its_commands_draw(tmp_path: Path) -> None:
    """`python -m tests.support.gallery` makes it."""
    made = gallery.draw(tmp_path)
    assert {path.name for path in made} == {path.name for path in (DOCS / "gallery").iterdir()}
    assert all(path.read_bytes() == (DOCS / "gallery" / path.name).read_bytes() for path in made)


PROGRAMS = [(path, code) for path in (README, library_reference.PAGE) for code in blocks(path, "python")]


@pytest.mark.parametrize(("path", "code"), PROGRAMS, ids=[f"{path.name}: {code[21:60]!r}" for path, code in PROGRAMS])
def test_a_documented_program_runs(
    path: Path, code: str, workplace: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(workplace)
    exec(compile(code, path, "exec"), {"__name__": "__main__"})
    assert (workplace / "chart.pftrace").exists() or 'write("chart' not in code
    assert "choose from paddle" in capsys.readouterr().out or "UsageError" not in code


def test_the_reference_of_the_library_is_what_the_code_says() -> None:
    text = library_reference.PAGE.read_text(encoding="utf-8")
    assert text == library_reference.page(), "write it anew: python -m tests.support.library_reference"
    errors = {name for name in trace_export.__all__ if name.endswith("Error")}
    missing = [name for name in trace_export.__all__ if f"`{name}`" not in text and name != "__version__"]
    assert set(missing) <= errors, "they have a page of their own, messages.md"
    assert set(model.TABLES) - {"evaluations"} <= set(library_reference.TABLES), "evaluations are among Run.spans"


def test_the_example_runs(samples: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(samples / "example.py"), run_name="__main__")
    assert "wrote pipeline_profile.svg" in capsys.readouterr().out
