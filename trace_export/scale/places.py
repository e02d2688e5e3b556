"""The place of every rank in the run, its stage and its replica, before anything is interpreted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import polars as pl

from trace_export.errors import NothingToExportError, TraceExportError
from trace_export.model import INT, TEXT, Declared, Note, Profile, RankOrder, Schema
from trace_export.pipeline import stages_from_work
from trace_export.pipeline.rank_order import ORDERS, count, places, places_by_sizes
from trace_export.pipeline.replicas import guess_replicas
from trace_export.sources.merge import merge
from trace_export.sources.read import read
from trace_export.sources.source import ReadOptions, Source
from trace_export.sources.spans import host_table

OF_RANK: Schema = {"rank": INT, "stage": INT, "dp": INT, "tp": INT, "cp": INT}
PLACES: Schema = {"source": pl.UInt32(), **OF_RANK, "origin": TEXT}
"""A rank of a source (an index), and where it is; `origin` as `stage_origin` in `model.RANKS`. Ranks of one `dp` form a
replica: they exchange activations."""
SIZES = ("pp", "tp", "dp", "cp")
SAMPLE = 32
"""So many sources are read to find sizes that nobody gives: the first ones, and as many spread over all."""
REMEDY = "give --pp and --tp, and --dp where ranks are missing"


@dataclass(frozen=True)
class Places:
    """`table` has the schema `PLACES`, sorted by rank; `declared` the sizes of the run; `notes` say where they are
    from."""

    table: pl.DataFrame
    declared: Declared
    notes: tuple[Note, ...] = ()


def ranks_of(source: Source, options: ReadOptions) -> pl.DataFrame:
    """The ranks of a source (`OF_RANK`; what it does not say is null): from its name, from a few of its columns, or
    where both are silent, by reading it whole. Raises SourceError."""
    if source.rank is not None:
        return pl.DataFrame([(source.rank, None, None, None, None)], OF_RANK, orient="row")
    if source.kind == "span_table":
        return host_table.places(source.path)
    return read(source, options).ranks.select(OF_RANK.keys())


def find_places(
    sources: Sequence[Source],
    ranks: Sequence[pl.DataFrame | TraceExportError],
    read_some: Callable[[Sequence[Source]], Sequence[Profile | TraceExportError]],
    user: Declared,
) -> Places:
    """The places of all `ranks` (of each source what `ranks_of` gave): by the sizes of the user, as recorded, or by
    the sizes that a sample of the sources, which `read_some` reads, records or shows.

    Raises NothingToExportError where the sizes are not known, or contradict what is recorded.
    """
    parts = [
        frame.select(pl.lit(index, pl.UInt32).alias("source"), *OF_RANK)
        for index, frame in enumerate(ranks)
        if isinstance(frame, pl.DataFrame)
    ]
    table = pl.concat([pl.DataFrame(schema={n: t for n, t in PLACES.items() if n != "origin"}), *parts])
    table = table.sort("rank", "source")
    recorded = not table.is_empty() and not table["stage"].null_count() + table["dp"].null_count()
    if recorded and user.pp is None:
        placed = table.with_columns(pl.col("tp", "cp").fill_null(0), origin=pl.lit("recorded"))
        return Places(placed.select(PLACES.keys()), user.or_else(_sizes(placed)))
    return _by_sizes(table, _Sample.of(sources, table, read_some), user)


def _sizes(placed: pl.DataFrame) -> Declared:
    """The numbers of stages, replicas and so on that recorded places reach."""
    pp, dp, tp, cp = (int(n) + 1 for n in placed.select(pl.col("stage", "dp", "tp", "cp").max()).row(0))
    return Declared(pp=pp, dp=dp, tp=tp, cp=cp)


def absent(places: Places) -> int:
    """How many ranks the run has besides those in the table: fewer on a stage of a replica than on most."""
    table, declared = places.table.drop_nulls(["dp", "stage"]), places.declared
    if table.is_empty():
        return 0
    counts = table.group_by("dp", "stage").agg(ranks=pl.col("rank").n_unique())
    usual = counts["ranks"].mode().max()
    assert isinstance(usual, int)
    highest = [int(table[name].to_numpy().max()) + 1 for name in ("dp", "stage")]
    cells = max(highest[0], declared.dp or 0) * max(highest[1], declared.pp or 0)
    return cells * usual - int(counts["ranks"].clip(upper_bound=usual).sum())


@dataclass(frozen=True)
class _Sample:
    """Some sources as read; `first`: the ranks of the first ones, which lie side by side."""

    profile: Profile
    first: list[int]

    @staticmethod
    def of(
        sources: Sequence[Source],
        table: pl.DataFrame,
        read_some: Callable[[Sequence[Source]], Sequence[Profile | TraceExportError]],
    ) -> _Sample:
        order = list(dict.fromkeys(table["source"].to_list()))
        spread = [order[n * (len(order) - 1) // SAMPLE] for n in range(1, SAMPLE + 1)] if order else []
        chosen = dict.fromkeys([*order[:SAMPLE], *spread])
        results = read_some([sources[index] for index in chosen])
        profile, _ = merge(result for result in results if isinstance(result, Profile))
        if profile.spans.is_empty():
            first = next((r for r in results if isinstance(r, TraceExportError)), None)
            raise first or NothingToExportError("no source that was looked at holds a block")
        first_ranks = table.filter(pl.col("source").is_in(order[:SAMPLE]))["rank"].to_list()
        return _Sample(profile, first_ranks)

    def tensor_size(self, stages: pl.DataFrame) -> int | None:
        """How many ranks of a stage (rank, stage) do the same at the same time; None where that is not regular."""
        places = self.profile.ranks.select("rank", "dp", "tp", "cp").join(stages.select("rank", "stage"), on="rank")
        near = places.filter(pl.col("rank").is_in(self.first)).with_columns(origin=pl.lit("assumed"))
        spans = self.profile.spans
        filled, guessed = guess_replicas(
            near.select("rank", "stage", "dp", "tp", "cp", "origin"), self.profile.ranks, spans
        )
        groups = filled.group_by("stage", "dp").len()["len"]
        return int(groups[0]) if guessed and groups.n_unique() == 1 else None


def _by_sizes(table: pl.DataFrame, sample: _Sample, user: Declared) -> Places:
    recorded = sample.profile.ranks.drop_nulls("stage").select("rank", "stage")
    continued = bool(sample.profile.declared.numbers_continue)
    inferred = stages_from_work.infer(sample.profile.spans, continued=continued)
    ranks = table.select("rank").unique().sort("rank")
    seen = Declared(pp=_depth(inferred, all_read=len(sample.profile.ranks) >= len(ranks)))
    sizes = user.or_else(sample.profile.declared).or_else(seen)
    origin = "user-specified" if user.pp else "assumed" if sample.profile.declared.pp else "inferred"
    notes = [_note(origin, sizes, len(sample.profile.ranks))]
    if sizes.tp is None and sizes.dp is None and len(ranks) > (sizes.pp or 0):
        stages = recorded if inferred is None else inferred.stages
        sizes = replace(sizes, tp=sample.tensor_size(stages) or 1)
        notes.append(Note("tensor-parallel-guessed", "note", _GUESSED.format(sizes.tp)))
    order = sizes.rank_order or _order_recorded(ranks["rank"], sizes, recorded)
    placed = None if sizes.pp is None else places_by_sizes(ranks, sizes, origin, inferred, order)[0]
    if placed is None:
        raise NothingToExportError("how many stages the pipeline has is neither recorded nor shown by a sample", REMEDY)
    _check(placed, recorded)
    placed = placed.with_columns(pl.col("cp").fill_null(0))
    kept = table.select("source", "rank").join(placed, on="rank", how="left", maintain_order="left")
    found = _sizes(kept)
    kept = kept.select(pl.col(name).cast(dtype) for name, dtype in PLACES.items())
    whole = replace(sizes, pp=max(sizes.pp or 0, found.pp or 0), dp=max(sizes.dp or 0, found.dp or 0))
    return Places(kept, whole, tuple(notes))


def _depth(inferred: stages_from_work.Inference | None, *, all_read: bool) -> int | None:
    """The number of stages that the work of a sample shows. The sample has the first ranks, which are on the first
    stage in any order of ranks, so that all others follow those; times show only which of its own stages follow."""
    if inferred is None or not (inferred.exact or all_read):
        return None
    return inferred.depth or int(inferred.stages["after"].to_numpy().max()) + 1


_GUESSED = "the tensor-parallel size {} was guessed from similar block times of a sample; if wrong, give --tp"


def _check(placed: pl.DataFrame, recorded: pl.DataFrame) -> None:
    """Raises NothingToExportError where a rank is not on the stage that its profile records."""
    both = placed.join(recorded, on="rank", suffix="_recorded")
    wrong = both.filter(pl.col("stage") != pl.col("stage_recorded"))
    if wrong.height:
        rank, stage, seen = wrong.select("rank", "stage", "stage_recorded").row(0)
        what = f"by the sizes of the run rank {rank} is on stage {stage}, and its profile records stage {seen}"
        raise NothingToExportError(what, REMEDY)


def _order_recorded(ranks: pl.Series, sizes: Declared, recorded: pl.DataFrame) -> RankOrder | None:
    """The order of ranks that gives every one of the `recorded` its stage."""
    counts = count(ranks, sizes, by_user=False)
    if counts is None or recorded.is_empty():
        return None
    for order in ORDERS:
        placed = places(ranks, counts, order, "assumed")
        if placed is not None:
            both = placed.join(recorded, on="rank", suffix="_recorded")
            if (both["stage"] == both["stage_recorded"]).all():
                return order
    return None


def _note(origin: str, sizes: Declared, read_ranks: int) -> Note:
    how = {
        "user-specified": "as specified",
        "assumed": f"as {read_ranks} ranks of a sample record them",
        "inferred": f"from the order of the blocks of {read_ranks} ranks of a sample",
    }[origin]
    return Note(
        "replicas-from-sizes", "note", f"replicas were formed by the sizes of the run: {sizes.pp} stages, {how}"
    )
