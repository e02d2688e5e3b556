"""The tables that everything else reads and writes: `Profile`, a frozen bundle of Polars frames.

Times are Int64 nanoseconds of the Unix epoch (or where the host has no wall clock, of its `epoch`), in the clock of the
row's host until `clocks` has corrected them, and their column's name ends in `_ns`. A missing value is null, never -1
or "". A step of the training run is named by (`run`, `step`): a log that was appended to holds several runs, whose step
numbers may repeat.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import polars as pl

Schema = dict[str, pl.DataType]
Placement = Literal["loop", "vee", "both"]
"""How the model chunks lie on the stages; see `schedules.schedule.virtual_stage`."""
Certainty = Literal["exact", "likely", "unknown"]
"""How sure the schedule of a run is; see `Recognition`."""
RankOrder = Literal["tp-cp-dp-pp", "tp-cp-pp-dp"]
"""How global ranks count through the sizes of a run, from the fastest to the slowest."""

NO_HOST = "unknown"
"""The host of ranks for which a table names none."""

INT = pl.Int32()
TIME = pl.Int64()
TEXT = pl.String()
WORD = pl.Categorical()
"""A text; a column with millions of rows has few different ones."""
REAL = pl.Float64()

HOSTS: Schema = {"host": TEXT, "machine": INT, "label": TEXT, "epoch": TEXT}
"""A clock domain. `host` is its key in all tables, `machine` its index (0, 1, …), `label` what the user sees. `epoch`:
what its times count from where that is not the Unix epoch: `boot` of the host, or `start` of the recording. Such a host
has no wall clock, and its times mean nothing beside those of another host until both are aligned."""

RANKS: Schema = {
    "rank": INT, "host": TEXT, "device": INT, "stage": INT, "dp": INT, "tp": INT, "cp": INT, "replica": INT,
    "source": TEXT, "process": TIME, "kind": TEXT, "rank_origin": TEXT, "stage_origin": TEXT, "outside": REAL,
    "pid": TIME, "begun_ns": TIME, "job": TEXT,
}  # fmt: skip
"""A device's process. `stage` is the rank's place in its pipeline (0 … P-1, whatever the chunks' placement), `replica`
the number of that pipeline (0, 1, …; null until `pipeline.stages` has numbered them), `source` the path read, `process`
which of the source's processes it is (null where a source is one), `kind` its format; `rank_origin` and `stage_origin`
are the evidence for the number: `recorded` in the profile, `user-specified`, `assumed` (from names or order of
files), `inferred` (from the shape of the work). `outside`: the share of the time in which the device computed that lies
outside all blocks, null where it is unknown; figures count it as idle. `pid`: the
number of the process on its host, `begun_ns` when it or the profiler's session around it began, in the time of that
host, and `job` a digest of what names the start of the job, alike in all its processes; null where the
source does not say."""

OUTSIDE = 0.05
"""From this share of a device's computing on, what lies outside all blocks is said beside the bubble. Less is what any
run has: norms of gradients, logging, sums of tokens."""

SPAN_ID = pl.UInt32()

SPANS: Schema = {
    "id": SPAN_ID, "rank": INT, "run": INT, "window": INT, "step": INT, "kind": TEXT, "microbatch": INT, "chunk": INT,
    "microbatch_b": INT, "chunk_b": INT, "phase": TEXT, "start_ns": TIME, "end_ns": TIME, "marker": TEXT,
    "origin": TEXT, "labels": TEXT, "pair": INT,
}  # fmt: skip
"""A block of pipeline work on a rank. `id` names it in `EDGES` however the table is filtered (null until
`pipeline.interpret` has numbered the blocks). `kind`: F forward, B backward (input gradient where W blocks exist), W
weight gradient, FB an overlapped pair (microbatch, chunk are the forward's; microbatch_b, chunk_b the backward's), OPT
optimizer; null for other named work. `chunk` is the model chunk on the rank, from 0. `marker` is the
original text. `origin` says whose time it is: `device`, `host`, or `inferred` (the block itself was found from other
signs). `labels` is `inferred` where microbatch or chunk come from order or schedule and not from the data. `pair`:
blocks of a rank with the same number are of one micro-batch in one chunk, as sequence numbers say; null where there
are none. `run` is the number of the run as `--run` takes it where the folder holds several, else any one number;
`window` is the number of the recording within it, from 1 (null where it is the only one): no step reaches from one
window into another."""

WORK_KINDS = ("F", "B", "W", "FB")
"""The kinds of span that are work on a micro-batch: what a pipeline schedule orders and what makes a rank busy."""

STEP_KEY = ["run", "step"]
RANK_STEP_KEY = ["rank", *STEP_KEY]
"""The columns that name a training step, and one rank's part of it."""
SEGMENT = ["run", "window"]
"""The columns that name one contiguous recording of a job: its steps follow each other."""

PASS_ID = pl.UInt32()
PASS_KINDS = ("F", "B", "W")

PASSES: Schema = {
    "id": PASS_ID, "span": SPAN_ID, "rank": INT, "run": INT, "step": INT, "kind": pl.Enum(PASS_KINDS),
    "microbatch": INT, "chunk": INT, "stage": INT, "replica": INT, "start_ns": TIME, "end_ns": TIME,
}  # fmt: skip
"""A forward (`kind` F), a backward (B) or a weight gradient (W) of a micro-batch in a chunk. `span` is the block that
ran it: an overlapped pair (FB) ran two, its forward and its backward, which have the times of the pair. `id` names the
pass in `EDGES` and `MESSAGES` however the blocks are filtered; ids count up by block, a pair's forward before its
backward. `chunk` is 0 where the block has none; `microbatch`, `stage` and `replica` are null where unknown."""

EDGES: Schema = {"src": PASS_ID, "dst": PASS_ID, "direction": WORD}
"""A dependency between two passes (`PASSES.id`): the producer and the consumer of a micro-batch's activations
(`direction` F) or gradients (B)."""

P2P: Schema = {
    "rank": INT, "role": WORD, "peer": INT, "group": TEXT, "sequence": TIME, "op": WORD, "step": INT, "microbatch": INT,
    "chunk": INT, "direction": WORD, "start_ns": TIME, "end_ns": TIME, "bytes": TIME, "member": INT,
}  # fmt: skip
"""One rank's side of a point-to-point transfer, as the source has it. `role`: send, recv, both. `peer` is a global
rank; `member` is its number in `group`, where the source says that. `sequence` is the sequence number of the operation
in (rank, group), as the source counts. `direction`: F or B. `step` is that of the block which it belongs to, null where
the source does not count steps."""

MEMBERS: Schema = {"rank": INT, "group": TEXT, "member": INT}
"""The number of a rank in a group, as far as sources say it."""

MESSAGES: Schema = {
    "src_rank": INT, "dst_rank": INT, "direction": WORD, "microbatch": INT, "chunk": INT, "send_start_ns": TIME,
    "send_end_ns": TIME, "recv_start_ns": TIME, "recv_end_ns": TIME, "bytes": TIME, "src_pass": PASS_ID,
    "dst_pass": PASS_ID, "ready_ns": TIME, "wire_ns": TIME,
}  # fmt: skip
"""One transfer, both sides paired. `chunk` is the receiver's. `src_pass` is the pass whose result it brings,
`dst_pass` the one that takes it (`PASSES.id`); null where unknown. `ready_ns` is when the transfer could begin: the end
of `src_pass`. `wire_ns` is `WIRE_NS`."""

WIRE_NS = pl.col("recv_end_ns") - pl.max_horizontal("send_start_ns", "recv_start_ns")
"""How long a message took from when both sides were there to the end of the receive."""

RECORDINGS: Schema = {
    "rank": INT, "run": INT, "window": INT, "source": TEXT, "process": TIME, "kind": TEXT, "host": TEXT,
}  # fmt: skip
"""Where each rank's part of a window was read; the columns are those of `RANKS` and `SPANS`."""

RUNS: Schema = {
    "run": INT, "start_ns": TIME, "ranks": INT, "windows": INT, "steps": INT, "missing_ranks": TEXT,
    "read": pl.Boolean(),
}  # fmt: skip
"""The runs that the sources hold, whichever were `read`: their numbers (1 is the oldest), when each began by its
earliest clock (null without a date), how many ranks, windows and recorded steps (null where steps are not recorded) it
has, and which ranks are missing, as in "1,4-7"."""

COLLECTIVES: Schema = {
    "rank": INT, "group": TEXT, "sequence": TIME, "op": TEXT, "start_ns": TIME, "end_ns": TIME, "bytes": TIME,
}  # fmt: skip
"""One rank's part of a collective; the parts of one collective share (group, op, sequence)."""

COUNTERS: Schema = {"rank": INT, "name": TEXT, "unit": TEXT, "ts_ns": TIME, "value": REAL}
"""One sample of a quantity on a rank."""

KERNELS: Schema = {
    "stream": WORD, "name": WORD, "category": WORD, "start_ns": TIME, "end_ns": TIME,
}  # fmt: skip
"""One device task of the rank that its file belongs to. `category`: compute, communication, memory."""

CLOCK_STEP = pl.Struct({"from_ns": TIME, "offset_ns": TIME, "drift": REAL, "reference_ns": TIME})
"""How a clock is corrected from a time on that it shows, after it was set."""
CLOCKS: Schema = {
    "host": TEXT, "status": TEXT, "evidence": TEXT, "component": INT, "reference_host": TEXT, "user_offset_ns": TIME,
    "offset_ns": TIME, "drift": REAL, "reference_ns": TIME, "sd_ns": REAL, "bound_ns": REAL,
    "unseen_step_ns": REAL, "messages": TIME, "collectives": TIME, "steps": pl.List(CLOCK_STEP),
}  # fmt: skip
"""How a host's clock is corrected: t - offset_ns - round(drift * (t - reference_ns)) (`clocks.apply`).

`status`: `fitted` (corrected by the fit), `confirmed` (the fit finds nothing to correct, the wall clock is kept),
`wall` (the wall clock is kept because it was asked for or because nothing constrains it well enough), `file` (corrected
as an alignment file says), `single-host` (there is nothing to align), `none` (alignment was not wanted). `evidence`:
the observations behind `fitted` and `confirmed`, of `p2p`, `blocks` and `collective` those that there are, joined by
"+"; null elsewhere. `component`: numbered from 1 where the hosts fall into groups that no observation connects, each on
a time axis of its own; null where there is one. `reference_host`: the host with the median correction, against which
the offsets of its component are; null where nothing was fitted. `user_offset_ns`: what the user added to the host's
times, null where nothing; `offset_ns` contains it with the opposite sign. `sd_ns` and `bound_ns` are the standard
deviation and the hard bound of the error that is left, null where unknown; the bound holds if the clock was not set in
the middle half of the recording by less than `unseen_step_ns`, which its messages would not show (null: they would show
no step). `messages` and `collectives` count the
observations. `steps`: the corrections that hold from later times on (`from_ns`, as the clock shows it), each until the
next one; null where the clock was not set."""

BY_BLOCKS = (pl.col("status") == "fitted") & (pl.col("evidence") == "blocks")
"""Whether the order of blocks alone tells the correction of a clock, of a row of `CLOCKS`."""

STEPS: Schema = {"run": INT, "step": INT, "whole": pl.Boolean(), "counts": pl.Boolean()}
"""A step of the training run that has blocks. `whole`: every rank has all its blocks of it (`pipeline.completeness`).
`counts`: means are taken over it, for it is whole and no warm-up (`pipeline.warm_ups`). Empty where that was not
checked: then all steps count."""

TABLES: dict[str, Schema] = {
    "hosts": HOSTS, "ranks": RANKS, "spans": SPANS, "evaluations": SPANS, "p2p": P2P, "members": MEMBERS,
    "messages": MESSAGES, "collectives": COLLECTIVES, "counters": COUNTERS, "clocks": CLOCKS, "steps": STEPS,
    "recordings": RECORDINGS, "runs": RUNS,
}  # fmt: skip


@dataclass(frozen=True)
class Note:
    """Something the user should know: `warning` where the picture may mislead or data were refused, `note` what was
    inferred, repaired or left out, `detail` what holds for many a sound run and is shown on request.

    `code` names the kind of the note (kebab-case, the same in every version); programs tell notes apart by it and never
    by `text`. `where` is a path, perhaps with a line number (the first case); `count` is the number of cases.
    """

    code: str
    level: Literal["detail", "note", "warning"]
    text: str
    where: str = ""
    count: int = 1


@dataclass(frozen=True)
class Declared:
    """What the profile or the user declare about the pipeline as a whole; None where neither does.

    `rank_order`: how the framework that recorded the run counts its ranks. `numbers_continue`: a forward of chunk c
    that has no chunk bears the number m + c · `microbatches`, and the two chunks lie in a V. `overlapped`: forwards and
    backwards run in pairs, also where the capture shows none. `world`: the number of ranks of the job. `steps`: the
    first step that the profiler announced and the one after the last; it records them whole. `every_operation`: `p2p`
    and `collectives` hold every operation of a step besides its blocks, by the names of `schedules.operation_types`,
    and their times were 32-bit seconds, in each step from a zero of its own: `step_zeros` has pairs of a step and where
    its zero lies in ns. `deeper`: the pipeline goes on behind the last stage that was read, nobody says how far.
    """

    schedule: str | None = None
    microbatches: int | None = None
    chunks: int | None = None
    placement: Literal["loop", "vee"] | None = None
    pp: int | None = None
    tp: int | None = None
    dp: int | None = None
    cp: int | None = None
    rank_order: RankOrder | None = None
    numbers_continue: bool | None = None
    overlapped: bool | None = None
    world: int | None = None
    steps: tuple[int, int] | None = None
    every_operation: bool | None = None
    step_zeros: tuple[tuple[int, int], ...] | None = None
    deeper: bool | None = None

    def or_else(self, other: Declared) -> Declared:
        """Each fact from `self`, or where it has none, from `other`."""
        return Declared(
            *(a if (a := getattr(self, f.name)) is not None else getattr(other, f.name) for f in fields(self))
        )


@dataclass(frozen=True)
class KernelFile:
    """The device tasks of one rank in an Arrow IPC file with the columns of `KERNELS`, in the clock of the rank's host.

    They stay outside the frames because they may be larger than memory. The file is sorted by start_ns. `untimed`: how
    many tasks without a valid time were left out that no note of the profile counts.
    """

    rank: int
    path: Path
    untimed: int = 0


def empty(schema: Schema) -> pl.DataFrame:
    return pl.DataFrame(schema=schema)


def conform(frame: pl.DataFrame, schema: Schema) -> pl.DataFrame:
    """`frame` with exactly the columns of `schema`, in its order and types; absent columns become null.

    Raises a Polars error when a value does not fit its type: a reader's mistake, not the user's.
    """
    if frame.height >= LARGE:
        types = frame.schema
        absent = [pl.lit(None, dtype).alias(name) for name, dtype in schema.items() if name not in types]
        cast = [pl.col(name).cast(dtype) for name, dtype in schema.items() if types.get(name, dtype) != dtype]
        return frame.with_columns(*absent, *cast).select(*schema)
    there = {column.name: column for column in frame}

    def column(name: str, dtype: pl.DataType) -> pl.Series:
        if name not in there:
            return pl.Series(name, [None], dtype).new_from_index(0, frame.height)
        return there[name] if there[name].dtype == dtype else there[name].cast(dtype)

    return pl.DataFrame([column(name, dtype) for name, dtype in schema.items()])


LARGE = 100_000
"""From this many rows on a column of one value is kept as that value, as Polars does in expressions; on small tables
these take longer."""


@dataclass(frozen=True)
class Plan:
    """A schedule (a key of `schedules.schedule.TITLES`) with its numbers; `group` is the size of an interleaved
    schedule's groups of micro-batches where it is not the usual one."""

    name: str
    stages: int
    microbatches: int
    chunks: int = 1
    group: int | None = None


@dataclass(frozen=True)
class Recognition:
    """The schedule whose order a run follows or comes closest to (`plan`, None where nothing fits its numbers).

    `certainty` says whether to believe it: `exact` on all ranks, which are of two stages at least and fit no other;
    `likely`; or `unknown` (then it is only the closest). `distance` is the share of blocks that are missing,
    superfluous or elsewhere, in the step that was compared; `runner_up` the next best and its distance. `twins` are
    schedules that cannot be distinguished from it. `weights` is false where weight gradients were not compared, because
    none or only some were recorded. `of_runs`: the schedules of several runs, by name, if they differ; then none is
    that of all.
    """

    plan: Plan | None = None
    certainty: Certainty = "unknown"
    distance: float = 1.0
    runner_up: tuple[str, float] | None = None
    twins: tuple[str, ...] = ()
    weights: bool = True
    of_runs: tuple[str, ...] = ()

    @property
    def named(self) -> Plan | None:
        """The schedule, where it is certain enough to be named."""
        return None if self.certainty == "unknown" else self.plan


@dataclass(frozen=True)
class Interpretation:
    """What `pipeline.interpret` found out about the pipeline as a whole. None of it depends on the hosts' clocks.

    `passes` has the schema `PASSES` without the times, which are those of the blocks (`Profile.passes` has them); its
    row n is the pass n. `edges` has the schema `EDGES`. Both keep what belongs to blocks that were filtered out of
    `Profile.spans` later.
    """

    placement: Placement
    recognition: Recognition
    passes: pl.DataFrame
    edges: pl.DataFrame


def _table(schema: Schema) -> pl.DataFrame:
    nothing = empty(schema)
    return field(default_factory=nothing.clone)


@dataclass(frozen=True)
class Profile:
    """All tables of a run. Each frame has exactly the columns of its schema above (`validate` checks).

    `evaluations`: blocks that are of no training step, which are drawn and count nowhere (`pipeline.evaluations`).
    `window_ns`: the part of the corrected time that the user asked for; the frames are cut to it, kernels as they are
    fetched. `recorded_until`: the sources whose beginning alone was read, and when their recording ended, in the
    time of its blocks, where that is known. `earlier`: what a source holds of earlier starts of the job, until
    `sources.merge` has chosen a run. `interpretation` is None until `pipeline.interpret` has been through it.
    """

    hosts: pl.DataFrame = _table(HOSTS)
    ranks: pl.DataFrame = _table(RANKS)
    spans: pl.DataFrame = _table(SPANS)
    p2p: pl.DataFrame = _table(P2P)
    members: pl.DataFrame = _table(MEMBERS)
    messages: pl.DataFrame = _table(MESSAGES)
    collectives: pl.DataFrame = _table(COLLECTIVES)
    counters: pl.DataFrame = _table(COUNTERS)
    clocks: pl.DataFrame = _table(CLOCKS)
    steps: pl.DataFrame = _table(STEPS)
    evaluations: pl.DataFrame = _table(SPANS)
    recordings: pl.DataFrame = _table(RECORDINGS)
    runs: pl.DataFrame = _table(RUNS)
    kernels: tuple[KernelFile, ...] = ()
    declared: Declared = Declared()
    notes: tuple[Note, ...] = ()
    recorded_until: Mapping[str, int | None] = field(default_factory=dict)
    window_ns: tuple[int, int] | None = None
    earlier: tuple[Profile, ...] = ()
    interpretation: Interpretation | None = None

    @property
    def interpreted(self) -> Interpretation:
        """`interpretation`; raises ValueError where there is none."""
        if self.interpretation is None:
            raise ValueError("the profile has not been interpreted: call pipeline.interpret first")
        return self.interpretation

    @cached_property
    def ranks_with_blocks(self) -> pl.DataFrame:
        """The rows of `ranks` that have blocks in `spans`."""
        return self.ranks.join(self.spans.select("rank").unique(), on="rank", how="semi")

    def passes(self) -> pl.DataFrame:
        """The passes (`PASSES`) of the blocks in `spans`, by id, with the times that these now have. Raises ValueError
        where the profile has not been interpreted."""
        passes = self.interpreted.passes
        row = self._rows_of(passes["span"])
        if row.has_nulls():
            passes, row = passes.filter(row.is_not_null()), row.drop_nulls()
        return passes.with_columns(self.spans[name].gather(row) for name in ("start_ns", "end_ns"))

    @property
    def blocks(self) -> pl.DataFrame:
        """All that is drawn: `spans`, and then `evaluations`, whose `id` counts on."""
        if self.evaluations.is_empty():
            return self.spans
        first = int(self.spans["id"].max() or 0) + 1  # type: ignore[arg-type]
        numbers = pl.int_range(first, first + pl.len(), dtype=SPAN_ID).alias("id")
        return pl.concat([self.spans, self.evaluations.with_columns(numbers)])

    def edge_rows(self) -> pl.DataFrame:
        """The edges as src and dst, row numbers of `spans` (UInt32), and direction, with the ids of both passes as
        src_pass and dst_pass; without those that lost a block to a filter. Raises ValueError where the profile has
        not been interpreted."""
        span, edges = self.interpreted.passes["span"], self.interpreted.edges
        rows = [self._rows_of(span.gather(edges[end])).alias(end) for end in ("src", "dst")]
        named = edges.select(*rows, "direction", src_pass="src", dst_pass="dst")
        return named.drop_nulls(["src", "dst"])

    def _rows_of(self, ids: pl.Series) -> pl.Series:
        """The row in `spans` (UInt32) of each of the blocks `ids`; null where it was filtered out."""
        block_ids = self.spans["id"]
        if block_ids.equals(pl.int_range(len(block_ids), dtype=SPAN_ID, eager=True).alias("id")):
            absent = ids >= len(block_ids)
            return ids.set(absent, None) if absent.any() else ids
        rows = pl.DataFrame({"id": block_ids}).with_row_index("row")
        return pl.DataFrame({"id": ids}).join(rows, on="id", how="left", maintain_order="left")["row"]

    @property
    def without_wall_clock(self) -> tuple[str, ...]:
        """The hosts whose times count from an epoch of their own, by name."""
        return tuple(self.hosts.drop_nulls("epoch")["host"].unique().sort())

    def with_notes(self, notes: Iterable[Note]) -> Profile:
        """The profile with further notes."""
        return replace(self, notes=self.notes + tuple(notes))

    def validate(self) -> Profile:
        """Itself; raises ValueError when a frame's columns differ from its schema."""
        for name, schema in TABLES.items():
            frame = getattr(self, name)
            if frame.columns != list(schema) or frame.dtypes != list(schema.values()):
                raise ValueError(f"table {name}: {dict(frame.schema)} instead of {schema}")
        return self


def concat(profiles: Iterable[Profile]) -> Profile:
    """The rows of all `profiles` together, as they are; the first declaration of each fact counts. Each table is in one
    piece: in a thousand, one a source, most of what is done with it later takes half as long again."""
    parts = list(profiles)
    frames: dict[str, Any] = {
        name: pl.concat([getattr(p, name) for p in parts], rechunk=True) if parts else empty(s)
        for name, s in TABLES.items()
    }
    declared = Declared()
    for part in parts:
        declared = declared.or_else(part.declared)
    return Profile(
        **frames,
        kernels=tuple(k for p in parts for k in p.kernels),
        declared=declared,
        notes=tuple(n for p in parts for n in p.notes),
        recorded_until={source: end for p in parts for source, end in p.recorded_until.items()},
        earlier=tuple(e for p in parts for e in p.earlier),
    )
