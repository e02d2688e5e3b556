"""Positions in an expected order, known from the ends of a step that the capture holds whole."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

import polars as pl

from trace_export.model import INT, RANK_STEP_KEY, Plan, Profile
from trace_export.schedules.words import word


def whole_ends(profile: Profile, work: pl.DataFrame) -> pl.DataFrame:
    """For each step of each rank in `work` (rank, run, step): `starts` and `ends`, whether the capture surely holds its
    start and end.

    It does when the rank has something of the run before and after: another step, an optimizer block, or a collective
    of several stages. A rank that lacks the collective which others have after the step was truncated at the end; that
    its start is missing too is not assumed.
    """
    placed = profile.collectives.drop_nulls("group").join(profile.ranks.select("rank", "stage"), on="rank")
    across = placed.filter(pl.col("stage").n_unique().over("group") > 1).select("rank", "start_ns")
    optimizer = profile.spans.filter(pl.col("kind") == "OPT").select("rank", "start_ns")
    outside = (
        pl.concat([across, optimizer])
        .group_by("rank")
        .agg(first=pl.col("start_ns").min(), last=pl.col("start_ns").max())
    )
    steps = work.group_by(RANK_STEP_KEY).agg(
        pl.col("start_ns").min(), pl.col("end_ns").max(), pl.col("replica").first()
    )
    begin, end = pl.col("start_ns"), pl.col("end_ns")
    known = steps.join(outside, on="rank", how="left").with_columns(
        starts=(begin > begin.min().over("rank", "run")) | (pl.col("first") < begin).fill_null(False),
        ends=(end < end.max().over("rank", "run")) | (pl.col("last") >= end).fill_null(False),
    )
    others = pl.col("ends").any().over("replica", "run", "step")
    return known.select(*RANK_STEP_KEY, "ends", starts=pl.col("starts") | (~pl.col("ends") & others))


def positions(work: pl.DataFrame, ends: pl.DataFrame, plan: Plan) -> pl.DataFrame:
    """row, position: where the blocks of `work` stand in the words of `plan`, as far as that is certain; `ends` as
    `whole_ends` gives it."""
    steps = (
        work.group_by(RANK_STEP_KEY, maintain_order=True)
        .agg(pl.col("letter").str.join("").alias("word"), pl.col("stage").first())
        .join(ends, on=RANK_STEP_KEY, how="left", nulls_equal=True, maintain_order="left")
    )
    expected = {stage: "" if stage is None else word(plan, stage) for stage in steps["stage"].unique()}
    if all(found == expected[stage] for stage, found in steps.select("stage", "word").iter_rows()):
        return work.select("row", "position")
    pieces_of = cache(_pieces)  # most steps have the same words
    pieces = [
        (rank, run, step, piece.begin, piece.end, piece.offset)
        for rank, run, step, found, stage, starts, ends in steps.select(
            *RANK_STEP_KEY, "word", "stage", "starts", "ends"
        ).iter_rows()
        for piece in pieces_of(found, expected[stage], starts=bool(starts), ends=bool(ends))
    ]
    schema = {"rank": INT, "run": INT, "step": INT, "begin": INT, "end": INT, "offset": INT}
    table = pl.DataFrame(pieces, schema=schema, orient="row")
    at = pl.col("position")
    return (
        work.select("row", *RANK_STEP_KEY, "position")
        .join(table, on=RANK_STEP_KEY, nulls_equal=True)
        .filter((at >= pl.col("begin")) & (at < pl.col("end")))
        .select("row", (at + pl.col("offset")).alias("position"))
    )


@dataclass(frozen=True)
class _Piece:
    """Letters begin … end-1 of a word, which stand `offset` places further right in the expected word."""

    begin: int
    end: int
    offset: int


def _pieces(found: str, expected: str, *, starts: bool, ends: bool) -> list[_Piece]:
    """The parts of `found` whose place in `expected` is certain.

    A window of the expected word fits where it is found only once, or at the end that the capture surely holds. A word
    that is no window (a block is missing inside) is certain from a whole end up to the first difference.
    """
    size, missing = len(found), len(expected) - len(found)
    fits = list(_windows(found, expected))
    if found == expected:
        return [_Piece(0, size, 0)]
    if fits:
        if ends and not starts and missing in fits:
            return [_Piece(0, size, missing)]
        if starts and not ends and 0 in fits:
            return [_Piece(0, size, 0)]
        return [_Piece(0, size, fits[0])] if len(fits) == 1 else []
    head = _common(found, expected) if starts else 0
    tail = min(_common(found[::-1], expected[::-1]), size - head) if ends else 0
    return [_Piece(0, head, 0), _Piece(size - tail, size, missing)]


def _windows(found: str, expected: str) -> Iterator[int]:
    at = expected.find(found)
    while at >= 0:
        yield at
        at = expected.find(found, at + 1)


def _common(a: str, b: str) -> int:
    """How many letters two words have in common from their start on."""
    return next((n for n, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
