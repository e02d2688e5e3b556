"""The library: what the command line does, on objects. See the package's docstring for an example."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl

from trace_export import export, render
from trace_export.errors import TraceExportError, UsageError
from trace_export.model import Declared, Profile
from trace_export.pipeline.interpret import interpret_model
from trace_export.schedules import schedule as schedules
from trace_export.schedules import simulate as simulator
from trace_export.schedules.simulate import Costs
from trace_export.writers.formats import OUTPUT_FORMATS
from trace_export.writers.outputs import Outputs

if TYPE_CHECKING:
    from trace_export.analysis.report import Report


@dataclass(frozen=True)
class Run:
    """A run's profile, and where it came from. Each method returns something new and changes nothing.

    `profile` holds all tables (`trace_export.model` documents their columns and units); the most wanted are also
    attributes: `spans`, `ranks`, `hosts`, `messages`, `collectives`, `counters`, `clocks`. `failures` are the errors
    of sources that could not be read, `inputs` all files that may have been read; `write` replaces none of them.
    """

    profile: Profile
    log_dir: Path
    failures: tuple[TraceExportError, ...] = ()
    inputs: tuple[Path, ...] = ()

    @property
    def spans(self) -> pl.DataFrame:
        return self.profile.spans

    @property
    def ranks(self) -> pl.DataFrame:
        return self.profile.ranks

    @property
    def hosts(self) -> pl.DataFrame:
        return self.profile.hosts

    @property
    def messages(self) -> pl.DataFrame:
        return self.profile.messages

    @property
    def collectives(self) -> pl.DataFrame:
        return self.profile.collectives

    @property
    def counters(self) -> pl.DataFrame:
        return self.profile.counters

    @property
    def clocks(self) -> pl.DataFrame:
        return self.profile.clocks

    def align(
        self,
        how: str = "auto",
        *,
        offsets_ns: Mapping[str, int] | None = None,
        max_error_ns: int | None = None,
    ) -> Run:
        """The run with all hosts on one clock; `how` as `--align`, `offsets_ns` per host are applied first.

        Raises AlignmentError for `strict` when the hosts cannot be tied together.
        """
        options = export.LoadOptions(
            self.log_dir, align=how, offsets=dict(offsets_ns or {}), max_clock_error_ns=max_error_ns
        )
        inputs = (*self.inputs, *export.option_files(options))
        return replace(self, profile=export.align(self.profile, options), inputs=inputs)

    def report(self) -> Report:
        """Bubbles, stragglers, schedule and theory: frames, see `analysis.report.Report`."""
        from trace_export.analysis.report import report

        return report(self.profile)

    def write(self, path: str | PathLike[str], formats: Sequence[str] | None = None, **options: Any) -> list[Path]:
        """Writes the chart and returns the files.

        `path` is a file whose name tells the format (.pftrace, .json, .svg, .png, .html, .parquet, .csv), or a folder
        for the `formats` given. Further `options` are those of `render.WriteOptions`; without `force` a file that this
        program did not write is not replaced. Raises UsageError, OutputError.
        """
        target = Path(path)
        if formats is None:
            extension = target.name.removesuffix(".gz").rpartition(".")[2]
            names = [known.name for known in OUTPUT_FORMATS if known.extension == extension]
            if not names:
                raise UsageError(f"{target}: the name does not tell the format", "give formats=[…] and a folder")
            formats, options = tuple(names), {"gzip": target.name.endswith(".gz"), **options}
        settings = render.WriteOptions(formats=tuple(formats), out=target, **options)
        with Outputs(self.inputs, force=settings.force) as outputs:
            render.write(self.profile, settings, self.log_dir, outputs)
        return outputs.written


def load(log_dir: str | PathLike[str], *, declared: Declared | None = None, **options: Any) -> Run:
    """Everything that lies in a folder, read and understood, each host on its own clock yet.

    `declared` tells the topology where the data do not; further `options` are those of `export.LoadOptions`, among
    them `family`, `devices`, `steps`, `stages`, `window`, `jobs` and `read` (a `ReadOptions`). Device tasks (`detail`)
    are drawn by the command only. Raises UsageError when they are asked for or there is no such folder,
    NothingToExportError when nothing in it gave a block.
    """
    if options.get("detail", "spans") != "spans":
        raise UsageError("a Run holds no device tasks", "draw them with trace-export --detail")
    settings = export.LoadOptions(Path(log_dir), told=declared or Declared(), align=None, **options)
    loaded = export.load(settings)
    return Run(loaded.profile, settings.log_dir, loaded.failures, loaded.inputs)


def simulate(schedule: str, stages: int, microbatches: int, costs: Costs, *, chunks: int | None = None) -> Run:
    """The theoretical run of a schedule; the durations in `costs` are nanoseconds.

    Raises UsageError for a schedule that is unknown or impossible.
    """
    model = schedules.schedule(schedule, stages, microbatches, chunks)
    return Run(interpret_model(simulator.simulate(model, costs), model.plan), Path())
