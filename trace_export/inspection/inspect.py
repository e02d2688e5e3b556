"""What lies in a folder, and whether it can be drawn: find → read → interpret, and a look at the result."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import polars as pl

from trace_export.errors import TraceExportError, path_text
from trace_export.inspection.beginnings import WHOLE_BYTES, of_the_whole, read_beginnings
from trace_export.model import (
    INT,
    RANK_STEP_KEY,
    RUNS,
    SEGMENT,
    STEP_KEY,
    WORK_KINDS,
    Declared,
    Note,
    Profile,
    empty,
)
from trace_export.pipeline import completeness, missing_ranks
from trace_export.pipeline.evaluations import uninterrupted
from trace_export.pipeline.interpret import interpret, interpret_blocks
from trace_export.pipeline.missing_ranks import Absent
from trace_export.pipeline.steps import forward_only
from trace_export.progress import Progress
from trace_export.read import LoadOptions, is_table, merged, read_each
from trace_export.schedules.catalogue import TITLES
from trace_export.schedules.passes import FORWARDS
from trace_export.sources import choose, formats
from trace_export.sources.find import find
from trace_export.sources.input_files import bytes_in
from trace_export.sources.ranges.dialects import Dialects
from trace_export.units import duration

if TYPE_CHECKING:
    from trace_export.inspection.document import Facts

KINDS = [*WORK_KINDS, "OPT"]
SOURCES = {"kind": pl.String, "path": pl.String, "machine": pl.Int32, "rank": pl.Int32, "rank_origin": pl.String}


@dataclass(frozen=True)
class Inspection:
    """`runs`: those that the sources hold (`model.RUNS`); one or all of them were read. `sources`: kind, path,
    machine, rank as the layout tells them. `ranks`: one row a rank, with stage, host, steps, blocks and how many of
    each kind, micro-batches in a step, usual time between two steps, its side of transfers and
    collectives, where its times come from (`origin`), whether its format has device tasks, its first start (unix ns of
    its host's clock) and the length of its recording in seconds. Of a large source only the beginning may have been
    read: then `beginning` is true, its counts are those of the beginning, and `about_steps` estimates the steps of the
    whole from the length of the recording. `facts` are numbers about the run, and `verdict` says in a line whether it
    can be drawn, as what, and what is missing."""

    sources: pl.DataFrame
    ranks: pl.DataFrame
    facts: dict[str, Any]
    verdict: str
    notes: tuple[Note, ...]
    failures: tuple[TraceExportError, ...]
    runs: pl.DataFrame = field(default_factory=lambda: empty(RUNS))

    def json(self) -> str:
        """Everything, as one JSON document."""
        from trace_export.documents import encode, from_attributes
        from trace_export.inspection.document import InspectDocument

        failures = [str(error) for error in self.failures]
        return encode(from_attributes(InspectDocument, self, failures=failures))


def inspect(options: LoadOptions, progress: Progress, *, full: bool = False) -> Inspection:
    """Looks at every source that the options ask for, on its own clock: at all of it where they are small or `full` is
    asked for, else at its beginning. Raises UsageError when there is no such folder."""
    Dialects.of(options.read.markers)  # a wrong rule is refused before anything is read
    if is_table(options):
        return _of_table(options, progress)
    searched = find(options.log_dir, follow_links=options.follow_links, only=options.files)
    ranks = options.read.ranks
    family = options.family
    chosen, *_ = choose.choose(searched, options.log_dir, family=family, ranks=ranks)
    rows = [(s.kind, path_text(s.path), s.machine, s.rank, s.rank_origin) for s in chosen]
    sources = pl.DataFrame(rows, SOURCES, orient="row")
    if not chosen:
        nothing = choose.nothing_found(searched, options.log_dir, options.files, family=family, ranks=ranks)
        return Inspection(sources, pl.DataFrame(), {}, "cannot be drawn: no profile here", searched.notes, (nothing,))
    size = sum(bytes_in(source.path) for source in chosen)
    if full or size <= WHOLE_BYTES:
        results = read_each(chosen, options, progress)
        profile, failures = merged(results, options)
        profile = _with_steps(interpret(profile, options.declared), results, options)
    else:
        profile, failures = read_beginnings(chosen, options, progress)
    all_ranks = options.all_ranks
    profile = completeness.mark_whole_steps(profile, one_clock=False, all_ranks=all_ranks)
    if profile.recorded_until:
        profile = replace(profile, notes=of_the_whole(profile.notes))
    table = _ranks(profile)
    lacks = missing_ranks.absent(profile) if all_ranks else None
    facts = _facts(profile, table, size, lacks)
    verdict = _verdict(facts, lacks, len(chosen), len(failures))
    return Inspection(sources, table, facts, verdict, searched.notes + profile.notes, tuple(failures), profile.runs)


def _with_steps(profile: Profile, results: Sequence[Profile | TraceExportError], options: LoadOptions) -> Profile:
    """`profile`, which was made of these `results`, with the number of steps of each run."""
    counts = []
    for run in profile.runs["run"]:
        one = profile
        if profile.runs.height > 1:
            one, _ = merged(results, replace(options, run=run))
            one = interpret_blocks(one, Declared())  # sizes may be those of another run
        counts.append(one.spans.select(STEP_KEY).drop_nulls("step").n_unique())
    return replace(profile, runs=profile.runs.with_columns(steps=pl.Series(counts, dtype=INT)))


def _of_table(options: LoadOptions, progress: Progress) -> Inspection:
    """A single table of spans, which is one source and small enough to be read whole."""
    from trace_export.run import Request

    profile = Request(options).read(progress).profile
    ranks = _ranks(profile)
    facts = _facts(profile, ranks, bytes_in(options.log_dir), None)
    source = ("spans", path_text(options.log_dir), None, None, None)
    sources = pl.DataFrame([source], SOURCES, orient="row")
    return Inspection(sources, ranks, facts, _verdict(facts, None, 1, 0), profile.notes, (), profile.runs)


def _ranks(profile: Profile) -> pl.DataFrame:
    kind = pl.col("kind")
    blocks = profile.spans.group_by("rank").agg(
        pl.struct("run", "step").filter(pl.col("step").is_not_null()).n_unique().alias("steps"),
        pl.len().alias("blocks"),
        *(((kind == name).sum()).alias(name) for name in KINDS),
        pl.col("origin").drop_nulls().unique().sort().str.join("+").alias("origin"),
        pl.col("start_ns").min().alias("first_ns"),
        ((pl.col("end_ns").max() - pl.col("start_ns").min()) / 1e9).alias("seconds"),
    )
    with_tasks = [row.kind for row in formats.FORMATS if row.has_device_tasks]
    beginning = pl.col("source").is_in(list(profile.recorded_until))
    ranks = profile.ranks.with_columns(device_tasks=pl.col("kind").is_in(with_tasks), beginning=beginning).drop("kind")
    for table in (
        blocks,
        _by_step(profile),
        _counts(profile.p2p, "transfers"),
        _counts(profile.collectives, "collectives"),
    ):
        ranks = ranks.join(table, on="rank", how="left")
    without = (pl.col("origin") == "host") & pl.col("device").is_null()  # the reader found no device
    ranks = ranks.with_columns(pl.col("device_tasks") & ~without.fill_null(False))
    until = pl.col("source").replace_strict(profile.recorded_until, default=None, return_dtype=pl.Int64)
    recorded_ns = until - pl.col("first_ns")
    about = pl.max_horizontal("steps", (recorded_ns / pl.col("mean_step_ns")).round()).cast(pl.Int64, strict=False)
    seconds = pl.when("beginning").then(recorded_ns / 1e9).otherwise("seconds")
    return ranks.sort("rank").select(
        "rank", "rank_origin", "stage", "stage_origin", "host", "device", "steps", "blocks", *KINDS, "microbatches",
        "step_ns", pl.col("transfers", "collectives").fill_null(0), "origin", "device_tasks", "first_ns",
        seconds.alias("seconds"), "beginning", about_steps=pl.when(until.is_not_null()).then(about),
    )  # fmt: skip


def _by_step(profile: Profile) -> pl.DataFrame:
    """rank, and of its steps: microbatches (in a step) and step_ns (from start to start; of two the shorter, for one
    may be a warm-up), which are medians of the steps that count, if one does, and mean_step_ns."""
    apart = pl.col("start_ns").diff().over("rank", *SEGMENT)
    counts, of_counted = profile.steps.select(*STEP_KEY, "counts"), pl.col("counts") | ~pl.col("counts").any()
    steps = (
        profile.spans.filter(pl.col("kind").is_in(WORK_KINDS))
        .with_columns(pl.col("chunk").fill_null(0))
        .group_by(RANK_STEP_KEY)
        .agg(
            pl.col("window").first(),
            pl.col("start_ns").min(),
            microbatches=FORWARDS.sum() // pl.col("chunk").n_unique(),
        )
        .sort(RANK_STEP_KEY)
        .with_columns(
            step_ns=pl.when(apart >= 0).then(apart),  # else its clock was set back
            before_ns=pl.col("start_ns").shift().over("rank", *SEGMENT),
        )
        .with_columns(uninterrupted(profile, "before_ns", "step_ns"))
        .join(counts, on=STEP_KEY, how="left", nulls_equal=True, maintain_order="left")
        .with_columns(pl.col("counts").fill_null(False))
    )
    return steps.group_by("rank").agg(
        pl.col("microbatches").filter(of_counted).median().cast(pl.Int64),
        pl.col("step_ns").filter(of_counted.shift()).quantile(0.5, "lower").cast(pl.Int64),
        mean_step_ns=pl.col("step_ns").mean(),
    )


def _counts(table: pl.DataFrame, name: str) -> pl.DataFrame:
    return table.group_by("rank").agg(pl.len().alias(name))


def _facts(profile: Profile, ranks: pl.DataFrame, size: int, lacks: Absent | None) -> dict[str, Any]:
    """Numbers about the run as a whole; `ranks` as `_ranks` made them, and what it `lacks`."""
    drawn = profile.ranks_with_blocks
    recognition = profile.interpreted.recognition
    if profile.recorded_until:  # whose ends differ, so that not every side of a message was read
        ends = profile.p2p.filter(role="send").select(src="rank", dst="peer")
    else:
        ends = profile.messages.select(src="src_rank", dst="dst_rank")
    for end in ("src", "dst"):
        hosts = drawn.select(pl.col("rank").alias(end), pl.col("host").alias(f"{end}_host"))
        ends = ends.join(hosts, on=end)
    groups = profile.collectives.join(drawn.select("rank", "host"), on="rank").group_by("group", "op", "sequence")
    between = groups.agg(pl.col("host").n_unique()).filter(pl.col("host") > 1)
    inferred = {"stages": drawn["stage_origin"], "blocks": profile.spans["origin"], "labels": profile.spans["labels"]}
    numbers: Facts = {
        "schedule": recognition.named.name if recognition.named else None,
        "certainty": recognition.certainty,
        "deeper": bool(profile.declared.deeper),
        "forward_only": forward_only(profile.spans),
        "ranks": drawn.height,
        "stages": (stages := drawn["stage"].n_unique()),
        "all_stages": max(stages, missing_ranks.absent(profile).stage_count),
        "missing_ranks": str(lacks.ranks) if lacks else "",
        "missing_stages": str(lacks.stages) if lacks else "",
        "steps": profile.steps.height,
        "whole_steps": int(profile.steps["whole"].sum()),
        "step_ns": _median(ranks.filter(pl.col("stage") == pl.col("stage").min())["step_ns"]),
        "microbatches": _median(ranks["microbatches"]),
        "hosts": drawn["host"].n_unique(),
        "messages_between_hosts": ends.filter(pl.col("src_host") != pl.col("dst_host")).height,
        "collectives_between_hosts": between.height,
        "dependencies_between_hosts": _dependencies_between(profile, drawn),
        "beginnings": len(profile.recorded_until),
        "about_steps": _median(ranks["about_steps"]),
        "bytes": size,
        "inferred": [name for name, column in inferred.items() if (column == "inferred").any()],
    }
    return {**numbers}


def _dependencies_between(profile: Profile, ranks: pl.DataFrame) -> int:
    """How many passes need one of another host."""
    host = profile.spans.select("rank").join(ranks.select("rank", "host"), on="rank", how="left", maintain_order="left")
    edges = profile.edge_rows()
    return int((host["host"].gather(edges["src"]) != host["host"].gather(edges["dst"])).sum())


def _median(column: pl.Series) -> int | None:
    middle = column.median()
    return round(middle) if isinstance(middle, float | int) else None


def _verdict(facts: dict[str, Any], lacks: Absent | None, sources: int, failed: int) -> str:
    if not facts["ranks"]:
        return "cannot be drawn: no source has a pipeline block"
    lost = f" in part ({failed} of {sources} sources cannot be read)" if failed else ""
    return f"can be drawn{lost}: {'; '.join(_what(facts, lacks))}"


def _what(facts: dict[str, Any], lacks: Absent | None) -> Iterator[str]:
    likely = "probably " if facts["certainty"] == "likely" else ""
    order = f"{likely}{TITLES[facts['schedule']]}" if facts["schedule"] else "unknown schedule"
    if facts["forward_only"]:
        order = "forwards only"
    if facts["deeper"]:
        order = "part of a pipeline of unknown depth (give --pp)"
    steps = _counted(facts["steps"], "step")
    if facts["beginnings"]:
        steps = (
            f"at least {steps}" if facts["about_steps"] is None else f"about {_counted(facts['about_steps'], 'step')}"
        )
    least = "at least " if facts["deeper"] else ""
    drawn = f"{facts['stages']} of {least}" if facts["stages"] < facts["all_stages"] else ""
    passes = facts["microbatches"]
    of_step = ["no forward or backward"] if passes is None else [_counted(passes, "micro-batch"), steps]
    size = [f"{drawn}{_counted(facts['all_stages'], 'stage')}", *of_step]
    if facts["schedule"] or facts["deeper"] or facts["stages"] > 1:  # a single stage shows no schedule
        size.insert(0, order)
    time = f" of typically {duration(facts['step_ns'])}" if facts["step_ns"] else ""
    yield f"{', '.join(size)}{time}"
    for word, numbers in (("stage", lacks.stages), ("rank", lacks.ranks)) if lacks else ():
        if numbers.ranges:
            yield f"missing {numbers.named(word)}"
    if facts["whole_steps"] < facts["steps"] and not facts["beginnings"]:
        yield f"{facts['whole_steps']} of the steps {'is' if facts['whole_steps'] == 1 else 'are'} whole"
    yield _clocks(facts)
    if facts["inferred"]:
        yield f"inferred: {', '.join(facts['inferred'])}"


def _counted(number: int, what: str) -> str:
    return f"1 {what}" if number == 1 else f"{number:,} {what}{'es' if what.endswith('ch') else 's'}"


def _clocks(facts: dict[str, Any]) -> str:
    if facts["hosts"] < 2:
        return "one clock"
    counts = [(facts[f"{what}s_between_hosts"], what) for what in ("message", "collective")]
    observed = " and ".join(_counted(count, what) for count, what in counts if count)
    observed += " in the beginning" if observed and facts["beginnings"] else ""
    ordered = facts["dependencies_between_hosts"]
    other = "no messages, only the order of the blocks" if ordered else "nothing connects them, so they are not aligned"
    return f"clocks of {facts['hosts']} hosts: {observed or other}"
