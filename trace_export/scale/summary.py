"""The result for a part of the run: small tables, whose size does not depend on that of the sources."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import polars as pl

from trace_export.clocks.two_levels import ENDS
from trace_export.model import CLOCKS, INT, REAL, TEXT, TIME, Note, Schema, empty
from trace_export.steps.idle import CAUSES

RANK_STEPS: Schema = {
    "rank": INT, "run": INT, "window": INT, "step": INT, "whole": pl.Boolean(), "counts": pl.Boolean(),
    "first_ns": TIME, "last_ns": TIME, "step_start_ns": TIME, "step_end_ns": TIME, "step_ns": TIME, "busy_ns": TIME,
    **{f"{cause}_ns": TIME for cause in CAUSES},
}  # fmt: skip
"""A rank in a step. Times are those of its axis; `step_start_ns` and `step_end_ns` the step of its replica, `step_ns`
that of its part to the next one, as in `Bubbles.steps`. The causes of idle time as in `steps.idle`, whose sum with
busy_ns is the length of the step."""
RANKS: Schema = {
    "rank": INT, "replica": INT, "stage": INT, "tp": INT, "host": TEXT, "label": TEXT, "device": INT, "axis": TEXT,
    "microbatches": REAL, "order": pl.UInt64(),
}  # fmt: skip
"""`label`: what its host is called; `microbatches` of a step; `order`: a hash of the kinds of its blocks in the order
of its fullest step."""
WORK: Schema = {
    "rank": INT, "run": INT, "step": INT, "kind": pl.UInt8(), "chunk": INT, "first_part": pl.UInt8(),
    "count": pl.UInt32(), "sum_ns": TIME, "squares": REAL,
}  # fmt: skip
"""The blocks of a kind (its place among `model.WORK_KINDS`) and chunk of a rank in a step that counts: how many, the
sum of their lengths and of the squares of these. `first_part` as in `steps.recorded`: first parts of backwards have a
row of their own."""
LINKS: Schema = {
    "src_rank": INT, "dst_rank": INT, "direction": TEXT, "count": pl.UInt32(), "sum_ns": TIME, "squares": REAL,
    "guessed": pl.Boolean(), "doubt_ns": REAL,
}  # fmt: skip
"""The same for the transfers of a link, as `steps.graph` has them; `guessed`: some of them, from blocks that waited;
`doubt_ns`: how much of each may be no transfer."""
HOSTS: Schema = {**CLOCKS, "axis": TEXT}
REPLICAS: Schema = {"replica": INT, "schedule": TEXT, "certainty": TEXT}
FAILURES: Schema = {"what": TEXT, "first": TEXT, "count": TIME}
"""Sources that could not be read, by their error."""

TABLES: dict[str, Schema] = {
    "rank_steps": RANK_STEPS, "ranks": RANKS, "work": WORK, "links": LINKS, "hosts": HOSTS, "replicas": REPLICAS,
    "ends": ENDS, "failures": FAILURES,
}  # fmt: skip


def _table(schema: Schema) -> Any:
    return field(default_factory=lambda: empty(schema))


@dataclass(frozen=True)
class Summary:
    """The tables above. `notes` are counted by code; each has the text of its first case."""

    rank_steps: pl.DataFrame = _table(RANK_STEPS)
    ranks: pl.DataFrame = _table(RANKS)
    work: pl.DataFrame = _table(WORK)
    links: pl.DataFrame = _table(LINKS)
    hosts: pl.DataFrame = _table(HOSTS)
    replicas: pl.DataFrame = _table(REPLICAS)
    ends: pl.DataFrame = _table(ENDS)
    failures: pl.DataFrame = _table(FAILURES)
    notes: tuple[Note, ...] = ()


def merge(parts: Sequence[Summary]) -> Summary:
    """All of them as one, in their order; it does not matter how many are merged at a time."""
    tables = {
        name: pl.concat([empty(schema), *(getattr(part, name) for part in parts)]) for name, schema in TABLES.items()
    }
    failures = (
        tables["failures"].group_by("what", maintain_order=True).agg(pl.col("first").first(), pl.col("count").sum())
    )
    notes = by_code(note for part in parts for note in part.notes)
    whole = {name: table.rechunk() for name, table in (tables | {"failures": failures}).items()}
    return Summary(**whole, notes=notes)


def by_code(notes: Iterable[Note]) -> tuple[Note, ...]:
    """A note for each code and level: the first, with the cases of all."""
    firsts: dict[tuple[str, str], Note] = {}
    for note in notes:
        key = note.code, note.level
        firsts[key] = replace(firsts[key], count=firsts[key].count + note.count) if key in firsts else note
    return tuple(firsts.values())
