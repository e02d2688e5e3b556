"""Whatever a parameter of the library is given, what comes out is an error of the program's own."""

import inspect
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import trace_export
from tests.conftest import UNTIMED
from tests.support.rows import examples
from trace_export import Declared, Run, TraceExportError, UsageError, Window, api


@dataclass(frozen=True)
class Place:
    """A folder of profiles and one to write to."""

    logs: Path
    out: Path


@pytest.fixture(scope="module")
def place(samples: Path, tmp_path_factory: pytest.TempPathFactory) -> Place:
    """Copies, for an output without a path goes to where its input lies."""
    logs = tmp_path_factory.mktemp("logs")
    shutil.copytree(samples / "paddle" / "single", logs, dirs_exist_ok=True)
    return Place(logs, tmp_path_factory.mktemp("out"))


@pytest.fixture(scope="module")
def run(place: Place) -> Run:
    return trace_export.load(place.logs)


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"family": "Paddle"}, 'family: "Paddle" is unknown; choose from paddle, nsys, '),
    ({"family": 3}, "family: 3 is unknown; choose from"),
    ({"steps": "2-"}, 'steps: "2-" is not a list of numbers; write it like 0,1,4-7'),
    ({"steps": -1}, "steps: -1 is not a whole number from 0 to 999999999"),
    ({"steps": 2.5}, "steps: 2.5 is not a whole number"),
    ({"steps": True}, "steps: True is not a whole number"),
    ({"steps": []}, "steps names no number"),
    ({"stages": range(3, 1)}, "stages names no number"),
    ({"stages": b"1"}, "stages: b'1' is not a list"),
    ({"window": "1s"}, 'window: "1s" is not a window of time; write it like 1.5s-2.0s'),
    ({"window": (0, 1)}, r"window: \(0, 1\) is not a window of time"),
    ({"window": Window(2, 1)}, "window: .* ends before it starts"),
    ({"window": Window("a", 1)}, "window: .* is not a number of nanoseconds"),  # type: ignore[arg-type]
    ({"multi_machine": "yes"}, 'multi_machine: "yes" is not True or False'),
    ({"pp": 0}, "pp: 0 is not a whole number from 1"),
    ({"pp": "4"}, 'pp: "4" is not a whole number'),
    ({"jobs": -1}, "jobs: -1 is not a whole number from 1"),
    ({"detail": "all"}, 'detail: "all" is unknown; choose from spans, comm, kernels'),
    ({"markers": 5}, "markers: 5 is not a list"),
    ({"markers": [5]}, "markers: 5 is not a text"),
    ({"declared": {"pp": 4}}, "declared: .* is not of the type Declared"),
    ({"declared": Declared(pp="4")}, 'declared.pp: "4" is not a whole number'),  # type: ignore[arg-type]
    ({"declared": Declared(placement="ring")}, 'declared.placement: "ring" is unknown'),  # type: ignore[arg-type]
    ({"at": "node:/logs"}, "at: .* no scheduler is given"),
    ({"scheduler": 8786}, "scheduler: 8786 is not an address"),
    ({"progress": "bar"}, 'progress: "bar" is not a function'),
    ({"log_dir": None}, "log_dir: no folder is given"),
    ({"log_dir": 3}, "log_dir: 3 is not a path"),
    ({"log_dir": ""}, 'log_dir: "" is not a path'),
    ({"log_dir": "a\0b"}, "log_dir: .* is not a path"),
    ({"log_dir": "nowhere"}, "nowhere: no such file or folder"),
]


@pytest.mark.parametrize(("given", "message"), WRONG, ids=[str(given)[:60] for given, _ in WRONG])
def test_a_wrong_value_of_load_is_named_with_what_is_right(place: Place, given: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=f"^{message}"):
        trace_export.load(**{"log_dir": place.logs} | given)


CALLS: list[tuple[Callable[[Run], object], str]] = [
    (lambda run: run.align("Auto"), 'align: "Auto" is unknown, and there is no such file; choose auto, wall, none'),
    (lambda run: run.align(3), "align: 3 is unknown"),  # type: ignore[arg-type]
    (lambda run: run.align(offsets_ns={"nobody": 1}), 'offsets_ns: there is no host "nobody"; the hosts are '),
    (lambda run: run.align(offsets_ns={"unknown": 2**80}), "offsets_ns: .* is too large"),
    (lambda run: run.align(offsets_ns=[("unknown", 1)]), "offsets_ns: .* is not a mapping"),  # type: ignore[arg-type]
    (lambda run: run.align(max_error_ns=-1), "max_error_ns: -1 ns is negative, which a duration cannot be"),
    (lambda run: run.align(max_error_ns=float("nan")), "max_error_ns: nan is too large"),
    (lambda run: run.select(steps="x"), 'steps: "x" is not a list of numbers'),
    (lambda run: run.write("a.svg", formats=[]), "formats names nothing; choose from perfetto, chrome"),
    (lambda run: run.write("a.svg", formats=["gif"]), 'formats: "gif" is unknown'),  # type: ignore[list-item]
    (lambda run: run.write("a.svg", "svg,png"), "path: a.svg is one file, and there are 2 formats"),
    (lambda run: run.write("a.parquet", "svg"), "path: a.parquet is not the name of a file in the format svg"),
    (
        lambda run: run.write("chart.xyz"),
        r"path: chart\.xyz is neither a folder nor a file whose name tells a format \(\.pftrace",
    ),
    (lambda run: run.write("a.json", tracks="all"), 'tracks: "all" is unknown; choose from stage, rank'),  # type: ignore[arg-type]
    (lambda run: run.write("a.json", color_by="stage"), 'color_by: "stage" is unknown'),  # type: ignore[arg-type]
    (lambda run: run.write("a.json", max_slices=0), "max_slices: 0 is not a whole number from 1"),
    (lambda run: run.write("a.json", gzip=1), "gzip: 1 is not True or False"),  # type: ignore[arg-type]
    (lambda run: run.write("a.json", beside="logs"), 'beside: "logs" is not a Run'),  # type: ignore[arg-type]
    (lambda run: run.compare("logs"), 'other: "logs" is not a Run'),  # type: ignore[arg-type]
    (lambda run: trace_export.simulate("1f1b", 0, 8), "stages: 0 is not a whole number from 1"),
    (lambda run: trace_export.simulate("1f1b", 4, "8"), 'microbatches: "8" is not a whole number'),  # type: ignore[arg-type]
    (lambda run: trace_export.simulate(4, 4, 8), "schedule: 4 is not the name of a schedule"),  # type: ignore[arg-type]
    (lambda run: trace_export.simulate("2f2b", 4, 8), 'there is no schedule "2f2b"; choose one of'),
    (lambda run: trace_export.simulate("1f1b", 4, 8, {"F": 1}), 'costs: "F" is unknown; choose from forward'),  # type: ignore[dict-item]
    (
        lambda run: trace_export.simulate("1f1b", 4, 8, {"forward": -1}),
        "costs.forward: -1 ns is negative, which a duration cannot be",
    ),
    (lambda run: trace_export.simulate("1f1b", 4, 8, {"forward": 2**61}), "the simulated step takes longer"),
    (lambda run: trace_export.inspect("nowhere"), "nowhere: no such file or folder"),
    (lambda run: api.export(run.log_dir, in_place=True), "in_place does nothing alone"),
    (lambda run: trace_export.compare(run.log_dir, steps_a="x"), 'steps_a: "x" is not a list of numbers'),
]


@pytest.mark.parametrize(("call", "message"), CALLS, ids=[message[:60] for _, message in CALLS])
def test_a_wrong_value_of_the_other_functions(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: Callable[[Run], object], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=f"^{message}"):
        call(run)
    assert list(tmp_path.iterdir()) == []


words = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="/.~"), max_size=12)
single = st.one_of(
    st.none(), st.booleans(), st.integers(-3, 12), st.integers(), st.floats(), st.complex_numbers(), words,
    st.binary(max_size=8), st.just(object()), st.just(pl.DataFrame()), st.just(Path("nowhere")), st.just(range(9)),
    st.builds(lambda: 10**5000), st.just(Window(3, 1)), st.just(Declared(pp=0)),
    st.sampled_from(["all", "auto", "none", "stage", "svg", "csv", "1-2", "0s-9s", "1F1B", "zb-v", "machine0"]),
)  # fmt: skip
values = st.one_of(
    single, st.lists(single, max_size=4), st.tuples(single, single), st.dictionaries(words, single, max_size=3),
)  # fmt: skip
SLOW = {"jobs", "scheduler"}
"""A valid number of jobs starts processes, and a valid address is waited for."""


def parameters(function: Callable[..., object]) -> list[str]:
    return [name for name in inspect.signature(function).parameters if name != "self"]


FUNCTIONS: dict[str, tuple[list[str], Callable[[Run, Place, dict[str, Any]], object]]] = {
    "load": (parameters(trace_export.load), lambda run, at, given: trace_export.load(**{"log_dir": at.logs} | given)),
    "export": (
        parameters(api.export),
        lambda run, at, given: api.export(**{"log_dir": at.logs, "path": at.out, "formats": "csv"} | given),
    ),
    "report": (
        parameters(api.report),
        lambda run, at, given: api.report(**{"log_dir": at.logs, "path": at.out} | given),
    ),
    "compare": (
        parameters(trace_export.compare), lambda run, at, given: trace_export.compare(**{"a": at.logs} | given)
    ),
    "inspect": (
        parameters(trace_export.inspect), lambda run, at, given: trace_export.inspect(**{"log_dir": at.logs} | given)
    ),
    "simulate": (
        parameters(trace_export.simulate),
        lambda run, at, given: trace_export.simulate(**{"schedule": "1f1b", "stages": 2, "microbatches": 4} | given),
    ),
    "align": (parameters(Run.align), lambda run, at, given: run.align(**given)),
    "select": (parameters(Run.select), lambda run, at, given: run.select(**given).spans),
    "write": (
        parameters(Run.write), lambda run, at, given: run.write(**{"path": at.out, "formats": "csv"} | given)
    ),
    "write_heat_map": (
        parameters(Run.write_heat_map), lambda run, at, given: run.write_heat_map(**{"path": at.out} | given)
    ),
    "write_report": (parameters(Run.write_report), lambda run, at, given: run.write_report(**{"path": at.out} | given)),
}  # fmt: skip


@contextmanager
def inside(folder: Path) -> Iterator[None]:
    """With `folder` as the current one, so that names without a folder are written there."""
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


@pytest.mark.parametrize("name", FUNCTIONS)
@settings(examples(6), suppress_health_check=[*UNTIMED, HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_only_errors_of_the_program_come_out(name: str, data: st.DataObject, run: Run, place: Place) -> None:
    names, call = FUNCTIONS[name]
    chosen = data.draw(st.lists(st.sampled_from(sorted(set(names) - SLOW)), min_size=1, max_size=2, unique=True))
    given = {parameter: data.draw(values, label=parameter) for parameter in chosen}
    with inside(place.out):
        try:
            call(run, place, given)
        except TraceExportError as error:
            assert str(error).isprintable() and len(str(error)) < 2000


@pytest.mark.parametrize("parameter", sorted(SLOW))
@examples(10)
@given(value=values.filter(lambda value: value is not None and not isinstance(value, str | int | float)))
def test_the_slow_parameters_too(parameter: str, value: object, place: Place) -> None:
    with pytest.raises(TraceExportError):
        trace_export.load(place.logs, **{parameter: value})  # type: ignore[arg-type]
