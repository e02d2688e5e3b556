"""The public functions: what the command line does, on objects. See the package's docstring for an example.

`load` gives a `Run`, whose methods align, select, report and write. The other functions are the commands of their names
in one call. Keywords are declared in `options`.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from trace_export import arguments
from trace_export.arguments import Inputs
from trace_export.choices import Format, HeatMapFormat, OverviewFormat
from trace_export.errors import UsageError
from trace_export.files import real_path
from trace_export.options import (
    Asking,
    Comparing,
    Drawing,
    Exporting,
    Inspecting,
    Loading,
    Overviewing,
    Reporting,
    Saving,
    Watching,
    checked,
    filled,
    keywords,
    part,
)
from trace_export.read import load_options
from trace_export.selection import Selection
from trace_export.writers.formats import BY_NAME
from trace_export.writers.paths import heat_map_path, report_page
from trace_export.writers.pictures.style import FigureStyle as FigureStyle

if TYPE_CHECKING:
    from trace_export.analysis.baseline import Baseline
    from trace_export.analysis.compare import Comparison
    from trace_export.analysis.report import Report
    from trace_export.inspection.inspect import Inspection
    from trace_export.live.look import Look
    from trace_export.run import Request, Run
    from trace_export.scale.build import Overview


@keywords(Loading)
def load(log_dir: Inputs = None, **given: Unpack[Loading]) -> Run:
    """Reads the profiles in the folder `log_dir`, or one or several files, and interprets them; each host keeps its own
    clock.

    What to read: `family` is one format, such as "nsys" (None: whatever is there), `devices` the local worker indexes
    on each machine, `ranks` global ranks, `replica` data-parallel copies of the pipeline, without the sources of the
    others; `run` which of several runs of the job is read, by its number (1 is the oldest), "latest" (the newest
    complete one) or "all"; `offsets_ns` (host → ns) are added to a host's times before runs are told apart, and when
    `Run.align` aligns; `multi_machine` demands a folder for each machine. `follow_links` also searches folders outside
    `log_dir` that links in it lead to. `steps`, `stages`, `window` as in `Run.select`. Sets of numbers are
    "2-4,7", a number, a range or a list. How to read it: `pp`, `tp`, `dp`, `cp` are the sizes of the run where the data
    do not have them, `declared` what else is known of it. `host_ranges` takes CPU-side ranges where the default is
    device time. `markers` are rules for range names, 'REGEX=>kind' or TOML files. `columns` says what the columns of
    another tool's table mean, where `log_dir` is one: "rank=rank,kind=optype,start=start_ts:s,end=end_ts:s". `infer`
    says whether blocks are found from the launches of GPU work: where no pass is named (auto), never (off), or whatever
    is named (only). `detail` says which device tasks `Run.write` will draw: spans (none), comm, kernels. Who reads:
    `jobs` processes (None: chosen from the data size), or the workers of the Dask `scheduler`; `at` names folders on
    the disks of its machines, MACHINE:DIR or a TOML file, in place of `log_dir`. `progress` is called with what is
    being done, how much of it is done, and out of how much.

    Raises UsageError for a wrong value or a missing folder, NothingToExportError if no source has a block.
    """
    values = checked(given, Loading)
    return _wanted(log_dir, values).read(values["progress"])


def _request(log_dir: Inputs, values: dict[str, Any]) -> Request:
    """The run that the checked values of options ask for."""
    from trace_export.run import AlignOptions, Request

    return Request(load_options(log_dir, values), filled(AlignOptions, values), filled(Selection, values))


def _wanted(log_dir: Inputs, values: dict[str, Any]) -> Request:
    """The same of some replicas only, where these are given."""
    wanted = _request(log_dir, values)
    if (replica := values.get("replica")) is None:
        return wanted
    from trace_export.scale.replicas import look, of_replicas

    return of_replicas(wanted, replica, look(wanted.source, values["progress"]))


@dataclass(frozen=True)
class Exported:
    """What `export` did: the run that it read, and the files that it wrote."""

    run: Run
    files: tuple[Path, ...]


@keywords(Exporting)
def export(
    log_dir: Inputs = None,
    path: str | PathLike[str] | None = None,
    formats: str | Sequence[Format] | None = None,
    **given: Unpack[Exporting],
) -> Exported:
    """`load`, `Run.align` and `Run.write` in one call, as the command does it; parameters as there.

    An output that cannot be, or that would replace what it may not, is refused before anything is read.
    `step_task_info` also writes the table StepTaskInfo for MindStudio Insight into copies of Ascend and MindSpore
    databases, with `in_place` into the databases themselves. Raises as `load`, `Run.align` and `Run.write` do.
    """
    from trace_export.run import outputs
    from trace_export.write import planned, write_options

    values = checked(given, Exporting)
    output, wanted, progress = write_options(path, formats, values), _wanted(log_dir, values), values["progress"]
    in_place, into_copies, source = values["in_place"], values["step_task_info"], wanted.source
    if in_place and not into_copies:
        raise UsageError("does nothing alone", "give it together with `step_task_info`", parameter="in_place")
    if into_copies and source.cluster is not None and source.cluster.folders:
        what = "writes into databases on this machine, and these profiles are on others"
        raise UsageError(what, "run it on each of them, or with a log_dir that all share", parameter="step_task_info")
    paths = planned(output, source.log_dir)
    with outputs(wanted, force=values["force"]) as files, ExitStack() as stack:
        if into_copies:
            from trace_export import step_tasks

            databases = step_tasks.databases(wanted)
            paths += [] if in_place else [step_tasks.copy(one, source.log_dir, output.out) for one in databases]
        files.check(paths)
        wanted = wanted.keeping_tasks(stack)
        run = wanted.run(progress)._written(output, files, progress)
        if into_copies:
            step_tasks.write(wanted, output.out, files, progress, in_place=in_place)
    return Exported(run, tuple(files.written))


@dataclass(frozen=True)
class Reported:
    """What `report` did: the run that it read, its report, and the page if there is one."""

    run: Run
    report: Report
    files: tuple[Path, ...]


@keywords(Reporting)
def report(
    log_dir: Inputs = None,
    path: str | PathLike[str] | None = None,
    *,
    html: bool = False,
    heat_map: HeatMapFormat | None = None,
    **given: Unpack[Reporting],
) -> Reported:
    """`load`, `Run.align` and `Run.report` in one call, as the command does it; with `html` also `Run.write_report`,
    and of more than 256 ranks the page of `overview` beside it; with `heat_map` also `Run.write_heat_map`.

    `path`: the page, the picture, or its folder; None: the folder that was read. Raises as these methods do, and
    UsageError for `html` and `heat_map` at once.
    """
    from trace_export.run import outputs
    from trace_export.write import write_heat_map, write_report

    values, out = checked(given, Reporting), arguments.path_or_none(path, "path")
    wanted = _wanted(log_dir, values)
    page = report_page(out, wanted.source.log_dir) if arguments.flag(html, "html") else None
    picture = None
    if heat_map is not None:
        if page:
            raise UsageError("`html` and `heat_map` are two files", "ask for one of them", parameter="heat_map")
        format = arguments.choice(heat_map, "heat_map", HeatMapFormat)
        BY_NAME[format].ensure_installed()  # before anything is read
        picture = heat_map_path(out, wanted.source.log_dir, format)
    with outputs(wanted, force=values["force"]) as files, ExitStack() as stack:
        files.check(filter(None, [page, picture]))
        wanted = wanted.keeping_tasks(stack)
        if page:
            from trace_export.scale.requests import overview_page, write_overview_page

            files.check(overview_page(page, wanted.to_read))
        run = wanted.run(values["progress"])
        result = run.report(**part(values, Asking))
        if picture:
            result = replace(result, slowdown=run.what_if())
            write_heat_map(run.what_if(), result, run.name, picture, files)
        elif page:
            further = write_overview_page(run, page, files)
            write_report(run._bubbles, result, run.name, page, files, wanted.part.steps, further)
    return Reported(run, result, tuple(reversed(files.written)))  # the report before the page of all ranks


@dataclass(frozen=True)
class Overviewed:
    """What `overview` did: the overview, and the files that it wrote."""

    overview: Overview
    files: tuple[Path, ...]


@keywords(Overviewing)
def overview(
    log_dir: Inputs = None,
    path: str | PathLike[str] | None = None,
    formats: str | Sequence[OverviewFormat] | None = "html",
    **given: Unpack[Overviewing],
) -> Overviewed:
    """A run of any number of ranks and what costs it most, as `report` says it; of more than 1,024 ranks each pipeline
    replica is read, aligned and measured by itself, and what comes back is compared. See `trace_export.Overview`.

    `path`: the folder of the `formats` (html, parquet; None: no file), or the page; None: the folder that was read. Of
    `ranks`, whole replicas are read. Other parameters as in `load`. Raises UsageError, NothingToExportError where no
    replica can be read or the number of stages is not known, OutputError.
    """
    from trace_export.scale import requests as overviews

    values = checked(given, Overviewing)
    result, files = overviews.overview(
        _request(log_dir, values),
        () if formats is None else arguments.choices(formats, "formats", OverviewFormat),
        arguments.path_or_none(path, "path"),
        values["replica"],
        force=values["force"],
        progress=values["progress"],
    )
    return Overviewed(result, tuple(files))


@dataclass(frozen=True)
class Compared:
    """What `compare` did: both runs (A may be a baseline), their differences, and the files that it wrote."""

    a: Run | Baseline
    b: Run
    comparison: Comparison
    files: tuple[Path, ...]


@keywords(Comparing)
def compare(
    a: str | PathLike[str],
    b: str | PathLike[str] | None = None,
    path: str | PathLike[str] | None = None,
    formats: str | Sequence[Format] | None = None,
    **given: Unpack[Comparing],
) -> Compared:
    """`load` and `Run.align` of two folders, or of two steps of one (`b` None), and `Run.compare`, as the command does.

    `a` may also be a baseline, the file that `Run.save_baseline` wrote. `path`: the file or folder of a chart with
    both, B below A; None: no chart. `steps_a` and `steps_b` are the steps of each to compare, `steps` those of a run
    for which these name none, and likewise `run_a`, `run_b` and `run`; `fail_above` and `on` as in `Run.compare`; all
    else, as in `load`, `Run.align` and `Run.write`, holds for both. Raises the same errors, and UsageError if both are
    one run.
    """
    from trace_export.analysis import baseline
    from trace_export.run import compared, outputs
    from trace_export.write import planned, write_options

    values, first = checked(given, Comparing), arguments.path(a, "a")
    second = first if b is None else arguments.path(b, "b")
    one, other = _side(first, values, "steps_a", "run_a"), _side(second, values, "steps_b", "run_b")
    limit, progress = (values["fail_above"], values["on"]), values["progress"]
    if baseline.is_baseline(first):
        remedies = {
            "name the run too": b is None,
            "leave out `path`": path is not None,
            "leave out `steps_a`": values["steps_a"] is not None,
        }
        if any(remedies.values()):
            what = "a baseline has no blocks: it is compared with a run, without a chart and without steps of its own"
            raise UsageError(what, ", and ".join(text for text, needed in remedies.items() if needed))
        figures = baseline.read(first)
        run = other.run(progress)
        return Compared(figures, run, compared(figures, run, *limit), ())
    output = write_options(path, formats, values) if path is not None else None
    inputs = [(real_path(side.source.log_dir), side.source.files, side.part, side.source.run) for side in (one, other)]
    if inputs[0] == inputs[1]:
        what = f"{one.source.log_dir} would be compared with itself"
        remedy = "name another folder, or other steps or runs with `steps_a` and `steps_b`, `run_a` and `run_b`"
        raise UsageError(what, remedy)
    paths = planned(output, one.source.log_dir) if output else []
    with outputs(one, other, force=values["force"]) as files:
        files.check(paths)
        run_a, run_b = one.run(progress), other.run(progress)
        comparison = compared(run_a, run_b, *limit)
        if output:
            run_a = run_a._written(output, files, progress, run_b, comparison)
    return Compared(run_a, run_b, comparison, tuple(files.written))


def _side(log_dir: Path, values: dict[str, Any], steps: str, run: str) -> Request:
    """One run of a comparison, whose own `steps` and `run` come before those of both."""
    of_side = {"steps": values[steps] or values["steps"], "run": values[run] or values["run"]}
    return _wanted(log_dir, values | of_side)


@keywords(Saving)
def save_baseline(log_dir: Inputs, path: str | PathLike[str], **given: Unpack[Saving]) -> Run:
    """`load`, `Run.align` and `Run.save_baseline` in one call: the figures of a run, kept in the JSON file `path` for a
    later `compare`. Returns the run. Raises as these do."""
    from trace_export.analysis import baseline
    from trace_export.run import outputs

    values, file = checked(given, Saving), arguments.path(path, "path")
    wanted = _wanted(log_dir, values)
    with outputs(wanted, force=values["force"]) as files:
        files.check([file])
        run = wanted.run(values["progress"])
        with files.file(file) as temporary:
            baseline.write(run.baseline(), temporary)
    return run


@keywords(Inspecting)
def inspect(log_dir: Inputs = None, **given: Unpack[Inspecting]) -> Inspection:
    """Says whether the profiles in a folder can be drawn, and what each source holds; parameters as in `load`.

    Sources of at most 32 MB together are read whole. Of larger ones only the beginning is read, with passes in CPU
    times, and the number of steps is an estimate; `full` reads everything.

    Each host keeps its own clock, nothing is written. Sources that cannot be read are in the result. Raises UsageError
    if the folder does not exist.
    """
    from trace_export.inspection import inspect as inspection

    values = checked(given, Inspecting)
    return inspection.inspect(load_options(log_dir, values), values["progress"], full=values["full"])


@keywords(Watching)
def watch(
    log_dir: Inputs = None,
    *,
    stop: threading.Event | None = None,
    **given: Unpack[Watching],
) -> Iterator[Look]:
    """Follows a job that still runs: a `Look` for the beginning and one whenever its profiles have grown, at most one a
    second, until `stop` is set.

    `last`: the steps that `Look.run` has; `slowdown`: their figures have the metric S. `jsonl`: a file to which a line
    of JSON is appended for each step (see `StepFigures`). What to read and how as in `load`, how clocks are aligned as
    in `Run.align`, and what the page of the command draws as in `Run.write`.

    Raises UsageError for a wrong value, a missing folder or a file that may not be replaced, OutputError.
    """
    from trace_export.live import watching

    values = checked(given, Watching)
    event = threading.Event() if stop is None else arguments.instance(stop, "stop", threading.Event, "an Event")
    more = {name: values[name] for name in ("last", "slowdown", "jsonl", "force")}
    return watching.watch(_request(log_dir, values | {"jobs": 1}), event, part(values, Drawing), **more)
