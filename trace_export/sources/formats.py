"""The registry of input formats: what the rest of the program knows about a format is in its row here.

docs/adding-a-format.md shows how a format is added. This module loads nothing of the package: the command line lists
its commands from it, and a run needs few of the formats.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast

if TYPE_CHECKING:
    from trace_export.errors import SourceError
    from trace_export.model import KernelFile, Profile
    from trace_export.sources.folders import Folder, SearchResult
    from trace_export.sources.source import ReadOptions, Source, TaskRequest

    Detector = Callable[[Path, list[Folder]], SearchResult]


class Reader(Protocol):
    """The module that reads a format; `read_tasks` is called only where the format has device tasks."""

    def read(self, sources: Sequence[Source], options: ReadOptions) -> Sequence[Profile | SourceError]:
        """The profile of each source, or its error. A raised error concerns all sources: they are then read in smaller
        parts, and finally one by one."""
        ...

    def read_tasks(self, request: TaskRequest) -> tuple[KernelFile, ...]: ...


class Follower(Protocol):
    """The blocks of the last steps in the growing sources of a format, all of them together."""

    def advance(self, source: Source) -> bool:
        """Reads the part that was appended to a source; whether there was one. Raises SourceError."""
        ...

    def profile(self, after: tuple[int, int] | None = None) -> Profile:
        """The tables of these steps, or with a `run` and a `step` of those after that one, with all ranks. Steps have
        a run, which is another one when the job was started again, and a number."""
        ...


@dataclass(frozen=True)
class Speed:
    """Megabytes that one core at 3 GHz reads in a second, beside what opening a source takes: for the blocks, and for
    the device tasks (None: the format has none). `releases_gil`: most of the time is SQLite's, which lets other threads
    run meanwhile. `opening_s`: what opening takes, in seconds, where the source is one of several read together.
    """

    blocks: float
    device_tasks: float | None = None
    releases_gil: bool = False
    opening_s: float = 0.0006


@dataclass(frozen=True)
class Format:
    """One input format.

    `kind` is the `kind` of its sources and of their ranks. `command` is what the user calls it: a command of
    trace-export, which several formats of one profiler share. `title` completes "Draw …", `files` completes "looked
    for …". `detector` names the function `(root, folders) -> SearchResult` as "module:function"; formats may share one.
    `reader` names the module with `read(sources, options)`, see Reader, and, where the format has device tasks,
    `read_tasks(request) -> tuple[KernelFile, ...]`. `folder_speed` is the speed where the source is a folder and not a
    file. `packed` is a pattern of the names of its files that nobody reads while they are packed. `side_files` are
    patterns of the files that its detector and its reader open besides the source, relative to the folder of the source
    (or to the source, where that is a folder). `step_task_info`: MindStudio Insight reads the table StepTaskInfo in its
    databases. `follower` names the class that reads a source on while it grows, as "module:class", called with the
    number of steps to keep; None: it is read whole when it is finished. `batch_bytes`: whole sources of at most so many
    bytes are read several at once, and so are the beginnings of any; 0: one after another, the reader gains nothing by
    it.
    """

    kind: str
    command: str
    title: str
    files: str
    detector: str
    reader: str
    speed: Speed
    folder_speed: Speed | None = None
    packed: str | None = None
    side_files: tuple[str, ...] = ()
    step_task_info: bool = False
    follower: str | None = None
    batch_bytes: int = 0

    @property
    def has_device_tasks(self) -> bool:
        return self.speed.device_tasks is not None

    def load_detector(self) -> Detector:
        return cast("Detector", _named(self.detector))

    def load_follower(self, keep: int) -> Follower | None:
        return None if self.follower is None else cast("Follower", _named(self.follower)(keep))

    def load_reader(self) -> Reader:
        return cast("Reader", import_module(self.reader))


def _named(name: str) -> Any:
    """What "module:name" names."""
    module, _, attribute = name.partition(":")
    return getattr(import_module(module), attribute)


_ASCEND = Format(
    kind="ascend",
    command="ascend",
    title="Ascend PyTorch profiler output",
    files="*_ascend_pt folders",
    detector="trace_export.sources.ascend.find:captures",
    reader="trace_export.sources.ascend.reader",
    speed=Speed(blocks=1200, device_tasks=160, releases_gil=True),
    folder_speed=Speed(blocks=60, device_tasks=400),
    packed=r"(?:ascend_pytorch_profiler|msprof|msmonitor).*\.db|analysis\.db|kernel_details\.csv|communication\.json",
    side_files=("profiler_*.json", "../profiler_*.json", "../../profiler_info_*.json"),
    step_task_info=True,
    batch_bytes=128 << 20,
)

FORMATS: tuple[Format, ...] = (
    Format(
        kind="paddle",
        command="paddle",
        title="Paddle worker logs",
        files="workerlog.N",
        detector="trace_export.sources.paddle.find:worker_logs",
        reader="trace_export.sources.paddle.reader",
        speed=Speed(blocks=4000),
        packed=r"workerlog\.\d+",
        side_files=("envlog.*", "backup_env.*"),
        follower="trace_export.sources.paddle.follow:Follower",
        batch_bytes=256 << 10,
    ),
    Format(
        kind="paddle_dygraph",
        command="paddle",
        title="Paddle dynamic-graph records",
        files="profile_record_tmp_file_for_rank_N",
        detector="trace_export.sources.paddle.find:dygraph_records",
        reader="trace_export.sources.paddle.dygraph",
        speed=Speed(blocks=50),
        packed=r"profile_record_tmp_file_for_rank_\d+",
    ),
    Format(
        kind="nsys",
        command="nsys",
        title="Nsight Systems SQLite exports",
        files="*.sqlite, *.nsys-rep, *.qdrep and folders of *.parquet or *.arrow of Nsight Systems",
        detector="trace_export.sources.nsys.find:exports",
        reader="trace_export.sources.nsys.reader",
        speed=Speed(blocks=150, device_tasks=100, opening_s=0.012),
        folder_speed=Speed(blocks=35, device_tasks=30, opening_s=0.012),
        packed=r".+\.(?:sqlite3?|nsys-rep|qdrep)",
        batch_bytes=1 << 20,
    ),
    Format(
        kind="rocpd",
        command="rocpd",
        title="rocprofv3 databases (rocpd)",
        files="*_results.db of rocprofv3",
        detector="trace_export.sources.rocpd.find:databases",
        reader="trace_export.sources.rocpd.reader",
        speed=Speed(blocks=100, device_tasks=250, opening_s=0.012),
        packed=r".+_results\.db",
        batch_bytes=1 << 20,
    ),
    _ASCEND,
    replace(
        _ASCEND,
        kind="mindspore",
        command="mindspore",
        title="MindSpore profiler output",
        files="*_ascend_ms folders",
        packed=r"ascend_mindspore_profiler.*\.db",
    ),
    Format(
        kind="kineto",
        command="kineto",
        title="torch.profiler traces",
        files="*.json, *.json.gz and *.pftrace of torch.profiler",
        detector="trace_export.sources.kineto.find:traces",
        reader="trace_export.sources.kineto.reader",
        speed=Speed(blocks=60, device_tasks=75, opening_s=0.012),  # of plain traces 190, 230; of gzipped a tenth
        batch_bytes=1 << 20,
    ),
    Format(
        kind="recorder",
        command="recorder",
        title="files of the recorder",
        files="rankN.blocks",
        detector="trace_export.sources.recorder.find:files",
        reader="trace_export.sources.recorder.reader",
        speed=Speed(blocks=70),
        packed=r".+\.blocks",
        side_files=("*.blocks.earlier",),
        follower="trace_export.sources.recorder.follow:Follower",
    ),
    Format(
        kind="span_table",
        command="spans",
        title="span tables of hosts",
        files="*.spans.parquet",
        detector="trace_export.sources.spans.find:host_tables",
        reader="trace_export.sources.spans.span_table",
        speed=Speed(blocks=20),
        packed=r".+\.spans\.parquet",
    ),
    Format(
        kind="operation_table",
        command="spans",
        title="Operation tables of the straggler study",
        files="trace-*.parquet",
        detector="trace_export.sources.spans.find:tables",
        reader="trace_export.sources.spans.operation_table",
        speed=Speed(blocks=15),
        packed=r"trace-.+\.parquet",
        side_files=("meta-*.yaml",),
    ),
    Format(
        kind="primus",
        command="spans",
        title="Primus pipeline timings",
        files="pp_rank_N.json beside config.json",
        detector="trace_export.sources.spans.find:primus",
        reader="trace_export.sources.spans.primus",
        speed=Speed(blocks=13),
        packed=r"pp_rank_\d+\.json",
        side_files=("config.json", "pp_rank_*.json"),
        batch_bytes=1 << 30,  # each of a folder needs the lengths of all
    ),
    Format(
        kind="megascan",
        command="spans",
        title="MegaScan pipeline traces",
        files="*.json of MegaScan",
        detector="trace_export.sources.spans.find:megascan",
        reader="trace_export.sources.spans.mapped",
        speed=Speed(blocks=25),
        side_files=("*iter*.json",),
    ),
)
"""In this order a folder is searched, and commands are listed."""


def of_kind(kind: str) -> Format:
    """The format of a source or a rank."""
    return next(row for row in FORMATS if row.kind == kind)


def of_command(command: str | None) -> tuple[Format, ...]:
    """The formats that the user calls `command`; all where the user named none."""
    return tuple(row for row in FORMATS if command in (None, row.command))


def commands() -> tuple[str, ...]:
    """What the user calls the formats. The page of docs/collect with this name is the guide to one, if there is it."""
    return tuple(dict.fromkeys(row.command for row in FORMATS))
