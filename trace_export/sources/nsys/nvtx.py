"""The NVTX ranges of an Nsight Systems export that name pipeline work.

A range's name is in `text` or, when it was registered, in StringIds under `textId`. Every export has the event
types 59 (pushed and popped on one thread), 60 (started and ended anywhere) and 75 (a domain gets its name); `end` is
null while a range is open.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import polars as pl

from trace_export.sources.nsys.session import NAMES, THREAD_BITS
from trace_export.sources.ranges.dialects import Dialects
from trace_export.sources.ranges.named import Named
from trace_export.sources.ranges.ranges import CALL, RANGE
from trace_export.sources.ranges.ranks import ByProcess
from trace_export.sources.ranges.transfers import MOVES
from trace_export.sources.shared.sqlite import Database, decoded

TABLE = "NVTX_EVENTS"
DOMAIN_CREATED = 75
LONGEST_PAYLOAD = 256
"""At most this many bytes of a payload are read: those of NCCL have up to 80."""
LONGEST_RANGE = 256
"""Characters of a registered name: each of its ranges has it in memory once more. Names of pipeline work have fewer."""


def read_ranges(db: Database, dialects: Dialects) -> tuple[Named, pl.DataFrame]:
    """All ranges whose names count, with the calls of NCCL, and the members of communicators (`MEMBERS`) as far as the
    payloads say them."""
    named, layouts = Named(dialects), _layouts(db)
    calls, domains, members = [], [pl.DataFrame(schema=_DOMAINS)], [pl.DataFrame(schema=MEMBERS)]
    for chunk in _chunks(db):
        creates = chunk["type"] == DOMAIN_CREATED
        named.add(chunk.filter(~creates) if creates.any() else chunk)
        if creates.any():
            domains.append(chunk.filter(creates, pl.col("text") == DOMAIN).select(_DOMAINS.keys()))
        if (called := chunk.filter(_IS_CALL)).height:
            calls.append(_decoded(called, layouts).select(*RANGE, "text", "domain", *CALL))
        if layouts:
            opened = _decoded(chunk.filter(pl.col("payload").bin.size() > HEADER_BYTES), layouts)
            members.append(opened.select(MEMBERS.keys()).drop_nulls().unique())
    if calls:
        every, whole = pl.concat(calls), pl.col("text").is_in(MOVES)
        bare = every.filter(~whole).join(pl.concat(domains), on=[*_DOMAINS], how="semi")
        bare = bare.with_columns(text="nccl" + pl.col("text"))
        named.calls.append(pl.concat([every.filter(whole), bare]).drop("domain"))
    return named, pl.concat(members).unique(["process", "group"], keep="any")


def recorded(db: Database) -> Iterator[pl.DataFrame]:
    """All ranges in frames of bounded size, see `_with_texts`."""
    return (chunk.filter(pl.col("type") != DOMAIN_CREATED) for chunk in _chunks(db))


def _chunks(db: Database) -> Iterator[pl.DataFrame]:
    """The ranges and names of domains in frames of bounded size, see `_with_texts`."""
    names: dict[int, str] = {}
    for frame in _recorded(db):
        _look_up(db, frame["textId"], names)
        yield _with_texts(frame, names)


def _recorded(db: Database) -> Iterator[pl.DataFrame]:
    """The ranges and names of domains as recorded, in frames of bounded size: the columns of `RANGE`, `textId`, `type`,
    `domain`, and as bytes `text` and `payload`. An open range ends before it starts."""
    text_id = "COALESCE(textId, -1)" if db.has(TABLE, "textId") else "-1"
    domain = "COALESCE(domainId, 0)" if db.has(TABLE, "domainId") else "0"
    payload = f"substr(COALESCE(binaryData, ''), 1, {LONGEST_PAYLOAD})" if db.has(TABLE, "binaryData") else "''"
    sql = f"""SELECT rowid AS row, COALESCE(globalTid, 0) AS thread, COALESCE(globalTid, 0) >> {THREAD_BITS} AS process,
        start AS start, COALESCE("end", start - 1) AS "end", {text_id} AS textId,
        eventType AS type, {domain} AS domain, CAST(COALESCE(text, '') AS BLOB) AS text,
        CAST({payload} AS BLOB) AS payload
        FROM {TABLE} WHERE {{where}} AND eventType IN (59, 60, {DOMAIN_CREATED})"""
    return db.frames(TABLE, sql, blobs=["text", "payload"])


def _look_up(db: Database, ids: pl.Series, names: dict[int, str]) -> None:
    """Adds the names of ids of strings to `names`, "" if there is none; -1 stands for no id."""
    names[-1] = ""
    if ids.max() == -1:  # nearly always: names are seldom registered
        return
    unknown = [number for number in ids.unique() if number not in names]
    names |= dict.fromkeys(unknown, "") | db.names(NAMES, unknown, LONGEST_RANGE)


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


DOMAIN = "NCCL"
_DOMAINS = {"process": pl.Int64(), "domain": pl.Int64()}
_IS_CALL = pl.col("text").is_in([*MOVES, *(name.removeprefix("nccl") for name in MOVES)])
"""Whether a range may be a call of NCCL, by its name; NCCL's ranges leave `nccl` out."""
HEADER_BYTES = 32
_WIDTHS = {5: 4, 6: 4, 15: 4, 16: 4, 17: 8, 18: 8, 22: 8}
"""The types of values (NVTX_PAYLOAD_ENTRY_TYPE_…) → bytes: int, uint, int32, uint32; int64, uint64, size."""
_FIELDS = {
    "NCCL communicator ID": "group", "Peer rank": "peer", "Message size [bytes]": "bytes", "Rank": "own",
    "No. of ranks": "size",
}  # fmt: skip
MEMBERS = {"process": pl.Int64(), "group": pl.String(), "own": pl.Int64(), "size": pl.Int64()}
"""The rank of a process in a communicator, and the size of that."""

Layout = dict[str, tuple[int, int]]
"""Field → the offset of its value in the blob, and its bytes."""
Layouts = dict[tuple[int, int], Layout]
"""(domain, schema) → its layout."""


def ranks_of(members: pl.DataFrame) -> ByProcess:
    """The rank of each process in the largest communicator, which usually spans the whole job."""
    if members.is_empty():
        return {}
    largest = members.filter(pl.col("size") > 1, pl.col("size") == pl.col("size").max())
    if largest["group"].n_unique() != 1:
        return {}
    return dict(largest.select("process", "own").sort("process").iter_rows())


def world_of(members: pl.DataFrame, ranks: ByProcess) -> int | None:
    """The number of ranks of the job: the size of the largest communicator, if it numbers the processes by `ranks`."""
    numbers = ranks_of(members)
    alike = bool(numbers) and all(ranks.get(process, rank) == rank for process, rank in numbers.items())
    size = members["size"].max() if alike else None
    return size if isinstance(size, int) else None


def _layouts(db: Database) -> Layouts:
    """The layouts of the payloads of a file."""
    table = "NVTX_PAYLOAD_SCHEMA_ENTRIES"
    if not db.has(table, "domainId", "schemaId", "type", "name", "offset"):
        return {}
    rows = db.texts(f"SELECT DISTINCT domainId, schemaId, name, type, COALESCE(offset, 0) FROM {table}")
    layouts: Layouts = {}
    for domain, schema, name, kind, offset in rows:
        if name in _FIELDS and kind in _WIDTHS and isinstance(offset, int) and 0 <= offset < 1 << 16:
            layouts.setdefault((domain, schema), {})[_FIELDS[name]] = HEADER_BYTES + offset, _WIDTHS[kind]
    return layouts


def _decoded(chunk: pl.DataFrame, layouts: Layouts) -> pl.DataFrame:
    """`chunk` with the fields of its payloads: group, peer, bytes, own, size."""
    domain, schema = (_value(at, 4, pl.UInt32()) for at in (0, 8))
    fields: dict[str, list[pl.Expr]] = {field: [] for field in _FIELDS.values()}
    for (own_domain, own_schema), layout in sorted(layouts.items()):
        here = (domain == own_domain) & (schema == own_schema)
        for field, (at, width) in layout.items():
            value = _hex(at, width) if field == "group" else _value(at, width, pl.Int64() if width == 8 else pl.Int32())
            fields[field].append(pl.when(here).then(value))
    return chunk.with_columns(
        _first(values).cast(pl.String() if field == "group" else pl.Int64()).alias(field)
        for field, values in fields.items()
    )


def _first(values: Sequence[pl.Expr]) -> pl.Expr:
    return pl.coalesce(pl.lit(None), *values)


def _value(at: int, width: int, dtype: pl.DataType) -> pl.Expr:
    return pl.col("payload").bin.slice(at, width).bin.reinterpret(dtype=dtype, endianness="little")


def _hex(at: int, width: int) -> pl.Expr:
    """An unsigned number in hexadecimal; null where the blob is too short."""
    digits = [pl.col("payload").bin.slice(at + width - 1 - i, 1).bin.encode("hex") for i in range(width)]
    return pl.when(pl.col("payload").bin.size() >= at + width).then(pl.concat_str(digits))
