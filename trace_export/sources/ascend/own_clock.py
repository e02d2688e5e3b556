"""Times of trace_view.json that count from the start of the recording: where the rank's tables say when that was.

Some versions and scripts write `ts` from the first event of the rank on. kernel_details.csv holds the same kernels and
operators at unix times, so one that is in both says how far apart the two are.
"""

from __future__ import annotations

import polars as pl

from trace_export.model import TIME

AGREE_NS = 1_000
"""The differences of kernels that are the same agree within this; those of others do by chance only."""
PAIRS = 100_000
"""This many pairs of a row in the trace and one in the table are looked at, those of the rarest lengths first."""
LEAST = 0.5
"""At least this part of the rows looked at in the table must be in the trace."""


def offset(tasks: pl.DataFrame, rows: pl.DataFrame) -> int | None:
    """What to add to the times of the `tasks` of a trace to get those of the `rows` of a table; None where the same
    work is not in both. Both have start_ns and end_ns.

    Names differ between versions, lengths do not: the rows are compared with the tasks that are as long.
    """
    lengths = [part.select("start_ns", length=pl.col("end_ns") - pl.col("start_ns")) for part in (tasks, rows)]
    counts = [part.group_by("length").agg(n=pl.len().cast(TIME)) for part in lengths]
    rare = counts[1].join(counts[0], on="length", suffix="_in_trace").sort(pl.col("n") * pl.col("n_in_trace"), "length")
    rare = rare.filter((pl.col("n") * pl.col("n_in_trace")).cum_sum() <= PAIRS)
    asked = lengths[1].join(rare, on="length")
    both = asked.join(lengths[0], on="length", suffix="_in_trace")
    apart = both.select(apart=pl.col("start_ns") - pl.col("start_ns_in_trace"))["apart"].sort()
    if apart.is_empty():
        return None
    near = apart.search_sorted(apart + AGREE_NS, side="right").cast(TIME) - pl.int_range(len(apart), eager=True)
    first, most = near.arg_max(), near.max()
    if first is None or not isinstance(most, int) or most < LEAST * asked.height:
        return None
    return apart[first + most // 2]  # type: ignore[no-any-return]
