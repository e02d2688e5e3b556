"""The summary of a part of the run for an overview: sums and small tables of its ranks and steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import polars as pl

from trace_export.analysis.bubbles import Bubbles
from trace_export.analysis.typical import Typical
from trace_export.choices import Align
from trace_export.clocks import align, two_levels
from trace_export.errors import NothingToExportError, SourceError, TraceExportError
from trace_export.model import RANK_STEP_KEY, REAL, STEP_KEY, TEXT, WORK_KINDS, Declared, Profile, conform
from trace_export.ordering import ordered
from trace_export.pipeline import completeness, stages
from trace_export.pipeline.interpret import interpret
from trace_export.pipeline.replicas import data_parallel
from trace_export.progress import silent
from trace_export.read import LoadOptions, read_each
from trace_export.scale.parts import Part
from trace_export.scale.summary import FAILURES, HOSTS, LINKS, RANK_STEPS, RANKS, REPLICAS, WORK, Summary, by_code
from trace_export.schedules.passes import FORWARDS
from trace_export.segments import with_window
from trace_export.selection import Selection, select
from trace_export.sources.merge import merge
from trace_export.steps import graph as steps
from trace_export.steps.graph import Graph, Ints


@dataclass(frozen=True)
class Task:
    """What to do with each part of a run: read its sources in this process, with `options`."""

    options: LoadOptions
    align: Align | Path = "auto"
    selection: Selection = Selection()


def read_part(part: Part, task: Task) -> tuple[Profile, list[TraceExportError]]:
    """The part interpreted and aligned, and the errors of sources that cannot be read.

    Raises the error of a source if none has a block, AlignmentError.
    """
    results = read_each(part.sources, task.options, silent)
    profiles = (result for result in results if isinstance(result, Profile))
    profile, refused = merge(profiles, task.options.run, all_ranks=False)
    profile, strange = _expected(profile, part)
    failures = [*(r for r in results if isinstance(r, TraceExportError)), *refused, *strange]
    if profile.spans.is_empty():
        raise failures[0] if failures else NothingToExportError(f"{part.path}: no pipeline block here")
    profile = interpret(stages.place_ranks(profile, part.places), Declared())
    return align.align(profile, task.align), failures


def _expected(profile: Profile, part: Part) -> tuple[Profile, list[SourceError]]:
    """The profile without ranks that have no place in the part, and an error for each source with such a rank: its name
    and its content tell different ranks."""
    strange = profile.ranks.join(part.places, on="rank", how="anti").sort("source", "rank")
    if strange.is_empty():
        return profile, []
    tables = ("ranks", "spans", "p2p", "collectives", "counters")
    kept = {name: getattr(profile, name).join(strange, on="rank", how="anti", maintain_order="left") for name in tables}
    first = strange.unique("source", keep="first", maintain_order=True).select("source", "rank")
    remedy = "give its files the numbers of their ranks, or read it with export"
    return replace(profile, **kept), [
        SourceError(Path(source), f"holds rank {rank}, but its name says another rank", remedy)
        for source, rank in first.iter_rows()
    ]


def summarise(part: Part, task: Task) -> Summary:
    """The summary of a part. Raises as `read_part` does."""
    profile, failures = read_part(part, task)
    profile = completeness.mark_whole_steps(profile, one_clock=True, all_ranks=False)
    axis = two_levels.axes(profile.clocks, str(part.number))
    measured = measure(Bubbles(profile).of(select(profile, task.selection)), axis)
    return replace(measured, ends=two_levels.shared_ends(profile, axis), failures=failures_of(failures))


def measure(bubbles: Bubbles, axis: pl.DataFrame) -> Summary:
    """The figures of the shown part of a profile, whose hosts are each on an `axis` (host, axis), without shared
    collectives and failures. Sums for comparing ranks and links are over the whole profile."""
    whole, graph = bubbles.whole, bubbles.graph
    return Summary(
        rank_steps=_rank_steps(bubbles),
        ranks=_ranks(bubbles.profile, axis),
        work=_work(graph),
        links=_links(graph),
        hosts=conform(whole.clocks.join(axis, on="host", maintain_order="left"), HOSTS),
        replicas=_replicas(whole),
        notes=by_code(whole.notes),
    )


def failed(error: TraceExportError, part: Part) -> Summary:
    """The summary of a part that could not be read at all."""
    return Summary(failures=failures_of([error] * len(part.sources)))


def _rank_steps(bubbles: Bubbles) -> pl.DataFrame:
    to_next = bubbles.steps.select(*STEP_KEY, "step_ns")
    rows = with_window(bubbles.ranks, bubbles.whole.spans)
    return conform(rows.join(to_next, on=STEP_KEY, how="left", nulls_equal=True, maintain_order="left"), RANK_STEPS)


def replica_numbers(ranks: pl.DataFrame) -> pl.DataFrame:
    """rank, replica: the data-parallel number of each of `ranks` (`model.RANKS`), or where it is not known that of its
    order."""
    numbered = data_parallel(ranks)
    both = ranks.select("rank", "dp").join(numbered, on="rank", maintain_order="left")
    return both.select("rank", replica=pl.coalesce("dp", "replica"))


def _ranks(profile: Profile, axis: pl.DataFrame) -> pl.DataFrame:
    blocks = profile.spans.select(*RANK_STEP_KEY, "start_ns", "kind", "chunk").filter(pl.col("kind").is_in(WORK_KINDS))
    work = ordered(blocks, *RANK_STEP_KEY, "start_ns")
    chunks = pl.col("chunk").fill_null(0)
    each = work.group_by(RANK_STEP_KEY, maintain_order=True).agg(
        count=pl.len(),
        microbatches=FORWARDS.sum() / chunks.n_unique(),
        order=pl.struct("kind", chunks).implode().hash(),
    )
    fullest = each.sort("rank", "count", descending=[False, True], maintain_order=True).unique("rank", keep="first")
    labels = profile.hosts.select("host", label=pl.coalesce("label", "host").fill_null(""))
    rows = (
        profile.ranks.drop("replica")
        .join(replica_numbers(profile.ranks), on="rank", maintain_order="left")
        .join(axis, on="host", how="left", maintain_order="left")
        .join(labels, on="host", how="left", maintain_order="left")
        .join(fullest.select("rank", "microbatches", "order"), on="rank", maintain_order="left")
    )
    return conform(rows, RANKS)


def _work(graph: Graph) -> pl.DataFrame:
    """The table `WORK` of the steps that count."""
    rows = np.flatnonzero((graph.sort == steps.WORK) & graph.counted)
    blocks = graph.recorded.blocks[rows]
    of = {name: getattr(graph, name)[rows] for name in ("rank", "step", "kind")}
    sums = _sums(graph, rows, {**of, "chunk": blocks["chunk"].fill_null(0), "first_part": blocks["first_part"]})
    named = graph.recorded.steps.select(*STEP_KEY)[sums["step"]]
    return conform(sums.with_columns(run=named["run"], step=named["step"]), WORK)


def _links(graph: Graph) -> pl.DataFrame:
    """The table `LINKS` of the steps that count."""
    rows = np.flatnonzero((graph.sort == steps.TRANSFER) & graph.counted)
    link: dict[str, Ints | pl.Series] = {
        "src_rank": graph.src[rows], "dst_rank": graph.dst[rows], "kind": graph.kind[rows]
    }  # fmt: skip
    guesses = pl.DataFrame({**link, "guessed": graph.guessed[rows]}).group_by(list(link)).agg(pl.col("guessed").any())
    sums = _sums(graph, rows, link).join(guesses, on=list(link), maintain_order="left")
    names = pl.Series([kind[-1] for kind in graph.kinds], dtype=TEXT)
    doubt = Typical(graph).longest_start if sums["guessed"].any() else 0.0
    doubts = pl.when("guessed").then(pl.lit(doubt)).otherwise(0.0)
    return conform(sums.with_columns(direction=names.gather(sums["kind"]), doubt_ns=doubts), LINKS)


def _sums(graph: Graph, rows: Ints, keys: dict[str, Ints | pl.Series]) -> pl.DataFrame:
    """count, sum_ns and squares of the lengths of the operations with the same keys, sorted by these."""
    length = pl.col("length").cast(REAL)
    frame = pl.DataFrame({**keys, "length": graph.length[rows]})
    sums = frame.group_by(list(keys)).agg(
        count=pl.len(), sum_ns=pl.col("length").sum(), squares=(length * length).sum()
    )
    return sums.sort(list(keys))


def _replicas(profile: Profile) -> pl.DataFrame:
    """The schedule that the part's replicas follow, where they follow one."""
    recognition = profile.interpreted.recognition
    name = recognition.named.name if recognition.named else None
    numbers = replica_numbers(profile.ranks).select(pl.col("replica").unique().sort())
    return conform(numbers.with_columns(schedule=pl.lit(name, TEXT), certainty=pl.lit(recognition.certainty)), REPLICAS)


def failures_of(errors: Sequence[TraceExportError]) -> pl.DataFrame:
    """The errors without their paths, so that a thousand sources with the same flaw are one row."""
    rows = [(str(error.args[1]) if isinstance(error, SourceError) else error.what, str(error)) for error in errors]
    frame = pl.DataFrame(rows, {"what": TEXT, "first": TEXT}, orient="row")
    return conform(frame.group_by("what", maintain_order=True).agg(pl.col("first").first(), count=pl.len()), FAILURES)
