"""The JSON document of an overview, without the tables that have a row for each rank: those are Parquet files."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Literal, TypedDict, cast

from trace_export.documents import VERSION, MeanNs, NoteRow, Ratio, Share, Version, rows
from trace_export.scale import words

if TYPE_CHECKING:
    from trace_export.analysis.what_if import Slowdown
    from trace_export.scale.build import Overview


class StepRow(TypedDict):
    """A step: medians over the replicas, the longest pipeline time, and the mean idle share."""

    run: int | None
    step: int | None
    ranks: int
    whole: bool | None
    pipeline_ns: MeanNs | None
    longest_ns: MeanNs | None
    step_ns: MeanNs | None
    bubble: Share | None


class BandRow(TypedDict):
    """A stage: quantiles over its ranks of their mean busy time in a step, the rank with the longest, and the mean idle
    share."""

    stage: int | None
    ranks: int
    p5_ns: MeanNs | None
    p50_ns: MeanNs | None
    p95_ns: MeanNs | None
    max_ns: MeanNs | None
    max_rank: int | None
    idle: Share | None


class ExceptionRow(TypedDict):
    """What differs from its peers. `value` and `usual`: nanoseconds; for clocks ns/ns; for settings micro-batches in a
    step, or 1 and 0 where the order of blocks is another one."""

    kind: Literal["settings", "slow-host", "slow-replica", "slow-rank", "slow-link", "drifting-clock"]
    replica: int | None
    rank: int | None
    to_rank: int | None
    stage: int | None
    host: str | None
    what: str | None
    value: float | None
    usual: float | None
    ratio: Ratio | None


class ReplicaRow(TypedDict):
    """A data-parallel replica. Those with one `cohort` behave alike; `speed`: its work on a micro-batch by the usual
    one; `order`: a hash of the order of its blocks."""

    replica: int
    cohort: int | None
    microbatches: float | None
    order: int | None
    speed: Ratio | None
    ranks: int
    schedule: str | None
    certainty: str | None


class FailureRow(TypedDict):
    """Sources that could not be read: how many for one reason, and the first."""

    what: str
    first: str
    count: int


class StragglerCost(TypedDict):
    """How many times longer the pipelines take than without stragglers (`S`), by stage (the key), and the measured time
    by the simulated; to the last block, without collectives and optimizers. `level`: what was recorded, `messages` or
    `blocks` only. That of each worker is in a Parquet table."""

    S: Ratio
    fidelity: Ratio
    level: str
    by_stage: dict[str, float]
    replicas: int
    steps: int


class OverviewDocument(TypedDict):
    """`trace-export overview --json`: a run of any number of ranks. `representative`: the replica that is most like the
    others."""

    document: Literal["overview"]
    version: Version
    ranks: int
    hosts: int
    sources: int
    unread: int
    missing_ranks: int
    slowdown: StragglerCost | None
    representative: int | None
    verdict: list[str]
    steps: list[StepRow]
    bands: list[BandRow]
    exceptions: list[ExceptionRow]
    replicas: list[ReplicaRow]
    failures: list[FailureRow]
    notes: list[NoteRow]


def overview_document(found: Overview) -> OverviewDocument:
    """The document of `found`."""
    return {
        "document": "overview",
        "version": VERSION,
        "ranks": found.ranks["rank"].n_unique(),
        "hosts": found.hosts.height,
        "sources": found.sources,
        "unread": found.unread,
        "missing_ranks": found.missing_ranks,
        "slowdown": None if found.slowdown is None else _cost(found.slowdown),
        "representative": found.representative,
        "verdict": words.sentences(found),
        "steps": rows(found.steps, StepRow),
        "bands": rows(found.bands, BandRow),
        "exceptions": rows(found.exceptions, ExceptionRow),
        "replicas": rows(found.replicas, ReplicaRow),
        "failures": rows(found.failures, FailureRow),
        "notes": [cast(NoteRow, asdict(note)) for note in found.notes],
    }


def _cost(found: Slowdown) -> StragglerCost:
    return {
        "S": found.total,
        "fidelity": found.fidelity,
        "level": found.level,
        "by_stage": {str(stage): found.part(times) for stage, times in found.by_stage.items()},
        "replicas": len(found.replicas),
        "steps": len(found.steps),
    }
