"""What holds for every command line, whatever the input and the options."""

from __future__ import annotations

import re
from pathlib import Path
from subprocess import CompletedProcess

import polars as pl

from tests.support.trace_processor import TraceProcessor
from tests.support.traces import read_slices

KEY = ["rank", "kind", "step", "microbatch", "chunk"]
BLOCK = [*KEY, "start_ns", "end_ns"]


def one_sentence(done: CompletedProcess[str]) -> None:
    """A refusal is one error, which says what to do; nothing of the interpreter or of a library gets out."""
    assert not re.search(r"Traceback|Warning:|polars\.|panicked", done.stderr), done.stderr
    if done.returncode:
        errors = [line for line in done.stderr.splitlines() if line.startswith("trace-export: ")]
        assert len(errors) == 1, done.stderr


def blocks(table: pl.DataFrame) -> pl.DataFrame:
    """The columns `BLOCK` in one order, times since the first block."""
    zero = table["start_ns"].min() if len(table) else 0
    times = [(pl.col(c) - zero).cast(pl.Int64) for c in ("start_ns", "end_ns")]
    return table.select(*(pl.col(c).cast(pl.Int64 if c != "kind" else pl.String) for c in KEY), *times).sort(
        "rank", "start_ns", "end_ns", *KEY[1:]
    )


def same_blocks(found: pl.DataFrame, wanted: pl.DataFrame, error_ns: int) -> None:
    """Every block once, as the truth has it; times may differ by `error_ns`."""
    assert len(found) == len(wanted), f"{len(found)} blocks, {len(wanted)} wanted"
    if wanted.is_empty():
        return
    a, b = blocks(found), blocks(wanted)
    for column in KEY:
        differing = a.filter(a[column].ne_missing(b[column]))
        assert differing.is_empty(), (
            f"{column}: {differing.head(3)} {b.filter(a[column].ne_missing(b[column])).head(3)}"
        )
    for column in ("start_ns", "end_ns"):
        assert not ((a[column] - b[column]).abs() > error_ns).any(), column


def of_traces(paths: list[Path]) -> pl.DataFrame:
    """The blocks in traces, which the trace processor opens without an error and in which every slice has a name.

    Times are those of the run: a trace begins with its first event, and says of a step when it began.
    """
    rows = []
    for path in paths:
        with TraceProcessor(path) as processor:
            problems = processor.problems()
            assert problems.is_empty(), f"{path.name}: {problems.rows()}"
            slices = read_slices(processor)
        assert all(each["name"] and each["dur"] >= 0 for each in slices), path.name
        step = next(each for each in slices if each["category"] == "step")
        origin = step["args"]["start_unix_ns"] - step["ts"]
        for each in slices:
            if each["category"] == "block":
                start = origin + each["ts"]
                rows.append(
                    {**each["args"], "start_ns": start, "end_ns": start + each["dur"], "track": each["track_name"]}
                )
    drawn = pl.DataFrame(rows, schema={**dict.fromkeys(BLOCK, pl.Int64), "kind": pl.String, "track": pl.String})
    assert (drawn["track"].str.contains("rank") | drawn["track"].str.contains("stage")).all()
    return drawn
