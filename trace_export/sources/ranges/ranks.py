"""Which rank each process of a source is, from evidence of the source and from the names of its ranges; and which start
of the job it is of: a launcher that was recorded starts its ranks again where one of them has died."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import count, groupby
from operator import itemgetter
from pathlib import Path

import polars as pl

from trace_export.errors import SourceError
from trace_export.model import Note
from trace_export.sources.ranges.ranges import Ranges
from trace_export.sources.ranges.rules import OWN
from trace_export.sources.source import Source

ByProcess = dict[int, int]
"""Process → its rank, or another of its numbers, for the processes that the evidence covers."""

Evidence = tuple[str, Callable[[], ByProcess]]
"""Where ranks come from (see model.RANKS), and the ranks; asked for only if the earlier ones do not suffice."""


def assigned(
    ranges: Ranges,
    processes: list[int],
    source: Source,
    evidence: Sequence[Evidence],
    devices: Mapping[int, int],
    *,
    recorded: int | None = None,
) -> tuple[pl.DataFrame, list[Note]]:
    """process, rank, rank_origin, stage, stage_origin, device of the `processes`, by the first evidence that knows it,
    and notes on it.

    A process whose recorded rank another one has too is left out. `devices`: process → its GPU, negative where unknown.
    Raises SourceError as `check_names` does.
    """
    check_names(source.path, ranges, recorded)
    places = {**{p: min(stages) for p, stages in ranges.stages.items()}, **from_names(ranges, "place")}
    numbers, origins = _first_known(processes, *evidence)
    kept, twice = _unique(numbers, ranges)
    text = "second process of rank {} in the file, left out"
    notes = [Note("rank-duplicate", "warning", text.format(numbers[process]), str(source.path)) for process in twice]
    frame = pl.DataFrame(
        {
            "process": kept,
            "rank": [numbers[p] for p in kept],
            "rank_origin": [origins[p] for p in kept],
            "stage": [places.get(p) for p in kept],
            "stage_origin": ["recorded" if p in places else None for p in kept],
            "device": [d if 0 <= (d := devices.get(p, -1)) < 2**31 else None for p in kept],
        },
        schema_overrides={"process": pl.Int64, "stage": pl.Int32, "stage_origin": pl.String, "device": pl.Int32},
    )
    return frame.sort("rank"), notes


def _first_known(processes: list[int], *evidence: Evidence) -> tuple[ByProcess, dict[int, str]]:
    """Rank and origin of each of `processes` from the first evidence (origin, numbers) that knows it. An assumed number
    that another process has already becomes the next free one."""
    numbers: ByProcess = {}
    origins: dict[int, str] = {}
    wanted = set(processes)
    for origin, find in evidence:
        if len(numbers) == len(wanted):
            break
        numbered = {p: rank for p, rank in find().items() if p in wanted and p not in numbers}
        for process, rank in sorted(numbered.items(), key=lambda item: item[::-1]):
            taken = set(numbers.values()) if origin == "assumed" else set()
            numbers[process] = next(number for number in count(rank) if number not in taken)
            origins[process] = origin
    return numbers, origins


def check_names(path: Path, ranges: Ranges, recorded: int | None = None, *, of: str = "process") -> None:
    """Raises SourceError where the names of one process (or `of` what else the ranges name) are of several ranks, or
    our marks of another one than was `recorded`."""
    if ranges.frame["rank"].null_count() == ranges.frame.height:
        return
    named = ranges.frame.select("process", "rank", own=pl.col("dialect") == OWN).drop_nulls("rank").unique()
    by_process = groupby(sorted(named.iter_rows()), key=itemgetter(0))
    for marked, ours in (list(zip(*of_process, strict=True))[1:] for _, of_process in by_process):
        ranks = sorted(set(marked))
        remedy = "let each rank write a file of its own"
        if len(ranks) > 1:
            what = f"holds marks of ranks {', '.join(map(str, ranks))} as those of one {of}"
            raise SourceError(path, what, f"{remedy}, or give the files that were merged")
        if recorded is not None and any(ours) and recorded not in ranks:
            what = f"holds marks of rank {ranks[0]}, and its distributedInfo says rank {recorded}"
            why = "as where two ranks wrote it, or where ranks were counted on each machine"
            raise SourceError(path, f"{what}, {why}", f"{remedy}, or correct the rank in distributedInfo")


def from_names(ranges: Ranges, number: str = "rank") -> ByProcess:
    """`iter_{rank}_{step}`, or a mark with rank=… (and with `number` place, the stage=… of a mark)."""
    if ranges.frame[number].null_count() == ranges.frame.height:
        return {}
    recorded = ranges.frame.select("process", number).drop_nulls()
    return dict(recorded.unique("process", keep="first", maintain_order=True).iter_rows())


def from_stages(stages: Mapping[int, list[int]]) -> ByProcess:
    """The smallest stage, unless several replicas of the pipeline are in the file."""
    numbers = {process: min(of_process) for process, of_process in stages.items()}
    return numbers if len(set(numbers.values())) == len(numbers) else {}


def _unique(numbers: ByProcess, ranges: Ranges) -> tuple[list[int], list[int]]:
    """The processes to keep, and those whose rank a process with more ranges has."""
    if len(set(numbers.values())) == len(numbers):
        return list(numbers), []
    sizes = dict(ranges.frame.group_by("process").len().iter_rows())
    kept: dict[int, int] = {}
    for process in sorted(numbers, key=lambda p: (-sizes.get(p, 0), p)):
        kept.setdefault(numbers[process], process)
    return list(kept.values()), [p for p in numbers if p not in kept.values()]


PAUSE_NS = 10**9
"""A job is not started again within this."""


def in_starts(
    processes: Sequence[int], blocks: Iterable[pl.DataFrame], ranks_of: Callable[[list[int]], pl.DataFrame]
) -> list[list[int]]:
    """The `processes` of each start, the oldest first. `blocks`: rows with process, start, end; `ranks_of`: the rows of
    RANKS of some processes, where no others are.

    Processes that are at work at the same time are of one start. Those that begin after all before them have ended are
    of the next one where they are the same ranks, or where these are not recorded run the same devices. Example, where
    a and b are ranks 0 and 1, and so are c and d:

        a ────   c ────
        b ────     d ───      → [a, b], [c, d]
    """
    if len(processes) < 2:
        return [list(processes)]
    extents = pl.concat([rows.select("process", "start", "end") for rows in blocks]).group_by("process")
    times = extents.agg(pl.col("start").min(), pl.col("end").max()).filter(pl.col("process").is_in(list(processes)))
    starts: list[list[int]] = []
    ended = 0
    for process, begin, end in times.sort("start", "process").iter_rows():
        if starts and begin < ended + PAUSE_NS:
            starts[-1].append(process)
        else:
            starts.append([process])
        ended = max(ended, end)
    if len(starts) < 2:
        return [list(processes)]
    apart = [starts[0]]
    for later in starts[1:]:
        if _are_alike(ranks_of(apart[-1]), ranks_of(later)):
            apart.append(later)
        else:
            apart[-1] += later
    without_blocks = set(processes) - set(times["process"])
    apart[-1] += sorted(without_blocks)
    return [sorted(start) for start in apart]


def _are_alike(before: pl.DataFrame, after: pl.DataFrame) -> bool:
    """Whether a rank of both is the same."""
    one, other = ({*ranks.filter(rank_origin="recorded")["rank"]} for ranks in (before, after))
    if one and other:
        return not one.isdisjoint(other)
    devices = [ranks["device"].fill_null(-1) for ranks in (before, after)]
    return not set(devices[0]).isdisjoint(devices[1])
