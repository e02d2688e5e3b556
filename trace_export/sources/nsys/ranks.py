"""Which rank each process of an Nsight Systems export is.

Processes are distinguished by their id and never by that of the device: every rank may call its GPU device 0.
Precedence: names of step ranges, MPI's ranks, the environment of a session around a single rank, NCCL's largest
communicator, pipeline stages in the names of ranges, the file's name, and at last the order of devices and processes.
"""

from __future__ import annotations

import polars as pl

from trace_export.model import TIME, Note
from trace_export.sources.nsys import nvtx
from trace_export.sources.nsys.session import THREAD_BITS, environment_rank
from trace_export.sources.ranges.ranges import Ranges
from trace_export.sources.ranges.ranks import ByProcess, assigned, from_names, from_stages
from trace_export.sources.shared.names import rank_of
from trace_export.sources.shared.sqlite import Database
from trace_export.sources.source import Source


def read_ranks(
    db: Database,
    ranges: Ranges,
    processes: list[int],
    source: Source,
    devices_of: ByProcess,
    members: pl.DataFrame,
    begun_ns: int | None,
) -> tuple[pl.DataFrame, list[Note]]:
    """The ranks of the `processes` (see ranks.assigned), with pid and begun_ns. `devices_of`: process → its own number
    of its GPU; `members`: those of communicators, see nvtx.MEMBERS."""
    devices = _physical(db, {process: devices_of.get(process, -1) for process in processes})
    alone = processes[0] if len(processes) == 1 else None
    evidence = (
        ("recorded", lambda: from_names(ranges)),
        ("recorded", lambda: _from_mpi(db)),
        ("recorded", lambda: _of(alone, environment_rank(db))),
        ("assumed", lambda: nvtx.ranks_of(members)),
        ("assumed", lambda: from_stages(ranges.stages)),
        ("assumed", lambda: _of(alone, rank_of(source.path, source.host))),
        ("assumed", lambda: {p: i for i, p in enumerate(sorted(processes, key=lambda p: (devices[p], p)))}),
    )
    ranks, notes = assigned(
        ranges, processes, source, evidence, {process: gpu for process, (gpu, _) in devices.items()}
    )
    return ranks.with_columns(pid=pl.col("process") & 0xFFFFFF, begun_ns=pl.lit(begun_ns, TIME)), notes


def _of(process: int | None, rank: int | None) -> ByProcess:
    return {} if process is None or rank is None else {process: rank}


def _from_mpi(db: Database) -> ByProcess:
    if not db.has("MPI_RANKS", "globalTid", "rank"):
        return {}
    rows = db.texts(
        f"SELECT DISTINCT globalTid >> {THREAD_BITS}, rank FROM MPI_RANKS WHERE globalTid IS NOT NULL ORDER BY 1, 2"
    )
    return {process: rank for process, rank in rows if isinstance(rank, int) and 0 <= rank < 10**9}


def _physical(db: Database, devices: ByProcess) -> dict[int, tuple[int, int]]:
    """Process → (physical GPU, the process's own number of it), -1 where unknown."""
    physical: dict[tuple[int, int], int] = {}
    if db.has("TARGET_INFO_CUDA_DEVICE", "gpuId", "cudaId", "pid"):
        rows = db.texts("SELECT pid, cudaId, gpuId FROM TARGET_INFO_CUDA_DEVICE")
        physical = {(pid, cuda): gpu for pid, cuda, gpu in rows if isinstance(gpu, int) and isinstance(cuda, int)}
    return {
        process: (physical.get((process & 0xFFFFFF, device), device), device) for process, device in devices.items()
    }
