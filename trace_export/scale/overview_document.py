"""The JSON document of an overview. It has the cells of the map as columns; other tables with a row for each rank are
Parquet files."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from msgspec import Struct

from trace_export.analysis.report_document import CauseRow, LevelRow, TrustDocument
from trace_export.documents import Document, MeanNs, NoteRow, Ns, Ratio, SentenceRow, Share, from_attributes
from trace_export.scale import words

if TYPE_CHECKING:
    from trace_export.scale.build import Overview


class StepRow(Struct):
    """A step: its pipeline time as a mean over the ranks, and the longest; the time to the next step; the bubble."""

    run: int | None
    step: int | None
    ranks: int
    whole: bool | None
    counts: bool | None
    pipeline_ns: MeanNs | None
    longest_ns: MeanNs | None
    step_ns: MeanNs | None
    bubble: Share | None


class BandRow(Struct):
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


class ExceptionRow(Struct):
    """Something that differs from its peers, whether or not it costs anything. `rank`, `host` and so on where it is
    one, `ranks` all of them; a link goes from `rank` to `to_rank`. `ratio`: the length of its blocks or transfers by
    that of its peers. `value` and `usual`: of clocks ns/ns; of settings micro-batches in a step, or 1 and 0 where the
    order of blocks is another one."""

    kind: Literal["settings", "slow-replica", "slow-stage", "slow-host", "slow-rank", "slow-link", "drifting-clock"]
    replica: int | None
    rank: int | None
    to_rank: int | None
    stage: int | None
    host: str | None
    ranks: list[int] | None
    what: str | None
    value: float | None
    usual: float | None
    ratio: Ratio | None


class ReplicaRow(Struct):
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


class Cells(Struct):
    """The cells of the map, a list for each column: a rank in a step. `busy`: its busy time by the median of its stage
    in that step; `idle`: its bubble; `waiting`: the part of it between its first block and its last; `pipeline_ns`:
    from its replica's first block to the last; `behind_ns`: how much later than the first replica its replica begins
    the step."""

    replica: list[int | None]
    stage: list[int | None]
    rank: list[int]
    run: list[int | None]
    step: list[int | None]
    busy: list[Ratio | None]
    idle: list[Share | None]
    waiting: list[Share | None]
    pipeline_ns: list[Ns]
    behind_ns: list[Ns]


class FailureRow(Struct):
    """Sources that could not be read for one reason: their number, and the first."""

    what: str
    first: str
    count: int


class OverviewDocument(Document, tag="overview"):
    """`trace-export overview --json`: a run of any number of ranks. `causes`, `levels` and `trust` as in `report`, of
    the replicas `explained`: of up to 1,024 ranks all. `representative`: the replica that is most like the others."""

    ranks: int
    hosts: int
    sources: int
    unread: int
    missing_ranks: int
    explained: list[int]
    representative: int | None
    verdict: list[SentenceRow]
    causes: list[CauseRow]
    levels: list[LevelRow]
    trust: TrustDocument
    steps: list[StepRow]
    bands: list[BandRow]
    exceptions: list[ExceptionRow]
    replicas: list[ReplicaRow]
    failures: list[FailureRow]
    notes: list[NoteRow]
    cells: Cells


def overview_document(overview: Overview) -> OverviewDocument:
    """The document of an overview."""
    return from_attributes(
        OverviewDocument,
        overview,
        ranks=overview.ranks["rank"].n_unique(),
        hosts=overview.hosts.height,
        verdict=words.sentences(overview),
        cells=Cells(**overview.cells.select(Cells.__struct_fields__).to_dict(as_series=False)),
    )
