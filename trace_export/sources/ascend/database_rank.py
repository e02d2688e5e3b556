"""The rank that wrote an Ascend database, and its content: a `Recorded` for each device of its process."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace

from trace_export.errors import SourceError, path_text
from trace_export.model import conform
from trace_export.sources.ascend import database
from trace_export.sources.ascend.marker_blocks import STEPS, Kernels
from trace_export.sources.ascend.metadata import MAX_JSON, META_NAMES, Metadata, home_of, metadata
from trace_export.sources.ascend.recorded import Recorded
from trace_export.sources.ranges.devices import SEVERAL
from trace_export.sources.ranges.dialects import Dialects
from trace_export.sources.shared.names import LONGEST_NAME
from trace_export.sources.shared.sqlite import PIECE_ROWS, Database
from trace_export.sources.source import ReadOptions, Source

LARGEST = 2**31
"""Ranks and devices are numbered below this; `database.NOT_AVAILABLE` lies above."""


def recorded(source: Source, options: ReadOptions, dialects: Dialects, stack: ExitStack) -> list[Recorded]:
    """The rank of a database, which stays open as long as the stack, or those of several devices. Raises SourceError
    where it holds no device tasks, and where kernels of several devices are told apart by no marker."""
    db = stack.enter_context(Database(source.path, options.beginning * PIECE_ROWS, database.PARTS))
    if not (db.has("TASK") and db.has("STRING_IDS")):
        raise SourceError(source.path, "holds no device tasks (table TASK)", "export the profile again")
    rank, device, origin = _identity(db, source)
    whole = "task" not in db.shortened
    short = not db.shortened.isdisjoint(("task", "mstx_events", "communication_op"))
    host, label = _host_of(db, source)
    kernels = database.StoredKernels(db)
    capture = Recorded(
        source=source, rank=rank, rank_origin=origin, device=device, host=host, label=label,
        meta=_metadata_of(db, source, rank), rows=database.rows(db, dialects, on_device=whole),
        steps=conform(database.steps(db), STEPS), counters=database.counters(db),
        kernels=kernels, looks=kernels if whole and db.has("COMPUTE_TASK_INFO") else Kernels(),
        whole=whole, until={path_text(source.path): db.last("TASK", "startNs")} if short else {},
    )  # fmt: skip
    return _by_device(db, capture) if whole else [capture]


def _by_device(db: Database, whole: Recorded) -> list[Recorded]:
    """A process with several devices has a rank for each device with markers."""
    listed = _devices_of(db, whole.rank)
    if len(listed) < 2 or whole.rows is None:
        return [whole]
    by_device, unreached = database.by_device(db, whole.rows)
    if len(by_device) < 2:
        if not by_device and len(database.has_work_on(db, listed)) > 1:
            what = f"{SEVERAL}, and no marker is on any of them"
            raise SourceError(whole.source.path, what, "mark the passes with mstx.range_start(message, stream)")
        return [whole]
    return [
        replace(
            whole, rank=whole.rank * len(by_device) + index if whole.rank else device, rank_origin="inferred",
            device=device, of_device=device, rows=rows, meta=replace(whole.meta, place={}),
            counters=whole.counters.clear(), unreached=0 if index else unreached, is_first=index == 0,
            looks=database.StoredKernels(db, device) if db.has("COMPUTE_TASK_INFO") else whole.looks,
        )
        for index, (device, rows) in enumerate(by_device.items())
    ]  # fmt: skip


def _devices_of(db: Database, rank: int) -> list[int]:
    """The devices of a process with this rank, where the profiler lists several with one rank."""
    if not db.has("RANK_DEVICE_MAP", "rankId", "deviceId"):
        return []
    rows = db.texts("SELECT rankId, deviceId FROM RANK_DEVICE_MAP")
    valid = [(r, d) for r, d in rows if isinstance(d, int) and 0 <= d < LARGEST]
    owners = {r for r, _ in valid}
    return sorted({d for r, d in valid if len(owners) == 1 or r == rank})


def _identity(db: Database, source: Source) -> tuple[int, int | None, str]:
    """(rank, device, how sure the rank is): the rank that the layout records, else the database's, else that which the
    layout lets one assume, else 0."""
    listed = [(-1, -1)]
    if db.has("RANK_DEVICE_MAP", "rankId", "deviceId"):
        listed = db.texts("SELECT rankId, deviceId FROM RANK_DEVICE_MAP") or listed
    inside = next(((r, d) for r, d in listed if r == source.rank), listed[0])
    device = inside[1] if isinstance(inside[1], int) and 0 <= inside[1] < LARGEST else None
    if source.rank is not None and source.rank_origin == "recorded":
        return source.rank, device, "recorded"
    if isinstance(inside[0], int) and 0 <= inside[0] < LARGEST:
        return inside[0], device, "recorded"
    return source.rank or 0, device, "assumed"


def _host_of(db: Database, source: Source) -> tuple[str, str]:
    """Key and label of the clock domain: the host as the database knows it, else as the layout does."""
    wanted = f"substr(hostUid, 1, {LONGEST_NAME}), substr(hostName, 1, {LONGEST_NAME})"
    uid, name = db.first("HOST_INFO", wanted, "hostUid", "hostName") or (None, None)
    return (str(uid), str(name or uid)) if uid else (source.host, source.host)


def _metadata_of(db: Database, source: Source, rank: int) -> Metadata:
    rows = []
    if db.has("META_DATA", "name", "value"):
        names = ", ".join(f"'{name}'" for name in META_NAMES)
        value = f"CASE WHEN length(value) <= {MAX_JSON} THEN value ELSE '' END"
        sql = f"SELECT name, {value} FROM META_DATA WHERE name IN ({names})"
        rows = [(str(name), str(value)) for name, value in db.texts(sql)]
    return metadata(rows, home_of(source.path.parent, [source.path.name]), rank, source.path)
