"""What a reader is given: one `Source` that `find` has found, and the `ReadOptions` of the run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from trace_export.model import Detail
from trace_export.selection import Numbers, Window

Kind = Literal["paddle", "paddle_dygraph", "nsys", "ascend", "mindspore", "kineto"]


@dataclass(frozen=True)
class Source:
    """One input to read in one piece: a log, a database, or the folder of one rank.

    `path` is what is opened. `host` is the clock domain as far as the layout tells (a reader may know better),
    `machine` its index, `rank` the global rank where the layout tells it, and `rank_origin` how (see model.RANKS).
    `local` is the worker's index on its machine (Paddle's meaning of `--devices`),
    `ranks_apart` the distance between the ranks of equal local index on neighbouring machines. `at` is the machine of a
    cluster on whose own disk it lies (None: it can be read from anywhere).
    """

    kind: Kind
    path: Path
    host: str
    machine: int = 0
    rank: int | None = None
    rank_origin: str = "recorded"
    device: int | None = None
    local: int | None = None
    ranks_apart: int = 1
    at: str | None = None


@dataclass(frozen=True)
class ReadOptions:
    """How much to read. `spill` is a folder for files of device tasks; set whenever `detail` is not `spans`."""

    detail: Detail = "spans"
    host_ranges: bool = False
    steps: Numbers | None = None
    ranks: Numbers | None = None
    window: Window | None = None
    markers: tuple[str, ...] = ()
    spill: Path | None = None
