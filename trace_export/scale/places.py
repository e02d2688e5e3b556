"""The place of every rank in the run, its stage and its replica, before anything is interpreted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import polars as pl

from trace_export.errors import NothingToExportError, TraceExportError
from trace_export.model import INT, TEXT, Declared, Note, Profile, Schema, empty
from trace_export.pipeline import stages, stages_from_work
from trace_export.pipeline.interpret import prepared
from trace_export.pipeline.rank_order import BELIEVED_SHARE, Arrangement, arrangements, best
from trace_export.pipeline.replicas import PLACE_COLUMNS as PLACED
from trace_export.pipeline.replicas import guess_replicas, guessed_size
from trace_export.sources.merge import merge
from trace_export.sources.read import read
from trace_export.sources.source import ReadOptions, Source
from trace_export.sources.spans import span_table

OF_RANK: Schema = {"rank": INT, "stage": INT, "dp": INT, "tp": INT, "cp": INT}
RANK_PLACES: Schema = {"source": pl.UInt32(), **OF_RANK, "origin": TEXT}
"""A rank of a source (an index), and where it is; `origin` as `stage_origin` in `model.RANKS`. Ranks of one `dp` form a
replica: they exchange activations."""
SOURCES_SAMPLED = 32
"""This many sources are read to find unknown sizes: the first ones, and as many spread over all."""
REMEDY = "give `pp` and `tp`, and `dp` where ranks are missing"


@dataclass(frozen=True)
class Places:
    """`table` has the schema `RANK_PLACES`, sorted by rank; `declared` the sizes of the run; `notes` say where they are
    from."""

    table: pl.DataFrame
    declared: Declared
    notes: tuple[Note, ...] = ()


def ranks_of(source: Source, options: ReadOptions) -> pl.DataFrame:
    """The ranks of a source (`OF_RANK`; unknown values are null): from its name, from a few of its columns, or else by
    reading it whole. Raises SourceError."""
    if source.rank is not None:
        return pl.DataFrame([(source.rank, None, None, None, None)], OF_RANK, orient="row")
    if source.kind == "span_table":
        return span_table.places(source.path)
    return read(source, options).ranks.select(OF_RANK.keys())


def find_places(
    sources: Sequence[Source],
    ranks: Sequence[pl.DataFrame | TraceExportError],
    read_some: Callable[[Sequence[Source]], Sequence[Profile | TraceExportError]],
    user: Declared,
) -> Places:
    """The places of all `ranks` (of each source what `ranks_of` gave), as `pipeline.stages` resolves them: from the
    record, or from a sample of the sources, which `read_some` reads, in the arrangement that the sizes of the user, of
    the record or of the work give.

    Raises NothingToExportError where the sizes are not known, or the sample contradicts every arrangement; UsageError.
    """
    read = [(index, frame) for index, frame in enumerate(ranks) if isinstance(frame, pl.DataFrame)]
    owner = pl.Series([index for index, frame in read for _ in range(frame.height)], dtype=RANK_PLACES["source"])
    table = pl.concat([empty(OF_RANK), *(frame for _, frame in read)], rechunk=True)
    table = table.select(owner.alias("source"), *OF_RANK).sort("rank", "source")
    recorded = not table.is_empty() and not table["stage"].null_count() + table["dp"].null_count()
    if recorded and not stages.gives_sizes(user):
        placed = table.with_columns(pl.col("tp", "cp").fill_null(0), origin=pl.lit("recorded"))
        return Places(placed.select(RANK_PLACES.keys()), user.or_else(_sizes(placed)))
    sample = _Sample.of(sources, table, read_some)
    if sample.profile.ranks["rank"].n_unique() < table["rank"].n_unique():
        return _of_sample(table, sample, user)
    resolved = stages.resolve(replace(sample.profile, notes=()), user)
    placed = resolved.ranks.select("rank", *PLACED, origin="stage_origin").unique("rank")
    notes = tuple(note for note in resolved.notes if note.code != "stages-contradict")  # which its part says, too
    return _placed(table, placed, resolved.declared, notes)


def _sizes(placed: pl.DataFrame) -> Declared:
    """The numbers of stages, replicas and so on that recorded places reach."""
    pp, dp, tp, cp = (int(n) + 1 for n in placed.select(pl.col("stage", "dp", "tp", "cp").max()).row(0))
    return Declared(pp=pp, dp=dp, tp=tp, cp=cp)


def missing_ranks(places: Places) -> int:
    """The number of ranks that the table lacks: a stage of a replica has fewer ranks than most."""
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
        order = list(dict.fromkeys(table["source"].to_list())) or list(range(len(sources)))
        spread = (
            [order[n * (len(order) - 1) // SOURCES_SAMPLED] for n in range(1, SOURCES_SAMPLED + 1)] if order else []
        )
        chosen = dict.fromkeys([*order[:SOURCES_SAMPLED], *spread])
        results = read_some([sources[index] for index in chosen])
        profile, _ = merge(result for result in results if isinstance(result, Profile))
        profile = prepared(profile)
        if profile.spans.is_empty():
            first = next((r for r in results if isinstance(r, TraceExportError)), None)
            raise first or NothingToExportError("none of the sources that were sampled holds a block")
        first_ranks = table.filter(pl.col("source").is_in(order[:SOURCES_SAMPLED]))["rank"].to_list()
        return _Sample(profile, first_ranks)

    def tensor_size(self, stages: pl.DataFrame) -> int | None:
        """How many ranks of a stage (rank, stage) do the same at the same time; None if that differs between stages."""
        places = self.profile.ranks.select("rank", "dp", "tp", "cp").join(stages.select("rank", "stage"), on="rank")
        near = places.filter(pl.col("rank").is_in(self.first)).with_columns(origin=pl.lit("assumed"))
        spans = self.profile.spans
        filled, guessed = guess_replicas(
            near.select("rank", "stage", "dp", "tp", "cp", "origin"), self.profile.ranks, spans
        )
        groups = filled.group_by("stage", "dp").len()["len"]
        return int(groups[0]) if guessed and groups.n_unique() == 1 else None


def _placed(table: pl.DataFrame, placed: pl.DataFrame, sizes: Declared, notes: tuple[Note, ...]) -> Places:
    kept = table.select("source", "rank").join(placed, on="rank", how="left", maintain_order="left")
    kept = kept.with_columns(pl.col("dp", "tp", "cp").fill_null(0))
    reached = _sizes(kept)
    whole = replace(sizes, pp=max(sizes.pp or 0, reached.pp or 0), dp=max(sizes.dp or 0, reached.dp or 0))
    return Places(kept.select(pl.col(name).cast(dtype) for name, dtype in RANK_PLACES.items()), whole, notes)


def _of_sample(table: pl.DataFrame, sample: _Sample, user: Declared) -> Places:
    """The places of all ranks in the arrangement that the ranks of the sample show."""
    profile, ranks = sample.profile, table.select("rank", "stage", "tp", "dp", "cp").unique("rank").sort("rank")
    declared, inferred = profile.declared, stages_from_work.of_profile(profile)
    evidence = stages.seen(profile.ranks, inferred)
    notes: list[Note] = []
    if stages.gives_sizes(user):
        arrangement, _, notes = stages.place_by_user(ranks, user, declared, evidence)
        origin = "user-specified"
    else:
        origin = "assumed" if declared.pp else "inferred"
        possible = arrangements(ranks["rank"], declared.or_else(Declared(pp=_depth(inferred))), anywhere=False)
        if not possible:
            raise NothingToExportError("the number of stages is neither recorded nor shown by a sample", REMEDY)
        arrangement = best(possible, evidence)
        if (
            evidence is not None
            and evidence.exact
            and evidence.fitting(arrangement) < BELIEVED_SHARE * len(evidence.stages)
        ):
            _refuse(arrangement, evidence.stages)
    notes.append(_note(origin, arrangement, len(profile.ranks)))
    if arrangement.tp is None:
        stage = arrangement.places(profile.ranks["rank"], origin).select("rank", "stage")
        guessed = sample.tensor_size(stage) or 1
        arrangement = replace(arrangement, tp=1 if arrangement.stride % guessed else guessed)
        notes.append(guessed_size(arrangement.tp or 1))
    sizes = user.or_else(arrangement.sizes).or_else(declared)
    return _placed(table, arrangement.places(ranks["rank"], origin), sizes, tuple(notes))


def _depth(inferred: stages_from_work.Inference | None) -> int | None:
    """The number of stages that the work of a sample shows. The sample has the first ranks, which are on the first
    stage in any order of ranks, so that all others follow those; times show only which of its own stages follow."""
    if inferred is None or not inferred.exact:
        return None
    return int(inferred.stages["after"].to_numpy().max()) + 1


def _refuse(arrangement: Arrangement, seen: pl.DataFrame) -> None:
    """Raises NothingToExportError for a rank that is on another stage than was seen."""
    both = arrangement.places(seen["rank"], "").join(seen, on="rank", suffix="_seen")
    wrong = both.filter(pl.col("stage") != pl.col("stage_seen")).sort("rank")
    rank, stage, other = wrong.select("rank", "stage", "stage_seen").row(0)
    what = f"by the sizes of the run rank {rank} is on stage {stage}, and its profile shows stage {other}"
    raise NothingToExportError(what, REMEDY)


def _note(origin: str, arrangement: Arrangement, read_ranks: int) -> Note:
    how = {
        "user-specified": "as specified",
        "assumed": f"as {read_ranks} ranks of a sample record them",
        "inferred": f"from the order of the blocks of {read_ranks} ranks of a sample",
    }[origin]
    text = f"replicas were formed by the sizes of the run: {arrangement.pp} stages, {how}, in the rank order"
    return Note("replicas-from-sizes", "note", f"{text} {arrangement.order}")
