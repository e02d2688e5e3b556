"""Traces of torch.profiler for tests, and what is read of them."""

from pathlib import Path
from typing import Any

import polars as pl

from samples.generators.kineto_trace import Trace
from tests.support.one_source import read
from trace_export.model import Profile
from trace_export.sources.source import ReadOptions, Source

BASE = Trace.base_ns or 0


def loaded(path: Path, **options: Any) -> Profile:
    return read(Source("kineto", path, "machine0"), ReadOptions(**options)).validate()


def times(profile: Profile) -> list[tuple[Any, ...]]:
    """(marker, start, end) of all blocks, after the base."""
    rows = profile.spans.select("marker", pl.col("start_ns") - BASE, pl.col("end_ns") - BASE).rows()
    return sorted(rows)


def notes(profile: Profile) -> dict[str, int]:
    """How often each note occurs."""
    return {n.code: n.count for n in profile.notes}


def one_block(trace: Trace | None = None) -> Trace:
    """F0 with a kernel launched by another thread."""
    trace = trace or Trace()
    trace.range(1_000, 9_000, "F0.0.0")
    trace.kernel(20_000, 30_007, trace.call(5_000, thread=77))
    return trace
