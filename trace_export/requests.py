"""The spine: find → read → interpret → align → lay out → write. A newcomer reads this file first.

`load` brings a folder to a `Run`; `export`, `report` and `compare` are the commands of these names. The public API
calls these and nothing deeper.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol, Unpack

from trace_export import draw as render
from trace_export.clocks.apply import uncorrected
from trace_export.draw import WriteOptions
from trace_export.errors import UsageError
from trace_export.files import real_path
from trace_export.model import Note
from trace_export.options import Asking
from trace_export.pipeline import completeness, stages
from trace_export.pipeline.interpret import interpret, interpret_table
from trace_export.progress import Progress, silent
from trace_export.read import LoadOptions, Located, locate, read_profile, sizes
from trace_export.run import Run, aligned, checked, compared, drawn
from trace_export.scratch import scratch_folder
from trace_export.selection import Numbers, Selection
from trace_export.sources import span_table
from trace_export.sources.merge import merge
from trace_export.sources.ranges.dialects import Dialects
from trace_export.wanted import AlignOptions
from trace_export.writers.outputs import Outputs

if TYPE_CHECKING:
    from trace_export.analysis.baseline import Baseline
    from trace_export.analysis.compare import Comparison
    from trace_export.analysis.report import Report


KEPT_SOURCES = 8
"""Of more sources device tasks are read when it is known which are drawn: all of them may not fit on the disk."""


@dataclass(frozen=True)
class Request:
    """A run that is wanted: what to read, how to align its clocks, which part of it to show. `located`: what `locate`
    made of the source, where that was asked already."""

    source: LoadOptions
    clocks: AlignOptions = AlignOptions()
    part: Selection = Selection()
    located: Located | None = None


def load(options: LoadOptions, progress: Progress = silent, located: Located | None = None) -> Run:
    """Everything that lies in the folder, or what a span table holds, interpreted; hosts not aligned yet.
    `located` is what `locate` made of the options, where that was asked already.

    Raises UsageError for impossible options, NothingToExportError when no source gave a block.
    """
    Dialects.of(options.read.markers)  # a wrong rule is refused before anything is read
    located = located or locate(options)
    if span_table.is_table(options.log_dir, options.columns):
        foreign = span_table.read_foreign(options.log_dir, options.columns, options.read)
        if foreign is not None:
            foreign, _ = merge([foreign], options.run)
            foreign = interpret(foreign.with_notes(located.notes), options.declared)
            if foreign.hosts.height < 2:
                return Run(foreign, options, _inputs=located.inputs)
            clocks = uncorrected(foreign.ranks, "single-host")  # a table has one clock, whatever hosts it names
            foreign = checked(replace(foreign, clocks=clocks), options, one_clock=True)
            return Run(foreign, options, _clocks="one", _inputs=located.inputs)
        _refuse_sources(options)
        table, _ = merge([span_table.read(options.log_dir).with_notes(located.notes)], options.run)
        table = interpret_table(table, options.declared)
        # a table may hold a part that was selected
        table = completeness.mark_whole_steps(table, one_clock=True, all_ranks=False)
        return Run(table, options, _clocks="one", _inputs=located.inputs)
    size_of = {} if options.detail == "spans" else sizes(located.sources)
    profile, failures = read_profile(located, options, progress)
    if options.places is not None:
        profile = stages.place_ranks(profile, options.places)
    profile = interpret(profile, options.declared)
    if options.chosen:
        text = f"only ranks {Numbers.of(profile.ranks['rank'].to_list())} were read, as chosen"
        profile = profile.with_notes([Note("ranks-chosen", "detail", text)])
    return Run(profile, options, tuple(failures), _sizes=size_of, _inputs=located.inputs)


def _refuse_sources(options: LoadOptions) -> None:
    """Raises UsageError where sources are chosen of a span table, which is one."""
    for name, numbers in (("ranks", options.read.ranks), ("devices", options.devices)):
        if numbers is not None:
            what = f"{options.log_dir} is a span table, where {name} cannot be chosen"
            raise UsageError(what, "choose stages or steps", parameter=name)


def export(
    wanted: Request,
    output: WriteOptions,
    step_table: Literal["copies", "in place"] | None = None,
    *,
    force: bool = False,
    progress: Progress = silent,
) -> tuple[Run, list[Path]]:
    """A run, and the files of its chart. `step_table`: also the table of MindStudio Insight, into copies of the
    databases or into themselves.

    Raises UsageError before anything is read if an output cannot be or may not be replaced; AlignmentError,
    NothingToExportError, OutputError.
    """
    paths = render.planned(output, wanted.source.log_dir)
    (located,), outputs = _located([wanted], force, output.inputs)
    with outputs, ExitStack() as stack:
        if step_table:
            from trace_export import step_tasks

            databases = step_tasks.databases(located.sources, wanted.source.log_dir)
            copies = [step_tasks.copy(path, wanted.source.log_dir, output.out) for path in databases]
            paths += copies if step_table == "copies" else []
        outputs.check(paths)
        wanted = _keeping_tasks(wanted, located, stack)
        run = drawn(_run(wanted, located, progress), output, outputs, progress)
        if step_table:
            in_place = step_table == "in place"
            step_tasks.write(
                located.sources, wanted.source, wanted.part, output.out, outputs, progress, in_place=in_place
            )
    return run, outputs.written


class Beside(Protocol):
    """A page that the page of a report (its path) links to."""

    def planned(self, report: Path, located: Located) -> list[Path]:
        """The page, as far as the sources show that it will be written."""

    def write(self, run: Run, report: Path, outputs: Outputs) -> str:
        """Writes it; returns its name, "" where there is none."""


def report(
    wanted: Request,
    page: Path | None,
    beside: Beside | None = None,
    *,
    force: bool = False,
    progress: Progress = silent,
    **asked: Unpack[Asking],
) -> tuple[Run, Report, list[Path]]:
    """A run and its report, which goes to `page` if there is one: an HTML page, or a heat map (.svg, .png). Raises as
    `export` and `Run.report` do."""
    (located,), outputs = _located([wanted], force)
    with outputs, ExitStack() as stack:
        outputs.check([page] if page else [])
        wanted = _keeping_tasks(wanted, located, stack)
        if page and beside and page.suffix == ".html":
            outputs.check(beside.planned(page, located))
        run = _run(wanted, located, progress)
        found = run.report(**asked)
        if page and page.suffix != ".html":
            render.write_heat_map(run.what_if(), found, run.name, page, outputs)
        elif page:
            further = beside.write(run, page, outputs) if beside else ""
            render.write_report(run._bubbles, found, run.name, page, outputs, wanted.part.steps, further)
    return run, found, outputs.written


def compare(
    wanted: tuple[Request, Request],
    output: WriteOptions | None,
    limit: float | None = None,
    on: str = "step",
    *,
    force: bool = False,
    progress: Progress = silent,
) -> tuple[Run, Run, Comparison, tuple[Path, ...]]:
    """Two runs, their differences, and the files of one chart of both if there is an `output`. Raises as `export` does,
    and UsageError for a run beside itself or one that cannot be judged by the `limit`."""
    one, other = wanted
    places = [(real_path(wish.source.log_dir), wish.source.files) for wish in wanted]
    if places[0] == places[1] and one.part == other.part and one.source.run == other.source.run:
        what = f"{one.source.log_dir} would be compared with itself"
        remedy = "name another folder, or other steps or runs with `steps_a` and `steps_b`, `run_a` and `run_b`"
        raise UsageError(what, remedy)
    log_dir = one.source.log_dir
    paths = render.planned(output, log_dir) if output else []
    located, outputs = _located(wanted, force)
    with outputs:
        outputs.check(paths)
        a, b = (_run(one, there, progress) for one, there in zip(wanted, located, strict=True))
        comparison = compared(a, b, limit, on)
        if output:
            a = drawn(a, replace(output, comparison=comparison), outputs, progress, beside=b)
    return a, b, comparison, tuple(outputs.written)


def compare_with_baseline(
    file: Path, wanted: Request, limit: float | None = None, on: str = "step", *, progress: Progress = silent
) -> tuple[Baseline, Run, Comparison]:
    """The baseline in a file, a run, and their differences. Raises as `compare` does, and SourceError where the file is
    no baseline."""
    from trace_export.analysis import baseline

    known = baseline.read(file)
    run = _run(wanted, locate(wanted.source), progress)
    return known, run, compared(known, run, limit, on)


def save_baseline(wanted: Request, file: Path, *, force: bool = False, progress: Progress = silent) -> Run:
    """A run, whose figures go to a file. Raises as `export` does."""
    from trace_export.analysis import baseline

    (located,), outputs = _located([wanted], force)
    with outputs:
        outputs.check([file])
        run = _run(wanted, located, progress)
        with outputs.file(file) as temporary:
            baseline.write(run.baseline(), temporary)
    return run


def _located(wanted: Sequence[Request], force: bool, further: Sequence[Path] = ()) -> tuple[list[Located], Outputs]:
    """What there is to read for each run, and outputs that replace none of it nor a `further` file."""
    located = [one.located or locate(one.source) for one in wanted]
    inputs = [file for there in located for file in there.inputs]
    clocks = [file for one in wanted for file in one.clocks.inputs]
    return located, Outputs([*inputs, *clocks, *further], force=force)


def _keeping_tasks(wanted: Request, located: Located, stack: ExitStack) -> Request:
    """`wanted` with a folder, for as long as the stack, for device tasks that readers come by before it is known which
    are drawn: where they are asked for, and few enough."""
    source = wanted.source
    if source.detail == "spans" or len(located.sources) > KEPT_SOURCES:
        return wanted
    folder = stack.enter_context(scratch_folder())
    return replace(wanted, source=replace(source, read=replace(source.read, keep_tasks=folder)))


def _run(wanted: Request, located: Located, progress: Progress) -> Run:
    run = load(wanted.source, progress, located)
    return replace(aligned(run, wanted.clocks, progress), _selection=wanted.part)
