"""The device tasks of a torch.profiler trace: its kernels, copies and memsets on their streams."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import polars as pl

from trace_export.model import KernelFile
from trace_export.sources.kineto.gpu_work import IS_NCCL
from trace_export.sources.kineto.json_events import Wanted
from trace_export.sources.kineto.trace import open_trace
from trace_export.sources.shared.task_writer import TaskWriter
from trace_export.sources.shared.timestamps import valid_task_times
from trace_export.sources.source import TaskRequest, kept_file

DEVICE_CATEGORIES = r"[Kk]ernel|mtia_ccp_events|(?:gpu_|mlu_|GCU_)?(?:[Mm]em|MEM)(?:cpy|set|CPY|SET)"
"""The categories of device tasks, as a regular expression."""
TASKS = Wanted(DEVICE_CATEGORIES)
TIMED = valid_task_times(pl.col("start"), pl.col("end"))
"""Whether an event's times are valid."""

_KERNEL = pl.col("cat") == "kernel"
_DEVICE = pl.col("device").fill_null("0")


class DeviceTasks:
    """Collects the device tasks of one trace below `folder`, or only the `wanted`, an expression of the columns of
    model.KERNELS. `offset_ns` is that of the trace."""

    def __init__(self, folder: Path, rank: int, offset_ns: int, wanted: pl.Expr | None = None) -> None:
        self._writer = TaskWriter(folder)
        self._rank = rank
        self._offset_ns = offset_ns
        self._wanted = wanted
        self._device: str | None = None
        self._several = False

    def add(self, events: pl.DataFrame) -> None:
        """Adds the device tasks among `events`, which have the columns of `json_events.SCHEMA`."""
        events = events.filter(TIMED & (_KERNEL | pl.col("cat").str.starts_with("gpu_mem")))
        if events.is_empty():
            return
        devices = events.select(_DEVICE).to_series()
        self._device = devices[0] if self._device is None else self._device
        self._several |= bool((devices != self._device).any())
        self._writer.add(self._rank, self._columns(events))

    def files(self) -> tuple[KernelFile, ...]:
        """The file of the trace's rank, none without tasks; streams are named with their device where the trace has
        several. Nothing can be added afterwards."""
        files = self._writer.files()
        return tuple(_with_device(file, self._device) for file in files) if self._several else files

    def _columns(self, events: pl.DataFrame) -> pl.DataFrame:
        """Those that are wanted, with the columns of model.KERNELS. The streams of the first task's device have no
        device in their names."""
        category = pl.when(_KERNEL & IS_NCCL).then(pl.lit("communication")).when(_KERNEL).then(pl.lit("compute"))
        stream = pl.format("stream {}", pl.coalesce("stream", "tid"))
        first = _DEVICE.eq(self._device)
        tasks = events.select(
            pl.when(first).then(stream).otherwise(pl.format("device {} {}", _DEVICE, stream)).alias("stream"),
            pl.col("name").cast(pl.Categorical),
            category=category.otherwise(pl.lit("memory")),
            start_ns=pl.col("start") + self._offset_ns,
            end_ns=pl.col("end") + self._offset_ns,
        )
        return tasks if self._wanted is None else tasks.filter(self._wanted)


class KeptTasks:
    """Keeps all device tasks of a trace in `folder` while it is read for its blocks. None are kept without a folder, or
    where it takes no more: they are read again then, and what is wrong is said."""

    def __init__(self, folder: Path | None, source: Path, offset_ns: int) -> None:
        self._folder = folder
        self._source = source
        self._tasks = None if folder is None else DeviceTasks(folder, 0, offset_ns)

    def add(self, events: pl.DataFrame) -> None:
        """As for `DeviceTasks`."""
        if self._tasks is not None:
            with self._given_up():
                self._tasks.add(events)

    def close(self) -> None:
        """Puts the file of the tasks, if there are any, where `TaskRequest.kept_file` finds it."""
        if self._tasks is not None and self._folder is not None:
            with self._given_up():
                for file in self._tasks.files():
                    file.path.rename(kept_file(self._folder, self._source))

    @contextmanager
    def _given_up(self) -> Iterator[None]:
        try:
            yield
        except (OSError, pl.exceptions.ComputeError):
            self._tasks = None


def read_tasks(request: TaskRequest) -> tuple[KernelFile, ...]:
    """The device tasks of a trace. Raises SourceError when the file is not a trace."""
    if not request.devices and (kept := request.kept_file) is not None:
        return (KernelFile(request.rank, _selected(kept, request)),)
    with open_trace(request.path, TASKS) as trace:
        tasks_of = {
            device: DeviceTasks(request.folder, rank, trace.offset_ns, request.asks_for())
            for _, rank, device in request.parts()
        }
        for events in trace.events():
            for device, tasks in tasks_of.items():
                tasks.add(events if device is None else events.filter(pl.col("device") == f"{device}"))
    return tuple(file for tasks in tasks_of.values() for file in tasks.files())


def _selected(kept: Path, request: TaskRequest) -> Path:
    """The file of those of the kept tasks that the request asks for."""
    if request.detail == "kernels" and request.window_ns is None:
        return kept
    selected = request.folder / f"selected.{kept.name}"
    pl.scan_ipc(kept).filter(request.asks_for()).sink_ipc(selected)
    return selected


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
