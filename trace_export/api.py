"""The public functions: what the command line does, on objects. See the package's docstring for an example.

`load` gives a `Run`, whose methods align, select, report and write. The other functions are the commands of their names
in one call.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from trace_export.choices import (
    Align,
    ColorBy,
    Detail,
    Format,
    HeatMapFormat,
    Infer,
    OverviewFormat,
    Table,
    Tracks,
)
from trace_export.errors import UsageError
from trace_export.model import Declared
from trace_export.selection import Window
from trace_export.workflow import arguments
from trace_export.workflow.arguments import Inputs, NumberSet
from trace_export.workflow.options import align_options, gate_options, load_options, selection, write_options
from trace_export.workflow.progress import Progress, silent
from trace_export.workflow.reading import LoadOptions
from trace_export.writers.paths import heat_map_path, report_page
from trace_export.writers.pictures.style import FigureStyle

if TYPE_CHECKING:
    from trace_export.analysis.baseline import Baseline
    from trace_export.analysis.compare import Comparison
    from trace_export.analysis.report import Report
    from trace_export.live.look import Look
    from trace_export.scale.build import Overview
    from trace_export.workflow import requests
    from trace_export.workflow.inspection import Inspection
    from trace_export.workflow.run import Run
    from trace_export.workflow.simulation import Simulation, draw_schedules, simulate

__all__ = [
    "Compared", "Exported", "FigureStyle", "Inspection", "Overviewed", "Reported", "Run", "Simulation", "Window",
    "compare", "draw_schedules", "export", "inspect", "load", "overview", "report", "save_baseline", "simulate",
    "watch",
]  # fmt: skip

_LOADED_WHEN_USED = {
    "Inspection": "inspection", "Run": "run", "Simulation": "simulation", "draw_schedules": "simulation",
    "simulate": "simulation",
}  # fmt: skip
"""What only some functions need, and the files of `workflow` that have it."""


def __getattr__(name: str) -> Any:
    if name in _LOADED_WHEN_USED:
        return getattr(import_module(f"trace_export.workflow.{_LOADED_WHEN_USED[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def load(
    log_dir: Inputs = None,
    *,
    family: str | None = None,
    devices: NumberSet = None,
    multi_machine: bool = False,
    follow_links: bool = False,
    ranks: NumberSet = None,
    run: int | str = "latest",
    replica: NumberSet = None,
    cache: str | PathLike[str] | None = None,
    steps: NumberSet = None,
    stages: NumberSet = None,
    window: str | Window | None = None,
    pp: int | None = None,
    tp: int | None = None,
    dp: int | None = None,
    cp: int | None = None,
    declared: Declared | None = None,
    host_ranges: bool = False,
    markers: str | Sequence[str] = (),
    columns: str | None = None,
    infer: Infer = "auto",
    detail: Detail = "spans",
    jobs: int | None = None,
    scheduler: str | None = None,
    at: str | Sequence[str] = (),
    progress: Progress | None = None,
) -> Run:
    """Reads the profiles in the folder `log_dir`, or one or several files, and interprets them; each host keeps its own
    clock.

    What to read: `family` is one format, called as its command is (None: whatever is there), `devices` the
    local worker indexes on each machine, `ranks` global ranks, `replica` data-parallel copies of the pipeline, whose
    sources alone are read (`cache`: a folder that keeps where ranks and steps are, for the next time); `run` which of
    several runs of the job is read, by its number (1 is the oldest), "latest" (the newest complete one) or "all";
    `multi_machine` demands a folder for each machine. `follow_links` also searches folders outside `log_dir` that
    links in it lead to. `steps`, `stages`, `window` as in `Run.select`. Sets of numbers are "2-4,7", a number, a range
    or a list.
    How to read it: `pp`, `tp`, `dp`, `cp` are the sizes of the run where the data do not have them, `declared` what
    else is known of it. `host_ranges` takes CPU-side ranges where the default is device time. `markers` are rules
    for range names, 'REGEX=>kind' or TOML files. `columns` says what the columns of another tool's table mean,
    where `log_dir` is one: "rank=rank,kind=optype,start=start_ts:s,end=end_ts:s". `infer` says whether blocks are
    found from the launches of GPU work: where no pass is named (auto), never (off), or whatever is named (only).
    `detail` says which device tasks `Run.write` will draw: spans (none), comm, kernels.
    Who reads: `jobs` processes (None: chosen from the data size), or the workers of the Dask `scheduler`; `at` names
    folders on the disks of its machines, MACHINE:DIR or a TOML file, in place of `log_dir`. `progress` is called with
    what is being done, how much of it is done, and out of how much.

    Raises UsageError for a wrong value or a missing folder, NothingToExportError where no source has a block.
    """
    from trace_export.workflow import requests

    part = selection(steps, stages, window)
    source = load_options(
        log_dir, family=family, devices=devices, multi_machine=multi_machine, follow_links=follow_links, ranks=ranks,
        run=run, pp=pp, tp=tp, dp=dp, cp=cp,
        declared=declared, host_ranges=host_ranges, markers=markers, columns=columns, infer=infer, detail=detail,
        jobs=jobs, scheduler=scheduler, at=at,
    )  # fmt: skip
    report = arguments.progress(progress, "progress", silent)
    wanted = _narrowed(requests.Request(source, part=part), replica, cache, report)
    return replace(requests.load(wanted.source, report, wanted.located), _selection=part)


def _narrowed(wanted: requests.Request, replica: object, cache: object, progress: Progress) -> requests.Request:
    """The request, of some replicas only where these are given, or of what the cache says that it needs."""
    numbers, folder = arguments.numbers(replica, "replica"), arguments.path_or_none(cache, "cache")
    if numbers is None and folder is None:
        return wanted
    if numbers is None and wanted.source.read.ranks is None and wanted.part.steps is None:
        what = "keeps where ranks and steps are"
        raise UsageError(what, "give it together with replica, ranks or steps", parameter="cache")
    from trace_export.scale.replicas import narrowed_request

    return narrowed_request(wanted, numbers, folder, progress)


@dataclass(frozen=True)
class Exported:
    """What `export` did: the run that it read, and the files that it wrote."""

    run: Run
    files: tuple[Path, ...]


def export(
    log_dir: Inputs = None,
    path: str | PathLike[str] | None = None,
    formats: str | Sequence[Format] | None = None,
    *,
    family: str | None = None,
    devices: NumberSet = None,
    multi_machine: bool = False,
    follow_links: bool = False,
    ranks: NumberSet = None,
    run: int | str = "latest",
    replica: NumberSet = None,
    cache: str | PathLike[str] | None = None,
    steps: NumberSet = None,
    stages: NumberSet = None,
    window: str | Window | None = None,
    pp: int | None = None,
    tp: int | None = None,
    dp: int | None = None,
    cp: int | None = None,
    declared: Declared | None = None,
    force: bool = False,
    gzip: bool = False,
    tracks: Tracks = "stage",
    detail: Detail = "spans",
    color_by: ColorBy = "kind",
    bubbles: bool = False,
    model: bool = False,
    critical_path: bool = False,
    tables: str | Sequence[Table] = "blocks",
    max_slices: int | None = None,
    figure: FigureStyle | None = None,
    step_task_info: bool = False,
    in_place: bool = False,
    host_ranges: bool = False,
    markers: str | Sequence[str] = (),
    columns: str | None = None,
    infer: Infer = "auto",
    align: Align | PathLike[str] | str = "auto",
    offsets_ns: Mapping[str, int] | None = None,
    max_error_ns: float | None = None,
    jobs: int | None = None,
    scheduler: str | None = None,
    at: str | Sequence[str] = (),
    progress: Progress | None = None,
) -> Exported:
    """`load`, `Run.align` and `Run.write` in one call, as the command does it; parameters as there.

    An output that cannot be, or that would replace what it may not, is refused before anything is read.
    `step_task_info` also writes the table StepTaskInfo for MindStudio Insight into copies of Ascend and MindSpore
    databases, with `in_place` into the databases themselves. Raises as `load`, `Run.align` and `Run.write` do.
    """
    from trace_export.workflow import requests

    output = write_options(
        path, formats, gzip=gzip, tracks=tracks, color_by=color_by, bubbles=bubbles, model=model,
        critical_path=critical_path, tables=tables, max_slices=max_slices, figure=figure,
    )  # fmt: skip
    source = load_options(
        log_dir, family=family, devices=devices, multi_machine=multi_machine, follow_links=follow_links, ranks=ranks,
        run=run, pp=pp, tp=tp, dp=dp, cp=cp,
        declared=declared, host_ranges=host_ranges, markers=markers, columns=columns, infer=infer, detail=detail,
        jobs=jobs, scheduler=scheduler, at=at,
    )  # fmt: skip
    step_table, tick = _step_table(step_task_info, in_place, source), arguments.progress(progress, "progress", silent)
    wanted = requests.Request(source, align_options(align, offsets_ns, max_error_ns), selection(steps, stages, window))
    wanted = _narrowed(wanted, replica, cache, tick)
    read, files = requests.export(wanted, output, step_table, force=arguments.flag(force, "force"), progress=tick)
    return Exported(read, tuple(files))


def _step_table(step_task_info: object, in_place: object, source: LoadOptions) -> Literal["copies", "in place"] | None:
    wanted, inside = arguments.flag(step_task_info, "step_task_info"), arguments.flag(in_place, "in_place")
    if inside and not wanted:
        raise UsageError("has nothing to write", "give it together with `step_task_info`", parameter="in_place")
    if wanted and source.cluster is not None and source.cluster.folders:
        what = "writes into databases on this machine, and these profiles are on others"
        raise UsageError(what, "run it on each of them, or with a log_dir that all share", parameter="step_task_info")
    return None if not wanted else "in place" if inside else "copies"


@dataclass(frozen=True)
class Reported:
    """What `report` did: the run that it read, its report, and the page if there is one."""

    run: Run
    report: Report
    files: tuple[Path, ...]


def report(
    log_dir: Inputs = None,
    path: str | PathLike[str] | None = None,
    *,
    html: bool = False,
    heat_map: HeatMapFormat | None = None,
    force: bool = False,
    family: str | None = None,
    devices: NumberSet = None,
    multi_machine: bool = False,
    follow_links: bool = False,
    ranks: NumberSet = None,
    run: int | str = "latest",
    replica: NumberSet = None,
    cache: str | PathLike[str] | None = None,
    steps: NumberSet = None,
    stages: NumberSet = None,
    window: str | Window | None = None,
    pp: int | None = None,
    tp: int | None = None,
    dp: int | None = None,
    cp: int | None = None,
    declared: Declared | None = None,
    host_ranges: bool = False,
    markers: str | Sequence[str] = (),
    columns: str | None = None,
    infer: Infer = "auto",
    align: Align | PathLike[str] | str = "auto",
    offsets_ns: Mapping[str, int] | None = None,
    max_error_ns: float | None = None,
    jobs: int | None = None,
    scheduler: str | None = None,
    at: str | Sequence[str] = (),
    progress: Progress | None = None,
) -> Reported:
    """`load`, `Run.align` and `Run.report` in one call, as the command does it; with `html` also `Run.write_report`,
    and of more than 256 ranks the page of `overview` beside it; with `heat_map` also `Run.write_heat_map`.

    `path`: the page, the picture, or its folder; None: the folder that was read. Raises as these methods do, and
    UsageError for `html` and `heat_map` at once.
    """
    from trace_export.workflow import requests

    source = load_options(
        log_dir, family=family, devices=devices, multi_machine=multi_machine, follow_links=follow_links, ranks=ranks,
        run=run, pp=pp, tp=tp, dp=dp, cp=cp,
        declared=declared, host_ranges=host_ranges, markers=markers, columns=columns, infer=infer, detail="spans",
        jobs=jobs, scheduler=scheduler, at=at,
    )  # fmt: skip
    tick, out = arguments.progress(progress, "progress", silent), arguments.path_or_none(path, "path")
    page = report_page(out, source.log_dir) if arguments.flag(html, "html") else None
    if heat_map is not None:
        if page:
            raise UsageError("html and heat_map are two files", "ask for one of them", parameter="heat_map")
        page = heat_map_path(out, source.log_dir, arguments.choice(heat_map, "heat_map", HeatMapFormat))
    wanted = requests.Request(source, align_options(align, offsets_ns, max_error_ns), selection(steps, stages, window))
    wanted = _narrowed(wanted, replica, cache, tick)
    from trace_export.scale.requests import BesideReport

    read, files = requests.report(wanted, page, BesideReport(), force=arguments.flag(force, "force"), progress=tick)
    return Reported(read, read.report(), tuple(files))


@dataclass(frozen=True)
class Overviewed:
    """What `overview` did: the overview, and the files that it wrote."""

    overview: Overview
    files: tuple[Path, ...]


def overview(
    log_dir: Inputs = None,
    path: str | PathLike[str] | None = None,
    formats: str | Sequence[OverviewFormat] = "html",
    *,
    traces: bool = False,
    cache: str | PathLike[str] | None = None,
    force: bool = False,
    family: str | None = None,
    multi_machine: bool = False,
    follow_links: bool = False,
    ranks: NumberSet = None,
    run: int | str = "latest",
    replica: NumberSet = None,
    steps: NumberSet = None,
    stages: NumberSet = None,
    window: str | Window | None = None,
    pp: int | None = None,
    tp: int | None = None,
    dp: int | None = None,
    cp: int | None = None,
    host_ranges: bool = False,
    markers: str | Sequence[str] = (),
    columns: str | None = None,
    infer: Infer = "auto",
    align: Align | PathLike[str] | str = "auto",
    jobs: int | None = None,
    scheduler: str | None = None,
    progress: Progress | None = None,
) -> Overviewed:
    """A run of any number of ranks and what costs it most, as `report` says it; of more than 1,024 ranks each pipeline
    replica is read, aligned and measured by itself, and what comes back is compared. See `trace_export.Overview`.

    `path`: the folder of the `formats` (html, parquet), or the page; None: the folder that was read. `traces` adds
    those of the replica that is most like the others and of those that have exceptions, in the folder traces. `cache`
    is a folder that keeps where ranks and steps are. Of `ranks` the replicas with one of them are read. Other
    parameters as in `load`. Raises UsageError, NothingToExportError where no replica can be read or the number of
    stages is not known, OutputError.
    """
    from trace_export.scale import requests as overviews
    from trace_export.workflow import requests

    options = load_options(
        log_dir, family=family, multi_machine=multi_machine, follow_links=follow_links, ranks=ranks, run=run, pp=pp,
        tp=tp, dp=dp, cp=cp, host_ranges=host_ranges, markers=markers, columns=columns, infer=infer, jobs=jobs,
        scheduler=scheduler,
    )  # fmt: skip
    wanted = requests.Request(options, align_options(align, None, None), selection(steps, stages, window))
    output = overviews.OverviewOptions(
        arguments.choices(formats, "formats", OverviewFormat),
        arguments.path_or_none(path, "path"),
        arguments.flag(traces, "traces"),
        arguments.path_or_none(cache, "cache"),
        arguments.numbers(replica, "replica"),
    )
    found, files = overviews.overview(
        wanted,
        output,
        force=arguments.flag(force, "force"),
        progress=arguments.progress(progress, "progress", silent),
    )
    return Overviewed(found, tuple(files))


@dataclass(frozen=True)
class Compared:
    """What `compare` did: both runs, of which A may be a baseline, their differences, and the files that it wrote."""

    a: Run | Baseline
    b: Run
    comparison: Comparison
    files: tuple[Path, ...]


def compare(
    a: str | PathLike[str],
    b: str | PathLike[str] | None = None,
    path: str | PathLike[str] | None = None,
    formats: str | Sequence[Format] | None = None,
    *,
    steps: NumberSet = None,
    steps_a: NumberSet = None,
    steps_b: NumberSet = None,
    run: int | str = "latest",
    run_a: int | str | None = None,
    run_b: int | str | None = None,
    devices: NumberSet = None,
    multi_machine: bool = False,
    ranks: NumberSet = None,
    stages: NumberSet = None,
    window: str | Window | None = None,
    pp: int | None = None,
    tp: int | None = None,
    dp: int | None = None,
    cp: int | None = None,
    host_ranges: bool = False,
    markers: str | Sequence[str] = (),
    columns: str | None = None,
    infer: Infer = "auto",
    fail_above: str | float | None = None,
    on: str = "step",
    force: bool = False,
    gzip: bool = False,
    align: Align | PathLike[str] | str = "auto",
    follow_links: bool = False,
    jobs: int | None = None,
    progress: Progress | None = None,
) -> Compared:
    """`load` and `Run.align` of two folders, or of two steps of one (`b` None), and `Run.compare`, as the command does.

    `a` may also be a baseline, the file that `save_baseline` wrote. `path`: the file or folder of a chart with both, B
    below A; None: no chart. `steps_a` and `steps_b` are the steps of each to compare, `steps` those of a run for which
    these name none, and likewise `run_a`, `run_b` and `run`; `fail_above` and `on` as in `Run.compare`; all else, as in
    `load`, `Run.align` and `Run.write`, holds for both. Raises as these do, and UsageError for a run beside itself.
    """
    from trace_export.workflow import requests

    clocks, first = align_options(align, None, None), arguments.path(a, "a")
    second = first if b is None else arguments.path(b, "b")
    shown, gate = selection(steps, stages, window), gate_options(fail_above, on)
    one, other = (
        requests.Request(
            load_options(
                log_dir, devices=devices, multi_machine=multi_machine, ranks=ranks, run=run if its is None else its,
                pp=pp, tp=tp, dp=dp, cp=cp,
                host_ranges=host_ranges, markers=markers, columns=columns, infer=infer, follow_links=follow_links,
                jobs=jobs,
            ),
            clocks,
            replace(shown, steps=arguments.numbers(own, name) or shown.steps),
        )
        for log_dir, own, name, its in ((first, steps_a, "steps_a", run_a), (second, steps_b, "steps_b", run_b))
    )  # fmt: skip
    report = arguments.progress(progress, "progress", silent)
    from trace_export.analysis.baseline import is_baseline

    if is_baseline(first):
        if b is None or path is not None or steps_a is not None:
            what = "a baseline has no blocks: it is compared with a run, without a chart and without steps of its own"
            raise UsageError(what, "name the run too, and leave out `path` and `steps_a`")
        return Compared(*requests.compare_with_baseline(first, other, gate, progress=report), files=())
    output = write_options(path, formats, gzip=gzip) if path is not None else None
    one_run, other_run, comparison, files = requests.compare(
        (one, other), output, gate, force=arguments.flag(force, "force"), progress=report
    )
    return Compared(one_run, other_run, comparison, tuple(files))


def save_baseline(
    log_dir: Inputs,
    path: str | PathLike[str],
    *,
    devices: NumberSet = None,
    multi_machine: bool = False,
    ranks: NumberSet = None,
    run: int | str = "latest",
    steps: NumberSet = None,
    stages: NumberSet = None,
    window: str | Window | None = None,
    pp: int | None = None,
    tp: int | None = None,
    dp: int | None = None,
    cp: int | None = None,
    host_ranges: bool = False,
    markers: str | Sequence[str] = (),
    columns: str | None = None,
    infer: Infer = "auto",
    force: bool = False,
    align: Align | PathLike[str] | str = "auto",
    follow_links: bool = False,
    jobs: int | None = None,
    progress: Progress | None = None,
) -> Run:
    """`load`, `Run.align` and `Run.save_baseline` in one call: the figures of a run, kept in the JSON file `path` for a
    later `compare`. Returns the run. Raises as these do."""
    from trace_export.workflow import requests

    source = load_options(
        log_dir, devices=devices, multi_machine=multi_machine, ranks=ranks, run=run, pp=pp, tp=tp, dp=dp, cp=cp,
        host_ranges=host_ranges, markers=markers, columns=columns, infer=infer, follow_links=follow_links, jobs=jobs,
    )  # fmt: skip
    return requests.save_baseline(
        requests.Request(source, align_options(align, None, None), selection(steps, stages, window)),
        arguments.path(path, "path"),
        force=arguments.flag(force, "force"),
        progress=arguments.progress(progress, "progress", silent),
    )


def inspect(
    log_dir: Inputs = None,
    *,
    follow_links: bool = False,
    ranks: NumberSet = None,
    run: int | str = "latest",
    pp: int | None = None,
    tp: int | None = None,
    dp: int | None = None,
    cp: int | None = None,
    declared: Declared | None = None,
    host_ranges: bool = False,
    markers: str | Sequence[str] = (),
    infer: Infer = "auto",
    jobs: int | None = None,
    full: bool = False,
    progress: Progress | None = None,
) -> Inspection:
    """Whether what lies in a folder can be drawn, and what each source holds; parameters as in `load`.

    Sources of at most 32 MB together are read whole. Of larger ones only the beginning is read, with their passes as
    the CPU saw them, and the number of steps is an estimate; `full` reads everything.

    Each host keeps its own clock, nothing is written. Sources that cannot be read are in the result. Raises UsageError
    where there is no such folder.
    """
    from trace_export.workflow import inspection

    options = load_options(
        log_dir, follow_links=follow_links, ranks=ranks, run=run, pp=pp, tp=tp, dp=dp, cp=cp, declared=declared,
        host_ranges=host_ranges, markers=markers, infer=infer, jobs=jobs,
    )  # fmt: skip
    return inspection.inspect(
        options, arguments.progress(progress, "progress", silent), full=arguments.flag(full, "full")
    )


def watch(
    log_dir: Inputs = None,
    *,
    last: int = 5,
    slowdown: bool = False,
    jsonl: str | PathLike[str] | None = None,
    prometheus: str | PathLike[str] | None = None,
    once_every: str | float | None = None,
    path: str | PathLike[str] | None = None,
    formats: str | Sequence[Format] | None = None,
    force: bool = False,
    gzip: bool = False,
    tables: str | Sequence[Table] = "blocks",
    figure: FigureStyle | None = None,
    tracks: Tracks = "stage",
    detail: Detail = "spans",
    color_by: ColorBy = "kind",
    bubbles: bool = False,
    model: bool = False,
    critical_path: bool = False,
    devices: NumberSet = None,
    multi_machine: bool = False,
    follow_links: bool = False,
    ranks: NumberSet = None,
    pp: int | None = None,
    tp: int | None = None,
    dp: int | None = None,
    cp: int | None = None,
    host_ranges: bool = False,
    markers: str | Sequence[str] = (),
    infer: Infer = "auto",
    align: Align | PathLike[str] | str = "auto",
    offsets_ns: Mapping[str, int] | None = None,
    max_error_ns: float | None = None,
    stop: threading.Event | None = None,
) -> Iterator[Look]:
    """Follows a job that still runs: a `Look` for the beginning and one whenever its profiles have grown, at most one a
    second, until `stop` is set.

    `last`: the steps that `Look.run` has; `slowdown`: their figures have the metric S. `jsonl`: a file to which a line
    of JSON is appended for each step; `prometheus`: a file that holds the figures of the last step (see `StepFigures`).
    `once_every`: seconds, or a text such as "30s"; so often the last steps are exported, to `path` in the `formats`
    given. What to read and how as in `load`, how clocks are aligned as in `Run.align`, and what is drawn and written as
    in `Run.write`.

    Raises UsageError for a wrong value, a missing folder or a file that may not be replaced, OutputError.
    """
    from trace_export.live import watching
    from trace_export.workflow import requests

    source = load_options(
        log_dir, devices=devices, multi_machine=multi_machine, follow_links=follow_links, ranks=ranks, pp=pp, tp=tp,
        dp=dp, cp=cp, host_ranges=host_ranges, markers=markers, infer=infer, detail=detail, jobs=1,
    )  # fmt: skip
    every_s = None if once_every is None else arguments.seconds(once_every, "once_every")
    export = write_options(
        path, formats, gzip=gzip, tracks=tracks, color_by=color_by, bubbles=bubbles, model=model,
        critical_path=critical_path, tables=tables, figure=figure,
    )  # fmt: skip
    of_files = {
        "path": path is not None, "formats": formats is not None, "gzip": export.gzip,
        "tables": export.tables != ("blocks",), "figure": export.figure != FigureStyle(),
    }  # fmt: skip
    for name in (name for name, given in of_files.items() if given and every_s is None):
        raise UsageError("says how the last steps are exported", "give it together with once_every", parameter=name)
    options = watching.WatchOptions(
        last=arguments.whole(last, "last"),
        slowdown=arguments.flag(slowdown, "slowdown"),
        jsonl=arguments.path_or_none(jsonl, "jsonl"),
        prometheus=arguments.path_or_none(prometheus, "prometheus"),
        every_s=every_s,
        export=export,
        force=arguments.flag(force, "force"),
    )
    event = threading.Event() if stop is None else arguments.instance(stop, "stop", threading.Event, "an Event")
    clocks = align_options(align, offsets_ns, max_error_ns)
    return watching.watch(requests.Request(source, clocks), options, event)
