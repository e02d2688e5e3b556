"""Ranks of an Ascend run, from torch_npu or MindSpore, database or text export → their tables.

| step | what is made | by |
|---|---|---|
| 1 open | what the files of each source hold: a `Recorded` for each rank | `database_rank.py`, `text_export.py` |
| 2 tables | markers, operators and copies of all ranks, with texts | `database.py`, `text_export.py` |
| 3 blocks | markers → blocks, operators → transfers and collectives, at once | `marker_blocks.py`, `hccl.py` |
| 4 kernels | passes that no marker names, rank by rank | `kernel_inference.py` |
| 5 profile | a profile for each source | here |

Steps 2 and 3 are mostly calls of the table library: some 20 ms for one database, and hardly more for many.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import polars as pl

from trace_export.errors import SourceError
from trace_export.model import (
    COUNTERS,
    HOSTS,
    INT,
    OUTSIDE,
    RANKS,
    SPANS,
    TIME,
    Declared,
    KernelFile,
    Note,
    Profile,
    Schema,
    concat,
    conform,
)  # fmt: skip
from trace_export.schedules.passes import BACKWARDS, FORWARDS
from trace_export.sources.ascend import database, database_rank, device_tasks, hccl, marker_blocks
from trace_export.sources.ascend.marker_blocks import CAPTURE, MARKS, PASSES, STEPS, Kernels
from trace_export.sources.ascend.recorded import KernelsOfAll, Recorded
from trace_export.sources.ranges.devices import SEVERAL
from trace_export.sources.ranges.dialects import Dialects, run_facts
from trace_export.sources.ranges.named import NameCounts
from trace_export.sources.ranges.notes import counted_as_idle, impossible_times, unmatched, without_times
from trace_export.sources.shared.batch import Result, caught, sources_of, split
from trace_export.sources.shared.sqlite import Database
from trace_export.sources.source import ReadOptions, Source, TaskRequest
from trace_export.stream_order import FEW

SOME = 0.1
"""Such a part of the kernels, and FEW, may run past the next one of their stream: wrong records."""


def read(sources: Sequence[Source], options: ReadOptions) -> list[Result]:
    """The tables of each rank, or why its files hold nothing that can be read."""
    dialects = Dialects.of(options.markers)
    with ExitStack() as stack:
        opened = [caught(source.path, partial(_opened, source, options, dialects, stack)) for source in sources]
        parts = [part for ranks in opened if not isinstance(ranks, SourceError) for part in ranks]
        results = iter(_results(parts, options, dialects) if parts else [])
    return [
        ranks if isinstance(ranks, SourceError) else _of_devices(source, ranks, [next(results) for _ in ranks])
        for source, ranks in zip(sources, opened, strict=True)
    ]


def read_tasks(request: TaskRequest) -> tuple[KernelFile, ...]:
    """The device tasks of one rank. Raises SourceError when its files cannot be read."""
    if request.path.is_dir():
        from trace_export.sources.ascend import text_export

        return device_tasks.from_text(text_export.kernels(request.path), request)
    with Database(request.path) as db:
        return device_tasks.from_database(db, request)


def _opened(source: Source, options: ReadOptions, dialects: Dialects, stack: ExitStack) -> list[Recorded]:
    if source.path.is_dir():
        from trace_export.sources.ascend import text_export  # with msgspec, which databases do without

        return [text_export.recorded(source, dialects)]
    return database_rank.recorded(source, options, dialects, stack)


def _of_devices(source: Source, parts: Sequence[Recorded], results: Sequence[Result]) -> Result:
    """The result of a source: that of its rank, or of all the ranks that the devices of its process are."""
    if len(results) == 1:
        return results[0]
    profiles = []
    for part, result in zip(parts, results, strict=True):
        if isinstance(result, SourceError):
            return result
        ranks = result.ranks.with_columns(process=pl.lit(part.of_device, TIME))
        profiles.append(replace(result, ranks=ranks))
    whole = concat(profiles)
    text = f"{SEVERAL}; each of its {len(profiles)} devices is drawn as a rank of its own, numbered by its place"
    return replace(
        whole,
        hosts=whole.hosts.unique("host", keep="first", maintain_order=True),
        notes=(*whole.notes, Note("ranks-of-devices", "note", text, str(source.path))),
    )


def _results(parts: Sequence[Recorded], options: ReadOptions, dialects: Dialects) -> list[Result]:
    """The profile of each rank, or its error. Until they are split, the ranks are numbered by their place here."""
    tables, unreached = _tables(parts)
    marks = _on_host(tables["marks"]) if options.host_ranges else tables["marks"]
    names = dialects.parse(marks["text"]).names
    steps = _joined([part.steps for part in parts], STEPS)
    kernels = KernelsOfAll(parts)
    spans, noted = marker_blocks.spans(marks, names, steps, kernels)
    meta_and_rank = [(part.meta, part.rank) for part in parts]
    p2p, collectives = hccl.tables(tables["operators"], tables["copies"], meta_and_rank)
    stages = _stages(marks, names)
    counters = _joined([part.counters for part in parts], COUNTERS)
    whole = Profile(
        hosts=pl.DataFrame([(p.host, p.source.machine, p.label, p.epoch) for p in parts], HOSTS, orient="row"),
        ranks=pl.DataFrame([_rank_row(part, number, stages.get(number)) for number, part in enumerate(parts)], RANKS),
        spans=spans,
        p2p=p2p,
        collectives=collectives,
        counters=counters.with_columns(rank="capture").drop("capture"),
    )
    made = split(whole, [part.rank for part in parts], range(len(parts)))
    is_pass = pl.col("kind").is_in(PASSES)
    on_device = (is_pass & (pl.col("origin") != "host")).any().alias("device")
    named = spans.group_by("rank").agg(is_pass.any(), on_device, F=FORWARDS.any(), B=BACKWARDS.any())
    of_rank = {rank: tuple(kinds) for rank, *kinds in named.iter_rows()}
    shares = _between(kernels, spans) if not options.host_ranges else {}
    text = "ranges still open on the device at the end of the capture, left out"
    notes_of = {number: [Note("ranges-unclosed", "note", text, count=count)] for number, count in unreached.items()}
    for number, note in noted:
        notes_of.setdefault(number, []).append(note)
    says_facts = run_facts(spans["marker"]) != Declared()
    ranks = [
        _Rank(
            part, profile, marks, number, of_rank.get(number, (False,) * 4), notes_of.get(number, []),
            shares.get(number, 0.0),
        )
        for number, (part, profile) in enumerate(zip(parts, made, strict=True))
    ]  # fmt: skip
    return [caught(rank.path, partial(_finished, rank, options, dialects, says_facts=says_facts)) for rank in ranks]


def _tables(parts: Sequence[Recorded]) -> tuple[dict[str, pl.DataFrame], dict[int, int]]:
    """The markers, operators and copies of all ranks, and of how many ranges of a rank its device reached no end."""
    schemas = {"marks": MARKS, "operators": hccl.OPERATORS, "copies": hccl.COPIES}
    rows = {number: part.rows for number, part in enumerate(parts) if part.rows is not None}
    texts = [(number, part) for number, part in enumerate(parts) if part.rows is None]
    pieces = {
        name: [
            conform(part.tables[name].with_columns(pl.lit(number, INT).alias("capture")), {**schema, **CAPTURE})
            for number, part in texts
        ]
        for name, schema in schemas.items()
    }
    unreached = {number: part.unreached for number, part in enumerate(parts) if part.unreached}
    if rows:
        tables, lost = database.tables(rows)
        for name, table in tables.items():
            pieces[name].append(table)
        unreached |= lost
    return {name: pl.concat(frames) for name, frames in pieces.items()}, unreached


def _joined(tables: Sequence[pl.DataFrame], schema: Schema) -> pl.DataFrame:
    """The tables of all ranks as one, with `CAPTURE`."""
    return conform(pl.concat(tables).hstack([sources_of(tables).alias("capture")]), {**schema, **CAPTURE})


def _stages(marks: pl.DataFrame, names: pl.DataFrame) -> dict[int, int]:
    """The stage that the markers of each rank name: those of trace_export.instrument do."""
    if names["place"].null_count() == names.height:
        return {}
    told = marks.select("capture", "text").unique().join(names.select("text", "place").drop_nulls(), on="text")
    return dict(told.group_by("capture").agg(pl.col("place").min()).iter_rows())


def _rank_row(part: Recorded, number: int, marked_stage: int | None) -> dict[str, object]:
    """The row of model.RANKS, its rank this number; the stage is that of the metadata, else the `marked_stage`."""
    place = {"stage": marked_stage} | part.meta.place
    known = {"rank": number, "rank_origin": part.rank_origin, "device": part.device, "host": part.host}
    return part.source.rank_row(**place, **known, job=part.meta.job)


@dataclass(frozen=True)
class _Rank:
    """A rank whose markers have become blocks. `marks`: those of all ranks, this one's at `place`. `named`: whether it
    has a pass at all, one on the device, a forward, a backward. `noted`: notes on its blocks. `alone`: the share of its
    computing between the passes, see `_between`."""

    part: Recorded
    profile: Profile
    marks: pl.DataFrame
    place: int
    named: tuple[bool, bool, bool, bool]
    noted: list[Note]
    alone: float

    @property
    def path(self) -> Path:
        return self.part.source.path

    @property
    def texts(self) -> pl.Series:
        """Of its markers."""
        return self.marks.filter(pl.col("capture") == self.place)["text"]


def _finished(rank: _Rank, options: ReadOptions, dialects: Dialects, *, says_facts: bool) -> Profile:
    """The profile of a rank, with the blocks that its kernels show. `says_facts`: markers say something of the run.
    Raises SourceError."""
    part, spans = rank.part, rank.profile.spans
    ranks, (any_pass, on_device, *kinds) = rank.profile.ranks, rank.named
    on_kernels = part.whole and not options.host_ranges
    if options.host_ranges and not any_pass:
        what = "has no markers of forwards and backwards, so there is nothing of the host to draw"
        raise SourceError(
            rank.path, what, "leave out `host_ranges`, or record with the passes marked by trace-export run"
        )
    named = any_pass and (on_device or not on_kernels)
    if options.infer == "off" and not named:
        what = "none of its markers is on the device" if any_pass else "no marker names a pass"
        remedy = "leave out `infer`" + (", or draw the host's times with `host_ranges`" if any_pass else "")
        raise SourceError(rank.path, f"{what}, and nothing is inferred with `infer` off", remedy)
    if not named or (options.infer == "only" and on_kernels):
        spans, notes = _inferred(rank, asked=options.infer == "only")
    else:
        whole = all(kinds) or not on_kernels or options.infer == "off"
        spans, notes = (spans, []) if whole else _completed(part, spans, rank.profile)
        if on_kernels and not notes and rank.alone:
            notes = counted_as_idle(rank.path, [rank.alone])
            ranks = ranks.with_columns(outside=pl.lit(rank.alone))
        if options.optimizer and options.infer != "off":
            from trace_export.sources.ascend import kernel_inference

            spans = pl.concat([spans, kernel_inference.optimizer(part.kernels.optimizing(), spans, part.rank)])
    said = [replace(note, where=note.where or str(rank.path)) for note in (*rank.noted, *notes)]
    of_rules: list[Note] = []
    if part.rows and dialects.of_user.rules and part.is_first:
        of_rules = unmatched(rank.path, dialects.unmatched(rank.texts))
    return replace(
        rank.profile,
        ranks=conform(ranks, RANKS),
        spans=spans,
        declared=part.meta.declared.or_else(run_facts(spans["marker"]) if says_facts else Declared()),
        notes=(*part.meta.notes, *part.notes, *of_rules, *said),
        recorded_until=part.until,
    )


def _inferred(rank: _Rank, *, asked: bool) -> tuple[pl.DataFrame, list[Note]]:
    """The blocks that the kernels show, in place of those of markers that name no pass on the device, or of any if they
    are `asked` for, and what is to be said of them. Raises SourceError where the kernels are of several ranks."""
    from trace_export.sources.ascend import kernel_inference  # and numpy, which most runs do without

    profile, any_pass = rank.profile, rank.named[0]
    kernels, cut, far = kernel_inference.possible(rank.part.kernels.all())
    if cut > max(FEW, SOME * kernels.height):
        what = f"{cut} of its {kernels.height} kernels run past the next one of their stream"
        raise SourceError(
            rank.path, f"{what}, as where several ranks are in one", "let each rank write a capture of its own"
        )
    spans = kernel_inference.in_steps(_of_kernels(kernels, rank.part, profile), rank.part.steps)
    if spans.is_empty() and any_pass and not asked:
        return profile.spans, []
    why = _no_blocks(rank.texts, kernels) if spans.is_empty() else ""
    notes = [_inferred_note(why, marked=any_pass, asked=asked), *impossible_times(rank.path, 0, cut)]
    return spans, notes + ([without_times(rank.path, far)] if far else [])


def _of_kernels(kernels: pl.DataFrame, part: Recorded, profile: Profile) -> pl.DataFrame:
    """The blocks that the kernels of a rank show."""
    from trace_export.sources.ascend import kernel_inference

    return kernel_inference.spans(kernels, profile.p2p["start_ns"], profile.collectives["start_ns"], part.rank)


def _completed(part: Recorded, spans: pl.DataFrame, profile: Profile) -> tuple[pl.DataFrame, list[Note]]:
    """`spans` with the forwards, or the backwards, that no marker names, where the kernels show them, and show the
    passes that markers name as these do; and a note, or a warning where they do not and much is computed outside. A
    backward is of the step of the forward before it, a forward of that of the backward after it."""
    missing = [kind for kind, some in (("F", FORWARDS), ("B", BACKWARDS)) if not spans.select(some.any()).item()]
    if not missing:
        return spans, []
    from trace_export.sources.ascend import kernel_inference
    from trace_export.sources.ranges.content import alike

    kernels, *_ = kernel_inference.possible(part.kernels.all())
    inferred = _of_kernels(kernels, part, profile)
    of_marks, of_kernels = (blocks.rename({"start_ns": "start", "end_ns": "end"}) for blocks in (spans, inferred))
    (named,) = {"F", "B"} - {*missing}
    if alike(of_marks, of_kernels, named):
        steps = spans.filter(FORWARDS | BACKWARDS).select("start_ns", "step").sort("start_ns")
        more = inferred.filter(pl.col("kind").is_in(missing)).sort("start_ns").drop("step")
        more = more.join_asof(steps, on="start_ns", strategy="backward" if "B" in missing else "forward")
        more = conform(more, SPANS)
        text = "blocks inferred from kernel types, because markers name only some of the passes"
        return pl.concat([spans, more]), [Note("blocks-inferred", "note", text, count=more.height)]
    if (outside := _outside(kernels, spans)) < OUTSIDE:
        return spans, []
    what = "backwards" if "B" in missing else "forwards"
    text = f"no marker names {what}, and kernels do not show them exactly; {outside:.0%} of the computing lies outside"
    then = "all blocks, and the bubble counts it as idle; name all passes (trace-export docs instrument)"
    return spans, [Note("names-partial", "warning", f"{text} {then}")]


def _between(kernels: Kernels, spans: pl.DataFrame) -> dict[int, float]:
    """By rank, which is its place here, the share of the computing that lies between the passes of a step, if `kernels`
    were recorded. The passes count as full of it, and what follows the last one as the optimizer's, which is
    seldom named."""
    passes = spans.filter(pl.col("kind").is_in(PASSES)).sort("rank", "start_ns")
    passes = passes.with_columns(until=pl.col("end_ns").cum_max().over("rank"))
    last = pl.col("until").shift(1).over("rank")
    of_step = pl.col("step").eq_missing(pl.col("step").shift(1)) & (pl.col("start_ns") > last)
    gaps = passes.select(start_ns=last, end_ns="start_ns", here=of_step, capture="rank").drop_nulls().filter("here")
    if gaps.is_empty():
        return {}
    alone = gaps.select(rank="capture", alone=kernels.between(gaps)).group_by("rank").agg(pl.col("alone").sum())
    named = passes.group_by("rank").agg(named=(pl.col("end_ns") - pl.col("start_ns")).sum())
    shares = alone.filter(pl.col("alone") > 0).join(named, on="rank")
    return dict(shares.select("rank", pl.col("alone") / (pl.col("alone") + pl.col("named"))).iter_rows())


def _outside(kernels: pl.DataFrame, spans: pl.DataFrame) -> float:
    """The share of the time of the `kernels` that lies in none of the `spans`, by where they begin; without those of
    optimizers, which are seldom named."""
    ends = spans.select(begin="start_ns", until="end_ns").sort("begin")
    placed = (
        kernels.filter(~pl.col("text").str.contains(marker_blocks.OPTIMIZER))
        .sort("start_ns")
        .join_asof(ends, left_on="start_ns", right_on="begin")
    )
    length, inside = pl.col("end_ns") - pl.col("start_ns"), (pl.col("start_ns") < pl.col("until")).fill_null(False)
    outside, total = placed.select(length.filter(~inside).sum(), total=length.sum()).row(0)
    return outside / total if total else 0.0


def _no_blocks(texts: pl.Series, kernels: pl.DataFrame) -> str:
    """Why a rank has no block: what of its ranges (`texts`) and of its compute kernels (`WORKED`)."""
    from trace_export.sources.ascend import kernel_inference

    counts = NameCounts()
    counts.add(texts)
    frequent = ", ".join(counts.most_frequent())
    named = f" (the most frequent names: {frequent})" if frequent else ""
    return (
        f"no pipeline blocks: no range is marked as a forward or a backward{named}, and {kernel_inference.why(kernels)}"
    )


def _inferred_note(nothing: str, *, marked: bool, asked: bool) -> Note:
    """What is said of blocks that were inferred, or why there is `nothing`. `marked`: the host has markers of passes,
    and the device none, unless inferred blocks were `asked` for."""
    if nothing:
        return Note("blocks-not-found", "warning", nothing)
    why = "no marker is on the device (they were made without a stream)" if marked else "no markers"
    why = "--infer only leaves markers out" if asked else why
    text = f"{why}; blocks were inferred from kernel types, with the loss as forward"
    return Note("blocks-inferred", "note", text)


def _on_host(marks: pl.DataFrame) -> pl.DataFrame:
    """The ranges as the host issued them."""
    issued = marks.filter(pl.col("host_start_ns").is_not_null())
    return issued.with_columns(start_ns="host_start_ns", end_ns="host_end_ns", origin=pl.lit("host"))
