"""Large sources are looked at, not read: the beginning of each, and more of those whose beginning shows too little."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import polars as pl

from trace_export.errors import SourceError, TraceExportError
from trace_export.model import STEP_KEY, Note, Profile
from trace_export.pipeline.interpret import interpret_blocks, with_messages
from trace_export.progress import Progress
from trace_export.read import LoadOptions, merged, read_each
from trace_export.sources.input_files import bytes_in
from trace_export.sources.source import Source

WHOLE_BYTES = 32_000_000
"""Sources of at most this size together are read whole, in about a second."""
PIECES = (1, 8, 64)
"""How much of a source is looked at first, and where that shows too little."""
STEPS = 3
"""A beginning of fewer steps shows too little: it ends within one, and the time of a step is that between two."""
SMALL_BYTES = 1 << 20
"""A smaller source has no more than its beginning."""
OF_THE_WHOLE = (
    "blocks-inferred", "blocks-not-found", "capture-", "formats-", "links-", "metadata-", "process-", "profiler-",
    "rank-", "ranks-", "report-", "schema-", "selection-", "source-", "stages-", "start-time-", "table-",
    "tensor-parallel-",
)  # fmt: skip
"""What the codes of notes begin with that are true of a whole source if they are of its beginning. The others would
tell of what is missing because the beginning ends."""


def read_beginnings(
    sources: Sequence[Source], options: LoadOptions, progress: Progress
) -> tuple[Profile, list[TraceExportError]]:
    """The interpreted tables of the first steps of all sources, and errors. `Profile.recorded_until` names the sources
    that go on; they all have the same steps. Where there are such sources, sends and receives are not
    paired: what the sources hold does not depend on it, and their ends differ."""
    results = read_each(sources, _of(options, PIECES[0]), progress)
    for pieces in PIECES[1:]:
        profile, failures = _interpreted(results, options)
        again = _too_short(sources, results, profile)
        if not again:
            return _finished(profile), failures
        more = read_each([sources[i] for i in again], _of(options, pieces), progress)
        for i, result in zip(again, more, strict=True):
            results[i] = result
    limited = [_limited(source, result) for source, result in zip(sources, results, strict=True)]
    profile, failures = _interpreted(limited, options)
    return _finished(profile), failures


def _of(options: LoadOptions, pieces: int) -> LoadOptions:
    return replace(options, read=replace(options.read, beginning=pieces))


def _interpreted(
    results: Sequence[Profile | TraceExportError], options: LoadOptions
) -> tuple[Profile, list[TraceExportError]]:
    profile, failures = merged(results, options)
    return interpret_blocks(profile, options.declared), failures


def _finished(profile: Profile) -> Profile:
    return _in_common(profile) if profile.recorded_until else with_messages(profile)


def of_the_whole(notes: Sequence[Note]) -> tuple[Note, ...]:
    """The notes that may be said of whole sources."""
    return tuple(note for note in notes if note.code.startswith(OF_THE_WHOLE))


def _too_short(sources: Sequence[Source], results: Sequence[Profile | TraceExportError], profile: Profile) -> list[int]:
    """The places of the sources whose beginning has too few steps or no block, and that have more than a beginning."""
    steps = profile.spans.group_by("rank").agg(steps=pl.struct("run", "step").drop_nulls().n_unique())
    few = profile.ranks.join(steps, on="rank", how="left").filter(pl.col("steps").fill_null(0) < STEPS)
    short = set(few["source"]) & profile.recorded_until.keys()
    return [
        i
        for i, (source, result) in enumerate(zip(sources, results, strict=True))
        if (not short.isdisjoint(result.recorded_until) if isinstance(result, Profile) else _is_large(source))
    ]


def _in_common(profile: Profile) -> Profile:
    """Of the ranks whose source was not read whole only the steps that all of them have, but for the last, in which a
    beginning may end; everything where that would be nothing."""
    short = profile.ranks.filter(pl.col("source").is_in(list(profile.recorded_until)))["rank"]
    is_short = pl.col("rank").is_in(short.implode())
    steps = profile.spans.filter(is_short).drop_nulls("step").group_by(STEP_KEY).agg(pl.col("rank").n_unique())
    common = steps.filter(pl.col("rank") == len(short)).sort(STEP_KEY).select(STEP_KEY)[:-1]
    if common.is_empty():
        return profile
    kept = profile.spans.join(common, on=STEP_KEY, how="semi", maintain_order="left", nulls_equal=True)
    ends = kept.filter(is_short).group_by("rank").agg(until=pl.col("end_ns").max())
    inside = (pl.col("start_ns") < pl.col("until")).fill_null(True)
    tables = {
        name: getattr(profile, name)
        .join(ends, on="rank", how="left", maintain_order="left")
        .filter(inside)
        .drop("until")
        for name in ("p2p", "collectives")
    }
    spans = profile.spans.filter(~is_short | pl.col("id").is_in(kept["id"].implode()))
    return replace(profile, spans=spans, **tables)


def _limited(source: Source, result: Profile | TraceExportError) -> Profile | TraceExportError:
    """An error of a beginning, which says that it is one."""
    if isinstance(result, SourceError) and _is_large(source):
        path, what, remedy = result.args
        return SourceError(path, f"{what} (in its beginning)", remedy)
    return result


def _is_large(source: Source) -> bool:
    return bytes_in(source.path) > SMALL_BYTES
