"""The spine: find → read → interpret → align → lay out → write. A newcomer reads this file first.

`load` brings a folder to one aligned `Profile`, `write` draws it; `export` is both. The command line and the public API
call these and nothing deeper.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Literal

import polars as pl

from trace_export import cluster, parallel, sources
from trace_export.analysis.bubbles import bubble_slices, rank_bubbles, step_bubbles
from trace_export.chart.chart import Chart
from trace_export.chart.colours import ColorBy
from trace_export.chart.names import block_name, has_chunks
from trace_export.chart.tracks import ChartOptions, lay_out
from trace_export.clocks import align as clock_alignment
from trace_export.clocks import record
from trace_export.cluster import Cluster
from trace_export.cut import cut
from trace_export.errors import NothingToExportError, SourceError, TraceExportError, UsageError
from trace_export.model import INT, SPANS, TEXT, Declared, Detail, Note, Profile, conform
from trace_export.pipeline import dependencies, labels, messages, peers, recognise, topology
from trace_export.pipeline.measured import model_of
from trace_export.selection import Numbers
from trace_export.sources.find import find, together
from trace_export.sources.layout import Found
from trace_export.sources.merge import merge
from trace_export.sources.source import ReadOptions, Source
from trace_export.writers import chrome, perfetto, picture, tables
from trace_export.writers.whole import whole

FORMATS = {
    "perfetto": "pftrace",
    "chrome": "json",
    "svg": "svg",
    "png": "png",
    "html": "html",
    "parquet": "parquet",
    "csv": "csv",
}
"""Output format → file name extension."""
STEM = "pipeline_profile"
TRACES = {"perfetto": perfetto.write, "chrome": chrome.write}
TABLES = {"parquet": tables.write_parquet, "csv": tables.write_csv}
ALIGN: tuple[Literal["auto", "wall", "none", "strict"], ...] = ("auto", "wall", "none", "strict")
TRACKS = ("stage", "rank")
COLOR_BY: tuple[ColorBy, ...] = ("kind", "microbatch", "rank", "none")

FAMILIES: dict[str, tuple[str, ...]] = {
    "paddle": ("paddle", "paddle_dygraph"),
    "nsys": ("nsys",),
    "ascend": ("ascend",),
    "mindspore": ("mindspore",),
    "kineto": ("kineto",),
}
"""What the user calls a format → the kinds of source it stands for."""


@dataclass(frozen=True)
class LoadOptions:
    """What to read and how to understand it. `family` None: whatever lies there."""

    log_dir: Path
    family: str | None = None
    devices: Numbers | None = None
    multi_machine: bool = False
    stages: Numbers | None = None
    read: ReadOptions = field(default_factory=ReadOptions)
    told: Declared = field(default_factory=Declared)
    align: str = "auto"
    offsets: dict[str, int] = field(default_factory=dict)
    max_clock_error_ns: int | None = None
    jobs: int | None = None
    cluster: Cluster | None = None


@dataclass(frozen=True)
class WriteOptions:
    """What to write. `out` is a folder, or a file for a single format; None: the log_dir. `steps` are those that the
    user asked for; where it is None, a picture that cannot be zoomed shows the first ones only."""

    formats: tuple[str, ...] = ("perfetto", "chrome")
    out: Path | None = None
    gzip: bool = False
    tracks: str = "stage"
    color_by: str = "kind"
    bubbles: bool = False
    model: bool = False
    steps: Numbers | None = None


@dataclass(frozen=True)
class Loaded:
    """A profile ready to be drawn or asked, and the sources that could not be read."""

    profile: Profile
    failures: tuple[TraceExportError, ...]


Progress = Callable[[str, int, int], None]
"""Called with what is being done, how much of it is done, and out of how much."""


def silent(what: str, done: int, total: int) -> None:
    """The progress of nobody who looks."""


def load(options: LoadOptions, progress: Progress = silent) -> Loaded:
    """Everything that lies in the folder, understood and on one clock.

    With detail `comm` or `kernels` the rows of `Profile.kernels` lie in `options.read.spill` (see `spill_folder`).
    Raises UsageError for impossible options, NothingToExportError when no source gave a block, AlignmentError when
    `align` is `strict` and the clocks cannot be tied.
    """
    found, lost = locate(options)
    chosen, missing = choose(found, options)
    missing += lost
    if not chosen:
        raise missing[0] if missing else nothing_found(options)
    profile, failures = read_all(chosen, options, progress)
    failures = missing + failures
    profile = replace(profile, notes=found.notes + profile.notes)
    if profile.spans.is_empty():
        raise _nothing_drawn(options, failures, profile)
    progress("aligning clocks", 0, 1)
    profile = align(interpret(profile, options.told), options)
    profile = cut(profile, options.read.steps, options.stages, options.read.window)
    if profile.spans.is_empty():
        raise NothingToExportError(
            f"{options.log_dir}: no block is left by the options", "see what is there with trace-export inspect"
        )
    return Loaded(profile, tuple(failures))


def locate(options: LoadOptions) -> tuple[Found, list[TraceExportError]]:
    """What lies in the log_dir, or in the folders of its own that each machine of a cluster has; there, an error for
    each that cannot be looked into."""
    if options.cluster is None:
        return find(options.log_dir), []
    if options.read.detail != "spans":
        raise UsageError(
            f"--detail {options.read.detail} needs the profiles on this machine, and from a cluster come only tables",
            "leave out --scheduler, or --detail",
        )
    if not options.cluster.folders:
        return find(options.log_dir), []
    looks = cluster.in_each_folder(options.cluster, find)
    found = [(place.at, look) for place, look in looks if isinstance(look, Found)]
    return together(found), [look for _, look in looks if isinstance(look, TraceExportError)]


def choose(found: Found, options: LoadOptions) -> tuple[list[Source], list[TraceExportError]]:
    """The sources that the options ask for, and an error for each device that has none."""
    kinds = FAMILIES[options.family] if options.family else [s.kind for s in found.sources]
    chosen = [s for s in found.sources if s.kind in kinds]
    if options.read.ranks is not None:
        chosen = [s for s in chosen if s.rank is None or s.rank in options.read.ranks]
    if options.devices is None:
        return chosen, []
    wanted = options.devices
    missing: list[TraceExportError] = []
    for folder in sorted({s.path.parent for s in chosen if s.local is not None}):
        there = {s.local for s in chosen if s.path.parent == folder}
        gaps = [d for low, high in wanted.ranges for d in range(low, min(high, low + 4096) + 1) if d not in there]
        missing += [_no_log(folder, d, there) for d in gaps]
    return [s for s in chosen if s.local is None or s.local in wanted], missing


def _no_log(folder: Path, device: int, there: set[int | None]) -> SourceError:
    return SourceError(
        folder / f"workerlog.{device}",
        f"device {device} has no log here",
        f"devices with logs: {','.join(str(n) for n in sorted(n for n in there if n is not None))}",
    )


def nothing_found(options: LoadOptions) -> TraceExportError:
    """Why a folder without a source cannot be exported."""
    looked_for = "workerlog.N, *.sqlite of Nsight Systems, *_ascend_pt and *_ascend_ms folders, *.pt.trace.json"
    if options.family:
        return NothingToExportError(
            f"{options.log_dir}: no {options.family} profile in this folder", f"looked for {looked_for}"
        )
    return NothingToExportError(f"{options.log_dir}: no profile in this folder", f"looked for {looked_for}")


def _nothing_drawn(options: LoadOptions, failures: list[TraceExportError], profile: Profile) -> TraceExportError:
    if len(failures) == 1:
        return failures[0]
    if failures:
        return NothingToExportError(
            f"{options.log_dir}: none of the {len(failures)} sources gave a block; the first: {failures[0]}"
        )
    why = next((n.text for n in profile.notes if n.level == "warning"), "no pipeline block in any source")
    return NothingToExportError(f"{options.log_dir}: {why}", "see what is there with trace-export inspect")


def read_all(chosen: list[Source], options: LoadOptions, progress: Progress) -> tuple[Profile, list[TraceExportError]]:
    """All sources read and merged, and the errors of those that could not be."""
    read = partial(sources.read, options=options.read)
    done = 0

    def tick(index: int) -> None:
        nonlocal done
        done += 1
        progress("reading", done, len(chosen))

    progress("reading", 0, len(chosen))
    if options.cluster is not None:
        results = cluster.run(options.cluster, read, chosen, tick)
    else:
        jobs = options.jobs or parallel.sensible_jobs([s.path for s in chosen])
        results = parallel.run(read, chosen, jobs, tick)
    profile, refused = merge(r for r in results if isinstance(r, Profile))
    return profile, [r for r in results if isinstance(r, TraceExportError)] + list(refused)


def interpret(profile: Profile, told: Declared) -> Profile:
    """What the blocks mean: stage of a rank, micro-batch and chunk of a block, the schedule, both ends of a message."""
    return messages.pair(peers.fill(recognise.declare(labels.label(topology.resolve(profile, told)))))


def align(profile: Profile, options: LoadOptions) -> Profile:
    """All hosts on one clock, as the options say."""
    how = options.align
    method = next((m for m in ALIGN if m == how), Path(how))
    return clock_alignment.align(
        profile,
        method,
        offsets=options.offsets,
        block_edges=dependencies.block_edges(profile),
        max_error_ns=options.max_clock_error_ns,
    )


@contextmanager
def spill_folder(options: LoadOptions) -> Iterator[LoadOptions]:
    """The options with a temporary folder for device tasks, where the detail asks for them; gone afterwards."""
    if options.read.detail == "spans":
        yield options
        return
    with tempfile.TemporaryDirectory(prefix="trace_export_") as folder:
        yield replace(options, read=replace(options.read, spill=Path(folder)))


def draw(profile: Profile, options: WriteOptions, detail: Detail) -> Chart:
    """The chart of a profile: tracks, slices, arrows, counters; and what analysis and theory add to it."""
    added = []
    if options.bubbles:
        idle = bubble_slices(profile).filter(pl.col("rank") == pl.col("rank").min().over("stage"))
        added.append(idle.with_columns(track=pl.format("stage {} · idle", "stage")))
    if options.model:
        model = conform(model_of(profile), SPANS | {"stage": INT, "track": TEXT})
        added.append(model.with_columns(block_name(has_chunks(profile.spans))))
    return lay_out(
        profile,
        ChartOptions(
            tracks="rank" if options.tracks == "rank" else "stage",
            detail=detail,
            color_by=next(choice for choice in COLOR_BY if choice == options.color_by),
            edges=dependencies.block_edges(profile),
            step_arguments=step_bubbles(profile).select("run", "step", (100 * pl.col("bubble")).alias("bubble %")),
            added=tuple(added),
        ),
    )


def write(
    profile: Profile, options: WriteOptions, log_dir: Path, detail: Detail = "spans", progress: Progress = silent
) -> list[Path]:
    """The files written, one for each format, and `clock_alignment.json` where several hosts were aligned.

    Raises OutputError when a file cannot be written; those already written stay.
    """
    targets = output_paths(options, log_dir)
    chart = draw(profile, options, detail) if set(targets) - set(TABLES) else None
    for number, (name, path) in enumerate(targets.items()):
        progress(f"writing {path.name}", number, len(targets))
        with whole(path) as temporary:
            if chart is None or name in TABLES:
                TABLES[name](profile, temporary)
            elif name in TRACES:
                TRACES[name](chart, temporary, gzip=options.gzip)
            else:
                picture.write(chart, temporary, name, bubbles=rank_bubbles(profile))
    written = list(targets.values())
    if profile.clocks.height > 1:
        written.append(written[0].parent / "clock_alignment.json")
        with whole(written[-1]) as temporary:
            record.write(profile, temporary)
    return written


def output_paths(options: WriteOptions, log_dir: Path) -> dict[str, Path]:
    """Format → the file it goes to. Raises UsageError for an unknown choice or one file for several formats."""
    choices = [("--format", f, tuple(FORMATS)) for f in options.formats]
    choices += [("--tracks", options.tracks, TRACKS), ("--color-by", options.color_by, COLOR_BY)]
    for option, value, known in choices:
        if value not in known:
            raise UsageError(f'{option} "{value}" is unknown', f"choose from {', '.join(known)}")
    out = options.out or log_dir
    suffixes = tuple(f".{ext}" for ext in FORMATS.values())
    if out.name.removesuffix(".gz").endswith(suffixes) and not out.is_dir():
        if len(options.formats) != 1:
            raise UsageError(
                f"--out {out} is one file, but --format names {len(options.formats)}", "give a folder, or one format"
            )
        return {options.formats[0]: out}
    zipped = {"perfetto", "chrome"} if options.gzip else set()
    return {f: out / f"{STEM}.{FORMATS[f]}{'.gz' if f in zipped else ''}" for f in options.formats}


def export(
    load_options: LoadOptions, write_options: WriteOptions, progress: Progress = silent
) -> tuple[Loaded, list[Path]]:
    """The whole way: what was read, and the files written."""
    output_paths(write_options, load_options.log_dir)  # a wrong output is told before anything is read
    with spill_folder(load_options) as options:
        loaded = load(options, progress)
        wanted = replace(write_options, steps=options.read.steps)
        written = write(loaded.profile, wanted, options.log_dir, options.read.detail, progress)
    return loaded, written


def failure_notes(failures: tuple[TraceExportError, ...]) -> list[Note]:
    """Errors of single sources as warnings of the run."""
    return [Note("warning", str(error)) for error in failures]


def stages_drawn(profile: Profile) -> pl.Series:
    """The stages that have blocks, in order."""
    return profile.ranks.join(profile.spans, on="rank", how="semi")["stage"].unique().sort()
