"""The device tasks of a torch.profiler trace: its kernels, copies and memsets on their streams."""

from __future__ import annotations

from pathlib import Path

import polars as pl

from trace_export.model import KernelFile
from trace_export.sources.kineto import nccl
from trace_export.sources.kineto.json_events import Wanted
from trace_export.sources.kineto.trace import open_trace
from trace_export.sources.shared.external_sort import ExternalSort
from trace_export.sources.shared.timestamps import valid_session_times
from trace_export.sources.source import TaskRequest

DEVICE_CATEGORIES = r"[Kk]ernel|mtia_ccp_events|(?:gpu_|mlu_|GCU_)?(?:[Mm]em|MEM)(?:cpy|set|CPY|SET)"
"""The categories of device tasks, as a regular expression."""
TASKS = Wanted(DEVICE_CATEGORIES)
TIMED = valid_session_times(pl.col("start"), pl.col("end"))
"""Whether an event's times are valid."""

_KERNEL = pl.col("cat") == "kernel"
_DEVICE = pl.col("device").fill_null("0")


def read_tasks(request: TaskRequest) -> tuple[KernelFile, ...]:
    """The device tasks of a trace; streams are named with their device where a process uses several. Raises SourceError
    when the file is no trace."""
    sorter = ExternalSort(request.folder)
    device = None
    several = False
    with open_trace(request.path, TASKS) as trace:
        for events in trace.events():
            events = events.filter(TIMED & (_KERNEL | pl.col("cat").str.starts_with("gpu_mem")))
            if events.is_empty():
                continue
            devices = events.select(_DEVICE).to_series()
            device = devices[0] if device is None else device
            several |= bool((devices != device).any())
            sorter.add(request.rank, _columns(events, request, trace.offset_ns, device))
    files = sorter.files()
    return tuple(_with_device(file, device) for file in files) if several else files


def _columns(events: pl.DataFrame, request: TaskRequest, offset_ns: int, device: str | None) -> pl.DataFrame:
    """Those that are wanted, with the columns of model.KERNELS. The streams of `device`, that of the first task, have
    no device in their names."""
    moves = _KERNEL & nccl.IS_NCCL
    category = (
        pl.when(moves).then(pl.lit("communication")).when(_KERNEL).then(pl.lit("compute")).otherwise(pl.lit("memory"))
    )
    if request.window_ns is not None:
        begin, end = (t - offset_ns for t in request.window_ns)
        events = events.filter((pl.col("end") >= begin) & (pl.col("start") <= end))
    stream = pl.format("stream {}", pl.coalesce("stream", "tid"))
    return events.filter(moves if request.detail == "comm" else pl.lit(True)).select(
        pl.when(_DEVICE.eq(device)).then(stream).otherwise(pl.format("device {} {}", _DEVICE, stream)).alias("stream"),
        pl.col("name").cast(pl.Categorical),
        category.alias("category"),
        start_ns=pl.col("start") + offset_ns,
        end_ns=pl.col("end") + offset_ns,
    )


def _with_device(file: KernelFile, device: str | None) -> KernelFile:
    """The tasks with the device in the names of all streams."""
    path = Path(f"{file.path}.by_device")
    name = pl.col("stream").cast(pl.String)
    named = (
        pl.when(name.str.starts_with("device ")).then(name).otherwise(pl.format("device {} {}", pl.lit(device), name))
    )
    schema = pl.read_ipc_schema(file.path)
    pl.scan_ipc(file.path).with_columns(named.cast(schema["stream"]).alias("stream")).sink_ipc(path)
    path.replace(file.path)
    return file
