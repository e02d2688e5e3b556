"""The NVTX ranges of an Nsight Systems export that speak of pipeline work.

A range's name stands in `text` or, when it was registered, in StringIds under `textId`. Every export has the event
types 59 (pushed and popped on one thread) and 60 (started and ended anywhere); `end` is null while a range is open.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import polars as pl

from trace_export.sources.markers import NAMES, OWN, PLAIN, SUFFIX, TRANSFERS, Dialects
from trace_export.sources.sqlite import Database, decoded

TABLE = "NVTX_EVENTS"
PIPELINING = "torch-pipelining"
COMMUNICATION = "communication"
"""The role that this file adds to those of markers.NAMES: a call of NCCL."""

_RANGE = {"row": pl.Int64(), "process": pl.Int64(), "thread": pl.Int64(), "start": pl.Int64(), "end": pl.Int64()}


@dataclass(frozen=True)
class Ranges:
    """`frame`: id (the row's number), row, process (globalTid >> 24), thread, start, end in session time, the columns
    of markers.NAMES and `repaired`; sorted by process, start, the longer first. A step that was open at the end of the
    capture ends where it starts; all other open ranges are only in `unclosed`, which has the same columns less the
    last. `transfers`: see markers.TRANSFERS."""

    frame: pl.DataFrame
    transfers: pl.DataFrame
    unclosed: pl.DataFrame

    def of(self, *roles: str) -> pl.DataFrame:
        return self.frame.filter(pl.col("role").is_in(roles))


def read_ranges(db: Database, dialects: Dialects) -> Ranges:
    """All ranges whose names `dialects` knows, of the processes that have a block other than the optimizer's, and the
    NCCL calls of those processes."""
    frames = [pl.DataFrame(schema={**_RANGE, **NAMES})]
    transfers = []
    for chunk in _chunks(db):
        parsed = dialects.parse(chunk["text"])
        calls = chunk.filter(pl.col("text").str.starts_with("nccl"))
        frames.append(chunk.join(parsed.names, on="text"))
        frames.append(calls.with_columns(role=pl.lit(COMMUNICATION)))
        transfers.append(parsed.transfers)
    frame = pl.concat(frames, how="diagonal").filter(_trains())
    frame = _without_weak_names(_with_one_kind_of_step(frame, dialects))
    opened = pl.col("end") < pl.col("start")
    unclosed = frame.filter(opened & (pl.col("role") != COMMUNICATION))
    frame = frame.with_columns(
        end=pl.when(pl.col("role") == "step").then(pl.max_horizontal("start", "end")).otherwise("end")
    )
    frame = _repaired(frame.filter(~opened)).sort(
        "process", "start", "end", "row", descending=[False, False, True, False]
    )
    return Ranges(
        frame.with_row_index("id").cast({"id": pl.Int64}),
        pl.concat([pl.DataFrame(schema=TRANSFERS), *transfers]).unique(maintain_order=True),
        unclosed,
    )


def most_frequent(db: Database, count: int = 5) -> list[str]:
    """The names that most ranges of the file have."""
    totals = pl.DataFrame(schema={"name": pl.String, "count": pl.UInt32})
    for chunk in _chunks(db):
        names = chunk["text"].str.replace(SUFFIX + "$", "").value_counts(name="count").rename({"text": "name"})
        totals = pl.concat([totals, names]).group_by("name").agg(pl.col("count").sum())
    return totals.filter(pl.col("name") != "").top_k(count, by="count").sort("count", descending=True)["name"].to_list()


def _chunks(db: Database) -> Iterator[pl.DataFrame]:
    """The ranges in frames of bounded size: the columns of `_RANGE` and `text`. An open range ends before it starts."""
    columns = db.columns(TABLE)
    if not columns:
        return
    text_id = "COALESCE(textId, -1)" if "textId" in columns else "-1"
    registered = pl.DataFrame(
        db.texts(f"SELECT id, value FROM StringIds WHERE id IN (SELECT {text_id} FROM {TABLE})"),
        schema={"textId": pl.Int64, "registered": pl.String},
        orient="row",
    )
    for where in db.chunks(TABLE):
        frame = db.frame(
            f"""SELECT rowid AS row, COALESCE(globalTid, 0) >> 24 AS process, COALESCE(globalTid, 0) AS thread, start,
                COALESCE("end", start - 1) AS "end", {text_id} AS textId, CAST(COALESCE(text, '') AS BLOB) AS text
                FROM {TABLE} WHERE {where} AND eventType IN (59, 60)"""
        )
        frame = frame.with_columns(decoded(frame["text"]))
        frame = frame.join(registered, on="textId", how="left", maintain_order="left")
        name = pl.when(pl.col("text") == "").then(pl.col("registered").fill_null("")).otherwise("text")
        yield frame.select(*_RANGE, name.alias("text"))


def _trains() -> pl.Expr:
    """Whether the row's process does pipeline work: an optimizer alone does not make a pipeline."""
    block = (pl.col("role") == "block") & pl.col("kind").ne_missing("OPT")
    return block.any().over("process")


def _without_weak_names(frame: pl.DataFrame) -> pl.DataFrame:
    """Our own marks are the only names of blocks in processes that have them; plain names ("Forward") count only in
    processes where no other dialect speaks."""
    block = pl.col("role") == "block"
    plain, own = (pl.col("dialect").eq_missing(pl.lit(dialect)) for dialect in (PLAIN, OWN))
    strong = (block & pl.col("kind").ne_missing("OPT") & ~plain).any().over("process")
    marked = (block & own).any().over("process")
    return frame.filter(~(block & ((plain & strong) | (~own & marked))))


def _with_one_kind_of_step(frame: pl.DataFrame, dialects: Dialects) -> pl.DataFrame:
    """Step ranges of one dialect in each process: the first in the order of the rules."""
    order = {rule.dialect: i for i, rule in reversed(list(enumerate(dialects.rules)))}
    step = pl.col("role") == "step"
    place = pl.when(step).then(pl.col("dialect").replace_strict(order, default=None, return_dtype=pl.Int32))
    return frame.filter(~step | (place == place.min().over("process")))


def _repaired(frame: pl.DataFrame) -> pl.DataFrame:
    """Adds `repaired`, and gives the `PP:` ranges of a process whose ends cannot be true new ones.

    The runtime never nests its actions, so one `PP:` range inside another of the same thread proves that emit_nvtx
    closed them in the wrong order; their starts are right. Each then lasts until the next action, optimizer or step
    begins.
    """
    ours = pl.col("dialect") == PIPELINING
    frame = frame.sort("start", "end", "row", descending=[False, True, False])
    earlier = pl.col("end").cum_max().shift().over("process", "thread")
    inside = (pl.col("end") <= earlier) & (pl.col("start") < earlier)
    wrong = frame.filter(ours).filter(inside)["process"].unique().to_list()
    repaired = ours & pl.col("process").is_in(wrong)
    ticks = pl.col("start").shift(-1).over("process")
    following = frame.filter(pl.col("dialect").is_in([PIPELINING, "torch"])).select("row", following=ticks)
    return (
        frame.join(following, on="row", how="left")
        .with_columns(repaired=repaired.fill_null(False))
        .with_columns(end=pl.when("repaired").then(pl.coalesce("following", "end")).otherwise("end"))
        .drop("following")
    )
