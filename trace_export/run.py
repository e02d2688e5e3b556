"""`Run`: what was read of a training run, and what can be asked of it: align, select, report, write. `Request`: from
what is wanted of a run to the run: find → read → interpret → align."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Unpack, cast

import polars as pl

from trace_export import arguments
from trace_export.analysis.bubbles import Bubbles
from trace_export.chart.size import drawn_ranks
from trace_export.choices import Align, Format
from trace_export.clocks import by_run
from trace_export.clocks.apply import task_batches, uncorrected
from trace_export.draw import Content, Other
from trace_export.errors import NothingToExportError, TraceExportError, UsageError, path_text
from trace_export.memory import give_back
from trace_export.model import Note, Profile
from trace_export.options import Aligning, Asking, Drawing, Judging, Part, Replacing, Writing, checked, filled, keywords
from trace_export.pipeline import completeness, stages
from trace_export.pipeline.interpret import interpret, interpret_table
from trace_export.progress import Progress, silent
from trace_export.read import LoadOptions, Located, locate, read_device_tasks, read_profile, sizes
from trace_export.scratch import scratch_folder
from trace_export.selection import Numbers, Selection, absent, extent, select
from trace_export.sources.merge import merge
from trace_export.sources.ranges.dialects import Dialects
from trace_export.sources.spans import span_table
from trace_export.write import (
    WriteOptions,
    announce,
    figure_style,
    write_files,
    write_heat_map,
    write_options,
    write_report,
)  # fmt: skip
from trace_export.writers.outputs import Outputs
from trace_export.writers.paths import heat_map_path, report_page
from trace_export.writers.pictures.style import FigureStyle
from trace_export.writers.predecessors import copy_of_script
from trace_export.writers.tables import sides

if TYPE_CHECKING:
    from trace_export.analysis.baseline import Baseline
    from trace_export.analysis.compare import Comparison
    from trace_export.analysis.explanation import Explanation
    from trace_export.analysis.report import Report
    from trace_export.analysis.run_figures import RunFigures
    from trace_export.analysis.slowdown import Slowdown
    from trace_export.analysis.summary import Summary
    from trace_export.answer import Sentence
    from trace_export.plot import Plot
    from trace_export.steps.path import CriticalPath


KEPT_SOURCES = 8
"""Of more sources device tasks are read when it is known which are drawn: all of them may not fit on the disk."""


@dataclass(frozen=True)
class AlignOptions:
    """How to align clocks; see `Run.align`."""

    align: Align | Path = "auto"
    offsets_ns: Mapping[str, int] = field(default_factory=dict)
    max_error_ns: float | None = None

    @property
    def inputs(self) -> tuple[Path, ...]:
        """The files that the options name."""
        return (self.align,) if isinstance(self.align, Path) else ()


@dataclass(frozen=True, eq=False, repr=False)
class Run:
    """A training run as `load` read it. Each method returns something new and changes nothing.

    `profile` holds all tables (`trace_export.model` documents their columns and units); the usual ones are also
    attributes: `spans`, `ranks`, `hosts`, `messages`, `collectives`, `counters`, `clocks`. `failures` are the errors of
    sources that could not be read.

    A run keeps everything that was read. `load(steps=…)` and `select` say which part of it the tables show, and that
    part is taken out last: in whichever order `align` and `select` are called, clocks are aligned by the whole run, and
    a window of time counts from its first block on aligned clocks. If the part has no block, the first access to a
    table raises NothingToExportError.
    """

    _recorded: Profile
    """Everything; on aligned clocks if `_clocks` says so."""
    _options: LoadOptions
    failures: tuple[TraceExportError, ...] = ()
    _selection: Selection = Selection()
    _clocks: Literal["own", "aligned", "one"] = "own"
    """Whether each host has its own clock still; `one`: there never was more than one, as in a span table."""
    _sizes: Mapping[Path, int] = field(default_factory=dict)
    """Of the sources whose device tasks are still to be read, see `reading.sizes`."""
    _inputs: tuple[Path, ...] = ()
    """All files that may have been read, which no output replaces."""
    _measured: Bubbles | None = None
    """The bubbles of the selected part, where they were measured before."""

    @property
    def log_dir(self) -> Path:
        return self._options.log_dir

    @property
    def name(self) -> str:
        """What the run is called in reports: its folder or file."""
        return path_text(self.place.name or self.place)

    @property
    def place(self) -> Path:
        """The folder or the single file that was read."""
        files = self._options.files
        return (files[0] if len(files) == 1 else self.log_dir).resolve()

    @cached_property
    def profile(self) -> Profile:
        """All tables, of the part that is selected. Raises NothingToExportError where no block is left."""
        part = select(self._checked, self._selection)
        if part.spans.is_empty():
            what = f"{self.log_dir}: no block matches {self._selection.text()}"
            raise NothingToExportError(what, f"the run has {extent(self._recorded)}")
        return part.with_notes(self._absent)

    @cached_property
    def _checked(self) -> Profile:
        """`_recorded` with what is known of its completeness, which is worked out anew once the clocks are aligned."""
        return (
            self._recorded
            if self._clocks != "own"
            else with_whole_steps(self._recorded, self._options, one_clock=False)
        )

    @cached_property
    def _absent(self) -> list[Note]:
        """What was selected and is not there."""
        return absent(self._recorded, self._selection)

    @property
    def spans(self) -> pl.DataFrame:
        return self.profile.blocks

    @property
    def ranks(self) -> pl.DataFrame:
        return self.profile.ranks

    @property
    def hosts(self) -> pl.DataFrame:
        return self.profile.hosts

    @property
    def messages(self) -> pl.DataFrame:
        """`model.MESSAGES` with sender_late_ns, receiver_late_ns, wire_ns and late, see `analysis.transfer_split`."""
        from trace_export.analysis.transfer_split import split_messages

        return split_messages(self.profile.messages)

    @property
    def collectives(self) -> pl.DataFrame:
        return self.profile.collectives

    @property
    def counters(self) -> pl.DataFrame:
        return self.profile.counters

    @property
    def clocks(self) -> pl.DataFrame:
        return self.profile.clocks

    @cached_property
    def _bubbles(self) -> Bubbles:
        return self._measured or self._all_bubbles.of(self.profile)

    @cached_property
    def _all_bubbles(self) -> Bubbles:
        return Bubbles(self._checked)

    @property
    def notes(self) -> tuple[Note, ...]:
        return (*self._checked.notes, *self._absent)

    def __repr__(self) -> str:
        clocks = {"own": "each host on its own clock", "aligned": "clocks aligned", "one": "one clock"}[self._clocks]
        return f"<{type(self).__name__} {self.log_dir}: {extent(self._recorded)}, {clocks}>"

    @keywords(Aligning)
    def align(self, how: Align | PathLike[str] | str = "auto", **given: Unpack[Aligning]) -> Run:
        """The run with all hosts on one clock.

        `how`: `auto` fits the clocks, `strict` also refuses uncertain clocks, `wall` and `none` keep the hosts' clocks,
        and the path of a `clock_alignment.json` applies that file. `offsets_ns` (host → ns) are added to a host's times
        first, as are those given to `load`. A host whose uncertainty (one standard deviation) exceeds `max_error_ns`
        keeps its wall clock; with `strict` that is an error. A run that has one clock (a span table, a simulation)
        stays as it is.

        Raises UsageError (an unknown word or host, offsets where there is one clock, a run that was aligned before),
        AlignmentError (`strict`), SourceError (the file cannot be read).
        """
        values = checked(given, Aligning)
        options = filled(AlignOptions, values, align=arguments.alignment(how, "align"))
        return self._aligned(options, values["progress"])

    def _aligned(self, options: AlignOptions, progress: Progress = silent) -> Run:
        """`align` with options that were checked."""
        if self._clocks == "aligned":
            raise UsageError("the clocks of this run are aligned already", "align the run that load returned")
        offsets = {**self._options.offsets_ns, **options.offsets_ns}
        if self._clocks == "one":
            if offsets:
                raise UsageError("this run has one clock only", "leave the offsets out", parameter="offsets_ns")
            return self
        progress("aligning clocks", 0, 1)
        profile = by_run.align(self._recorded, options.align, offsets=offsets, max_error_ns=options.max_error_ns)
        profile = with_whole_steps(profile, self._options, one_clock=True)
        return replace(self, _recorded=profile, _clocks="aligned", _inputs=self._inputs + options.inputs)

    @keywords(Part)
    def select(self, **given: Unpack[Part]) -> Run:
        """The run restricted to a part, whatever was selected before; without arguments the whole run.

        `steps` and `stages`: "2-4,7", a number, a range or a list of numbers; None: all. `window`: a part of the time,
        such as "1.5s-2.0s", from the first block of the run: the blocks that touch it.

        Raises UsageError. The first access to a table raises NothingToExportError if the part has no block.
        """
        return replace(self, _selection=filled(Selection, checked(given, Part)), _measured=None)

    def summary(self) -> Summary:
        """The run in a few facts: how much was read, and how sure its clocks are."""
        from trace_export.analysis.summary import summarise

        return summarise(self._bubbles, self.profile.notes, self.failures)

    @keywords(Asking)
    def report(self, **given: Unpack[Asking]) -> Report:
        """Why the steps take as long as they do: frames, see `trace_export.Report`.

        With a `train_log`, or the only log beside the profiles, a sentence says what the profiler added to the steps;
        with `layers` another says which split is best. Raises SourceError for a log that cannot be read or states no
        times, UsageError for layers that do not fit the run.
        """
        from trace_export.analysis import profiler_cost, train_log

        asked = checked(given, Asking)
        said = []
        if asked["train_log"] is not None:
            said.append(profiler_cost.sentence(self._bubbles, train_log.step_times(asked["train_log"])))
        elif self._options.cluster is None and self.log_dir.is_dir():
            logs = train_log.logs_in(self.log_dir, self._inputs)
            said += filter(None, [profiler_cost.of_logs(self._bubbles, logs)])
        if asked["layers"] is not None:
            from trace_export.analysis import layers

            count = asked["layers"] == layers.COUNT
            counted = (self._layers_in_ranges() or self._counted_layers()) if count else None
            split, by = counted or (layers.parse(asked["layers"], "layers"), None)
            placement = self.profile.declared.placement
            said.append(layers.sentence(self._bubbles.graph, split, "layers", placement, by))
        return self._report.and_also(*said) if said else self._report

    @cached_property
    def _report(self) -> Report:
        from trace_export.analysis.report import report

        result = report(self._bubbles, self.explain())
        if self._options.detail == "kernels":
            result = result.deeper(self._in_tasks(result.causes))
        return result.on(self._options.words)

    def _in_tasks(self, causes: pl.DataFrame) -> dict[int, Sentence]:
        """Why the blocks that the first causes name are slow, by the row of each. Raises as `_tasks_in`."""
        from trace_export.analysis import block_work
        from trace_export.analysis.cause_words import next_step

        asked, blocks = block_work.asked(causes, self._checked)
        tasks = self._tasks_in(blocks, {rank for each in asked for rank in (*each.slow, *each.peers)})
        rows = causes.rows(named=True)
        return {
            each.row: block_work.sentence(each, rows[each.row], blocks, tasks, next_step(rows[each.row]))
            for each in asked
        }

    def _layers_in_ranges(self) -> tuple[tuple[int, ...], str] | None:
        """The layers of each part, and the ranges of the host by which they are counted, for which the sources are read
        once more; None where no ranges name the layers of all parts, or no names the passes."""
        from trace_export.analysis import block_work, layer_ranges
        from trace_export.pipeline.interpret import interpret_blocks

        if self._options.read.infer == "only":
            return None
        rules = (*self._options.read.markers, *layer_ranges.RULES)
        read = replace(self._options.read, host_ranges=True, infer="off", markers=rules, keep_tasks=None)
        options = replace(self._options, read=read, detail="spans")
        try:
            profile, ranges = layer_ranges.apart(read_profile(locate(options), options, silent)[0])
        except TraceExportError:  # no pass is named, or it is a table
            return None
        if ranges.is_empty() or profile.spans.is_empty():
            return None
        blocks = interpret_blocks(profile, options.declared).spans.filter(pl.col("kind") == "F")
        places = self._checked.ranks.drop_nulls("stage").select("rank", "stage")
        counted = layer_ranges.layers(blocks.join(places, on="rank"), ranges)
        parts = block_work.forwards(self._checked).select("stage", pl.col("chunk").fill_null(0)).n_unique()
        return counted if counted and len(counted[0]) == parts else None

    def _counted_layers(self) -> tuple[tuple[int, ...], str]:
        """The layers of each part, and the kernel by which they are counted. Raises UsageError where that cannot be."""
        from trace_export.analysis import block_work

        remedy = "say how many there are: 80, 20,20,20,20 or Et*20|(t*20|)*2t*20L"
        if self._options.detail != "kernels":
            what = "no ranges name the passes and layers"
            raise UsageError(what, "give `detail` kernels to count layers by their kernels", parameter="layers")
        blocks = block_work.forwards(self._checked)
        counted = block_work.layers(blocks, self._tasks_in(blocks, set(blocks["rank"])))
        if counted is None:
            what = "no attention kernel runs equally often in all forwards of a stage"
            raise UsageError(what, remedy, parameter="layers")
        return counted

    def _tasks_in(self, blocks: pl.DataFrame, ranks: Collection[int]) -> dict[int, pl.DataFrame]:
        """The device tasks of some ranks in the time of the blocks. Raises SourceError where they cannot be read any
        more."""
        if blocks.is_empty() or not ranks:
            return {}
        window = int(blocks["start_ns"].to_numpy().min()), int(blocks["end_ns"].to_numpy().max())
        profile = replace(self._checked, window_ns=window)
        with ExitStack() as stack:
            folder = self._task_folder(stack)
            kernels, lost = read_device_tasks(profile, sorted(ranks), self._options, self._sizes, folder)
            if lost:
                raise lost[0]
            profile = replace(profile, kernels=kernels)
            return {file.rank: pl.concat(task_batches(profile, file.rank)) for file in kernels}

    def _task_folder(self, stack: ExitStack) -> Path:
        """Where device tasks are written: where a reader keeps them, or else for as long as the stack."""
        kept = self._options.read.keep_tasks
        return kept if kept and kept.exists() else stack.enter_context(scratch_folder())

    def explain(self) -> Explanation:
        """What the steps of the whole run are made of, and what makes them longer than they need be; see
        `trace_export.Explanation`."""
        return self._explanation

    @cached_property
    def _explanation(self) -> Explanation:
        from trace_export.analysis.explanation import explain

        explanation = explain(self._bubbles.graph)
        give_back()
        return explanation

    def what_if(self) -> Slowdown:
        """How much slower the steps of the whole run are than without stragglers, by type of operation,
        replica, stage and rank; see `trace_export.Slowdown`.

        Raises NothingToExportError if this cannot be computed, for example without a whole step.
        """
        if self._slowdown is None:
            what = f"{self.log_dir}: how much stragglers cost cannot be said: no step has a length"
            raise NothingToExportError(what, "record a step from its start to its end on all ranks")
        return self._slowdown

    @cached_property
    def _slowdown(self) -> Slowdown | None:
        from trace_export.analysis.slowdown import slowdown

        return slowdown(self._bubbles.graph)

    def critical_path(self) -> CriticalPath:
        """For each step the chain of operations that makes it as long as it is, and how much longer every block could
        have taken; see `trace_export.CriticalPath`."""
        return self.explain().path

    @keywords(Judging)
    def compare(self, other: Run, **given: Unpack[Judging]) -> Comparison:
        """Compares this run with another, or with other steps of itself; see `trace_export.Comparison`.

        `fail_above`: a share such as "3%" or 0.03; the comparison then says in its `gate` whether the other run is
        worse by more than that, beyond what the steps vary. `on` says what is compared: step (its time), bubble,
        slowdown (the metric S), or stage:N (its busy time).

        Raises UsageError if `other` is not a run; with a limit also if the runs differ in schedule or sizes or have too
        few steps.
        """
        run: Run = arguments.instance(other, "other", Run, "a Run")
        values = checked(given, Judging)
        return compared(self, run, values["fail_above"], values["on"])

    def baseline(self) -> Baseline:
        """The figures of this run, which a later one can be compared with; see `trace_export.Baseline`."""
        from trace_export.analysis.baseline import Baseline

        return Baseline(self.name, self._predicting(self._figures(slowdown=True)))

    @keywords(Replacing)
    def save_baseline(self, path: str | PathLike[str], **given: Unpack[Replacing]) -> Path:
        """Writes `baseline` to a JSON file, which `compare` takes in place of a folder. `force` as in `write`. Raises
        UsageError, OutputError."""
        from trace_export.analysis import baseline

        file = arguments.path(path, "path")
        outputs = Outputs(self._inputs, force=checked(given, Replacing)["force"])
        with outputs, outputs.file(file) as temporary:
            baseline.write(self.baseline(), temporary)
        return file

    def _figures(self, *, slowdown: bool) -> RunFigures:
        """`slowdown`: with the metric S, where it is known."""
        from trace_export.analysis.explanation import explain
        from trace_export.analysis.run_figures import run_figures

        measured = self._bubbles
        if measured.steps["whole"].any() and not measured.steps["counts"].any():
            measured = measured.counting()
        explanation = self.explain() if self._selection == Selection() else explain(measured.graph, measured.steps)
        return run_figures(measured, explanation, self._slowdown if slowdown else None)

    def _predicting(self, figures: RunFigures) -> RunFigures:
        """The figures with what the what-if list of the report predicts."""
        from trace_export.analysis.predictions import of_changes

        return replace(figures, predictions=of_changes(self._report.theory.changes))

    @keywords(Writing)
    def write(
        self,
        path: str | PathLike[str] | None = None,
        formats: str | Sequence[Format] | None = None,
        *,
        beside: Run | None = None,
        **given: Unpack[Writing],
    ) -> list[Path]:
        """Writes the chart and returns the files.

        `path`: a file whose name tells the format (.pftrace, .json, .svg, .png, .pdf, .html, .parquet, .csv), or
        a folder for the `formats` given (perfetto and chrome without any); None: the folder that was read. `gzip`
        compresses traces. `tracks`: `stage` draws the first rank of each stage, `rank` all. `color_by`: what a block's
        colour shows, kind, microbatch, rank or none. `bubbles` draws idle time by cause, `model` the theoretical
        schedule, `critical_path` what each step waits for. `tables`:
        what Parquet files hold, blocks, messages, ranks, steps, critical_path. More than `max_slices` in a trace make
        it several files of whole steps. `beside`: another run to draw under this one. `figure`: how pictures look.
        Device tasks are drawn as `load(detail=…)` asked for them, and read now. A file that exists is replaced if
        trace-export wrote it, or with `force`; what was read is never replaced.

        Raises UsageError, OutputError.
        """
        values = checked(given, Writing)
        options = write_options(path, formats, values)
        other: Run | None = None if beside is None else arguments.instance(beside, "beside", Run, "a Run")
        inputs = self._inputs + (() if other is None else other._inputs)
        with Outputs(inputs, force=values["force"]) as outputs:
            self._written(options, outputs, values["progress"], other)
        return outputs.written

    def _written(
        self,
        options: WriteOptions,
        outputs: Outputs,
        progress: Progress = silent,
        beside: Run | None = None,
        comparison: Comparison | None = None,
    ) -> Run:
        """`write` with options that were checked: the run with the notes about its chart and the errors of its device
        tasks."""
        content, failures = self._content(options.drawing, beside, comparison), self.failures
        with ExitStack() as stack:
            if content.detail != "spans":
                ranks = drawn_ranks(self.profile, options.drawing["tracks"])
                profile, lost = self._with_device_tasks(ranks, self._task_folder(stack), progress)
                content, failures = replace(content, measured=self._bubbles.of(profile)), (*failures, *lost)
            notes = announce(content, options)
            content = replace(content, measured=content.measured.of(content.profile.with_notes(notes)))
            write_files(content, options, self.log_dir, outputs, progress)
        if failures and (replaced := outputs.replaced):
            text = "this file replaced that of an earlier run, and lacks what the errors name"
            notes.append(Note("incomplete-replaced", "warning", text, path_text(replaced[0]), len(replaced)))
        if copies := {copy for path in outputs.written if (copy := copy_of_script(path))}:
            text = "the chart that PaddlePaddle's script wrote before is left as it is"
            notes.append(Note("script-chart-left", "note", text, path_text(min(copies)), len(copies)))
        return replace(self, _recorded=self._recorded.with_notes(notes), failures=failures, _measured=self._bubbles)

    def _content(self, drawing: Drawing, beside: Run | None = None, comparison: Comparison | None = None) -> Content:
        """What is drawn and written of the run, and of another one `beside` it."""
        path = self.explain() if drawing["critical_path"] else None
        if beside is None:
            return Content(self._bubbles, self._selection, self._options.detail, path, frames=self._frames)
        frames = {name: partial(_sides, frame, beside._frames[name]) for name, frame in self._frames.items()}
        other = Other(beside._bubbles, names_of(self, beside), comparison)
        return Content(self._bubbles, Selection(), self._options.detail, path, other, frames)

    @property
    def _frames(self) -> dict[str, Callable[[], pl.DataFrame]]:
        """The tables that files have besides the blocks (`choices.Table`)."""
        return {
            "messages": lambda: self.messages, "ranks": lambda: self.ranks, "steps": lambda: self.report().steps,
            "critical_path": lambda: self.critical_path().parts,
        }  # fmt: skip

    def _with_device_tasks(
        self, ranks: Sequence[int], folder: Path, progress: Progress = silent
    ) -> tuple[Profile, list[TraceExportError]]:
        """The tables with the device tasks of `ranks` that `load(detail=…)` asked for, in files below `folder`, and the
        errors of sources that cannot be read any more."""
        kernels, lost = read_device_tasks(self.profile, ranks, self._options, self._sizes, folder, progress)
        return replace(self.profile, kernels=kernels), lost

    @keywords(Drawing)
    def plot(self, figure: FigureStyle | None = None, **given: Unpack[Drawing]) -> Plot:
        """The chart for a notebook, which shows it as an interactive page; see `trace_export.Plot`. A run of very many
        blocks is shown with its first steps: `select` chooses others. Parameters as in `write`.

        Raises UsageError.
        """
        from trace_export.plot import plot

        drawing = cast(Drawing, checked(given, Drawing))
        return plot(self._content(drawing), drawing, figure_style(figure))

    def _repr_html_(self) -> str:
        """What a notebook shows of a run."""
        try:
            return self.plot()._repr_html_()
        except TraceExportError as error:  # nothing is selected: a notebook shows the sentence and no traceback
            from html import escape

            return f"<p>{escape(str(error))}</p>"

    @keywords(Replacing)
    def write_report(self, path: str | PathLike[str] | None = None, **given: Unpack[Replacing]) -> Path:
        """Writes the report as one self-contained HTML page with the chart, and returns its path.

        `path`: the file (.html) or its folder; None: beside what was read. `force` as in `write`. Raises UsageError,
        OutputError.
        """
        page = report_page(arguments.path_or_none(path, "path"), self.log_dir)
        with Outputs(self._inputs, force=checked(given, Replacing)["force"]) as outputs:
            write_report(self._bubbles, self.report(), self.name, page, outputs, self._selection.steps)
        return page

    @keywords(Replacing)
    def write_heat_map(self, path: str | PathLike[str] | None = None, **given: Unpack[Replacing]) -> Path:
        """Writes the slowdown of each rank, stages down and replicas across, as a picture, and returns its path.

        `path`: the file (.svg, .png) or its folder; None: beside what was read. `force` as in `write`. Raises
        UsageError, OutputError, and NothingToExportError where `what_if` does.
        """
        picture = heat_map_path(arguments.path_or_none(path, "path"), self.log_dir, None)
        with Outputs(self._inputs, force=checked(given, Replacing)["force"]) as outputs:
            write_heat_map(self.what_if(), self.report(), self.name, picture, outputs)
        return picture


def compared(a: Run | Baseline, b: Run, limit: float | None, on: str) -> Comparison:
    """`Run.compare` with options that were checked; A may be a baseline."""
    from trace_export.analysis.compare import compare

    if isinstance(a, Run):
        names, first = names_of(a, b), a._figures(slowdown=on == "slowdown")
    else:
        names, first = (a.name if a.name != b.name else f"{a.name} (baseline)", b.name), a.figures
    second = b._figures(slowdown=on == "slowdown")
    if isinstance(a, Run) and (first.traits["schedule"], first.traits["chunks"]) != (
        second.traits["schedule"], second.traits["chunks"],
    ):  # fmt: skip
        first = a._predicting(first)
    comparison = replace(compare(first, second, names, limit, on), inputs=b._options.words)
    return replace(comparison, predicted=None) if isinstance(a, Run) and _is_same(a, b) else comparison


def _is_same(a: Run, b: Run) -> bool:
    """Whether both are parts of one run, so that neither is what the other predicts."""
    return a.place == b.place and a._options.run == b._options.run


def names_of(a: Run, b: Run) -> tuple[str, str]:
    """What two runs are called beside each other: their folders; where these have one name, with more of their paths,
    and where they are one, with their runs or steps."""
    first, second = a.place, b.place
    if _is_same(a, b):
        chosen = (run._selection.steps for run in (a, b))
        one, other = (f"{a.name} {steps.named('step') if steps else 'all steps'}" for steps in chosen)
        return one, other
    if first == second:
        return f"{a.name} run {a._options.run}", f"{b.name} run {b._options.run}"
    for parts in range(1, max(len(first.parts), len(second.parts)) + 1):
        one, other = ("/".join(path.parts[-parts:]) for path in (first, second))
        if one != other:
            break
    return path_text(one), path_text(other)


def with_whole_steps(profile: Profile, options: LoadOptions, *, one_clock: bool) -> Profile:
    """`profile` with what is known of its completeness, see `pipeline.completeness`."""
    return completeness.mark_whole_steps(profile, one_clock=one_clock, all_ranks=options.all_ranks)


def _sides(a: Callable[[], pl.DataFrame], b: Callable[[], pl.DataFrame]) -> pl.DataFrame:
    return sides(a(), b())


@dataclass(frozen=True)
class Request:
    """A run that is wanted: what to read, how to align its clocks, which part of it to show. `located`: what there is
    to read, where that is known already."""

    source: LoadOptions
    clocks: AlignOptions = AlignOptions()
    part: Selection = Selection()
    located: Located | None = None

    @cached_property
    def to_read(self) -> Located:
        """What there is to read. Raises as `locate` does."""
        return self.located or locate(self.source)

    def read(self, progress: Progress = silent) -> Run:
        """Everything that lies in the folder, or what a span table holds, interpreted; hosts not aligned yet.

        Raises UsageError for impossible options, NothingToExportError when no source gave a block.
        """
        Dialects.of(self.source.read.markers)  # a wrong rule is refused before anything is read
        options, located = self.source, self.to_read
        made = partial(Run, _options=options, _selection=self.part, _inputs=located.inputs)
        if span_table.is_table(options.log_dir, options.columns):
            foreign = span_table.read_foreign(options.log_dir, options.columns, options.read)
            if foreign is not None:
                foreign, _ = merge([foreign], options.run)
                foreign = interpret(foreign.with_notes(located.notes), options.declared)
                if foreign.hosts.height < 2:
                    return made(foreign)
                clocks = uncorrected(foreign.ranks, "single-host")  # a table has one clock, whatever hosts it names
                foreign = with_whole_steps(replace(foreign, clocks=clocks), options, one_clock=True)
                return made(foreign, _clocks="one")
            _refuse_sources(options)
            table, _ = merge([span_table.read_table(options.log_dir).with_notes(located.notes)], options.run)
            table = interpret_table(table, options.declared)
            # a table may hold a part that was selected
            table = completeness.mark_whole_steps(table, one_clock=True, all_ranks=False)
            return made(table, _clocks="one")
        size_of = {} if options.detail == "spans" else sizes(located.sources)
        profile, failures = read_profile(located, options, progress)
        if options.places is not None:
            profile = stages.place_ranks(profile, options.places)
        profile = interpret(profile, options.declared)
        if options.chosen:
            read = Numbers.of(profile.ranks["rank"].to_list())
            text = f"only {read.named('rank')} {'was' if read.count() == 1 else 'were'} read, as chosen"
            others = [  # that they are not here is no surprise
                replace(note, level="detail") if note.code == "ranks-absent" else note for note in profile.notes
            ]
            profile = replace(profile, notes=(*others, Note("ranks-chosen", "detail", text)))
        return made(profile, failures=tuple(failures), _sizes=size_of)

    def keeping_tasks(self, stack: ExitStack) -> Request:
        """The same with a folder, for as long as the stack, for device tasks that readers come by before it is known
        which are drawn: where they are asked for, and the sources few enough."""
        if self.source.detail == "spans" or len(self.to_read.sources) > KEPT_SOURCES:
            return self
        read = replace(self.source.read, keep_tasks=stack.enter_context(scratch_folder()))
        return replace(self, source=replace(self.source, read=read), located=self.to_read)

    def run(self, progress: Progress = silent) -> Run:
        """The run on aligned clocks. Raises as `read` and `Run.align` do."""
        return self.read(progress)._aligned(self.clocks, progress)


def outputs(*wanted: Request, force: bool) -> Outputs:
    """Outputs that replace no file that the runs are read from."""
    return Outputs((path for one in wanted for path in (*one.to_read.inputs, *one.clocks.inputs)), force=force)


def _refuse_sources(options: LoadOptions) -> None:
    """Raises UsageError where sources are chosen of a span table, which is one."""
    for name, numbers in (("ranks", options.read.ranks), ("devices", options.devices)):
        if numbers is not None:
            what = f"{options.log_dir} is a span table, where {name} cannot be chosen"
            raise UsageError(what, "choose stages or steps", parameter=name)
