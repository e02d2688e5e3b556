"""From what is wanted of a run to the run: find → read → interpret → align. A newcomer reads this file first."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path

from trace_export.clocks.apply import uncorrected
from trace_export.errors import UsageError
from trace_export.model import Note
from trace_export.pipeline import completeness, stages
from trace_export.pipeline.interpret import interpret, interpret_table
from trace_export.progress import Progress, silent
from trace_export.read import LoadOptions, Located, locate, read_profile, sizes
from trace_export.run import AlignOptions, Run, with_whole_steps
from trace_export.scratch import scratch_folder
from trace_export.selection import Numbers, Selection
from trace_export.sources import span_table
from trace_export.sources.merge import merge
from trace_export.sources.ranges.dialects import Dialects
from trace_export.writers.outputs import Outputs

KEPT_SOURCES = 8
"""Of more sources device tasks are read when it is known which are drawn: all of them may not fit on the disk."""


@dataclass(frozen=True)
class Request:
    """A run that is wanted: what to read, how to align its clocks, which part of it to show. `located`: what there is
    to read, where that is known already."""

    source: LoadOptions
    clocks: AlignOptions = AlignOptions()
    part: Selection = Selection()
    located: Located | None = None

    @cached_property
    def found(self) -> Located:
        """What there is to read. Raises as `locate` does."""
        return self.located or locate(self.source)

    def read(self, progress: Progress = silent) -> Run:
        """Everything that lies in the folder, or what a span table holds, interpreted; hosts not aligned yet.

        Raises UsageError for impossible options, NothingToExportError when no source gave a block.
        """
        Dialects.of(self.source.read.markers)  # a wrong rule is refused before anything is read
        options, located = self.source, self.found
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
            table, _ = merge([span_table.read(options.log_dir).with_notes(located.notes)], options.run)
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
            text = f"only ranks {Numbers.of(profile.ranks['rank'].to_list())} were read, as chosen"
            profile = profile.with_notes([Note("ranks-chosen", "detail", text)])
        return made(profile, failures=tuple(failures), _sizes=size_of)

    def keeping_tasks(self, stack: ExitStack) -> Request:
        """The same with a folder, for as long as the stack, for device tasks that readers come by before it is known
        which are drawn: where they are asked for, and the sources few enough."""
        if self.source.detail == "spans" or len(self.found.sources) > KEPT_SOURCES:
            return self
        read = replace(self.source.read, keep_tasks=stack.enter_context(scratch_folder()))
        return replace(self, source=replace(self.source, read=read), located=self.found)

    def run(self, progress: Progress = silent) -> Run:
        """The run on aligned clocks. Raises as `read` and `Run.align` do."""
        return self.read(progress)._aligned(self.clocks, progress)


def outputs(*wanted: Request, force: bool, further: Iterable[Path] = ()) -> Outputs:
    """Outputs that replace no file that the runs are read from, nor a `further` one."""
    inputs = (path for one in wanted for path in (*one.found.inputs, *one.clocks.inputs))
    return Outputs((*inputs, *further), force=force)


def _refuse_sources(options: LoadOptions) -> None:
    """Raises UsageError where sources are chosen of a span table, which is one."""
    for name, numbers in (("ranks", options.read.ranks), ("devices", options.devices)):
        if numbers is not None:
            what = f"{options.log_dir} is a span table, where {name} cannot be chosen"
            raise UsageError(what, "choose stages or steps", parameter=name)
