"""Captures of Ascend: usual databases as one table, all others one by one (`capture.py`).

The calls of the table library take some 20 ms for a database, and hardly more for those of many.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial

import polars as pl

from trace_export.errors import SourceError, path_text
from trace_export.model import HOSTS, RANKS, TEXT, TIME, Declared, Note, Profile, conform
from trace_export.schedules.passes import BACKWARDS, FORWARDS
from trace_export.sources.ascend import capture, database, hccl, marker_blocks
from trace_export.sources.ascend.capture import read_tasks
from trace_export.sources.ascend.metadata import Metadata
from trace_export.sources.ranges.dialects import Dialects, run_facts
from trace_export.sources.shared.batch import Result, each, places, split
from trace_export.sources.shared.sqlite import PIECE_ROWS, Database
from trace_export.sources.source import ReadOptions, Source

__all__ = ["read", "read_tasks"]

NAMES = {"marks": ["text"], "operators": ["op", "group"], "tasks": ["task"]}
"""The columns of each table that hold ids of texts."""
TABLES = ("TASK", "STRING_IDS", "MSTX_EVENTS", "COMMUNICATION_OP")
"""What a usual database has."""


@dataclass(frozen=True)
class _Seen:
    """A database: who and where it is, its tables with ids for texts, and of one of which only the beginning was read,
    when its recording ended."""

    source: Source
    db: Database
    known: tuple[int, str, int | None]
    host: tuple[str, str]
    meta: Metadata
    tables: Mapping[str, pl.DataFrame]
    until: Mapping[str, int | None]


def read(sources: Sequence[Source], options: ReadOptions) -> list[Result]:
    """The tables of each rank."""
    made = _usual(sources, options) if len(sources) > 1 else {}
    others = [source for source in sources if made.get(source) is None]
    results = dict(zip(others, each(capture.read, others, options), strict=True))
    return [made.get(source) or results[source] for source in sources]


def _usual(sources: Sequence[Source], options: ReadOptions) -> dict[Source, Profile | None]:
    """The profile of each usual database; None of one without forwards or backwards on the device. Not usual are those
    that cannot be read, are no database or one that is read whole where only beginnings are, or lack a usual table; and
    all where the user has rules, which may name other ranges than markers."""
    if options.host_ranges or options.optimizer or options.markers:
        return {}
    with ExitStack() as stack:
        seen = [one for source in sources if (one := _seen(source, options, stack)) is not None]
        made = _profiles(seen, Dialects.of(options.markers)) if seen else []
        return {one.source: profile for one, profile in zip(seen, made, strict=True)}


def _seen(source: Source, options: ReadOptions, stack: ExitStack) -> _Seen | None:
    if not source.path.is_file():
        return None
    try:
        db = stack.enter_context(Database(source.path, options.beginning * PIECE_ROWS, database.PARTS))
        short = "task" in db.shortened
        usual = all(map(db.has, TABLES)) and (short or db.has("COMPUTE_TASK_INFO"))
        if not usual or short != bool(options.beginning):
            return None
        marks = database.host_marks(db)
        if marks.is_empty() or len(capture.devices_of(db, capture.identity(db, source)[0])) > 1:
            return None
        rank, device, origin = capture.identity(db, source)
        tables = {
            "marks": marks, "device": database.NOT_ON_DEVICE if short else database.device_marks(db),
            "operators": database.communication(db), "tasks": database.copying(db),
            "steps": database.steps(db), "counters": database.counters(db, rank),
        }  # fmt: skip
        host, meta = capture.host_of(db, source), capture.metadata_of(db, source, rank)
        until = {path_text(source.path): db.last("TASK", "startNs")} if short else {}
        return _Seen(source, db, (rank, origin, device), host, meta, tables, until)
    except (SourceError, OSError, pl.exceptions.PolarsError):  # which the reader reports
        return None


def _profiles(seen: Sequence[_Seen], dialects: Dialects) -> list[Profile | None]:
    """The profile of each of these databases; None of one without forwards or backwards on the device."""
    tables = _named(seen)
    reached, unreached = database.matched(tables["marks"], tables["device"])
    marks = database.placed(reached)
    names = dialects.parse(marks["text"]).names
    steps = conform(tables["steps"], {**marker_blocks.STEPS, **marker_blocks.CAPTURE})
    whole = not any(one.until for one in seen)
    spans, notes = marker_blocks.spans(marks, names, steps, partial(_busy, seen) if whole else None)
    operators = database.described(tables["operators"])
    copies = database.copies(tables["tasks"], operators)
    p2p, collectives = hccl.tables(operators, copies, [(one.meta, one.known[0]) for one in seen])
    stages = _stages(marks, names)
    ranks = [
        capture.rank_row(one.source, (place, *one.known[1:]), one.host[0], one.meta, stages.get(place))
        for place, one in enumerate(seen)
    ]
    all_ranks = Profile(
        hosts=pl.DataFrame([capture.host_row(one.source, *one.host) for one in seen], HOSTS),
        ranks=pl.DataFrame(ranks, RANKS),
        spans=spans,
        p2p=p2p,
        collectives=collectives,
        counters=tables["counters"].with_columns(rank="capture").drop("capture"),
    )
    made = split(all_ranks, [one.known[0] for one in seen], range(len(seen)))
    passes = spans.filter(pl.col("kind").is_in(marker_blocks.PASSES), pl.lit(not whole) | (pl.col("origin") != "host"))
    both = FORWARDS.any() & BACKWARDS.any() if whole else FORWARDS.any() | BACKWARDS.any()
    with_passes = set(passes.group_by("rank").agg(both=both).filter("both")["rank"])
    says_facts = run_facts(spans["marker"]) != Declared()
    lost = dict(unreached.group_by("capture").len().iter_rows())
    notes = [*((place, capture.unclosed_note(count)) for place, count in lost.items()), *notes]
    return [
        _finished(profile, one, [n for p, n in notes if p == place], says_facts) if place in with_passes else None
        for place, (profile, one) in enumerate(zip(made, seen, strict=True))
    ]


def _busy(seen: Sequence[_Seen], ranges: pl.DataFrame) -> pl.Series:
    """`database.busy` of the ranges of each capture."""
    parts = ranges.with_row_index("at").partition_by("capture")
    known = [part.select("at").with_columns(busy=database.busy(seen[part["capture"][0]].db, part)) for part in parts]
    return pl.concat(known).sort("at")["busy"]


def _named(seen: Sequence[_Seen]) -> dict[str, pl.DataFrame]:
    """The tables of all databases, with texts for ids and the column `capture`."""
    found = {}
    for table in seen[0].tables:
        frames = [one.tables[table] for one in seen]
        found[table] = pl.concat(frames).with_columns(places(frames).alias("capture"))
    names = _texts(seen, found)
    for table, columns in NAMES.items():
        for column in columns:
            own = names.rename({"id": column})
            named = found[table].join(own, on=["capture", column], how="left", maintain_order="left")
            found[table] = named.with_columns(pl.col("name").alias(column)).drop("name")
    return found


def _texts(seen: Sequence[_Seen], tables: Mapping[str, pl.DataFrame]) -> pl.DataFrame:
    """The texts of all ids in the `tables`: capture, id, name."""
    ids = [tables[table].select("capture", id=column) for table, columns in NAMES.items() for column in columns]
    wanted = dict(pl.concat(ids).drop_nulls().unique().group_by("capture").agg("id").iter_rows())
    texts = [list(database.texts(one.db, wanted.get(place, [])).items()) for place, one in enumerate(seen)]
    names = pl.DataFrame([row for own in texts for row in own], {"id": TIME, "name": TEXT}, orient="row")
    return names.with_columns(places(texts).alias("capture"))


def _stages(marks: pl.DataFrame, names: pl.DataFrame) -> dict[int, int]:
    """The stage that the markers of each capture name, as `marker_blocks.stage` finds it."""
    told = marks.select("capture", "text").unique().join(names.select("text", "place").drop_nulls(), on="text")
    return dict(told.group_by("capture").agg(pl.col("place").min()).iter_rows())


def _finished(profile: Profile, one: _Seen, notes: Sequence[Note], says_facts: bool) -> Profile:
    """With what is said of the whole source. `says_facts`: whether any source's markers say something of the run."""
    path = str(one.source.path)
    facts = run_facts(profile.spans["marker"]) if says_facts else Declared()
    return replace(
        profile,
        declared=one.meta.declared.or_else(facts),
        notes=(*one.meta.notes, *(replace(note, where=path) for note in notes)),
        recorded_until=dict(one.until),
    )
