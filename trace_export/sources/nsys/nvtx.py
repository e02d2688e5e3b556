"""The NVTX ranges of an Nsight Systems export that name pipeline work.

A range's name is in `text` or, when it was registered, in StringIds under `textId`. Every export has the event
types 59 (pushed and popped on one thread), 60 (started and ended anywhere) and 75 (a domain gets its name); `end` is
null while a range is open.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator

import polars as pl

from trace_export.sources.nsys.nccl import Calls, layouts
from trace_export.sources.nsys.session import process_of
from trace_export.sources.ranges import emitted
from trace_export.sources.ranges.dialects import Dialects
from trace_export.sources.ranges.frequent import NameCounts
from trace_export.sources.ranges.named import Named
from trace_export.sources.ranges.ranges import RANGE
from trace_export.sources.shared.sqlite import Database, decoded

TABLE = "NVTX_EVENTS"
DOMAIN_CREATED = 75
LONGEST_PAYLOAD = 256
"""Bytes of a payload that are read: those of NCCL have up to 80."""
LONGEST_RANGE = 256
"""Characters of a registered name: each of its ranges has it in memory once more. Names of pipeline work have fewer."""


def read_ranges(db: Database, dialects: Dialects) -> tuple[Named, pl.DataFrame]:
    """All ranges whose names count, and the members of communicators (nccl.MEMBERS)."""
    named, calls = Named(dialects), Calls(layouts(db))
    for chunk in _chunks(db):
        creates = (chunk["type"] == DOMAIN_CREATED).any()
        named.add(chunk.filter(pl.col("type") != DOMAIN_CREATED) if creates else chunk)
        if creates:
            calls.add_domains(chunk.filter(pl.col("type") == DOMAIN_CREATED))
        calls.add(chunk)
    named.calls += calls.calls()
    return named, calls.members()


def read_operators(db: Database) -> dict[int, pl.DataFrame]:
    """Process → the ranges of torch's emit_nvtx around operators and nodes, see emitted.operators."""
    pieces: dict[int, list[pl.DataFrame]] = defaultdict(list)
    for chunk in _chunks(db):
        found = emitted.operators(chunk.select("process", "thread", "start", "end", "text"))
        for (process,), part in found.group_by("process"):
            pieces[process].append(part.drop("process"))
    return {process: pl.concat(parts) for process, parts in pieces.items()}


def counted_names(db: Database) -> NameCounts:
    """The names of the file's ranges."""
    counts = NameCounts()
    for chunk in _chunks(db):
        counts.add(chunk.filter(pl.col("type") != DOMAIN_CREATED)["text"])
    return counts


def _chunks(db: Database) -> Iterator[pl.DataFrame]:
    """The ranges and names of domains in frames of bounded size, see `_with_texts`."""
    names: dict[int, str] = {}
    for frame in _recorded(db):
        _look_up(db, frame["textId"], names)
        yield _with_texts(frame, names)


def _recorded(db: Database) -> Iterator[pl.DataFrame]:
    """The ranges and names of domains as recorded, in frames of bounded size: the columns of `RANGE`, `textId`, `type`,
    `domain`, and as bytes `text` and `payload`. An open range ends before it starts."""
    if not db.has(TABLE):
        return
    text_id = "COALESCE(textId, -1)" if db.has(TABLE, "textId") else "-1"
    domain = "COALESCE(domainId, 0)" if db.has(TABLE, "domainId") else "0"
    payload = f"substr(COALESCE(binaryData, ''), 1, {LONGEST_PAYLOAD})" if db.has(TABLE, "binaryData") else "''"
    sql = f"""SELECT rowid AS row, COALESCE(globalTid, 0) AS thread,
        start AS start, COALESCE("end", start - 1) AS "end", {text_id} AS textId,
        eventType AS type, {domain} AS domain, CAST(COALESCE(text, '') AS BLOB) AS text,
        CAST({payload} AS BLOB) AS payload
        FROM {TABLE} WHERE {{where}} AND eventType IN (59, 60, {DOMAIN_CREATED})"""
    for frame in db.frames(TABLE, sql, blobs=["text", "payload"]):
        yield frame.with_columns(process_of("thread"))


def _look_up(db: Database, ids: pl.Series, names: dict[int, str]) -> None:
    """Adds the names behind ids of strings to `names`, "" where there is none, as of -1, which stands for no id."""
    names[-1] = ""
    if ids.max() == -1:  # nearly always: names are seldom registered
        return
    if unknown := [number for number in ids.unique() if number not in names]:
        names |= dict.fromkeys(unknown, "")
        name = f"substr(value, 1, {LONGEST_RANGE})"
        sql = f"SELECT id, {name} FROM StringIds WHERE id IN (SELECT value FROM json_each(?)) ORDER BY rowid DESC"
        names |= dict(db.texts(sql, [json.dumps(unknown)]))


def _with_texts(frame: pl.DataFrame, names: dict[int, str]) -> pl.DataFrame:
    """`_recorded` with the columns of `RANGE`, `text`, `type`, `domain` and `payload`; `names` has those behind its ids
    of strings."""
    text = decoded(frame["text"])
    if frame["textId"].max() != -1:
        numbers = frame["textId"].unique()
        texts = pl.Series([names[number] for number in numbers], dtype=pl.String)
        registered = frame["textId"].replace_strict(numbers, texts, return_dtype=pl.String)
        text = registered.zip_with(text == "", text).alias("text")
    return pl.DataFrame(
        [*(frame[name] for name in RANGE), text, *(frame[name] for name in ("type", "domain", "payload"))]
    )
