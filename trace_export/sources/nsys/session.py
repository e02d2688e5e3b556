"""The metadata of an Nsight Systems export: clock, host, schema version, diagnostics, threads.

These tables also hold the environment, command lines and output of every process of the machine. Rows are fetched by
name, and of an environment only the variables in `RANK_VARIABLES` leave this file, as numbers.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from dataclasses import dataclass
from pathlib import Path
from zlib import crc32

import polars as pl

from trace_export.model import Note
from trace_export.sources.shared.names import LONGEST_NAME, is_host
from trace_export.sources.shared.sqlite import Database
from trace_export.sources.shared.timestamps import LATEST_NS
from trace_export.units import duration

METADATA = ("META_DATA_EXPORT", "EXPORT_META_DATA")
"""The metadata table since 2023, and before."""
NAMES = "stringids"
"""The table of all names, in lower case."""
_OF_2020 = frozenset({"nvtx_events", "cupti_activity_kind_runtime"})
"""Exports of 2020 and 2021 have no metadata, and some no start time."""
NEWEST = (3, 20)
"""The newest schema that was tested."""
RANK_VARIABLES = ("RANK", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID")

MOST_ENVIRONMENT = 1 << 20
MOST_DIAGNOSTICS = 50
"""Kinds of diagnostics that are shown."""

THREAD_BITS = 24
"""The global id of a process has this many bits below it, where those of its threads have the thread's number."""
THREADS = 1 << THREAD_BITS

_LOSSES = ("events might have been", "events might be missing")
_AT_THE_END = ("cudaProfilerStop", "process exit")
"""Operations of the profiler at the end of the recording."""
_NOTABLE_NS = 1_000_000
"""An operation of the profiler this long gets a note."""
_WARNING = 2
"""The severity from which on a diagnostic is shown; those about lost events are shown in any case."""


def process_of(ids: str) -> pl.Expr:
    """The process of the global ids of processes or threads in the column `ids`."""
    return (pl.col(ids) // THREADS).alias("process")


@dataclass(frozen=True)
class Session:
    """`offset_ns` turns session time into unix time; `host` and `label` (see model.HOSTS) are None where the host has
    no telling name. `begun_ns`: when the session began; a recording may be one of its windows."""

    offset_ns: int
    host: str | None
    label: str | None
    notes: tuple[Note, ...]
    begun_ns: int | None = None


def is_export(tables: frozenset[str]) -> bool:
    """Whether a database with these tables, in lower case, is an Nsight Systems export."""
    named = bool({"target_info_session_start_time", NAMES} & tables)
    return (named and any(table.lower() in tables for table in METADATA)) or bool(_OF_2020 & tables)


def read_session(db: Database, path: Path) -> Session:
    """Clock, host and diagnostics of the session; the notes name `path`.

    unix = utcEpochNs + t - EXPORT_CONFIG_TIME_SHIFT: `nsys export --ts-normalize` and `--ts-shift` have added the shift
    to every stamp.
    """
    notes = []
    plausible = f"utcEpochNs > 0 AND utcEpochNs < {LATEST_NS}"
    row = db.first("TARGET_INFO_SESSION_START_TIME", "utcEpochNs", "utcEpochNs", rest=f"WHERE {plausible}")
    epoch = row[0] if row and isinstance(row[0], int) else None
    if epoch is None:
        text = "no start time in the export; times are relative to the start of the session"
        notes.append(Note("start-time-unknown", "warning", text, str(path)))
    shift = _metadata(db, "EXPORT_CONFIG_TIME_SHIFT")
    name = _system(db, "Hostname", LONGEST_NAME).strip()
    version = re.match(r"(\d{1,9})\.(\d{1,9})", _metadata(db, "EXPORT_SCHEMA_VERSION"))
    if version and (int(version[1]), int(version[2])) > NEWEST:
        newest = ".".join(map(str, NEWEST))
        text = f"export schema {version[0]} is newer than {newest}, the newest that was tested"
        notes.append(Note("schema-newer", "note", text, str(path)))
    said = (Note("profiler-diagnostic", "note", f"nsys: {t}", str(path), n) for t, n in _diagnostics(db).items())
    offset_ns = (epoch or 0) - (int(shift) if re.fullmatch(r"-?\d{1,18}", shift) else 0)
    host, label = (f"{name}{_gpus(db)}", name) if is_host(name) else (None, None)
    return Session(offset_ns, host, label, (*notes, *said), _begun_ns(db, epoch))


def _begun_ns(db: Database, epoch_ns: int | None) -> int | None:
    """When the session began: `startTime` is from there to the zero of the recording's times."""
    row = db.first("ANALYSIS_DETAILS", "startTime", "startTime")
    if epoch_ns is None or row is None or not isinstance(row[0], int):
        return None
    return epoch_ns - row[0] if 0 <= row[0] < epoch_ns else None


def environment_rank(db: Database) -> int | None:
    """The rank that the environment of the profiled command names: right when nsys was started once for each rank."""
    pairs = _system(db, "DeviceEnvironment", MOST_ENVIRONMENT).split(";")
    if db.has("META_DATA_CAPTURE"):
        wanted = " OR ".join(f"value GLOB '{name}=*'" for name in RANK_VARIABLES)
        rows = db.texts(
            f"SELECT value FROM META_DATA_CAPTURE WHERE name = 'PROCESS_0:ENVIRONMENT_VARIABLE' AND ({wanted})"
        )
        pairs += [str(value) for (value,) in rows]
    for name in RANK_VARIABLES:
        for pair in pairs:
            if match := re.fullmatch(rf'\s*{name}="?(\d{{1,9}})"?\s*', pair):
                return int(match[1])
    return None


def _metadata(db: Database, name: str) -> str:
    table = next((table for table in METADATA if db.has(table)), METADATA[0])
    row = db.first(table, "value", rest="WHERE name = ?", parameters=[name])
    return str(row[0]) if row else ""


def _system(db: Database, name: str, most: int) -> str:
    """The first `most` characters of a fact about the machine."""
    wanted, rest = "substr(value, 1, ?)", "WHERE name = ?"
    row = db.first("TARGET_INFO_SYSTEM_ENV", wanted, rest=rest, parameters=[most, name])
    return str(row[0] or "") if row else ""


def _gpus(db: Database) -> str:
    """A checksum of the GPU ids, which distinguishes containers of one name on two machines."""
    if not db.has("TARGET_INFO_GPU", "uuid"):
        return ""
    ids = sorted(str(uuid) for (uuid,) in db.texts("SELECT DISTINCT uuid FROM TARGET_INFO_GPU WHERE uuid IS NOT NULL"))
    return f"~{crc32(' '.join(ids).encode()):08x}" if ids else ""


def _diagnostics(db: Database) -> Counter[str]:
    """Warnings of the profiler, and its notes about lost events: how often each occurs, of the most frequent ones."""
    if not db.has("DIAGNOSTIC_EVENT"):
        return Counter()
    lost = " OR ".join(f"text GLOB '*{words}*'" for words in _LOSSES)
    rows = db.texts(
        f"SELECT substr(text, 1, {LONGEST_NAME}) AS said, count(*) AS often FROM DIAGNOSTIC_EVENT WHERE"
        f" (typeof(severity) = 'integer' AND severity >= {_WARNING}) OR {lost} GROUP BY said ORDER BY often DESC, said"
    )
    shown: Counter[str] = Counter()
    for text, often in rows[:MOST_DIAGNOSTICS]:
        shown[_without_secrets(str(text))] += often
    if rest := sum(often for _, often in rows[MOST_DIAGNOSTICS:]):
        shown["further diagnostics, each of another kind"] = rest
    return shown


def _without_secrets(text: str) -> str:
    """A diagnostic without counts, paths, assignments, options and anything quoted, and of bounded length."""
    if loss := re.search(r"[^.:]*events might (?:have been|be missing)[^.]*", text):
        text = loss[0]
    text = re.sub(r"\"[^\"]*\"|'[^']*'|\S*[/\\]\S*|\S*=\S*|(?<!\S)--?[A-Za-z]\S*(?:\s+[^\s-]\S*)?", "…", text)
    return " ".join(text.split())[:200]


def interruptions(db: Database, path: Path, first: int) -> list[Note]:
    """A note where the profiler itself worked for a while after the first block, whose session time is `first`. Its
    operations at the end, and the cost of tracing each launch, do not count."""
    if not db.has("PROFILER_OVERHEAD", "start", "end", "nameId"):
        return []
    at_the_end = " OR ".join(f"value GLOB '*{words}*'" for words in _AT_THE_END)
    rows = db.texts(
        f"""SELECT count(*), sum("end" - start) FROM PROFILER_OVERHEAD WHERE typeof(start) = 'integer' AND
        typeof("end") = 'integer' AND start >= ? AND "end" - start BETWEEN {_NOTABLE_NS} AND {LATEST_NS}
        AND nameId NOT IN (SELECT id FROM StringIds WHERE {at_the_end})""",
        [first],
    )
    count, sum_ns = rows[0]
    if not count:
        return []
    text = f"nsys itself worked for {duration(sum_ns)} after the first block, as to flush buffers or allocate memory"
    return [Note("profiler-worked", "note", f"{text}; steps with that take longer", str(path), count)]


def autograd_threads(db: Database) -> dict[int, frozenset[int]]:
    """Process → its threads with names of the autograd engine."""
    from trace_export.inference.threads import AUTOGRAD  # whoever looks for exports does not need it

    if not db.has("ThreadNames", "globalTid", "nameId"):
        return {}
    rows = db.texts(
        "SELECT DISTINCT globalTid FROM ThreadNames WHERE globalTid IS NOT NULL AND"
        f" nameId IN (SELECT id FROM StringIds WHERE value GLOB '{AUTOGRAD}*')"
    )
    threads: dict[int, set[int]] = defaultdict(set)
    for (thread,) in rows:
        threads[thread >> THREAD_BITS].add(thread)
    return {process: frozenset(ids) for process, ids in threads.items()}
