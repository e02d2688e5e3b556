"""What a rocpd database says of its process and host.

The table of processes also holds the whole environment and the command line. Of these only the variables in
`RANK_VARIABLES` and WORLD_SIZE leave this file, as numbers, and a digest of those in `JOB_VARIABLES`.
"""

from __future__ import annotations

from dataclasses import dataclass
from zlib import crc32

from trace_export.sources.rocpd.tables import Tables
from trace_export.sources.shared.names import LONGEST_NAME, is_host, job_of

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
    if not tables.has("info_process", column):
        return None
    rows = tables.db.texts(f"SELECT {column} FROM {tables.name('info_process')} ORDER BY id LIMIT 1")
    return rows[0][0] if rows and isinstance(rows[0][0], int) and rows[0][0] >= 0 else None


def _host(tables: Tables) -> tuple[str | None, str | None]:
    if not tables.has("info_node", "hostname", "machine_id"):
        return None, None
    columns = ", ".join(f"substr({c}, 1, {LONGEST_NAME})" for c in ("hostname", "machine_id"))
    rows = tables.db.texts(f"SELECT {columns} FROM {tables.name('info_node')} ORDER BY id LIMIT 1")
    name, machine = (str(value or "").strip() for value in rows[0]) if rows else ("", "")
    return (f"{name}~{crc32(machine.encode()):08x}", name) if is_host(name) else (None, None)


def _variable(tables: Tables, name: str) -> int | None:
    """A variable of the environment that is a number."""
    text = _text(tables, name)
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= 9 and int(text) < _LARGEST else None


def _text(tables: Tables, name: str) -> str:
    """A variable of the environment; "" where it is not there."""
    if not tables.has("info_process", "environment"):
        return ""
    sql = f"""SELECT substr(json_extract(environment, '$.{name}'), 1, {LONGEST_NAME})
        FROM {tables.name("info_process")} WHERE json_valid(environment) ORDER BY id LIMIT 1"""
    rows = tables.db.texts(sql)
    return str(rows[0][0] or "").strip() if rows else ""
