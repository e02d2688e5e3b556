"""The command line and the library are one: every option of a command, and the parameter that it stands for, ask for
the same work. An option or a parameter that only one side has, or that has no case here, or no effect, fails."""

from __future__ import annotations

import inspect
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from click.testing import CliRunner

import trace_export
from tests.conftest import ROOT
from tests.support.command import parser
from trace_export.cli.options import Figures
from trace_export.scale import requests as overviews
from trace_export.workflow import requests

MS = 1_000_000


@dataclass(frozen=True)
class Case:
    """A parameter's value: its `options` on the command line, what the library is `given`, the `sample` that is read.

    `with_out`: an output folder is named too. `no_effect`: with this sample nothing else is written than without it.
    `foreign`: a file of somebody else in the output folder.
    """

    options: list[str]
    given: dict[str, Any]
    sample: str = "paddle/single"
    with_out: bool = True
    no_effect: bool = False
    foreign: str = ""


NOTHING = Case([], {}, no_effect=True)


def quiet(case: Case) -> bool:
    """Whether nothing tells apart what is written with the option."""
    return case.no_effect and not case.foreign


TWO_CLOCKS = "paddle/two_machines"
LOADING: dict[str, Case] = {
    "log_dir": NOTHING,
    "devices": Case(["--devices", "1"], {"devices": 1}),
    "multi_machine": Case(["--multi_machine"], {"multi_machine": True}, TWO_CLOCKS, no_effect=True),
    "follow_links": Case(["--follow-links"], {"follow_links": True}, no_effect=True),
    "ranks": Case(["--ranks", "0,2-3"], {"ranks": [0, 2, 3]}),
    "replica": Case(["--pp", "2", "--dp", "2", "--replica", "1"], {"pp": 2, "dp": 2, "replica": 1}, "nsys"),
    "steps": Case(["--steps", "3-4"], {"steps": range(3, 5)}),
    "stages": Case(["--stages", "1-2"], {"stages": (1, 2)}),
    "window": Case(["--time", "0.1s-400ms"], {"window": trace_export.Window(100 * MS, 400 * MS)}),
    "pp": Case(["--pp", "2"], {"pp": 2}, "nsys"),
    "tp": Case(["--pp", "2", "--tp", "2"], {"pp": 2, "tp": 2}, "nsys"),
    "dp": Case(["--pp", "2", "--dp", "2"], {"pp": 2, "dp": 2}, "nsys"),
    "cp": Case(["--pp", "2", "--cp", "2"], {"pp": 2, "cp": 2}, "nsys"),
    "host_ranges": Case(["--host"], {"host_ranges": True}, "nsys"),
    "markers": Case(
        ["--marker", r"Optimizer.*=>OTHER", "--marker", r"F(?P<microbatch>\d+).*=>B"],
        {"markers": [r"Optimizer.*=>OTHER", r"F(?P<microbatch>\d+).*=>B"]},
        "nsys",
    ),
    "infer": Case(["--infer", "only"], {"infer": "only"}, "unmarked", no_effect=True),
    "align": Case(["--align", "wall"], {"align": "wall"}, TWO_CLOCKS),
    "offsets_ns": Case(
        ["--align", "none", "--offset", "machine1=-3.2ms", "--offset", "machine0=5us"],
        {"align": "none", "offsets_ns": {"machine1": -3_200_000, "machine0": 5_000}},
        TWO_CLOCKS,
    ),
    "max_error_ns": Case(["--max-clock-error", "1us"], {"max_error_ns": 1_000}, TWO_CLOCKS),
    "jobs": Case(["--jobs", "1"], {"jobs": 1}, no_effect=True),
}
"""What `export` and `report` share."""
PART = {"steps", "stages", "window"}
LOADED = LOADING.keys() - PART
"""Parameters of `requests.load` and of the alignment after it, which `export`, `report` and `compare` share: their
effect is shown for `export`."""
DRAWN = {"formats", "gzip"}
"""Parameters of `drawn`, which writes the charts of `export` and `compare`."""
SHOWN_FOR_EXPORT = {
    "report": LOADED | {"stages"},
    "compare": LOADED | DRAWN | PART,
    "overview": {"tp", "dp", "cp", "markers"},
}
"""An overview is drawn with one of the sizes; of how profiles are read its case of host ranges shows the effect. A part
of a run is chosen alike by all: a report shows it for a window, `compare` for the steps of each run."""
REMOTE = {"scheduler", "at", "columns", "cache"}
"""They need a cluster, `test_a_cluster_is_asked_for_alike` and tests/workers; or a table of another tool,
tests/sources/spans; the cache is tested in tests/scale."""
EXPORT = LOADING | {
    "formats": Case(["--format", "csv,svg"], {"formats": ["csv", "svg"]}),
    "path": Case(["--format", "csv", "--out", "{out}/table.csv"], {"path": "{out}/table.csv"}, with_out=False),
    "force": Case(["--force"], {"force": True}, no_effect=True, foreign="pipeline_profile.json"),
    "gzip": Case(["--gzip"], {"gzip": True}),
    "tracks": Case(["--pp", "2", "--tracks", "rank"], {"pp": 2, "tracks": "rank"}, "nsys"),
    "detail": Case(["--detail", "comm"], {"detail": "comm"}, "ascend"),
    "color_by": Case(["--color_by", "microbatch"], {"color_by": "microbatch"}),
    "bubbles": Case(["--bubbles"], {"bubbles": True}),
    "model": Case(["--model"], {"model": True}),
    "critical_path": Case(["--critical-path"], {"critical_path": True}),
    "states": Case(["--states"], {"states": True}),
    "tables": Case(
        ["--format", "parquet", "--table", "blocks,messages"], {"formats": "parquet", "tables": ["blocks", "messages"]}
    ),
    "max_slices": Case(["--max-slices", "80"], {"max_slices": 80}),
    "figure": Case(
        [
            "--format",
            "svg",
            "--width",
            "18cm",
            "--theme",
            "grayscale",
            "--title",
            "Fig. 1",
            "--legend",
            "below",
            "--figure-steps",
            "1",
            "--range",
            "0.1s-400ms",
            "--first-microbatch",
            "1",
            "--no-letters",
        ],
        {
            "formats": "svg",
            "figure": trace_export.FigureStyle(
                180, "grayscale", "Fig. 1", "below", 1, trace_export.Window(100 * MS, 400 * MS), 1, letters=False
            ),
        },
    ),
    "step_task_info": Case(["--step-task-info"], {"step_task_info": True}, "ascend"),
    "in_place": Case(["--step-task-info", "--in-place"], {"step_task_info": True, "in_place": True}, "ascend"),
}
REPORT = LOADING | {
    "html": NOTHING,
    "path": Case(["--out", "{out}/why.html"], {"path": "{out}/why.html"}, with_out=False),
    "force": Case(["--force"], {"force": True}, no_effect=True, foreign="pipeline_report.html"),
}
COMPARE = {
    name: LOADING[name] for name in (
        "devices", "multi_machine", "ranks", "steps", "stages", "window", "pp", "tp", "dp", "cp", "host_ranges",
        "markers", "infer", "align", "follow_links", "jobs",
    )
} | {
    "a": NOTHING,
    "b": NOTHING,
    "path": Case(["--out", "{out}/both.json", "--format", "chrome"], {"path": "{out}/both.json"}, with_out=False),
    "formats": EXPORT["formats"],
    "steps_a": Case(["--steps-a", "2"], {"steps_a": "2"}),
    "steps_b": Case(["--steps-b", "3-4"], {"steps_b": (3, 4)}),
    "fail_above": Case(["--fail-above", "300%"], {"fail_above": 3.0}, no_effect=True),
    "on": Case(["--on", "stage:1"], {"on": "stage:1"}, no_effect=True),
    "force": EXPORT["force"],
    "gzip": EXPORT["gzip"],
}  # fmt: skip
OVERVIEW = {
    name: LOADING[name] for name in (
        "log_dir", "follow_links", "ranks", "steps", "pp", "tp", "dp", "cp", "host_ranges", "markers", "infer", "align",
        "jobs",
    )
} | {
    "ranks": Case(["--pp", "2", "--dp", "2", "--ranks", "1"], {"pp": 2, "dp": 2, "ranks": 1}, "nsys"),
    "markers": Case(
        ["--pp", "2", "--dp", "2", "--marker", r"Optimizer.*=>OTHER"],
        {"pp": 2, "dp": 2, "markers": [r"Optimizer.*=>OTHER"]}, "nsys",
    ),
    "formats": Case(["--format", "parquet"], {"formats": ["parquet"]}),
    "path": Case(["--out", "{out}/all.html"], {"path": "{out}/all.html"}, with_out=False),
    "traces": Case(["--traces"], {"traces": True}),
    "force": Case(["--force"], {"force": True}, no_effect=True, foreign="pipeline_overview.html"),
}  # fmt: skip
BASE = ["--schedule", "zb-h1", "--stages", "4", "--microbatches", "8"]
SIMULATE = {
    "schedule": NOTHING,
    "stages": Case(["--stages", "2"], {"stages": 2}),
    "microbatches": Case(["--micro-batches", "6"], {"microbatches": 6}),
    "chunks": Case(["--schedule", "interleaved", "--chunks", "3"], {"schedule": "interleaved", "chunks": 3}),
    "costs": Case(
        ["--times", "F=9ms,W=3ms", "--comm", "1ms", "--overlap", "0.9"],
        {"costs": {"forward": 9 * MS, "weight": 3 * MS, "transfer": MS, "overlap": 0.9}},
    ),
    "path": EXPORT["path"],
    "formats": EXPORT["formats"],
    "force": EXPORT["force"],
    "gzip": EXPORT["gzip"],
    "bubbles": EXPORT["bubbles"],
    "figure": Case(
        ["--format", "svg,html", "--theme", "dark", "--no-legend"],
        {"formats": ["svg", "html"], "figure": trace_export.FigureStyle(theme="dark", legend="none")},
    ),
}
TERMINAL = {"strict", "json", "quiet", "debug", "verbose"}
"""They say what is printed."""
LIBRARY_ONLY = {"progress", "declared"}
"""The command line draws a bar of its own; `declared` is what no option says."""
ELSEWHERE = {"folder": "log_dir", "format": "html", "times": "costs", "comm": "costs", "overlap": "costs"} | {
    "baseline": "a", "save": "a", **{option.name: "figure" for option in fields(Figures)}
}  # fmt: skip
"""Options that are another parameter, or a part of one."""


def simulate(*, path: Path, formats: Any = None, **given: Any) -> None:
    """The two calls that the command makes."""
    given = {"schedule": "zb-h1", "stages": 4, "microbatches": 8} | given
    writing = {name: given.pop(name) for name in WRITING & set(given)}
    trace_export.simulate(**given).write(path, formats, **writing)


@dataclass(frozen=True)
class Command:
    """A command, its function, its cases, and what both are given in each."""

    cases: dict[str, Case]
    library: Callable[..., object]
    parameters: set[str]
    always: list[str] = field(default_factory=list)
    always_given: dict[str, Any] = field(default_factory=dict)


def parameters(*functions: Callable[..., object]) -> set[str]:
    found = {name for function in functions for name in inspect.signature(function).parameters}
    return found - LIBRARY_ONLY - {"self"}


WRITING = {"path", "formats", "force", "gzip", "bubbles", "figure"}
COMMANDS = {
    "export": Command(EXPORT, trace_export.export, parameters(trace_export.export) - {"family"}),
    "report": Command(
        REPORT,
        trace_export.report,
        parameters(trace_export.report) - {"family", "heat_map"},
        ["--format", "html"],
        {"html": True},
    ),
    "overview": Command(OVERVIEW, trace_export.overview, parameters(trace_export.overview) - {"family"}),
    "compare": Command(COMPARE, trace_export.compare, parameters(trace_export.compare)),
    "simulate": Command(SIMULATE, simulate, parameters(trace_export.simulate) | WRITING, BASE),
}


def options(command: str) -> set[str]:
    """The parameters of the library that the command's options stand for."""
    names = {parameter.name for parameter in parser().commands[command].params if parameter.name != "help"}
    return {ELSEWHERE.get(name, name) for name in names - TERMINAL}


@pytest.mark.parametrize("name", COMMANDS)
def test_both_sides_have_the_same_parameters_and_each_has_a_case(name: str) -> None:
    command = COMMANDS[name]
    assert options(name) == command.parameters
    assert set(command.cases) == command.parameters - REMOTE


def test_every_format_has_a_command_and_is_a_family(samples: Path, tmp_path: Path) -> None:
    logs = samples / "paddle" / "single"
    run_cli("paddle", logs, "--format", "csv", "--out", tmp_path / "cli")
    trace_export.export(logs, tmp_path / "api", "csv", family="paddle")
    assert contents(tmp_path / "api") == contents(tmp_path / "cli")


def run_cli(*arguments: object) -> None:
    result = CliRunner().invoke(parser(), [str(argument) for argument in arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output


def contents(folder: Path) -> dict[str, bytes]:
    """The files below a folder."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


ALL = [(command, parameter) for command, made in COMMANDS.items() for parameter in made.cases]


class Side:
    """A folder with the sample of a case, and what one side writes there: `out`, and perhaps into the logs."""

    def __init__(self, folder: Path, name: str, sample: Path) -> None:
        self.folder, self.logs, self.out = folder, folder / "logs", folder / "out"
        self._name, self._command = name, COMMANDS[name]
        shutil.copytree(sample, self.logs)

    def inputs(self) -> list[Path]:
        other = ROOT / "samples" / "paddle" / "single"
        return {"simulate": [], "compare": [self.logs, other]}.get(self._name, [self.logs])

    def write_foreign(self, name: str) -> None:
        self.out.mkdir()
        (self.out / name).write_text("not ours")

    def run_command(self, case: Case = NOTHING) -> None:
        texts = [text.format(out=self.out) if text.startswith("{out}") else text for text in case.options]
        place = ["--out", self.out] if case.with_out else []
        run_cli(self._name, *self.inputs(), *self._command.always, *place, *texts)

    def call_library(self, case: Case = NOTHING) -> None:
        values = {key: value.format(out=self.out) if key == "path" else value for key, value in case.given.items()}
        place = {"path": self.out} if case.with_out else {}
        self._command.library(*self.inputs(), **self._command.always_given, **place, **values)

    def asked(self, side: Callable[[Case], None], case: Case) -> dict[str, Any]:
        """The arguments with which one side calls the function of `requests` that does the work, which is not done."""
        module = overviews if self._name == "overview" else requests
        function = getattr(module, self._name)
        with mock.patch.object(module, self._name, side_effect=Asked) as spy, pytest.raises(Asked):
            side(case)
        arguments = inspect.signature(function).bind(*spy.call_args.args, **spy.call_args.kwargs).arguments
        return {name: value for name, value in arguments.items() if name not in LIBRARY_ONLY}


class Asked(Exception):
    """In place of the work."""


@pytest.fixture(scope="module")
def plain(samples: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], dict[str, bytes]]:
    """What a command writes of a sample without further options."""

    @cache
    def written(name: str, sample: str) -> dict[str, bytes]:
        side = Side(tmp_path_factory.mktemp("plain"), name, samples / sample)
        side.run_command()
        return contents(side.folder)

    return written


@dataclass(frozen=True)
class Unread:
    """A side that is only asked, and what it is asked for without further options."""

    side: Side
    nothing: dict[str, Any]


@pytest.fixture(scope="module")
def asking(samples: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], Unread]:
    """Where a command is asked of a sample."""

    @cache
    def side(name: str, sample: str) -> Unread:
        made = Side(tmp_path_factory.mktemp("asked"), name, samples / sample)
        return Unread(made, made.asked(made.run_command, NOTHING))

    return side


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_and_its_function_write_the_same_bytes(
    name: str, samples: Path, tmp_path: Path, plain: Callable[[str, str], dict[str, bytes]]
) -> None:
    side = Side(tmp_path, name, samples / TWO_CLOCKS)
    side.call_library()
    assert contents(tmp_path) == plain(name, TWO_CLOCKS)


@pytest.mark.parametrize(("name", "parameter"), ALL, ids=[" ".join(pair) for pair in ALL])
def test_an_option_and_its_parameter_ask_for_the_same_and_change_what_is_written(
    name: str,
    parameter: str,
    samples: Path,
    tmp_path: Path,
    plain: Callable[[str, str], dict[str, bytes]],
    asking: Callable[[str, str], Unread],
) -> None:
    case = COMMANDS[name].cases[parameter]
    if name != "simulate":
        unread = asking(name, case.sample)
        asked = unread.side.asked(unread.side.run_command, case)
        assert unread.side.asked(unread.side.call_library, case) == asked
        assert (asked == unread.nothing) == (case == NOTHING)
    if case == NOTHING or parameter in SHOWN_FOR_EXPORT.get(name, ()) or (quiet(case) and name != "export"):
        return
    side = Side(tmp_path / "side", name, samples / case.sample)
    if case.foreign:
        side.write_foreign(case.foreign)
    side.run_command(case)
    written = contents(side.folder)
    assert (written == plain(name, case.sample)) == case.no_effect
    if name == "simulate":
        library = Side(tmp_path / "library", name, samples / case.sample)
        if case.foreign:
            library.write_foreign(case.foreign)
        library.call_library(case)
        assert contents(library.folder) == written


def test_a_cluster_is_asked_for_alike(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[requests.Request] = []

    def export(wanted: requests.Request, *arguments: Any, **more: Any) -> Any:
        asked.append(wanted)
        raise trace_export.NothingToExportError("no cluster here")

    monkeypatch.setattr(requests, "export", export)
    monkeypatch.setattr(requests, "report", export)
    places = ["left:/scratch/a", "*:/scratch/b"]
    for command, library in (("export", trace_export.export), ("report", trace_export.report)):
        arguments = [command, "--scheduler", "tcp://10.0.0.1:8786", "--at", places[0], "--at", places[1]]
        with pytest.raises(trace_export.NothingToExportError):
            CliRunner().invoke(parser(), arguments, catch_exceptions=False)
        with pytest.raises(trace_export.NothingToExportError):
            library(scheduler="tcp://10.0.0.1:8786", at=places)
    assert len(asked) == 4
    assert {str(wanted) for wanted in asked} == {str(asked[0])}
    assert asked[0].source.cluster is not None
