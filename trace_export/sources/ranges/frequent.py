"""The names of ranges that occur most often, for the error where none of them is a block's."""

from __future__ import annotations

import polars as pl

from trace_export.sources.ranges.dialects import OPERATION_SUFFIX

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


class NameCounts:
    """How often each name occurs, of at most `MOST_COUNTED` names; the same whatever the order of the ranges is."""

    def __init__(self) -> None:
        self._counts = pl.DataFrame(schema={"name": pl.String, "count": pl.UInt32})
        self.total = 0
        """How many names there were, those of frameworks included."""

    def add(self, texts: pl.Series) -> None:
        """Counts `texts` (String), without what torch's emit_nvtx appends."""
        names = texts.drop_nulls().str.replace(OPERATION_SUFFIX + "$", "").alias("name")
        names = names.filter(names != "")
        self.total += len(names)
        counted = names.filter(~names.str.contains(_FRAMEWORK)).value_counts().select(self._counts.columns)
        both = pl.concat([self._counts, counted]).group_by("name").agg(pl.col("count").sum())
        self._counts = both.sort("count", "name", descending=[True, False]).head(MOST_COUNTED)

    def most_frequent(self) -> list[str]:
        """The `EXAMPLES` most frequent names, of equally frequent ones the first by alphabet."""
        return self._counts["name"].head(EXAMPLES).to_list()
