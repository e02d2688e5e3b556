"""The ranges of a source as its profiler recorded them: those whose names may be those of pipeline work, those of
PyTorch's operators, and the names that occur most often."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import polars as pl

from trace_export.model import TEXT
from trace_export.sources.ranges.dialects import OPERATION_SUFFIX, Dialects
from trace_export.sources.ranges.ranges import RANGE


@dataclass
class Named:
    """Ranges whose names `dialects` may know (`RANGE`, text), and the `calls` of NCCL (with some of `CALL`), in pieces.
    `operators`: whether nodes of the autograd engine have ranges, too (emit_nvtx)."""

    dialects: Dialects
    ranges: list[pl.DataFrame] = field(default_factory=list)
    calls: list[pl.DataFrame] = field(default_factory=list)
    operators: bool = False

    def add(self, rows: pl.DataFrame) -> None:
        """Takes in those of the ranges (`RANGE`, text and other columns) that count."""
        counts = rows.lazy().filter(self.dialects.may_know("text")).select(*RANGE, "text")
        self.ranges.append(counts.collect())
        self.operators = self.operators or bool(rows["text"].str.starts_with(_ENGINE).any())

    @property
    def texts(self) -> pl.Series:
        """The names of the ranges."""
        return pl.concat([pl.Series("text", [], TEXT), *(rows["text"] for rows in self.ranges)])


_ENGINE = "autograd::engine"
_OPERATOR = rf", op_id = \d|^{_ENGINE}"


def operators(pieces: Iterable[pl.DataFrame]) -> dict[int, pl.DataFrame]:
    """Process → the operators and nodes among ranges (`RANGE`, text) in pieces: thread, start, end, name, and their
    number seq."""
    every = []
    for ranges in pieces:
        wanted = ranges.filter(pl.col("text").str.contains(_OPERATOR), pl.col("end") >= pl.col("start"))
        name = pl.col("text").str.replace(OPERATION_SUFFIX + "$", "").alias("name")
        seq = pl.col("text").str.extract(r", seq = (\d+), op_id = ").cast(pl.Int64, strict=False)
        every.append(wanted.select("process", "thread", "start", "end", name, seq=seq))
    parts = pl.concat(every).partition_by("process", as_dict=True, include_key=False) if every else {}
    return {process: part for (process,), part in parts.items()}


EXAMPLES = 5
"""How many names a sentence lists."""
MOST_COUNTED = 1000
_FRAMEWORK = (
    r"^(?:aten|autograd|torch|c10d|prims|prim|inductor|triton|nccl|gloo|mpi|FSDP)(?:::|:)"
    r"|^nccl[A-Z]|^(?:cu|cuda|cudnn|cublas|hip|hsa)[A-Z]\w*$"
    r"|^ProfilerStep#|^Optimizer\.\w+#|^enumerate\(DataLoader\)|^(?:Distributed)?DataParallel\."
    r"|^(?:Torch-Compiled Region|TorchDynamo|CompiledFunction|Pregraph|AOTDispatcher|Inductor)|^## Call "
    r"|^(?:record_param_comms|DeviceMesh|DtoD|HtoD|DtoH)|^[A-Z]\w*Backward\d+$"
)
"""Names that frameworks give themselves, whatever they run: of no use to name a block by."""


_NO_COUNTS = pl.DataFrame(schema={"name": pl.String, "count": pl.UInt32})


class NameCounts:
    """How often each name occurs, of at most `MOST_COUNTED` names; the same whatever the order of the ranges is."""

    def __init__(self) -> None:
        self._counts = _NO_COUNTS
        self.total = 0
        """How many names there were, those of frameworks included."""

    def add(self, texts: pl.Series) -> None:
        """Counts `texts` (String), without the suffix of torch's emit_nvtx."""
        names = texts.drop_nulls().str.replace(OPERATION_SUFFIX + "$", "").alias("name")
        names = names.filter(names != "")
        self.total += len(names)
        counted = names.filter(~names.str.contains(_FRAMEWORK)).value_counts().select(self._counts.columns)
        both = pl.concat([self._counts, counted]).group_by("name").agg(pl.col("count").sum())
        self._counts = both.sort("count", "name", descending=[True, False]).head(MOST_COUNTED)

    def most_frequent(self) -> list[str]:
        """The `EXAMPLES` most frequent names, of equally frequent ones the first by alphabet. Names that differ only in
        numbers count as the first of them."""
        alike = self._counts.group_by(pl.col("name").str.replace_all(r"\d+", "#").alias("alike"))
        names = alike.agg(pl.col("name").min(), pl.col("count").sum())
        return names.sort("count", "name", descending=[True, False])["name"].head(EXAMPLES).to_list()
