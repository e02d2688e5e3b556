"""What holds for every command line, whatever the input and the options."""

import re
from itertools import pairwise
from pathlib import Path
from subprocess import CompletedProcess
from xml.etree import ElementTree

import numpy as np
import polars as pl

from tests.support.trace_processor import TraceProcessor
from tests.support.traces import read_slices

KEY = ["rank", "kind", "step", "microbatch", "chunk"]
BLOCK = [*KEY, "start_ns", "end_ns"]
SVG = "{http://www.w3.org/2000/svg}"
RECTANGLE = re.compile(r"M([\d.]+) ([\d.]+)h([\d.]+)v([\d.]+)h-[\d.]+z")
GAP_PX = 1.0
"""What a block is drawn shorter by, so that two that touch are told apart."""


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


def same_blocks(result: pl.DataFrame, wanted: pl.DataFrame, error_ns: int) -> None:
    """Every block once, as the truth has it; times may differ by `error_ns`."""
    assert len(result) == len(wanted), f"{len(result)} blocks, {len(wanted)} wanted"
    if wanted.is_empty():
        return
    a, b = blocks(result), blocks(wanted)
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


def in_picture(path: Path, wanted: pl.DataFrame) -> None:
    """Every row of a rank or stage in the picture has the blocks of that rank, or of one of that stage, in the step of
    its heading, each as long as it was, to a pixel. `wanted`: the columns of the truth, cut to what is drawn."""
    root = ElementTree.parse(path).getroot()
    texts = [(float(text.get("y", "nan")), text.text or "") for text in root.iter(f"{SVG}text")]
    headings = sorted((y, text) for y, text in texts if re.match(r"step \d+ |.* after the first block", text))
    labels = sorted((y, text) for y, text in texts if re.fullmatch(r"stage \d+( · rank \d+)?|rank \d+.*", text))
    drawn = [tuple(map(float, each)) for p in root.iter(f"{SVG}path") for each in RECTANGLE.findall(p.get("d", ""))]
    assert headings and labels, texts
    for (top, heading), (bottom, _) in pairwise([*headings, (np.inf, "")]):
        step = re.match(r"step (\d+) ", heading)
        section = wanted.filter(step=int(step[1])) if step else wanted
        assert not section.is_empty(), heading
        rows = [(y, label) for y, label in labels if top < y < bottom]
        assert len(rows) >= section["stage"].n_unique(), (heading, rows)
        for y, label in rows:
            rank, stage = re.search(r"rank (\d+)", label), re.search(r"stage (\d+)", label)
            ranks = [int(rank[1])] if rank else section.filter(stage=int(stage[1]))["rank"].unique().to_list()  # type: ignore[index]
            blocks = sorted((x, w) for x, top_y, w, h in drawn if top_y < y < top_y + h)
            assert any(_as_long(blocks, section.filter(rank=each)) for each in ranks), (heading, label, len(blocks))


def _as_long(drawn: list[tuple[float, float]], blocks: pl.DataFrame) -> bool:
    """Whether the blocks drawn (x, width) are `blocks` of one rank on one scale of time."""
    if len(drawn) != len(blocks):
        return False
    starts, ends = (blocks.sort("start_ns")[c].to_numpy() for c in ("start_ns", "end_ns"))
    x, width = np.array(drawn).T
    if len(drawn) < 2:
        return True
    scale = (x[-1] - x[0]) / (starts[-1] - starts[0])
    off = np.abs(width + GAP_PX - (ends - starts) * scale), np.abs(x - x[0] - (starts - starts[0]) * scale)
    return bool(max(each.max() for each in off) < GAP_PX)
