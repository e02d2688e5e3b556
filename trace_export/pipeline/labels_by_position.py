"""Positions in an expected order, counted from the ends of a step if the capture surely holds them."""

from __future__ import annotations

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
    its start is missing too is not assumed, unless it has less than half of the step.
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
        pl.col("start_ns").min(), pl.col("end_ns").max(), pl.col("replica").first(), pl.len()
    )
    begin, end = pl.col("start_ns"), pl.col("end_ns")
    marked = steps.join(outside, on="rank", how="left").with_columns(
        starts=(begin > begin.min().over("rank", "run")) | (pl.col("first") < begin).fill_null(False),
        ends=(end < end.max().over("rank", "run")) | (pl.col("last") >= end).fill_null(False),
    )
    step = "replica", "run", "step"
    half = 2 * pl.col("len") >= pl.col("len").max().over(step)
    cut = ~pl.col("ends") & pl.col("ends").any().over(step) & half
    return marked.select(*RANK_STEP_KEY, "ends", starts=pl.col("starts") | cut)


def positions(work: pl.DataFrame, ends: pl.DataFrame, plan: Plan) -> pl.DataFrame:
    """row, position: the positions of the blocks of `work` in the words of `plan`, as far as they are certain; `ends`
    as `whole_ends` gives it."""
    steps = (
        work.group_by(RANK_STEP_KEY, maintain_order=True)
        .agg(pl.col("letter").str.join("").alias("word"), pl.col("stage").first())
        .join(ends, on=RANK_STEP_KEY, how="left", nulls_equal=True, maintain_order="left")
    )
    expected = {stage: "" if stage is None else word(plan, stage) for stage in steps["stage"].unique()}
    if all(measured == expected[stage] for stage, measured in steps.select("stage", "word").iter_rows()):
        return work.select("row", "position")
    pieces_of = cache(certain_pieces)  # most steps have the same words
    pieces = [
        (rank, run, step, piece.begin, piece.end, piece.offset)
        for rank, run, step, measured, stage, starts, ends in steps.select(
            *RANK_STEP_KEY, "word", "stage", "starts", "ends"
        ).iter_rows()
        for piece in pieces_of(measured, expected[stage], starts=bool(starts), ends=bool(ends))
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
    """Letters begin … end-1 of a word, which are `offset` positions further right in the expected word."""

    begin: int
    end: int
    offset: int


def certain_pieces(measured: str, expected: str, *, starts: bool, ends: bool) -> list[_Piece]:
    """The parts of `measured` whose position in `expected` is certain.

    A window of the expected word fits if it occurs only once, or at the end that the capture surely holds. If a word is
    not such a window, a block is missing inside; then a letter is certain unless it may be the missing block of its
    kind next to it: between two sure ends the letters with only one possible position, else the letters from a sure end
    up to the first difference.

    Example: F F B F F B B of F F B F B F B B is F0 F1 B0 F2 F3 B2 B3; F B F B F B B is F? B0 F2 B1 F3 B2 B3.
    """
    size, missing = len(measured), len(expected) - len(measured)
    if measured == expected:
        return [_Piece(0, size, 0)]
    if starts and ends and (first := _first_places(measured, expected)) is not None:
        last = _first_places(measured[::-1], expected[::-1]) or []
        return [
            _Piece(n, n + 1, a - n)
            for n, (a, b) in enumerate(zip(first, reversed(last), strict=True))
            if a == len(expected) - 1 - b
        ]
    if fits := windows(measured, expected, starts=starts, ends=ends):
        return [_Piece(0, size, fits[0])] if len(fits) == 1 else []
    head = _alike(measured, expected) if starts else 0
    tail = min(_alike(measured[::-1], expected[::-1]), size - head) if ends else 0
    return [_Piece(0, head, 0), _Piece(size - tail, size, missing)]


def _first_places(measured: str, expected: str) -> list[int] | None:
    """The first position in `expected` that each letter of `measured` may have, in their order; None if there is
    none."""
    positions, at = [], -1
    for letter in measured:
        at = expected.find(letter, at + 1)
        if at < 0:
            return None
        positions.append(at)
    return positions


def windows(measured: str, expected: str, *, starts: bool, ends: bool) -> list[int]:
    """The positions in `expected` at which the whole word `measured` occurs; only at the start or end if that is surely
    there."""
    missing = len(expected) - len(measured)
    return [
        at
        for at in range(missing + 1)
        if expected.startswith(measured, at) and (at == 0 or not starts) and (at == missing or not ends)
    ]


def _alike(measured: str, expected: str) -> int:
    """How many letters two words have in common from their start, without letters next to the first difference that may
    be the one that is missing there."""
    common = next((n for n, (x, y) in enumerate(zip(measured, expected, strict=False)) if x != y), None)
    return min(len(measured), len(expected)) if common is None else len(measured[:common].rstrip(expected[common]))
