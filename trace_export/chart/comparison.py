"""Another run, drawn under this one: its tracks below those of the same stage, every step from the same time on."""

from __future__ import annotations

from dataclasses import replace

import polars as pl

from trace_export.chart.block_names import block_name, has_chunks
from trace_export.chart.layout import Overlay
from trace_export.chart.size import drawn_ranks
from trace_export.model import COLLECTIVES, COUNTERS, MESSAGES, P2P, SEGMENT, SPANS, STEP_KEY, Profile, empty

OTHER = "of_run"
"""The argument of a slice that is another run's: the name of that run."""


def paired(a: Profile, b: Profile) -> tuple[Profile, Profile]:
    """Both runs with only their blocks, moved so that the first steps of both start together, the second ones, and so
    on; blocks of no step are left out where there are steps. B's steps have the numbers of A's.

    A pair of steps has the time of the longer one up to its next step, so that no step overlaps with the next.
    """
    windows = [_windows(a), _windows(b)]
    pairs = windows[0].join(windows[1], on="pair", how="full", coalesce=True, suffix="_b").sort("pair")
    length = pl.max_horizontal("length_ns", "length_ns_b")
    begin = pl.lit(windows[0]["start_ns"].min() or 0) + length.cum_sum().shift(fill_value=0)
    pairs = pairs.with_columns(begin_ns=begin).with_columns(
        move_ns=pl.col("begin_ns") - pl.col("start_ns"), move_ns_b=pl.col("begin_ns") - pl.col("start_ns_b")
    )
    return _moved(a, pairs.select(*STEP_KEY, "move_ns")), _renumbered(b, pairs)


def _windows(profile: Profile) -> pl.DataFrame:
    """pair (0, 1, …), run, step, start_ns, length_ns (to the next step, or to the end) of each step in time order."""
    spans = profile.spans
    if spans["step"].null_count() < spans.height:
        spans = spans.filter(pl.col("step").is_not_null())
    following = pl.col("start_ns").shift(-1).over(SEGMENT) - pl.col("start_ns")
    return (
        spans.group_by(STEP_KEY)
        .agg(pl.col("window").first(), pl.col("start_ns").min(), pl.col("end_ns").max())
        .sort("start_ns", *STEP_KEY)
        .select(
            *STEP_KEY, "start_ns", pair=pl.int_range(pl.len()),
            length_ns=pl.max_horizontal(pl.col("end_ns") - pl.col("start_ns"), following),
        )
    )  # fmt: skip


def _moved(profile: Profile, moves: pl.DataFrame) -> Profile:
    spans = profile.spans.join(moves.drop_nulls("move_ns"), on=STEP_KEY, nulls_equal=True, maintain_order="left")
    spans = spans.with_columns(pl.col("start_ns", "end_ns") + pl.col("move_ns")).drop("move_ns")
    return replace(
        profile, spans=spans, evaluations=empty(SPANS), p2p=empty(P2P), messages=empty(MESSAGES),
        collectives=empty(COLLECTIVES), counters=empty(COUNTERS),
    )  # fmt: skip


def _renumbered(b: Profile, pairs: pl.DataFrame) -> Profile:
    """`b` moved, with A's numbers of the steps, and with its own where A has no such step."""
    moves = pairs.select(run="run_b", step="step_b", move_ns="move_ns_b")
    extra = pl.col("start_ns").is_null()
    to = [pl.when(extra).then(f"{c}_b").otherwise(c).alias(f"to_{c}") for c in STEP_KEY]
    numbers = pairs.filter(pl.col("start_ns_b").is_not_null()).select(*to, run="run_b", step="step_b")
    moved = _moved(b, moves)
    spans, steps = (
        table.join(numbers, on=STEP_KEY, nulls_equal=True, maintain_order="left")
        .with_columns(run="to_run", step="to_step").select(table.columns)
        for table in (moved.spans, moved.steps)
    )  # fmt: skip
    return replace(moved, spans=spans, steps=steps)


def overlay_of(other: Profile, name: str) -> Overlay:
    """The blocks of `other` (from `paired`) on tracks called `stage 0 · rank 0 (name)`, also of stages that only it
    has; one rank stands for each stage, the first."""
    drawn = other.ranks.filter(pl.col("rank").is_in(drawn_ranks(other, "stage")))
    slices = (
        other.spans.drop("id")
        .join(drawn.select("rank", "stage", "host"), on="rank", how="inner", maintain_order="left")
        .with_columns(block_name(has_chunks(other.spans)), category=pl.lit("block"), of_run=pl.lit(name))
    )
    return Overlay(f"stage {{}} · rank {{rank}} ({_literal(name)})", slices, complete=True)


def _literal(text: str) -> str:
    """A text for `str.format` to leave as it is."""
    return text.replace("{", "{{").replace("}", "}}")
