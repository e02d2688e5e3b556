"""Rows of named spans → the tables of a profile: blocks, transfers, collectives."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

import polars as pl

from trace_export.errors import path_text
from trace_export.model import COLLECTIVES, HOSTS, INT, P2P, RANKS, SPANS, WORK_KINDS, Declared, Profile, conform
from trace_export.schedules.operation_types import BLOCKS, COLLECTIVE, TRANSFERS
from trace_export.selection import Numbers
from trace_export.sources.shared.restarts import runs_of
from trace_export.sources.shared.timestamps import ZERO_NS
from trace_export.sources.source import Source

KINDS = {
    **{name.replace("-", "_"): kind for name, kind in BLOCKS.items()},
    **{name: kind for kind, names in {
        "F": ("f", "fwd", "forward", "forward_step", "forward_pass", "fprop"),
        "B": ("b", "bwd", "backward", "backward_step", "backward_pass", "bprop", "i", "bi", "backward_b",
              "backward_input", "bwd_input", "dgrad"),
        "W": ("w", "wgrad", "weight", "backward_weight", "bwd_weight", "backward_w", "bw", "weight_gradient"),
        "FB": ("fb", "forward_backward", "overlap_f_b"),
        "OPT": ("opt", "optimizer", "optimizer_step", "step"),
    }.items() for name in names},
}  # fmt: skip
"""Possible names of a block, in lower case and with _ for each - and space, and its kind."""


MOST = 0.5
"""If more than this part of the ranks' steps begin before the previous step has ended, each step counts from its own
zero."""


def kind_of(column: str) -> pl.Expr:
    """The kind of block that a name means; null where it means none."""
    name = pl.col(column).str.to_lowercase().str.replace_all("[- ]", "_")
    return name.replace_strict(KINDS, default=None, return_dtype=pl.String)


def profile_of(
    rows: pl.DataFrame, source: Source, declared: Declared, *, host: str | None = None, epoch: str | None = None
) -> Profile:
    """The profile of `rows`: rank, kind, start_ns, end_ns, and as far as known step, stage, dp, microbatch, chunk,
    host, marker (the original name), op (the name of a transfer or collective of `schedules.operation_types`; null: a
    block). A negative stage, dp, microbatch or chunk means that there is none. `host`: of all rows, where they do not
    say; `epoch` as in `model.HOSTS`."""
    there = set(rows.columns)
    numbers = [pl.col(c) for c in ("stage", "dp", "microbatch", "chunk") if c in there]
    rows = rows.with_columns(
        *(pl.when(number >= 0).then(number) for number in numbers),
        host=pl.lit(host or source.host) if "host" not in there else pl.col("host").fill_null(host or source.host),
    )
    rows = rows.with_columns(run=runs_of(rows))
    ranks = rows.group_by("rank", maintain_order=True).agg(
        pl.col("host").first(), *(pl.col(c).drop_nulls().first() for c in ("stage", "dp") if c in there)
    ).sort("rank")  # fmt: skip
    ranks = ranks.with_columns(
        source=pl.lit(path_text(source.path)), kind=pl.lit(source.kind), rank_origin=pl.lit("recorded"),
    )  # fmt: skip
    if "stage" in there:
        origin = pl.when(pl.col("stage").is_not_null()).then(pl.lit("recorded"))
        ranks = ranks.with_columns(stage_origin=origin)
    hosts = ranks.select("host").unique(maintain_order=True).with_columns(
        machine=pl.int_range(pl.len(), dtype=INT) + source.machine, label="host", epoch=pl.lit(epoch, pl.String)
    )  # fmt: skip
    blocks = rows if "op" not in there else rows.filter(pl.col("op").is_null())
    others = rows.clear() if "op" not in there else rows.filter(pl.col("op").is_not_null())
    return Profile(
        hosts=conform(hosts, HOSTS),
        ranks=conform(ranks, RANKS),
        spans=conform(blocks.with_columns(origin=pl.lit("device")), SPANS),
        p2p=conform(_transfers(others), P2P),
        collectives=conform(_collectives(others), COLLECTIVES),
        declared=declared,
    )


def _transfers(others: pl.DataFrame) -> pl.DataFrame:
    if others.is_empty():
        return others
    meaning = pl.DataFrame(
        [(name, *both) for name, both in TRANSFERS.items()], schema=["op", "role", "direction"], orient="row"
    )
    return others.join(meaning, on="op", maintain_order="left")


def _collectives(others: pl.DataFrame) -> pl.DataFrame:
    if others.is_empty():
        return others
    scope = pl.col("op").replace_strict(COLLECTIVE, default=None, return_dtype=pl.String)
    return (
        others.filter(scope.is_not_null())
        .with_columns(group=group_of(scope, others.columns))
        .with_columns(sequence=pl.int_range(pl.len(), dtype=pl.Int64).over("rank", "op", "group", order_by="start_ns"))
    )


def group_of(scope: pl.Expr, columns: Collection[str]) -> pl.Expr:
    """Whose collective a row is (stage, dp, chunk, as far as there are such `columns`), by the scope of
    `operation_types.COLLECTIVE`: of a stage and chunk, of a replica, or of all; null where the number is unknown."""
    number = {name: pl.col(name) if name in columns else pl.lit(None, INT) for name in ("stage", "dp", "chunk")}
    chunk = number["chunk"].fill_null(0).clip(0).cast(pl.String).str.zfill(3)
    stage, replica = pl.format("stage {} chunk {}", number["stage"], chunk), pl.format("dp {}", number["dp"])
    return pl.when(scope == "stage").then(stage).when(scope == "replica").then(replica).otherwise(pl.lit("world"))


def one_after_another(rows: pl.DataFrame) -> pl.DataFrame:
    """`rows` (rank, kind, start_ns, end_ns), each step after the one before if each counts from its own zero.

    Then most ranks seem to work on several steps at once. On one clock a rank does not, though its receives for a step
    may begin before the one before has ended, and so do its blocks before those of other ranks.
    """
    if "step" not in rows.columns:
        return rows
    work = rows.with_columns(run=runs_of(rows)).filter(pl.col("op").is_null() & pl.col("kind").is_in(WORK_KINDS))
    steps = work.group_by("rank", "run", "step").agg(pl.col("start_ns").min(), pl.col("end_ns").max())
    begins = pl.col("start_ns") < pl.col("end_ns").shift(1).over("rank")
    overlap = steps.sort("rank", "start_ns").select((begins.mean() > MOST).fill_null(False)).item()
    if not overlap:
        return rows
    zeros = step_zeros(rows, rows.filter(pl.col("op").is_null()))
    moved = rows.join(zeros, on="step", how="left", nulls_equal=True, maintain_order="left")
    return moved.with_columns(pl.col("start_ns", "end_ns") + pl.col("zero_ns")).drop("zero_ns")


def step_zeros(rows: pl.DataFrame, blocks: pl.DataFrame) -> pl.DataFrame:
    """step, zero_ns: the zero of each step if each follows the previous one, in the order of their numbers.

    Between two steps lies more time than a step has before the first of its `blocks` or after the last, so that it is
    clear which step the other operations belong to.
    """
    first = blocks.group_by("step").agg(block=pl.col("start_ns").min(), ended=pl.col("end_ns").max())
    steps = rows.group_by("step").agg(first=pl.col("start_ns").min(), last=pl.col("end_ns").max()).sort("step")
    steps = steps.join(first, on="step", how="left", maintain_order="left")
    around = pl.max_horizontal(pl.col("block") - pl.col("first"), pl.col("last") - pl.col("ended"))
    gap = around.max().fill_null(0) + 1_000_000
    length = pl.col("last") - pl.col("first") + gap
    return steps.select("step", zero_ns=ZERO_NS + length.cum_sum() - length - pl.col("first"))


def of_ranks(profile: Profile, ranks: Numbers | None) -> Profile:
    """The profile with these ranks only; None: all."""
    if ranks is None:
        return profile
    wanted = ranks.holds("rank")
    spans, p2p, joint = (rows.filter(wanted) for rows in (profile.spans, profile.p2p, profile.collectives))
    return replace(profile, ranks=profile.ranks.filter(wanted), spans=spans, p2p=p2p, collectives=joint)
