"""The input of a reader: one `Source` from `find`, and the `ReadOptions` of the run."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import polars as pl

from trace_export.choices import Detail, Infer
from trace_export.errors import path_text
from trace_export.selection import Numbers


@dataclass(frozen=True)
class Source:
    """One input to read in one piece: a log, a database, or the folder of one rank.

    `kind` names its row in `formats`, `path` is what is opened. `host` is the clock domain as far as the layout says (a
    reader may know better), `machine` its index, `rank` the global rank where the layout says it, and `rank_origin` how
    (see model.RANKS). `local_rank` is the worker's index on its machine, which `--devices` means (None where only the
    reader knows), and `local_rank_origin` says how: recorded, or inferred. `ranks_per_machine` is the distance between
    the ranks of equal local rank on neighbouring machines. `machine_name` is the machine of a cluster on whose own disk
    the source lies (None: any can read it). `pid`: the number of its process, where the layout says it.
    """

    kind: str
    path: Path
    host: str
    machine: int = 0
    rank: int | None = None
    rank_origin: str = "recorded"
    device: int | None = None
    local_rank: int | None = None
    local_rank_origin: str = "recorded"
    ranks_per_machine: int = 1
    machine_name: str | None = None
    pid: int | None = None

    def rank_row(self, **known: object) -> dict[str, object]:
        """A row of model.RANKS: what the layout says of a rank in the source, and what its reader has `known`."""
        row = {"rank": self.rank, "rank_origin": self.rank_origin, "host": self.host, "source": path_text(self.path)}
        stage_origin = None if known.get("stage") is None else "recorded"
        return {**row, "kind": self.kind, "stage_origin": stage_origin, **known}


@dataclass(frozen=True)
class ReadOptions:
    """How to read blocks, messages and counters, which are always read for all of the time: steps are counted and
    clocks are fitted from them. `host_ranges`: the ranges themselves in place of the GPU work in them. `ranks`: only
    these. `markers`: rules of the user for the names of ranges (see dialects.Dialects.of). `infer`: whether blocks are
    found from launches where no pass is named (`auto`), never (`off`), or whatever is named (`only`). `optimizer`: also
    look for the optimizer among the kernels, where it is not marked. `beginning`: of a large source only this many
    first pieces (rows or bytes, see the readers), with named passes as the CPU saw them; 0: all of it. A reader that
    left something out says so in `Profile.recorded_until`. `keep_tasks`: a folder where a reader that comes by all
    device tasks meanwhile keeps them for `TaskRequest.kept_file`."""

    host_ranges: bool = False
    ranks: Numbers | None = None
    markers: tuple[str, ...] = ()
    infer: Infer = "auto"
    optimizer: bool = False
    beginning: int = 0
    keep_tasks: Path | None = None


def kept_file(folder: Path, source: Path) -> Path:
    """Where the tasks of a source that is one process are kept: an Arrow file with the columns of model.KERNELS, sorted
    by start_ns."""
    return folder / f"{hashlib.blake2b(bytes(source), digest_size=16).hexdigest()}.arrow"


@dataclass(frozen=True)
class TaskRequest:
    """Which device tasks to read of one source: those of its processes `ranks` (process → rank; the process is None
    where the source is one) that touch `window_ns`, in the clock of its host (None: all). They go to files below
    `folder`. `size`: the bytes that the source had when its blocks were read. `kept`: `ReadOptions.keep_tasks` of then.
    `devices`: rank → device, for a process whose devices are separate ranks; `ranks` has one of them."""

    source: Source
    detail: Detail
    ranks: dict[int | None, int]
    window_ns: tuple[int, int] | None
    folder: Path
    size: int = 0
    kept: Path | None = None
    devices: Mapping[int | None, Mapping[int, int | None]] = field(default_factory=dict)

    @property
    def path(self) -> Path:
        return self.source.path

    @property
    def rank(self) -> int:
        """The rank of a source that is one process."""
        return next(iter(self.ranks.values()))

    @property
    def kept_file(self) -> Path | None:
        """The file of all device tasks of the source where its reader kept them, so that it need not be read again."""
        file = None if self.kept is None else kept_file(self.kept, self.path)
        return file if file is not None and file.exists() else None

    def parts(self) -> list[tuple[int | None, int, int | None]]:
        """The process, the rank and the device of each file; the device is None where a process is one rank."""
        return [
            (process, one, device)
            for process, rank in self.ranks.items()
            for one, device in self.devices.get(process, {rank: None}).items()
        ]

    def asks_for(self) -> pl.Expr:
        """Whether a task is asked for: of its `category`, `start_ns` and `end_ns` as in model.KERNELS."""
        wanted = pl.lit(True)
        if self.window_ns is not None:
            wanted = (pl.col("end_ns") >= self.window_ns[0]) & (pl.col("start_ns") <= self.window_ns[1])
        return wanted & (pl.col("category") == "communication") if self.detail == "comm" else wanted


@dataclass(frozen=True)
class Group:
    """Sources of one kind that are read together."""

    sources: tuple[Source, ...]

    @property
    def path(self) -> Path:
        return self.sources[0].path
