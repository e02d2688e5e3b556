"""The JSON document of a comparison."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Literal, TypedDict, cast

from trace_export.documents import VERSION, MeanNs, SentenceRow, Version, rows

if TYPE_CHECKING:
    from trace_export.analysis.compare import Comparison


class GateDocument(TypedDict):
    """Whether B is worse than A by more than was allowed: the change of the mean over the steps, what it exceeds with
    99 % confidence (`at_least`), and from how many steps of A and B. docs/slowdown.md explains it."""

    on: str
    limit: float
    change: float
    at_least: float
    steps: tuple[int, int]
    failed: bool
    names: tuple[str, str]


class WholeRow(TypedDict):
    """A figure of both runs: nanoseconds, or for a bubble a share (then `change` is null)."""

    what: str
    a: float | None
    b: float | None
    difference: float | None
    change: float | None


class BlockRow(TypedDict):
    """A kind of block on a stage: how many of them A and B have, and their median lengths. `change` is b / a - 1."""

    stage: int | None
    kind: str | None
    chunk: int | None
    a_blocks: int | None
    b_blocks: int | None
    a_ns: MeanNs | None
    b_ns: MeanNs | None
    difference: MeanNs | None
    change: float | None


class CompareDocument(TypedDict):
    """`trace-export compare A B --format json`: what differs between two runs."""

    document: Literal["compare"]
    version: Version
    names: tuple[str, str]
    gate: GateDocument | None
    verdict: list[SentenceRow]
    whole: list[WholeRow]
    blocks: list[BlockRow]


def compare_document(comparison: Comparison) -> CompareDocument:
    """The document of `comparison`."""
    gate = comparison.gate
    return {
        "document": "compare",
        "version": VERSION,
        "names": comparison.names,
        "gate": None if gate is None else cast(GateDocument, asdict(gate)),
        "verdict": [cast(SentenceRow, asdict(sentence)) for sentence in comparison.verdict],
        "whole": rows(comparison.whole, WholeRow),
        "blocks": rows(comparison.blocks, BlockRow),
    }
