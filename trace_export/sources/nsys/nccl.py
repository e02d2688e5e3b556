"""NCCL's calls among the NVTX ranges of an Nsight Systems export: their names, and the payloads that they carry.

NCCL calls its ranges ncclAllReduce, ncclSend, …; nsys's own tracing of NCCL leaves out the prefix, so that only the
domain says whose they are. With `nsys export --include-blobs` a call has its arguments as a blob: 32 bytes that begin
with domain and schema (8 bytes each, little-endian), and the values, whose names, types and offsets are in
NVTX_PAYLOAD_SCHEMA_ENTRIES (NVIDIA/nccl, src/include/nvtx_payload_schemas.h).
"""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from trace_export.sources.ranges.ranges import CALL, RANGE
from trace_export.sources.ranges.ranks import ByProcess
from trace_export.sources.ranges.transfers import MOVES
from trace_export.sources.shared.sqlite import Database

DOMAIN = "NCCL"
HEADER_BYTES = 32
_WIDTHS = {5: 4, 6: 4, 15: 4, 16: 4, 17: 8, 18: 8, 22: 8}
"""The types of values (NVTX_PAYLOAD_ENTRY_TYPE_…) → bytes: int, uint, int32, uint32; int64, uint64, size."""
_FIELDS = {
    "NCCL communicator ID": "group", "Peer rank": "peer", "Message size [bytes]": "bytes", "Rank": "own",
    "No. of ranks": "size",
}  # fmt: skip
MEMBERS = {"process": pl.Int64(), "group": pl.String(), "own": pl.Int64(), "size": pl.Int64()}
"""Which rank a process is in a communicator of how many."""

Layout = dict[str, tuple[int, int]]
"""Field → the offset of its value in the blob, and its bytes."""
Layouts = dict[tuple[int, int], Layout]
"""(domain, schema) → its layout."""


class Calls:
    """Collects NCCL's calls from frames with the columns of `RANGE`, `text`, `type`, `domain` and `payload`."""

    def __init__(self, layouts: Layouts) -> None:
        self._layouts = layouts
        self._domains: list[pl.DataFrame] = []
        self._calls: list[pl.DataFrame] = []
        self._members: list[pl.DataFrame] = []

    def add_domains(self, created: pl.DataFrame) -> None:
        """Takes the events that give domains their names."""
        self._domains.append(created.filter(pl.col("text") == DOMAIN).select("process", "domain"))

    def add(self, chunk: pl.DataFrame) -> None:
        """Takes the calls in a piece."""
        bare = f"^(?:{'|'.join(name.removeprefix('nccl') for name in MOVES)})$"
        calls = chunk.filter(pl.col("text").is_in(MOVES) | pl.col("text").str.contains(bare))
        if calls.height:
            self._calls.append(_decoded(calls, self._layouts).select(*RANGE, "text", "domain", *CALL))
        if self._layouts:
            opened = _decoded(chunk.filter(pl.col("payload").bin.size() > HEADER_BYTES), self._layouts)
            self._members.append(opened.select(MEMBERS.keys()).drop_nulls().unique())

    def calls(self) -> list[pl.DataFrame]:
        """The sends, receives and collectives, all with NCCL's own names."""
        domains = pl.concat([pl.DataFrame(schema={"process": pl.Int64, "domain": pl.Int64}), *self._domains])
        found = []
        for calls in self._calls:
            whole = calls.filter(pl.col("text").is_in(MOVES))
            bare = calls.filter(~pl.col("text").is_in(MOVES)).join(domains, on=["process", "domain"], how="semi")
            named = bare.with_columns(text="nccl" + pl.col("text"))
            found.append(pl.concat([whole, named]).drop("domain"))
        return found

    def members(self) -> pl.DataFrame:
        """The members of communicators (`MEMBERS`), as far as the payloads say."""
        if not self._members:
            return pl.DataFrame(schema=MEMBERS)
        return pl.concat(self._members).unique(["process", "group"], keep="any")


def ranks_of(members: pl.DataFrame) -> ByProcess:
    """The rank of each process in the largest communicator, which most often is that of the whole job."""
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


def layouts(db: Database) -> Layouts:
    """The layouts of the payloads of a file."""
    table = "NVTX_PAYLOAD_SCHEMA_ENTRIES"
    if not db.has(table, "domainId", "schemaId", "type", "name", "offset"):
        return {}
    rows = db.texts(f"SELECT DISTINCT domainId, schemaId, name, type, COALESCE(offset, 0) FROM {table}")
    found: Layouts = {}
    for domain, schema, name, kind, offset in rows:
        if name in _FIELDS and kind in _WIDTHS and isinstance(offset, int) and 0 <= offset < 1 << 16:
            found.setdefault((domain, schema), {})[_FIELDS[name]] = HEADER_BYTES + offset, _WIDTHS[kind]
    return found


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
