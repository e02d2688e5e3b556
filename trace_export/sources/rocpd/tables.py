"""The tables of a rocpd database, of schema 3 and 4.

Each process has a set of tables whose names end in its id (rocpd_region_0199…); the views of the same names without it
join the sets of a merged database. Rows of one set refer to each other by `id`, which is the row id. In schema 3 a row
has its thread, agent, queue and stream itself and a category is a string; in schema 4 a track has them, and categories
have a table. Source: ROCm/rocm-systems, projects/rocprofiler-sdk/source/share/rocprofiler-sdk-rocpd.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from zlib import crc32

from trace_export.sources.shared.names import LONGEST_NAME, is_host, job_of
from trace_export.sources.shared.sqlite import Database

_FIRST = "rocpd_metadata"
_NEEDED = ("region", "event", "string", "kernel_dispatch", "info_kernel_symbol")
MARKERS, RCCL = "MARKER_*", "RCCL_*"
"""The categories of ROCTx ranges and of calls of RCCL; all others are calls of the runtime."""


def is_rocpd(tables: frozenset[str]) -> bool:
    """Whether a database with these tables, in lower case, is one of rocpd."""
    return any(name.startswith(_FIRST) for name in tables) and any(name.startswith("rocpd_region") for name in tables)


@dataclass(frozen=True)
class Tables:
    """The set of tables of one process, numbered from 0 in the order of their names."""

    db: Database
    process: int
    suffix: str

    def name(self, table: str) -> str:
        return f"rocpd_{table}{self.suffix}"

    def has(self, table: str, *columns: str) -> bool:
        return self.db.has(self.name(table), *columns)

    @property
    def tracks(self) -> bool:
        """Whether rows refer to tracks, as in schema 4."""
        return self.has("region", "track_id")

    def rows(self, table: str, *columns: str) -> str:
        """The piece of a table that `Database.frames` asks for, with the columns of the row's track, as R."""
        piece = f"(SELECT rowid AS row, * FROM {self.name(table)} WHERE {{where}})"
        if not self.tracks:
            return f"{piece} AS R"
        of_track = ", ".join(f"T.{column}" for column in columns)
        track = f"LEFT JOIN {self.name('track')} AS T ON T.id = P.track_id"
        return f"(SELECT P.*, {of_track} FROM {piece} AS P {track}) AS R"

    def event(self) -> str:
        """The join with the event of a row, as E."""
        return f"LEFT JOIN {self.name('event')} AS E ON E.id = R.event_id"

    def of_category(self, *patterns: str) -> str:
        """The condition that the event is of a category like one of the patterns."""
        table, column = ("info_category", "name") if self.has("info_category", "name") else ("string", "string")
        like = " OR ".join(f"{column} GLOB '{pattern}'" for pattern in patterns)
        return f"E.category_id IN (SELECT id FROM {self.name(table)} WHERE {like})"

    def named(self, pattern: str) -> str:
        """The condition that the name of a row is like the pattern."""
        return f"R.name_id IN (SELECT id FROM {self.name('string')} WHERE string GLOB '{pattern}')"


def sets_of(db: Database) -> Iterator[Tables]:
    """The sets of tables that have all that a process needs."""
    suffixes = sorted(name.removeprefix(_FIRST) for name in db.tables() if name.startswith(_FIRST))
    whole = [s for s in suffixes if all(db.has(f"rocpd_{table}{s}") for table in _NEEDED)]
    for number, suffix in enumerate(whole):
        yield Tables(db, number, suffix)


RANK_VARIABLES = ("RANK", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID", "PMI_RANK")
JOB_VARIABLES = ("MASTER_ADDR", "MASTER_PORT", "SLURM_JOB_ID")
_LARGEST = 10**9


@dataclass(frozen=True)
class Process:
    """`host` is the key of the clock domain, which distinguishes machines of one name, and `label` its name; None where
    the host has no telling name. `rank`, `world` and `job`: of the environment, None where it does not say. `begun_ns`:
    when the process began, in the time of its recording."""

    host: str | None
    label: str | None
    rank: int | None
    world: int | None
    pid: int | None = None
    begun_ns: int | None = None
    job: str | None = None


def read_process(tables: Tables) -> Process:
    host, label = _host(tables)
    numbers = [number for name in RANK_VARIABLES if (number := _variable(tables, name)) is not None]
    pid, begun = _number(tables, "pid"), _number(tables, "init")
    job = job_of(_text(tables, name) for name in JOB_VARIABLES)
    return Process(host, label, numbers[0] if numbers else None, _variable(tables, "WORLD_SIZE"), pid, begun, job)


def _number(tables: Tables, column: str) -> int | None:
    row = tables.db.first(tables.name("info_process"), column, column, rest="ORDER BY id")
    return row[0] if row and isinstance(row[0], int) and row[0] >= 0 else None


def _host(tables: Tables) -> tuple[str | None, str | None]:
    needed = "hostname", "machine_id"
    wanted = ", ".join(f"substr({column}, 1, {LONGEST_NAME})" for column in needed)
    row = tables.db.first(tables.name("info_node"), wanted, *needed, rest="ORDER BY id")
    name, machine = (str(value or "").strip() for value in row or ("", ""))
    return (f"{name}~{crc32(machine.encode()):08x}", name) if is_host(name) else (None, None)


def _variable(tables: Tables, name: str) -> int | None:
    """A variable of the environment that is a number."""
    text = _text(tables, name)
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= 9 and int(text) < _LARGEST else None


def _text(tables: Tables, name: str) -> str:
    """A variable of the environment; "" where it is not there."""
    wanted, rest = f"substr(json_extract(environment, '$.{name}'), 1, {LONGEST_NAME})", "WHERE json_valid(environment)"
    row = tables.db.first(tables.name("info_process"), wanted, "environment", rest=f"{rest} ORDER BY id")
    return str(row[0] or "").strip() if row else ""
