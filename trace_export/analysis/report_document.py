"""The JSON document of a report."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Literal, TypedDict, cast

from trace_export.analysis.report_tables import DEFINITIONS
from trace_export.documents import MeanNs, NoteRow, Ns, Ratio, SentenceRow, Share, Time, Version, rows

if TYPE_CHECKING:
    from trace_export.analysis.report import Report
    from trace_export.analysis.theory import Theory


class StepRow(TypedDict):
    """A step. `pipeline_ns` is from its first block to its last of forward, backward or weight gradient; `step_ns` to
    the first block of the next step. `whole`: all its blocks were recorded on all ranks. `window`: the number of the
    recording within its run, null where there is one."""

    run: int | None
    window: int | None
    step: int | None
    start_ns: Time
    end_ns: Time
    ranks: int
    whole: bool | None
    bubble: Share | None
    bubble_own: Share | None
    pipeline_ns: Ns
    step_ns: Ns | None


class StageRow(TypedDict):
    """A stage in a step, means over its ranks: busy and idle time, and the idle time by cause."""

    run: int | None
    step: int | None
    stage: int | None
    ranks: int
    busy_ns: MeanNs
    global_ns: MeanNs
    own_ns: MeanNs
    warm_up_ns: MeanNs
    forward_ns: MeanNs
    backward_ns: MeanNs
    transfer_ns: MeanNs
    late_ns: MeanNs
    unknown_ns: MeanNs
    optimizer_ns: MeanNs
    cool_down_ns: MeanNs


class CauseRow(TypedDict):
    """A cause of idle time: the mean per rank and step, and its share of the step."""

    cause: str
    idle_ns: MeanNs
    share: Share | None


class SlowStageRow(TypedDict):
    """A stage's work per micro-batch beside the median of all stages."""

    stage: int
    ranks: int
    microbatch_ns: MeanNs | None
    ratio: Ratio | None
    slow: bool


class SlowRankRow(TypedDict):
    """A rank's blocks beside those of the other ranks of its stage."""

    rank: int
    stage: int
    kind: str
    chunk: int
    blocks: int
    median_ns: MeanNs
    peers_ns: MeanNs
    ratio: Ratio | None
    slow: bool | None


class SlowLinkRow(TypedDict):
    """A link's median wait for data that was made already, beside that of the links between the same stages."""

    src_rank: int
    dst_rank: int
    direction: str | None
    transfers: int
    median_ns: MeanNs
    peers_ns: MeanNs | None
    ratio: Ratio | None
    gbit_s: float | None
    slow: bool | None


class DeviationRow(TypedDict):
    """The first block of a rank that stands elsewhere than in the recognised schedule."""

    run: int | None
    step: int | None
    rank: int
    stage: int
    position: int
    expected: str | None
    found: str | None


class Schedule(TypedDict):
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


class WorkerSlowdown(TypedDict):
    """The slowdown of a stage's ranks in a data-parallel replica."""

    dp: int | None
    stage: int
    S: Ratio | None


class Worker(TypedDict):
    """A stage's ranks in a data-parallel replica."""

    dp: int | None
    stage: int


class StepLeftOut(TypedDict):
    """A step that is not part of the slowdown, and why."""

    run: int | None
    step: int | None
    reason: str


class CollectiveLeftOut(TypedDict):
    """Recorded parts of a collective that are not part of the slowdown, and why."""

    op: str
    parts: int
    reason: str


class LaunchSlowdown(TypedDict):
    """What the delays between operations cost, by where they lie."""

    by_type: dict[str, Ratio | None]
    by_dp: dict[str, Ratio | None]
    by_stage: dict[str, Ratio | None]


class SlowdownDocument(TypedDict):
    """The metrics of arXiv 2505.05713 by their names there; docs/slowdown.md explains them. Keys of `steps` are step
    numbers, with the run before them where there are several. `level`: what the operations are made of, `operations`,
    `messages` or `blocks`. `not_recorded`: what a source that records every
    operation left out."""

    S: Ratio
    fidelity: Ratio | None
    level: str
    by_type: dict[str, Ratio | None]
    by_dp: dict[str, Ratio | None]
    by_stage: dict[str, Ratio | None]
    by_worker: list[WorkerSlowdown]
    M_W: float | None
    M_S: float | None
    slowest_workers: list[Worker]
    steps: dict[str, Ratio | None]
    fidelity_steps: dict[str, Ratio | None]
    launch: LaunchSlowdown | None
    left_out: list[StepLeftOut]
    collectives_left_out: list[CollectiveLeftOut]
    not_recorded: list[str]


class PathPart(TypedDict):
    """What a step's longest chain spends: `kind` of block, or wire, launch, collective; `of` the kind of block that
    waits."""

    kind: str
    stage: int | None
    from_stage: int | None
    ns: Ns
    of: str | None


class CriticalPath(TypedDict):
    """The longest chain of a step; the parts add up to its length."""

    run: int | None
    step: int | None
    length_ns: Ns
    parts: list[PathPart]


class ShortenRow(TypedDict):
    """A cause that a replay took away: what a step then takes less (`gain_ns`, and as a share `gain`)."""

    cause: str
    kind: Literal["worker", "stage", "link", "collective", "host"]
    dp: int | None
    stage: int | None
    rank: int | None
    to_stage: int | None
    to_rank: int | None
    direction: str | None
    ratio: Ratio | None
    excess_ns: MeanNs
    step_ns: MeanNs
    gain_ns: MeanNs
    gain: Share | None


class LinkRow(TypedDict):
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
    peers_ns: MeanNs | None
    ratio: Ratio | None
    slow: bool | None


class LevelRow(TypedDict):
    """The pipeline time of the model with the durations of `level`."""

    level: str
    pipeline_ns: MeanNs
    bubble: Share | None


class ClosedForm(TypedDict):
    """The published formula of the idle time per rank, and its value."""

    formula: str
    idle_ns: MeanNs


class ChangeRow(TypedDict):
    """What the model says of a change; `in_flight`: micro-batches whose activations the worst stage holds at once."""

    change: str
    pipeline_ns: MeanNs
    saved: float
    bubble: Share | None
    in_flight: float


class ReportDocument(TypedDict):
    """`trace-export report --json`: how much bubble, where, and why. `slowdown` is null where `slowdown_reason` says
    why; `clocks` says how sure waits across hosts are."""

    document: Literal["report"]
    version: Version
    hosts: list[str]
    started_ns: Time | None
    verdict: list[SentenceRow]
    definitions: str
    steps: list[StepRow]
    stages: list[StageRow]
    causes: list[CauseRow]
    slow_stages: list[SlowStageRow]
    slow_ranks: list[SlowRankRow]
    slow_links: list[SlowLinkRow]
    schedule: Schedule
    slowdown: SlowdownDocument | None
    slowdown_reason: str | None
    critical_path: list[CriticalPath]
    shorten_first: list[ShortenRow]
    links: list[LinkRow]
    theory: list[LevelRow]
    closed_form: ClosedForm | None
    what_if: list[ChangeRow]
    clocks: str
    notes: list[NoteRow]


def report_document(report: Report) -> ReportDocument:
    """The document of `report`."""
    theory, time, slowdown = report.theory, report.time, report.time.slowdown
    form = theory.closed_form
    return {
        "document": "report",
        "version": 1,
        "hosts": list(report.hosts),
        "started_ns": report.started_ns,
        "verdict": [cast(SentenceRow, asdict(sentence)) for sentence in report.verdict],
        "definitions": DEFINITIONS,
        "steps": rows(report.steps, StepRow),
        "stages": rows(report.stages, StageRow),
        "causes": rows(report.causes, CauseRow),
        "slow_stages": rows(report.slow_stages, SlowStageRow),
        "slow_ranks": rows(report.slow_ranks, SlowRankRow),
        "slow_links": rows(report.slow_links, SlowLinkRow),
        "schedule": _schedule(theory),
        "slowdown": None if slowdown is None else cast(SlowdownDocument, slowdown.document()),
        "slowdown_reason": time.reason or None,
        "critical_path": cast(list[CriticalPath], time.path.document()),
        "shorten_first": rows(time.causes, ShortenRow),
        "links": rows(time.links, LinkRow),
        "theory": rows(theory.levels, LevelRow),
        "closed_form": None if form is None else {"formula": form.formula, "idle_ns": form.idle_ns},
        "what_if": rows(theory.changes, ChangeRow),
        "clocks": report.clocks.removeprefix("; "),
        "notes": [cast(NoteRow, asdict(note)) for note in report.notes],
    }


def _schedule(theory: Theory) -> Schedule:
    found, plan = theory.recognition, theory.recognition.plan
    return {
        "name": plan.name if plan else None,
        "certainty": found.certainty,
        "stages": plan.stages if plan else None,
        "microbatches": plan.microbatches if plan else None,
        "chunks": plan.chunks if plan else None,
        "distance": found.distance,
        "runner_up": found.runner_up,
        "twins": list(found.twins),
        "deviations": rows(theory.deviations, DeviationRow),
    }
