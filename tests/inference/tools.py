"""Captures of a program in which no pass is named, as the profilers write them."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from samples.generators.kineto_trace import Trace
from samples.generators.nsys_export import Export
from samples.generators.pipeline import Block
from samples.generators.unmarked import Program
from trace_export.model import Profile
from trace_export.sources.read import read
from trace_export.sources.source import ReadOptions, Source

Rows = list[tuple[object, ...]]
SMALL = Program(stages=3, microbatches=6, layers=1)
"""One stage of each kind: the first, one between, the last."""


@dataclass(frozen=True)
class Tool:
    """`write` as the generator takes it, the names of the captures in the order of their ranks, when their clock began,
    and what is said where no name is found."""

    write: dict[str, Any]
    files: str
    epoch_ns: int
    nameless: str


TOOLS = {
    "nsys": Tool({}, "node0.sqlite", Export.epoch_ns, "no NVTX ranges in the file"),
    "kineto": Tool(
        {"kineto": True}, "node0_7*.json.gz", Trace.base_ns or 0, "no annotation is named like a pipeline block"
    ),
    "rocpd": Tool({"rocpd": True}, "4*_results.db", 0, "no ROCTx range is named like a pipeline block"),
}  # fmt: skip


def captures(tool: str, folder: Path) -> list[Path]:
    """Of Nsight Systems one with all ranks, of the others one of each rank."""
    return sorted(folder.glob(TOOLS[tool].files))


def profiles(tool: str, folder: Path, **options: Any) -> list[Profile]:
    return [read(Source(tool, file, "node0"), ReadOptions(**options)).validate() for file in captures(tool, folder)]


def spans(*result: Profile) -> Rows:
    """Rank, kind, start and end of each block."""
    return sorted(row for each in result for row in each.spans.select("rank", "kind", "start_ns", "end_ns").rows())


def truth(tool: str, blocks: list[Block], kinds: str = "F B W OPT") -> Rows:
    """What `spans` is to give."""
    epoch = TOOLS[tool].epoch_ns
    return sorted((b.rank, b.kind, b.start_ns + epoch, b.end_ns + epoch) for b in blocks if b.kind in kinds.split())
