"""What is said of words that are wrong: one sentence of one kind, with the word that was meant where there is one."""

import json
from pathlib import Path

import pytest

from tests.conftest import Cli

LOGS = "DIR"
"""In place of a folder that can be read."""
MODEL = ("simulate", "--schedule", "1f1b", "--stages", "2", "--microbatches", "2")
TABLE = "trace-export export DIR --step-task-info writes the table that pp_chart writes"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ("-d", "0,1", LOGS),
            "there is no option -d; the folder is given as it is or as --log_dir DIR, "
            "local worker indexes as --devices 0,1",
        ),
        *(
            ((command,), "no folder is given; name the folder that holds the profiles")
            for command in ("export", "inspect", "report", "overview", "watch")
        ),
        (("export", "logs", "-m", "pp_chart"), f"there is no option -m; {TABLE}"),
        (("cluster", "-m", "pp_chart", "-d", "logs"), f'there is no command "cluster"; {TABLE}'),
        (("export", "logs", "--foce"), "there is no option --foce; did you mean --force?"),
        (("export", "logs", "--output", "x"), "there is no option --output; did you mean --out?"),
        (
            ("simulate", "1f1b", "--stages", "4"),
            'simulate does not take "1f1b" as well; name the schedule with --schedule 1f1b',
        ),
        (("compare", "a", "b", "c"), 'compare does not take "c" as well; see trace-export compare --help'),
        (("simulate", "--pp", "4"), "there is no option --pp; did you mean --stages?"),
        (("report", "logs", "--jobs", "x"), '--jobs: "x" is not a whole number'),
        (
            ("report", "logs", "--format", "pdf"),
            '--format: "pdf" is unknown; choose from text, markdown, json, html, svg, png',
        ),
        (("export", "logs", "--format", "foo"), '--format: "foo" is unknown; choose from perfetto'),
        (("export", "logs", "--align"), "option '--align' requires an argument"),
        (("export", "logs", "--in-place"), "--in-place does nothing alone; give it together with --step-task-info"),
        (("export", LOGS, "--devices", "0,x"), '--devices: "0,x" is not a list of numbers; write it like 0,1,4-7'),
        (("export", LOGS, "--steps", "4-2"), '--steps: "4-2" is not a list of numbers'),
        (
            ("export", LOGS, "--align", "later"),
            '--align: "later" is unknown, and there is no such file; choose auto, wall, none, strict',
        ),
        (("export", LOGS, "--offset", "3ms"), '--offset: "3ms" is not HOST=TIME; write it like node1=+3.2ms'),
        (("export", LOGS, "--offset", "machine1=3parsecs"), '--offset: "3parsecs" is not a time'),
        (
            ("export", LOGS, "--offset", "machine1=9999999999999999s"),
            '--offset: "9999999999999999s" is too long a time',
        ),
        (("export", LOGS, "--time", "2s-1s"), "--time: the window of 2 s to 1 s ends before it starts"),
        (
            ("export", LOGS, "--detail", "everything"),
            '--detail: "everything" is unknown; choose from spans, comm, kernels',
        ),
        (("export", LOGS, "--tracks", "host"), '--tracks: "host" is unknown'),
        (("export", LOGS, "--color-by", "mood"), '--color-by: "mood" is unknown'),
        (("export", LOGS, "--table", "all"), '--table: "all" is unknown'),
        (("export", LOGS, "--max-clock-error", "x"), '--max-clock-error: "x" is not a time'),
        (("export", LOGS, "--width", "1"), '--width: "1" is not a length'),
        (("export", LOGS, "--multimachine"), "there is no option --multimachine; did you mean --multi-machine?"),
        (("help",), 'there is no command "help"; did you mean --help?\n'),
        (("exprot", "--log_dir", "."), 'there is no command "exprot"; did you mean export?\n'),
        (("compare", LOGS, LOGS, "--steps-a", "x"), '--steps-a: "x" is not a list of numbers'),
        (("compare", "", LOGS), 'A: "" is not a path'),
        (
            ("simulate", "--schedule", "1f1b", "--stages", "2", "--microbatches", "2", "--times", "F=x"),
            '--times: "x" is not a time',
        ),
        (
            ("compare", LOGS),
            "DIR would be compared with itself; name another folder, or other steps or runs with --steps-a and"
            " --steps-b, --run-a and --run-b",
        ),
        (("simulate", "--stages", "2"), "--schedule is missing"),
        ((*MODEL[:2], "nonsense", *MODEL[3:]), 'there is no schedule "nonsense"; choose one of gpipe, 1f1b'),
        ((*MODEL, "--times", "F:10"), '--times: "F:10" is not KIND=TIME'),
        ((*MODEL, "--times", "F=10ms,F=20ms"), "--times: F has two times"),
        ((*MODEL, "--times", "F=-1ms"), "--times: -1 ms is negative, which a duration cannot be"),
        ((*MODEL, "--comm", "soon"), '--comm: "soon" is not a time'),
        ((*MODEL, "--format", "gif"), '--format: "gif" is unknown'),
        (("compare", "nowhere", "here"), "nowhere: no such file or folder; give the folder that holds the profiles\n"),
    ],
)
def test_a_wrong_word_is_one_sentence(
    run_cli: Cli, samples: Path, tmp_path: Path, words: tuple[str, ...], said: str
) -> None:
    logs = str(samples / "paddle" / "single")
    ended = run_cli(*(logs if word == LOGS else word for word in words), cwd=tmp_path)
    assert ended.returncode == 2
    assert ended.stderr.replace(logs, LOGS).startswith(f"trace-export: {said}")
    assert ended.stderr.count("\n") == 1
    assert "╭" not in ended.stdout + ended.stderr
    assert "`" not in ended.stderr.partition("`trace-export")[0]  # what one can type, and no name of the library
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("before", [("--jobs", "1"), ("--jobs=1",), ("--log_dir", "{logs}"), ("--pp", "4", "--debug")])
def test_options_and_their_values_may_stand_before_the_command(
    run_cli: Cli, samples: Path, before: tuple[str, ...]
) -> None:
    logs = samples / "paddle" / "single"
    given = [word.format(logs=logs) for word in before]
    after = [] if "--log_dir" in before else [logs]
    ended = run_cli(*given, "report", *after, "--json")
    assert ended.returncode == 0, ended.stderr
    assert json.loads(ended.stdout)["document"] == "report"


def test_a_page_is_asked_for_by_the_name_of_its_file(run_cli: Cli, samples: Path, tmp_path: Path) -> None:
    for name, begin in (("why.html", "<!doctype html>"), ("map.svg", "<svg")):
        ended = run_cli("report", samples / "paddle" / "single", "--out", tmp_path / name)
        assert ended.returncode == 0, ended.stderr
        assert (tmp_path / name).read_text().startswith(begin)
    ended = run_cli("report", samples / "paddle" / "single", "--out", tmp_path / "why.txt")
    assert ended.returncode == 2


def test_the_steps_beside_a_baseline_are_given_once(run_cli: Cli, samples: Path, tmp_path: Path) -> None:
    logs, kept = samples / "paddle" / "single", tmp_path / "kept.json"
    assert run_cli("compare", logs, "--baseline", kept, "--save").returncode == 0
    for steps in ("--steps-a 2 --steps-b 3", "--steps 4 --steps-b 3", "--steps 4 --steps-a 3"):
        ended = run_cli("compare", logs, "--baseline", kept, *steps.split())
        assert ended.returncode == 2, steps
        assert "there is one run only; give --steps, and neither --steps-a nor --steps-b" in ended.stderr
    alone = run_cli("compare", logs, "--baseline", kept, "--steps", "3")
    assert alone.returncode == 0, alone.stderr


def test_what_is_kept_is_json_where_that_is_asked_for(run_cli: Cli, samples: Path, tmp_path: Path) -> None:
    logs, kept = samples / "paddle" / "single", tmp_path / "kept.json"
    for words in (("--json",), ("--format", "json")):
        ended = run_cli("compare", logs, "--baseline", kept, "--save", "--force", *words)
        assert ended.returncode == 0, ended.stderr
        assert json.loads(ended.stdout) == json.loads(kept.read_text())
    for words in (("--format", "markdown"), ("--out", str(tmp_path))):
        ended = run_cli("compare", logs, "--baseline", kept, "--save", "--force", *words)
        assert ended.returncode == 2
        assert "--save keeps figures and draws nothing" in ended.stderr


def test_a_chart_beside_a_baseline_is_refused_in_the_words_of_the_command(
    run_cli: Cli, samples: Path, tmp_path: Path
) -> None:
    logs, kept = samples / "paddle" / "single", tmp_path / "kept.json"
    run_cli("compare", logs, "--baseline", kept, "--save")
    said = run_cli("compare", logs, "--baseline", kept, "--out", tmp_path / "x.svg").stderr
    assert said.startswith("trace-export: a baseline has no blocks")
    assert said.endswith("; leave out --out\n")
