"""Paddle's static-graph pipeline profiler: `workerlog.N`, a free text log with one record per job of a step.

A record names its job type, micro-batch and times and nothing else: runs and steps come from the order of the records,
the rank from the file's place (`find`), the stage from the order of the blocks (`pipeline.stages`).
Format: PaddlePaddle/Paddle, paddle/fluid/framework/new_executor/standalone_executor.cc.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import polars as pl

from trace_export.errors import SourceError, path_text
from trace_export.files import EMPTY, is_empty
from trace_export.model import HOSTS, INT, P2P, RANKS, SPANS, Declared, Note, Profile, RankOrder, conform, empty
from trace_export.sources.paddle.log_scanner import Scanner, drain, last_ends, latest_us, line_of, scan
from trace_export.sources.shared.batch import Result, caught, split
from trace_export.sources.source import ReadOptions, Source

JOB = re.compile(
    r"(recv_forward|send_backward|forward|backward_bw|backward_b|backward_w|backward|optimizer|default|lr)"
    r"(\d{1,4})?(?:_reduce)?(?:\(chunk(\d{1,4})\))?"
)
ASIDE = re.compile(r"(default|lr)\b")
KINDS = {"forward": "F", "backward": "B", "backward_bw": "B", "backward_b": "B", "backward_w": "W", "optimizer": "OPT"}
TRAINS = pl.col("kind").is_in(["B", "W", "OPT"]).fill_null(False)
"""Whether a job is one of training, and not also of an evaluation."""
TRANSFERS = {"recv_forward": ("recv", "F"), "send_backward": ("send", "B")}
RANK_ORDER: RankOrder = "tp-cp-pp-dp"
"""How fleet counts the ranks of a run (python/paddle/distributed/fleet/base/topology.py)."""
MOST_RANKS = 1024
"""At most this many ranks in one log; each is compared with all others that wrote at its time."""
MOST_UNKNOWN = 20
"""At most this many unknown job types are named."""
JOB_TYPES: dict[str, pl.DataType] = {
    "job": pl.Categorical(), "base": pl.String(), "kind": pl.String(), "chunk": pl.Int32(), "transfer": pl.Boolean(),
    "aside": pl.Boolean(),
}  # fmt: skip
"""A type of job: `base` its name without chunk (null: unknown), `transfer` whether it is one side of a message, `aside`
whether it is start-up, evaluation or learning rate."""
_TIMES = {"start_ns": pl.col("start_us") * 1000, "end_ns": pl.col("end_us") * 1000}
LATEST_US = (2**63 - 1) // 1000
"""The largest time whose nanoseconds fit into 64 bits."""


@dataclass(frozen=True)
class _Log:
    """A log with records, and the ends of its last ones if they are not the `whole` of it."""

    source: Source
    scanner: Scanner
    whole: bool
    ends: list[bytes]
    malformed: Note | None


def read(sources: Sequence[Source], options: ReadOptions) -> list[Result]:
    """The blocks of each worker log, in nanoseconds of the clock of the machine that wrote it.

    Usually one rank; logs of several nodes in a shared folder hold the records of several, distinguished by thread id.
    The records of all logs are one table, in which `log` is their place.
    """
    scanned = [caught(source.path, partial(_scanned, source, options)) for source in sources]
    logs = [log for log in scanned if isinstance(log, _Log)]
    made = iter(_profiles(logs) if logs else [])
    return [next(made) if isinstance(log, _Log) else log for log in scanned]


def _scanned(source: Source, options: ReadOptions) -> _Log:
    """Raises SourceError when the file holds no record, OSError."""
    malformed = None
    scanner, whole = scan(source.path, options.beginning)
    ends = [] if whole else last_ends(source.path)
    if scanner.malformed:
        where = f"{source.path}:{line_of(source.path, scanner.first_malformed)}"
        malformed = Note("records-malformed", "warning", "malformed records, left out", where, scanner.malformed)
    if not scanner.waiting and is_empty(source.path):
        raise SourceError(source.path, EMPTY, "copy it again")
    if not scanner.waiting:
        raise SourceError(
            source.path,
            "no pipeline record in this log",
            "enable the job schedule profiler, use a CUDA build of Paddle, and leave GLOG_minloglevel at 0",
        )
    return _Log(source, scanner, whole, ends, malformed)


def _profiles(logs: Sequence[_Log]) -> list[Profile]:
    """The profile of each log."""
    records = drain({log_number: log.scanner for log_number, log in enumerate(logs)})
    profiles = profiles_of(jobs_of(records, [log.source for log in logs]), [log.source for log in logs])
    ends = latest_us([log.ends for log in logs])
    return [
        replace(
            profile,
            notes=(*([log.malformed] if log.malformed else ()), *profile.notes),
            declared=replace(profile.declared, steps=log.scanner.steps()),
            recorded_until={} if log.whole else {path_text(log.source.path): None if end is None else end * 1000},
        )
        for log, profile, end in zip(logs, profiles, ends, strict=True)
    ]


def jobs_of(records: pl.DataFrame, sources: Sequence[Source]) -> pl.DataFrame:
    """`records` (RECORDS, and `log`, the place of their source in `sources`) with the type of job, and member, life,
    run, part and step of each. Raises SourceError for records that cannot belong to a pipeline."""
    typed = records.join(_job_types(records["job"]), on="job", how="left", maintain_order="left")
    again = _logged_again(typed)
    if again is None:
        return _steps(_runs(_announced(_ranks(typed, sources))))
    return _steps(_runs(_announced(_ranks(typed.filter(~again), sources))))[(~again).cum_sum() - 1]


def _logged_again(records: pl.DataFrame) -> pl.Series | None:
    """The records that are the one before them in their log once more, as where two handlers write to one file; None
    where there is none. They begin no step."""
    logged = ("log", "job", "microbatch", "start_us", "end_us")
    if not _may_repeat(records, *logged):
        return None
    same = (pl.col(name) == pl.col(name).shift().over("log") for name in logged[1:])
    again = records.select((pl.all_horizontal(same) & ~pl.col("aside")).fill_null(False)).to_series()
    return again if again.any() else None


def profile_of(
    jobs: pl.DataFrame, sources: Sequence[Source], members: Iterable[int] = (), *, after: int = -1
) -> Profile:
    """The tables of all logs at `sources` together, from the jobs in them; with the ranks of further `members`, and
    without the steps up to `after`."""
    members = sorted({*jobs["member"].unique(), *members})
    numbers = [_number(sources[member // MOST_RANKS], member % MOST_RANKS) for member in members]
    profile, notes = _tables(jobs, sources, members, numbers, after)
    return replace(profile, notes=tuple(note for _, note in notes))


def profiles_of(jobs: pl.DataFrame, sources: Sequence[Source]) -> list[Profile]:
    """The tables of each log, from the `jobs` in all of them."""
    members = sorted(jobs["member"].unique())
    logs = [member // MOST_RANKS for member in members]
    numbers = [_number(sources[log], member % MOST_RANKS) for log, member in zip(logs, members, strict=True)]
    whole, notes = _tables(jobs, sources, members, range(len(members)))
    return [
        replace(profile, notes=tuple(note for log, note in notes if log == number))
        for number, profile in enumerate(split(whole, numbers, logs))
    ]


def _tables(
    jobs: pl.DataFrame, sources: Sequence[Source], members: Sequence[int], numbers: Sequence[int], after: int = -1
) -> tuple[Profile, list[tuple[int, Note]]]:
    """The tables of all logs, in which the `members` are ranks of these `numbers`; and notes, each with the place of
    its log."""
    good, notes = _usable(jobs, sources)
    if after >= 0:
        good = good.filter(pl.col("step") > after)
    notes += _unknown_types(good, sources)
    of_log = [divmod(member, MOST_RANKS) for member in members]
    for log, several in sorted(Counter(log for log, _ in of_log).items()):
        if several > 1:
            what = "records of several ranks in one log, separated by thread id"
            notes.append((log, Note("ranks-in-one-log", "warning", what, str(sources[log].path), several)))
    ranks = [_rank(sources[log], member) for log, member in of_log]
    rank = pl.col("member").replace_strict(list(members), list(numbers), return_dtype=INT).alias("rank")
    profile = Profile(
        hosts=conform(pl.DataFrame([_host(sources[log], member) for log, member in of_log]), HOSTS),
        ranks=conform(pl.DataFrame(ranks).with_columns(rank=pl.Series(list(numbers), dtype=INT)), RANKS),
        spans=_spans(good, rank),
        p2p=_transfers(good, rank),
        declared=Declared(rank_order=RANK_ORDER),
    )
    return profile, notes


def _ranks(records: pl.DataFrame, sources: Sequence[Source]) -> pl.DataFrame:
    """Adds `member`: `log` · MOST_RANKS for the log's rank, one more for each further rank that wrote into its file.

    Two thread ids are two ranks when their times interleave (the one that starts first is the lower rank),
    else the same rank started again. A record without a prefix belongs to the thread before it. Adds `life`, which
    counts the starts of a rank.
    """
    if records["thread"].null_count():
        records = records.with_columns(pl.col("thread").forward_fill().backward_fill().over("log").fill_null(0))
    if _one_for_each(records, "log", pl.col("thread")):
        return records.with_columns(member=pl.col("log") * MOST_RANKS, life=pl.lit(0, pl.Int32))
    valid = (pl.col("start_us") > 0) & (pl.col("end_us") >= pl.col("start_us"))
    threads = (
        records.group_by("log", "thread", maintain_order=True)
        .agg(pl.col("start_us").filter(valid).min().alias("first"), pl.col("end_us").filter(valid).max().alias("last"))
        .sort("log", "first", nulls_last=True, maintain_order=True)
    )
    ends: dict[int, list[int]] = {}  # of each log the last time of each member
    lives: dict[int, int] = {}
    rows = []
    for log, thread, first, last in threads.iter_rows():
        here = ends.setdefault(log, [])
        number = next((i for i, end in enumerate(here) if first is None or first >= end), len(here))
        if number == MOST_RANKS:
            what = f"records of more than {MOST_RANKS} threads at one time, more than a pipeline has ranks"
            raise SourceError(sources[log].path, what)
        if number == len(here):
            here.append(0)
        here[number] = max(here[number], last or 0)
        member = log * MOST_RANKS + number
        lives[member] = lives.get(member, -1) + 1
        rows.append((log, thread, member, lives[member]))
    schema = {"log": pl.Int32, "thread": pl.Int32, "member": pl.Int32, "life": pl.Int32}
    ranks = pl.DataFrame(rows, schema, orient="row")
    return records.join(ranks, on=["log", "thread"], how="left", maintain_order="left")


def _one_for_each(records: pl.DataFrame, key: str, value: pl.Expr) -> bool:
    """Whether `value` is the same wherever `key` is; both are whole numbers of at most 32 bits."""
    both = pl.col(key).cast(pl.Int64) * 2**32 + value
    keys, pairs = records.select(pl.col(key).n_unique(), both.n_unique().alias("both")).row(0)
    return bool(keys == pairs)


def _announced(records: pl.DataFrame) -> pl.DataFrame:
    """`records` in which those before the first announcement of a start of their rank have this announcement, too: it
    is logged before each step, and the beginning of the log was lost."""
    if not 0 < records["announced"].null_count() < records.height:
        return records
    said = pl.col("announced").is_not_null()
    return records.with_columns(
        pl.when(said).then(name).otherwise(pl.coalesce(pl.col(name).filter(said).first().over("member", "life"), name))
        for name in ("announced", "announcement", "section")
    )


def _runs(records: pl.DataFrame) -> pl.DataFrame:
    """Adds `run`, which a restart of the process begins, or an announcement of steps that do not go on; and `stretch`,
    which any other announcement begins, too."""
    if _one_for_each(records, "member", pl.col("life") * 2**16 + pl.col("section")):
        return records.with_columns(run=pl.lit(0, pl.Int32), stretch=pl.lit(0, pl.Int32))
    begins = {
        name: pl.any_horizontal(pl.col(column) != pl.col(column).shift().over("member") for column in columns)
        for name, columns in (("run", ("life", "announcement")), ("stretch", ("life", "section")))
    }
    counts = [new.fill_null(False).cum_sum().over("member").cast(pl.Int32).alias(name) for name, new in begins.items()]
    return records.with_columns(counts)


def _steps(records: pl.DataFrame) -> pl.DataFrame:
    """Adds `step`: it ends with the optimizer, and where that is missing when a job comes a second time; and `part`, a
    number for each member and run, and for the jobs of a run that belong to no step.

    Numbers begin at the announced first step, else at 0. In a pipeline run the jobs `default` and `lr` (start-up,
    evaluation, learning rate) belong to no step; without a pipeline every `default` is a step of its own.
    """
    aside = pl.lit(False)
    if records["aside"].any():
        aside = pl.col("aside") & ~pl.col("aside").all().over("member", "run")
    part = (pl.col("member").cast(pl.Int64) * 2**32 + pl.col("stretch")) * 2 + aside
    records = records.with_columns(aside=aside, part=part)
    if not records["part"].is_sorted():
        ordered = records.with_row_index("row").sort("part", maintain_order=True)
        return _steps_of_parts(ordered).sort("row").select(*records.columns, "step")
    return _steps_of_parts(records).select(*records.columns, "step")


def _steps_of_parts(records: pl.DataFrame) -> pl.DataFrame:
    """`records`, sorted by part, with `step`. `closed` counts the optimizers before a record, `again` how often its
    job came since the last of them, and `count` the steps that began. Forwards alone, before others of their numbers,
    are an evaluation, which has no step in a run that trains. Example, where step 5 is announced as the first:

    | job | closed | again | count | step | |
    |---|---|---|---|---|---|
    | forward 0 | 0 | 0 | 0 | 5 | |
    | optimizer | 0 | 0 | 0 | 5 | ends its step |
    | forward 0 | 1 | 0 | 0 | | an evaluation |
    | forward 0 | 1 | 1 | 1 | 6 | |
    | backward 0 | 1 | 1 | 1 | 6 | |
    | forward 0 | 1 | 2 | 2 | 7 | without an optimizer the next forward 0 begins a step |
    """
    first = (pl.col("part") != pl.col("part").shift()).fill_null(True)
    closed = ((pl.col("job").shift() == "optimizer") & ~first).fill_null(False).cum_sum()
    records = records.with_columns(closed=closed, evaluates=False)
    job = ["part", "closed", "job", "microbatch"]
    begins = first | (pl.col("closed") != pl.col("closed").shift())
    if _may_repeat(records, *job):  # seldom, and groups of one row each take their time
        records = records.with_columns(again=pl.int_range(pl.len()).over(job).cum_max().over("part", "closed"))
        begins |= pl.col("again") != pl.col("again").shift()
        goes_on = pl.col("again") < pl.col("again").max().over("part", "closed")
        trains = TRAINS.any().over("part") & ~TRAINS.any().over("part", "closed", "again")
        records = records.with_columns(evaluates=goes_on & trains)
    counted = ~pl.col("evaluates")
    records = records.with_columns(count=(begins & counted).fill_null(False).cum_sum().cast(pl.Int64))
    before = pl.col("count").filter(counted).first()
    number = (pl.col("announced").first().fill_null(0) - before).over("part") + pl.col("count")
    return records.with_columns(step=pl.when(counted & ~pl.col("aside")).then(number.cast(pl.Int32)))


def _may_repeat(records: pl.DataFrame, *columns: str) -> bool:
    """False where no two rows are equal in `columns`, whole numbers or Categorical: then not even their sums, in which
    overflow does not matter, are equal."""
    mixed = pl.lit(0, pl.Int64)
    for name in columns:
        mixed = mixed * 1_000_003 + pl.col(name).to_physical().cast(pl.Int64).fill_null(-1)
    return bool(records.select(mixed).to_series().n_unique() < records.height)


def _job_types(jobs: pl.Series) -> pl.DataFrame:
    """The types among `jobs`, as JOB_TYPES."""
    rows = []
    for job in jobs.unique().cast(pl.String):
        match = JOB.fullmatch(job)
        base, chunk = (match[1], int(match[2] or match[3] or 0)) if match else (None, None)
        rows.append((job, base, KINDS.get(base or ""), chunk, base in TRANSFERS, ASIDE.match(job) is not None))
    return pl.DataFrame(rows, JOB_TYPES, orient="row")


def _unknown_types(jobs: pl.DataFrame, sources: Sequence[Source]) -> list[tuple[int, Note]]:
    """For each log a note on each of the first types of job that are unknown, and one on the others."""
    if not jobs["base"].null_count():
        return []
    unknown = jobs.filter(pl.col("base").is_null()).group_by("log", "job", maintain_order=True).len()
    notes = []
    for (log,), types in unknown.group_by("log", maintain_order=True):
        path = str(sources[log].path)
        for job, count in types.select("job", "len").head(MOST_UNKNOWN).iter_rows():
            text = f'unknown job type "{job}", drawn without a kind'
            notes.append((log, Note("job-type-unknown", "warning", text, path, count)))
        if types.height > MOST_UNKNOWN:
            text = f"{types.height - MOST_UNKNOWN} more unknown job types, drawn without a kind"
            count = int(types["len"][MOST_UNKNOWN:].sum())
            notes.append((log, Note("job-type-unknown", "warning", text, path, count)))
    return notes


def _usable(jobs: pl.DataFrame, sources: Sequence[Source]) -> tuple[pl.DataFrame, list[tuple[int, Note]]]:
    """The jobs that ran, and notes on those whose times cannot be used, each with the place of its log."""
    zero = (pl.col("start_us") == 0) & (pl.col("end_us") == 0)
    impossible = (pl.col("start_us") == 0) | (pl.col("end_us") < pl.col("start_us")) | (pl.col("end_us") > LATEST_US)
    ran = jobs.filter(~zero)
    stale = pl.lit(False)
    if _may_repeat(ran, "part", "job", "start_us", "end_us"):  # seldom, as above
        same = (pl.col("start_us").diff() == 0) & (pl.col("end_us").diff() == 0)
        later = (pl.col("step").diff() != 0).fill_null(True)
        stale = (same & later).over("part", "job", "microbatch").fill_null(False) & ~impossible
    notes = []
    if ran.height < jobs.height:
        for log, count in jobs.join(ran, on="log", how="anti").group_by("log", maintain_order=True).len().iter_rows():
            text = "all records have the time 0.000000, so nothing can be drawn; profile a run on GPUs"
            notes.append((log, Note("times-all-zero", "warning", text, str(sources[log].path), count)))
    refused = ran.select(impossible=impossible, stale=stale)
    for flag, note in (
        ("impossible", Note("times-unusable", "warning", "records without a valid time")),
        ("stale", Note("records-stale", "warning", "records that repeat the times of the step before")),
    ):
        if not refused[flag].any():
            continue
        for (log,), rows in ran.filter(refused[flag]).group_by("log", maintain_order=True):
            job, microbatch, step = rows.select(pl.col("job").cast(pl.String), "microbatch", "step").row(0)
            first = f"first: {job}, micro-batch {microbatch}" + ("" if step is None else f", step {step}")
            text = f"{note.text}, left out ({first})"
            notes.append((log, replace(note, text=text, where=str(sources[log].path), count=rows.height)))
    return ran.filter(~(refused["impossible"] | refused["stale"])) if notes else ran, notes


def _spans(jobs: pl.DataFrame, rank: pl.Expr) -> pl.DataFrame:
    numbered = pl.col("kind").is_in(["F", "B", "W"])
    numbers = (pl.when(numbered).then(name).alias(name) for name in ("microbatch", "chunk"))
    names = {"marker": pl.col("job").cast(pl.String), "origin": pl.lit("device")}
    blocks = jobs.filter(~pl.col("transfer"))
    return conform(blocks.select(rank, "run", "step", "kind", *numbers, **_TIMES, **names), SPANS)


def _transfers(jobs: pl.DataFrame, rank: pl.Expr) -> pl.DataFrame:
    """Communication jobs print the time 0; one that did not would be one side of a message."""
    moved = jobs.filter("transfer")
    if moved.is_empty():
        return empty(P2P)
    of_base = {
        name: pl.col("base").replace_strict({base: both[place] for base, both in TRANSFERS.items()}, default=None)
        for place, name in enumerate(("role", "direction"))
    }
    op = pl.col("job").cast(pl.String)
    return conform(moved.select(rank, "microbatch", "chunk", op=op, **of_base, **_TIMES), P2P)


def _host(source: Source, member: int) -> dict[str, object]:
    """Ranks that share a log run on different nodes: each has a clock of its own."""
    host = source.host if member == 0 else f"{source.host}+{member}"
    return {"host": host, "machine": source.machine + member, "label": host}


def _number(source: Source, member: int) -> int:
    """The number of a rank that writes into the log."""
    return (source.rank or 0) + member * source.ranks_per_machine


def _rank(source: Source, member: int) -> dict[str, object]:
    origin = source.rank_origin if member == 0 else "assumed"
    return source.rank_row(host=_host(source, member)["host"], device=source.device, rank_origin=origin)
