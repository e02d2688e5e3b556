"""The pipeline timings of Primus (AMD): `pp_rank_N.json` for each stage, and `config.json`.

By iteration `total` and lists of milliseconds from the start of the iteration, `fwd_start`, `fwd_end`, `bwd_start` and
`bwd_end`, in the order of execution. The zero of each rank is its own.
"""

from __future__ import annotations

import re
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

import orjson
import polars as pl

from trace_export.errors import SourceError
from trace_export.files import open_file
from trace_export.model import Declared, Profile
from trace_export.sources.source import ReadOptions, Source
from trace_export.sources.spans.blocks import ZERO_NS, profile_of

LISTS = {"F": ("fwd_start", "fwd_end"), "B": ("bwd_start", "bwd_end")}
REMEDY = "give the files as Primus writes them"


def read(source: Source, options: ReadOptions) -> Profile:
    """The blocks of one rank; its clock counts from a start of its own. Iterations follow one another without a pause,
    each as long as it is on the rank where it is longest.

    Raises SourceError when the file or `config.json` is not as Primus writes it.
    """
    path = source.path
    if (match := re.fullmatch(r"pp_rank_(\d+)\.json", path.name)) is None:
        raise SourceError(path, "has no stage in its name", "call it pp_rank_N.json")
    iterations, sizes = _object(path), _object(path.with_name("config.json"))
    starts = _starts(path, iterations)
    rows = [row for name, times in iterations.items() for row in _blocks(path, name, times, sizes.get("vp_size", 1))]
    frame = pl.DataFrame(
        rows, orient="row",
        schema={"step": pl.Int32, "kind": pl.String, "microbatch": pl.Int32, "start": pl.Float64, "end": pl.Float64},
    )  # fmt: skip
    at = pl.col("step").replace_strict(starts, return_dtype=pl.Int64) + ZERO_NS
    times = {f"{end}_ns": (pl.col(end) * 1e6).round().cast(pl.Int64) + at for end in ("start", "end")}
    rank = int(match[1])
    placed = frame.with_columns(rank=rank, stage=rank, chunk=0 if sizes.get("vp_size") == 1 else None, **times)
    declared = Declared(
        pp=_size(sizes, "pp_size"), microbatches=_size(sizes, "num_mbs"), chunks=_size(sizes, "vp_size")
    )
    return profile_of(placed, source, declared, host=f"rank {rank}", epoch="start")


def _object(path: Path) -> dict[str, Any]:
    try:
        with open_file(path) as file:
            content = orjson.loads(file.read())
    except orjson.JSONDecodeError as error:
        raise SourceError(path, f"is no JSON ({error})", REMEDY) from error
    except OSError as error:
        raise SourceError(path, f"cannot be read ({error.strerror})", REMEDY) from error
    if not isinstance(content, dict):
        raise SourceError(path, "is no JSON object", REMEDY)
    return content


def _size(sizes: dict[str, Any], name: str) -> int | None:
    value = sizes.get(name)
    return value if isinstance(value, int) and 0 < value < 1 << 20 else None


def _starts(path: Path, iterations: dict[str, Any]) -> dict[int, int]:
    """When each iteration starts, in nanoseconds: after the longest `total` of each one before, over all ranks here
    that can be read."""
    totals = _totals(path, iterations)
    for file in sorted(path.parent.glob("pp_rank_*.json")):
        with suppress(OSError, SourceError):  # what is wrong with the file of another rank is said where that is read
            status = file.stat()
            for number, total in _other_totals(file, status.st_mtime_ns, status.st_size).items():
                totals[number] = max(totals.get(number, 0.0), total)
    starts, at = {}, 0
    for number in sorted(totals):
        starts[number] = at
        at += round(totals[number] * 1e6)
    return starts


@lru_cache(maxsize=4096)
def _other_totals(path: Path, changed_ns: int, size: int) -> dict[int, float]:
    """As `_totals`, of the file as it is now; kept, because every rank asks for those of all others."""
    return _totals(path, _object(path))


def _totals(path: Path, iterations: dict[str, Any]) -> dict[int, float]:
    """How long each iteration takes on one rank, in milliseconds."""
    totals = {}
    for name, times in iterations.items():
        total = times.get("total") if isinstance(times, dict) else None
        if re.fullmatch(r"\d{1,9}", name) is None or not isinstance(total, int | float) or not 0 <= total < 1e9:
            raise SourceError(path, f'has no duration "total" of the iteration "{name[:20]}"', REMEDY)
        totals[int(name)] = float(total)
    return totals


def _blocks(path: Path, name: str, times: dict[str, Any], chunks: object) -> list[tuple[object, ...]]:
    rows: list[tuple[object, ...]] = []
    for kind, (start, end) in LISTS.items():
        begins, ends = _numbers(path, name, times.get(start)), _numbers(path, name, times.get(end))
        if len(begins) != len(ends):
            raise SourceError(path, f"has {start} and {end} of different lengths in iteration {name}", REMEDY)
        for n, (a, b) in enumerate(zip(begins, ends, strict=True)):
            if not 0 <= a <= b < 1e9:
                what = f"has a block with impossible times in iteration {name}: {start} {a:.9g}, {end} {b:.9g}"
                raise SourceError(path, what, "times are milliseconds from the start of the iteration")
            rows.append((int(name), kind, n if chunks == 1 else None, float(a), float(b)))
    return rows


def _numbers(path: Path, name: str, values: object) -> list[float]:
    if not isinstance(values, list) or not all(isinstance(value, int | float) for value in values):
        names = ", ".join(end for ends in LISTS.values() for end in ends)
        raise SourceError(path, f"lacks one of the lists of numbers {names} in iteration {name}", REMEDY)
    return values
