"""One rank of an Ascend run, from torch_npu or MindSpore, database or text export → its tables.

What differs between the exports is in `ascend_db.py` and `ascend_text.py`; what the frames mean is the same for all:
markers become blocks (`ascend_blocks.py`), operators become transfers and collectives (`ascend_comm.py`), and where
there are no markers, kernels do (`ascend_infer.py`).
"""

from __future__ import annotations

from dataclasses import replace

import polars as pl

from trace_export.errors import SourceError
from trace_export.model import HOSTS, RANKS, Note, Profile, conform
from trace_export.sources import ascend_blocks, ascend_comm, ascend_db
from trace_export.sources.ascend_meta import Metadata, metadata
from trace_export.sources.markers import Dialects
from trace_export.sources.source import ReadOptions, Source
from trace_export.sources.sqlite import Database


def read(source: Source, options: ReadOptions) -> Profile:
    """The tables of one rank. Raises SourceError when its files hold nothing that can be read."""
    if source.path.is_dir():
        raise SourceError(source.path, "text exports are not read yet")
    return _from_database(source, options)


def _from_database(source: Source, options: ReadOptions) -> Profile:
    with Database(source.path) as db:
        if not {"TASK", "STRING_IDS"} <= db.tables():
            raise SourceError(source.path, "holds no device tasks (table TASK)", "export the profile again")
        rank, device, origin = _identity(db, source)
        meta = _metadata(db, source, rank)
        marks, lost = ascend_db.marks(db)
        steps = ascend_db.steps(db)
        has_kernels = "COMPUTE_TASK_INFO" in db.tables()
        busy = (lambda ranges: ascend_db.busy(db, ranges)) if has_kernels else None
        spans, notes = ascend_blocks.spans(marks, steps, rank, Dialects.of(options.markers), busy)
        p2p, collectives = ascend_comm.tables(*ascend_db.operators(db), meta, rank)
        if lost:
            notes.append(Note("note", "ranges whose end the device never reached are left out", str(source.path), lost))
        host, label = _host(db, source)
        counters = ascend_db.counters(db, rank)
    place = {**meta.place, "rank": rank, "rank_origin": origin, "device": device}
    return Profile(
        hosts=_row({"host": host, "machine": source.machine, "label": label}, HOSTS),
        ranks=_row(
            {
                **place,
                "host": host,
                "source": str(source.path),
                "kind": source.kind,
                "stage_origin": "recorded" if meta.place.get("stage") is not None else None,
            },
            RANKS,
        ),
        spans=spans,
        p2p=p2p,
        collectives=collectives,
        counters=counters,
        declared=meta.declared,
        notes=(*meta.notes, *(replace(n, where=n.where or str(source.path)) for n in notes)),
    )


def _row(values: dict[str, object], schema: dict[str, pl.DataType]) -> pl.DataFrame:
    return conform(pl.DataFrame([values], schema={k: schema[k] for k in values}), schema)


def _identity(db: Database, source: Source) -> tuple[int, int | None, str]:
    """(rank, device, how sure the rank is): the layout's rank, else the database's, else 0."""
    known = [(-1, -1)]
    if {"rankId", "deviceId"} <= db.columns("RANK_DEVICE_MAP").keys():
        known = db.texts("SELECT rankId, deviceId FROM RANK_DEVICE_MAP") or known
    inside = next(((r, d) for r, d in known if r == source.rank), known[0])
    device = inside[1] if isinstance(inside[1], int) and 0 <= inside[1] < ascend_db.NOT_AVAILABLE else None
    if source.rank is not None:
        return source.rank, device, source.rank_origin
    if isinstance(inside[0], int) and 0 <= inside[0] < ascend_db.NOT_AVAILABLE:
        return inside[0], device, "recorded"
    return 0, device, "assumed"


def _host(db: Database, source: Source) -> tuple[str, str]:
    """Key and label of the clock domain: the host as the database knows it, else as the layout does."""
    if {"hostUid", "hostName"} <= db.columns("HOST_INFO").keys():
        for uid, name in db.texts("SELECT hostUid, hostName FROM HOST_INFO LIMIT 1"):
            if uid:
                return str(uid), str(name or uid)
    return source.host, source.host


def _metadata(db: Database, source: Source, rank: int) -> Metadata:
    rows = []
    if {"name", "value"} <= db.columns("META_DATA").keys():
        rows = [(str(n), str(v)) for n, v in db.texts("SELECT name, value FROM META_DATA")]
    return metadata(rows, source.path.parent.parent, rank, source.path)
