"""The pipeline timings of Primus (AMD): `pp_rank_N.json` for each stage, and `config.json`.

By iteration `total` and lists of milliseconds from the start of the iteration, `fwd_start`, `fwd_end`, `bwd_start` and
`bwd_end`, in the order of execution. Each rank has a different zero.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TypeVar

import msgspec
import polars as pl

from trace_export.errors import SourceError
from trace_export.files import open_file
from trace_export.model import Declared, Profile
from trace_export.sources.shared.batch import Result, caught
from trace_export.sources.shared.timestamps import ZERO_NS
from trace_export.sources.source import ReadOptions, Source
from trace_export.sources.spans.blocks import profile_of
from trace_export.sources.spans.find import STAGE, stages

REMEDY = "give the files as Primus writes them"
Object = dict[str, msgspec.Raw]
"""A JSON object whose values are decoded one at a time, so that memory does not hold all numbers as Python objects."""
_NO_JSON = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""The errors that msgspec raises for text that is not JSON, or not UTF-8."""


class _Total(msgspec.Struct, gc=False):
    total: float


class _Lists(msgspec.Struct, gc=False):
    fwd_start: list[float]
    fwd_end: list[float]
    bwd_start: list[float]
    bwd_end: list[float]


_Kind = TypeVar("_Kind")


def read(sources: Sequence[Source], options: ReadOptions) -> list[Result]:
    """The blocks of each rank; its clock counts from a start of its own. Iterations follow one another without a pause,
    each as long as it is on the rank where it is longest."""
    starts = {folder: _starts(folder) for folder in {source.path.parent for source in sources}}
    return [caught(source.path, partial(_read, source, starts[source.path.parent])) for source in sources]


def _read(source: Source, starts: Mapping[int, int]) -> Profile:
    """The blocks of one rank; `starts`: see `_starts`. Raises SourceError when the file or `config.json` is not as
    Primus writes it."""
    path = source.path
    if (match := STAGE.fullmatch(path.name)) is None:
        raise SourceError(path, "has no stage in its name", "call it pp_rank_N.json")
    iterations, sizes = _object(path), _object(path.with_name("config.json"))
    _totals(path, iterations)
    chunks = _size(sizes, "vp_size")
    frame = _blocks(path, iterations)
    if chunks != 1 and "vp_size" in sizes:
        frame = frame.with_columns(microbatch=pl.lit(None, pl.Int32))
    at = pl.col("step").replace_strict(starts, return_dtype=pl.Int64) + ZERO_NS
    times = {f"{end}_ns": (pl.col(end) * 1e6).round().cast(pl.Int64) + at for end in ("start", "end")}
    rank = int(match[1])
    placed = frame.with_columns(rank=rank, stage=rank, chunk=0 if chunks == 1 else None, **times)
    declared = Declared(pp=_size(sizes, "pp_size"), microbatches=_size(sizes, "num_mbs"), chunks=chunks)
    return profile_of(placed, source, declared, host=f"rank {rank}", epoch="start")


def _object(path: Path) -> Object:
    try:
        with open_file(path) as file:
            return msgspec.json.decode(file.read(), type=Object)
    except msgspec.ValidationError as error:
        raise SourceError(path, "is not a JSON object", REMEDY) from error
    except _NO_JSON as error:
        raise SourceError(path, f"is not JSON ({error})", REMEDY) from error
    except OSError as error:
        raise SourceError(path, f"cannot be read ({error.strerror})", REMEDY) from error


def _decoded(value: msgspec.Raw, kind: type[_Kind]) -> _Kind | None:
    """A value of that type, or None where it is of another."""
    try:
        return msgspec.json.decode(value, type=kind)
    except _NO_JSON:
        return None


def _size(sizes: Object, name: str) -> int | None:
    value = _decoded(sizes[name], int) if name in sizes else None
    return value if value is not None and 0 < value < 1 << 20 else None


def _starts(folder: Path) -> dict[int, int]:
    """When each iteration starts, in nanoseconds: after the longest `total` of each one before, over all ranks in
    `folder` that can be read."""
    totals: dict[int, float] = {}
    for file in stages(folder):
        with suppress(OSError, SourceError):  # what is wrong with the file of another rank is said where that is read
            for number, total in _totals(file, _object(file)).items():
                totals[number] = max(totals.get(number, 0.0), total)
    starts, at = {}, 0
    for number in sorted(totals):
        starts[number] = at
        at += round(totals[number] * 1e6)
    return starts


def _totals(path: Path, iterations: Object) -> dict[int, float]:
    """How long each iteration takes on one rank, in milliseconds."""
    totals = {}
    for name, times in iterations.items():
        total = _decoded(times, _Total)
        if not (name.isdecimal() and name.isascii() and len(name) < 10) or not total or not 0 <= total.total < 1e9:
            raise SourceError(path, f'has no duration "total" of the iteration "{name[:20]}"', REMEDY)
        totals[int(name)] = total.total
    return totals


def _blocks(path: Path, iterations: Object) -> pl.DataFrame:
    """step, kind, microbatch (its place in the list), start, end in milliseconds of the step."""
    step, microbatch, forward = array("i"), array("i"), array("b")
    start, end = array("d"), array("d")
    for name, times in iterations.items():
        for kind, begins, ends in _lists(path, name, times):
            step.extend([int(name)] * len(begins))
            microbatch.extend(range(len(begins)))
            forward.extend([kind == "F"] * len(begins))
            start.extend(begins)
            end.extend(ends)
    frame = (
        pl.DataFrame(
            {"step": step, "microbatch": microbatch, "forward": forward, "start": start, "end": end},
            {"step": pl.Int32, "microbatch": pl.Int32, "forward": pl.Int8, "start": pl.Float64, "end": pl.Float64},
        )
        .with_columns(kind=pl.when(pl.col("forward") == 1).then(pl.lit("F")).otherwise(pl.lit("B")))
        .drop("forward")
    )
    wrong = frame.filter(~((pl.col("start") >= 0) & (pl.col("end") >= pl.col("start")) & (pl.col("end") < 1e9)))
    for row in wrong.head(1).iter_rows(named=True):
        word = "fwd" if row["kind"] == "F" else "bwd"
        both = f"{word}_start {row['start']:.9g}, {word}_end {row['end']:.9g}"
        what = f"has a block with impossible times in iteration {row['step']}: {both}"
        raise SourceError(path, what, "times are milliseconds from the start of the iteration")
    return frame


def _lists(path: Path, name: str, times: msgspec.Raw) -> Iterator[tuple[str, list[float], list[float]]]:
    """The kind, the starts and the ends of the blocks of an iteration."""
    lists = _decoded(times, _Lists)
    if lists is None:
        names = ", ".join(_Lists.__struct_fields__)
        raise SourceError(path, f"lacks one of the lists of numbers {names} in iteration {name}", REMEDY)
    for kind, word in (("F", "fwd"), ("B", "bwd")):
        begins, ends = getattr(lists, f"{word}_start"), getattr(lists, f"{word}_end")
        if len(begins) != len(ends):
            what = f"has {word}_start and {word}_end of different lengths in iteration {name}"
            raise SourceError(path, what, REMEDY)
        yield kind, begins, ends
