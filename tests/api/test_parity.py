"""The command line and the library write the same."""

from pathlib import Path

import pytest

import trace_export
from tests.conftest import Cli
from trace_export import api


def test_a_command_and_its_function_write_the_same_bytes(run_cli: Cli, samples: Path, tmp_path: Path) -> None:
    a, b = samples / "paddle" / "two_machines", samples / "paddle" / "single"
    cli, library = tmp_path / "cli", tmp_path / "library"
    schedule = ("--schedule", "zb-h1", "--stages", 4, "--micro-batches", 8)
    for place, words in {
        "export": ("export", a),
        "one format": ("export", "--source", "paddle", a, "--format", "csv"),
        "report": ("report", a, "--format", "html"),
        "overview": ("overview", a),
        "compare": ("compare", a, b),
        "simulate": ("simulate", *schedule),
    }.items():
        result = run_cli(*words, "--out", cli / place)
        assert result.returncode == 0, result.stderr
    run = trace_export.load(a).align()
    run.write(library / "export")
    trace_export.load(a, family="paddle").align().write(library / "one format", "csv")
    run.write_report(library / "report")
    trace_export.overview(a, path=library / "overview")
    trace_export.compare(a, b, path=library / "compare")
    trace_export.simulate("zb-h1", 4, 8).write(library / "simulate")
    assert contents(library) == contents(cli)


def contents(folder: Path) -> dict[str, bytes]:
    """The files below a folder."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def test_the_functions_that_do_all_at_once_say_what_they_are_now(samples: Path, tmp_path: Path) -> None:
    logs = samples / "paddle" / "single"
    with pytest.warns(DeprecationWarning, match=r"trace_export.export\(\) is now load\(\).align\(\).write\(\)"):
        done = trace_export.export(logs, tmp_path / "a.csv", steps=3)
    with pytest.warns(DeprecationWarning, match=r"load\(\).align\(\).report\(\)"):
        assert trace_export.report(logs, steps=3).report.steps["step"].to_list() == [3]
    with pytest.warns(DeprecationWarning, match="save_baseline"):
        trace_export.save_baseline(logs, tmp_path / "kept.json")
    assert done.files == (tmp_path / "a.csv",)
    assert api.export(logs, tmp_path / "b.csv", steps=3).run.spans.equals(done.run.spans)
