"""The JSON document of a report."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import polars as pl
from msgspec import Struct

from trace_export.analysis.report_tables import DEFINITIONS
from trace_export.documents import (
    Document,
    MeanNs,
    NoteRow,
    Ns,
    Ratio,
    SentenceRow,
    Share,
    Time,
    from_attributes,
    rows,
)
from trace_export.model import STEP_KEY

if TYPE_CHECKING:
    from trace_export.analysis.report import Report
    from trace_export.analysis.slowdown import Slowdown
    from trace_export.analysis.theory import Theory


class StepRow(Struct):
    """A step. `pipeline_ns` is from the first block of a replica to its last of forward, backward or weight gradient, a
    mean over the ranks; `step_ns` from the first block of the step to that of the next. `whole`: all its blocks were
    recorded on all ranks; `counts`: means are over it, for it is no warm-up. `window`: the number of the recording
    within its run, null where there is one."""

    run: int | None
    window: int | None
    step: int | None
    start_ns: Time
    end_ns: Time
    ranks: int
    whole: bool | None
    counts: bool | None
    bubble: Share | None
    bubble_own: Share | None
    pipeline_ns: Ns
    step_ns: Ns | None


class RankRow(Struct):
    """A rank in a step: its busy time, the pipeline time of its replica, and its bubble, the idle share of it."""

    run: int | None
    step: int | None
    rank: int
    stage: int | None
    replica: int | None
    busy_ns: Ns
    pipeline_ns: Ns
    bubble: Share | None


class _Idle(Struct, kw_only=True):
    """Idle time by cause, after the fields of a row."""

    warm_up_ns: MeanNs
    forward_ns: MeanNs
    backward_ns: MeanNs
    transfer_ns: MeanNs
    collective_ns: MeanNs
    others_ns: MeanNs
    late_ns: MeanNs
    unknown_ns: MeanNs
    optimizer_ns: MeanNs
    cool_down_ns: MeanNs


class StageRow(_Idle):
    """A stage in a step, means over its ranks: busy and idle time, and the idle time by cause."""

    run: int | None
    step: int | None
    stage: int | None
    ranks: int
    busy_ns: MeanNs
    global_ns: MeanNs
    own_ns: MeanNs


class _StageInRun(_Idle):
    stage: int | None
    ranks: int
    busy_ns: MeanNs
    bubble: Share | None
    bubble_own: Share | None


class StageMeanRow(_StageInRun, kw_only=True):
    """A stage over the steps that count, the busiest first: means over its ranks, and what it is idle for `mostly`."""

    mostly: str | None
    mostly_ns: MeanNs


class IdleRow(Struct):
    """Idle time by cause: the mean per rank and step, and its share of the pipeline time."""

    cause: str
    idle_ns: MeanNs
    share: Share | None


class CausePlace(Struct):
    """What a cause is, and where."""

    code: str
    stage: int | None
    replica: int | None
    ranks: list[int]
    hosts: list[str]
    device: int | None
    src_rank: int | None
    dst_rank: int | None
    direction: str | None
    group: str | None


class CauseRow(CausePlace):
    """A cause of long steps. `code` as in `verdict`. The place: `stage`, `replica` where it is one, `ranks`, `hosts`,
    of one rank its `device`; of a link its ends and direction (null: both ways), of a collective its `group`. `ratio`:
    by that of its peers; or `late_ns` of a step. `gain_ns` and `gain`: how much shorter a step is without it, in a
    replay; null if the replay cannot be trusted. `even_ns`: with the surplus of a slow stage spread over all stages.
    `band`: the true gain lies within this share of it. `sentence`: whether `verdict` says it. `run`, `step`: the step
    that it costs most, null where it is a mean only. `parts`: the places of causes that hide one another. `unread`:
    true of a rank or host that is slow beside other stages, where no other rank of its stages was read. `undivided`:
    the ranks run each block together, and nothing recorded tells which of them is slow."""

    ratio: Ratio | None
    late_ns: MeanNs | None
    gain_ns: MeanNs | None
    gain: Share | None
    even_ns: MeanNs | None
    band: Share | None
    sentence: bool
    run: int | None
    step: int | None
    parts: list[str] | None
    unread: bool | None
    undivided: bool | None


class LevelRow(Struct):
    """The step with one more thing as it was measured; the time that this adds, and its share of the step. The
    additions sum up to the measured step."""

    level: str
    step_ns: MeanNs
    adds_ns: MeanNs
    share: float


class TrustDocument(Struct):
    """How far gains can be believed: the step with ordinary delays and the late starts of `causes`, by the measured
    one; the share of the work that began before its input was there; that of the time in which ranks wait for what was
    not recorded; what ranks lack that others have. `gains`: whether they are given."""

    replayed_by_measured: Ratio
    overlap: Share
    unknown_waits: Share
    lacking: list[str]
    gains: bool


class DeviationRow(Struct):
    """The first block of a rank that stands elsewhere than in the recognised schedule."""

    run: int | None
    step: int | None
    rank: int
    stage: int
    position: int
    expected: str | None
    found: str | None


class Schedule(Struct):
    """The schedule that the order of the blocks follows or comes closest to. `distance`: the share of blocks that are
    elsewhere; `runner_up`: the next best and its distance; `twins`: schedules of the same order."""

    name: str | None
    certainty: Literal["exact", "likely", "unknown"]
    stages: int | None
    microbatches: int | None
    chunks: int | None
    distance: Share
    runner_up: tuple[str, Share] | None
    twins: list[str]
    deviations: list[DeviationRow]


class PathPart(Struct):
    """A part of a step's longest chain: `kind` of block, or wire, collective, delay, overlap; `of`: what is delayed
    (`pause` before the first block of a rank), or goes over the wire."""

    kind: str
    stage: int | None
    from_stage: int | None
    ns: Ns
    of: str | None


class PathMeanRow(Struct):
    """A part of the longest chain of a mean step: `part` (work, wire, collective, delay, pause, overlap), the `kind` of
    block; its share of the chain."""

    part: str
    kind: str
    stage: int | None
    from_stage: int | None
    step_ns: MeanNs
    share: float


class CriticalPath(Struct):
    """The longest chain of a step; the parts add up to its length."""

    run: int | None
    step: int | None
    length_ns: Ns
    parts: list[PathPart]


class LinkRow(Struct):
    """A link's transfers: means of the time in which only the receiver, only the sender, or both were there."""

    src_rank: int
    dst_rank: int
    src_stage: int | None
    dst_stage: int | None
    direction: str | None
    transfers: int
    sender_late_ns: MeanNs | None
    receiver_late_ns: MeanNs | None
    wire_ns: MeanNs | None
    median_wire_ns: MeanNs | None


class ClosedForm(Struct):
    """The published formula of the idle time per rank, and its value."""

    formula: str
    idle_ns: MeanNs


class ChangeRow(Struct):
    """The model's prediction for a change; `in_flight`: micro-batches whose activations the worst stage holds at once;
    `band`: in 9 of 10 cases the share of the pipeline time that is really saved is this near to `saved`."""

    change: str
    pipeline_ns: MeanNs
    saved: float
    bubble: Share | None
    in_flight: float
    band: Share


class SlowdownPart(Struct):
    """How many times slower a step is with this `part` alone as it was, and all else ideal: a type of operation (its
    `name`), a replica, a stage or a rank."""

    part: Literal["type", "replica", "stage", "rank"]
    name: str
    rank: int | None
    stage: int | None
    replica: int | None
    slowdown: Ratio


class SlowdownStep(Struct):
    """The slowdown of a step."""

    run: int | None
    step: int | None
    slowdown: Ratio


class SlowdownDocument(Struct):
    """What stragglers cost (arXiv 2505.05713). `S`: how many times slower a step is than with everything ideal;
    `M_S`, `M_W`: the share of the lost time that is won back with the last stage, or the slowest 3 % of the ranks,
    ideal; null where no time is lost."""

    S: Ratio
    parts: list[SlowdownPart]
    M_S: float | None
    M_W: float | None
    steps: list[SlowdownStep]


class FiguresDocument(Struct):
    """Further figures that `compare` needs of this run: see `RunFigures`."""

    traits: dict[str, str | int]
    whole: list[dict[str, Any]]
    blocks: list[dict[str, Any]]


class ReportDocument(Document, tag="report"):
    """`trace-export report --json`: how much bubble, where, and why. `causes`, `levels` and `trust` are those of the
    whole run, `idle` and what has steps those of the selection. `clocks` says how sure waits across hosts are.
    `slowdown`: the numbers of the heat map; null where it was not asked for (`--format svg` or `png`)."""

    hosts: list[str]
    started_ns: Time | None
    verdict: list[SentenceRow]
    definitions: str
    causes: list[CauseRow]
    levels: list[LevelRow]
    trust: TrustDocument
    idle: list[IdleRow]
    steps: list[StepRow]
    ranks: list[RankRow]
    stages: list[StageRow]
    stage_means: list[StageMeanRow]
    critical_path: list[CriticalPath]
    path_means: list[PathMeanRow]
    links: list[LinkRow]
    schedule: Schedule
    closed_form: ClosedForm | None
    what_if: list[ChangeRow]
    slowdown: SlowdownDocument | None
    figures: FiguresDocument
    clocks: str
    notes: list[NoteRow]


def report_document(report: Report) -> ReportDocument:
    """The document of `report`."""
    theory = report.theory
    return from_attributes(
        ReportDocument,
        report,
        definitions=DEFINITIONS,
        levels=report.explanation.levels,
        trust=report.explanation.trust,
        ranks=_ranks(report.ranks),
        critical_path=_path(report),
        schedule=_schedule(theory),
        closed_form=theory.closed_form,
        what_if=theory.changes,
        slowdown=report.slowdown and slowdown_document(report.slowdown),
        clocks=report.clocks.removeprefix("; "),
    )


def slowdown_document(slowdown: Slowdown) -> SlowdownDocument:
    """A part of the document; it also answers a program that asks for it alone."""
    names = {"S": slowdown.total, "M_S": slowdown.last_stage, "M_W": slowdown.slowest_ranks}
    return from_attributes(SlowdownDocument, slowdown, **names)


def _ranks(ranks: pl.DataFrame) -> pl.DataFrame:
    length = pl.col("step_end_ns") - pl.col("step_start_ns")
    bubble = pl.when(length > 0).then(pl.col("global_ns") / length)
    return ranks.with_columns(pipeline_ns=length, bubble=bubble)


def _path(report: Report) -> list[CriticalPath]:
    """The path of each step, its parts added up by kind and stage, the longest first."""
    part = pl.col("part").replace("pause", "delay")
    of = pl.when(pl.col("part") == "pause").then(pl.lit("pause")).when(pl.col("part") != "work").then("kind")
    named = report.path.select(
        *STEP_KEY, "stage", "from_stage", "ns", kind=pl.when(part == "work").then("kind").otherwise(part), of=of
    )
    key = [*STEP_KEY, "kind", "stage", "from_stage", "of"]
    sums = named.group_by(key, maintain_order=True).agg(pl.col("ns").sum()).filter(pl.col("ns") != 0)
    order = sums.sort(*STEP_KEY, "ns", descending=[False, False, True])
    parts = order.partition_by(STEP_KEY, as_dict=True, include_key=False, maintain_order=True)
    return [CriticalPath(run, step, int(each["ns"].sum()), rows(each, PathPart)) for (run, step), each in parts.items()]


def _schedule(theory: Theory) -> Schedule:
    recognition, plan = theory.recognition, theory.recognition.plan
    return from_attributes(
        Schedule,
        recognition,
        name=plan and plan.name,
        stages=plan and plan.stages,
        microbatches=plan and plan.microbatches,
        chunks=plan and plan.chunks,
        deviations=theory.deviations,
    )
