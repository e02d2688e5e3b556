"""The JSON document of a comparison."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from trace_export.analysis.gate import Gate
from trace_export.analysis.report_document import CausePlace
from trace_export.documents import Document, MeanNs, SentenceRow, from_attributes

if TYPE_CHECKING:
    from trace_export.analysis.compare import Comparison


class WholeRow(Struct):
    """A figure of both runs: nanoseconds, or for a bubble a share (then `change` is null)."""

    what: str
    a: float | None
    b: float | None
    difference: float | None
    change: float | None


class LevelDifference(Struct):
    """What a level adds to a step of A and of B (0: it has none), see `levels` of the report. The differences of all
    levels sum up to that of the steps."""

    level: str
    a_ns: MeanNs
    b_ns: MeanNs
    difference: MeanNs


class CauseDifference(CausePlace):
    """A cause that A or B has, or both at the same place: `in_a`, `in_b`; the columns of `causes` of the report for
    each, null where it does not have it. `difference`: the gain in B less that in A, where a run without the cause has
    0; null where one of the runs gives no gains."""

    parts: list[str] | None
    in_a: bool
    in_b: bool
    a_ratio: float | None
    b_ratio: float | None
    a_late_ns: MeanNs | None
    b_late_ns: MeanNs | None
    a_gain_ns: MeanNs | None
    b_gain_ns: MeanNs | None
    a_gain: float | None
    b_gain: float | None
    a_even_ns: MeanNs | None
    b_even_ns: MeanNs | None
    a_band: float | None
    b_band: float | None
    difference: MeanNs | None


class BlockRow(Struct):
    """A kind of block on a stage: how many of them A and B have, their mean lengths, and the slowest rank of each with
    its mean. `change` is b / a - 1."""

    stage: int | None
    kind: str | None
    chunk: int | None
    a_blocks: int | None
    b_blocks: int | None
    a_ns: MeanNs | None
    b_ns: MeanNs | None
    difference: MeanNs | None
    change: float | None
    a_slowest: int | None
    b_slowest: int | None
    a_slowest_ns: MeanNs | None
    b_slowest_ns: MeanNs | None


class CompareDocument(Document, tag="compare"):
    """`trace-export compare A B --format json`: what differs between two runs. `unlike`: what makes them incomparable,
    such as "schedule: 1F1B and ZB-H1"; blocks that are not alike have no row."""

    names: tuple[str, str]
    gate: Gate | None
    verdict: list[SentenceRow]
    unlike: list[str]
    whole: list[WholeRow]
    levels: list[LevelDifference]
    causes: list[CauseDifference]
    blocks: list[BlockRow]


def compare_document(comparison: Comparison) -> CompareDocument:
    """The document of `comparison`."""
    return from_attributes(CompareDocument, comparison)
