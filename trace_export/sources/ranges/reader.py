"""Profilers of ranges: from opened sources to their profiles, in ten steps that are the same for all of them.

| step | what is made of each source, or of all at once | by |
|---|---|---|
| 1 open | its processes on one host, one `Opened` each | the adapter |
| 2 names | the ranges whose names may count | the adapter, `named.py` |
| 3 ranges | those that do count | `ranges.py`, at once |
| 4 launches | passes that no range names | `launches` |
| 5 check | an error where there is nothing to draw | here, the adapter |
| 6 work | the GPU work in each range; passes of the rest where names say only some | `devices.py`, `attribution.py` |
| 7 tables | blocks, transfers and collectives | `blocks.py`, `transfers.py`, at once |
| 8 content | notes on them, and what the launches add | `content.py` |
| 9 ranks | who each process is | the adapter, `ranks.py` |
| 10 profile | the tables in unix time | here, at once |

What is worked out process by process is worked out at once for the processes of all sources: most of the time that a
small source takes goes into the calls of the table library, and not into its rows. The number of a process becomes
distinct by the place of its source in the upper bits. A source that fails in a step keeps its error, and the others go
on without it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial, reduce
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeVar

import numpy as np
import polars as pl

from trace_export.errors import SourceError, path_text
from trace_export.model import (
    COLLECTIVES,
    HOSTS,
    INT,
    MEMBERS,
    P2P,
    RANKS,
    SPANS,
    TIME,
    Declared,
    Note,
    Profile,
    Schema,
    concat,
    conform,
    empty,
)  # fmt: skip
from trace_export.sources.ranges import notes as range_notes
from trace_export.sources.ranges.attribution import GpuActivity
from trace_export.sources.ranges.blocks import blocks, with_steps
from trace_export.sources.ranges.by_launch import LAUNCHES, Parts, Piece, attribute
from trace_export.sources.ranges.content import (
    Content,
    completed,
    from_launches,
    left_out,
    marked,
    most_frequent_reason,
    not_asked_for,
)
from trace_export.sources.ranges.devices import SEVERAL, Attributed, attributed, runs_several
from trace_export.sources.ranges.dialects import Dialects
from trace_export.sources.ranges.named import NameCounts, Named, operators
from trace_export.sources.ranges.ranges import Ranges, gather, other_ranges
from trace_export.sources.ranges.ranks import ByProcess, in_starts
from trace_export.sources.ranges.transfers import collectives, collectives_of, transfers, transfers_of
from trace_export.sources.shared.batch import Result, by_source, caught, split
from trace_export.sources.shared.timestamps import LONGEST_TASK_NS, UNTIMED
from trace_export.sources.source import ReadOptions, Source

if TYPE_CHECKING:
    from trace_export.inference.process import Inferred, Process

MOST_PROCESSES = 1024
"""Each process is gone through by itself; a source is of one machine."""
_BITS = 40
_HALF = 1 << (_BITS - 1)
"""The number of a process has 40 bits; the first may be a sign."""


@dataclass(frozen=True)
class Host:
    """The clock domain of a source: its `key` and its `label`. Session times and `offset_ns` are unix times, or times
    since its `epoch` (see model.HOSTS)."""

    key: str
    label: str
    offset_ns: int = 0
    epoch: str | None = None


class Opened(Protocol):
    """The processes of one host in an opened source, which answers the questions of `read`. `what`: what the profiler
    calls a range; `short`: only the beginning of its events is looked at, and the passes there have the times of the
    host; `world`: the number of ranks of the job; `launching`: how calls that launch are named (None: in many ways);
    `members`: of communicators, where they are recorded: process, group, own (the rank in it), size."""

    source: Source
    host: Host
    what: str
    short: bool = False
    world: int | None = None
    launching: str | None = LAUNCHES
    members: pl.DataFrame | None = None

    @property
    def remedy(self) -> str:
        """How to record passes that are named."""
        ...

    def end(self, *, inferred: bool) -> int | None:
        """If only the beginning of a source is looked at: when the last range began, or the last launch, if passes were
        `inferred` from launches; None if unknown."""
        ...

    def named(self, dialects: Dialects) -> Named:
        """The ranges whose names count."""
        ...

    def recorded(self) -> Iterable[pl.DataFrame]:
        """All ranges in pieces (`RANGE`, text)."""
        return ()

    def counted_names(self) -> NameCounts:
        """The names of all ranges."""
        counts = NameCounts()
        for ranges in self.recorded():
            counts.add(ranges["text"])
        return counts

    def without_passes(self, ranges: Ranges) -> Collection[int] | None:
        """The processes with GPU work whose passes the `ranges` do not name, or only some; None: all."""
        ...

    def launches(
        self, processes: Collection[int] | None, operators: Mapping[int, pl.DataFrame]
    ) -> Iterator[tuple[int, Process]]:
        """The launches of these processes; `operators`: see named.operators, of those in which ranges name them."""
        ...

    def no_ranges(self, counts: NameCounts) -> SourceError | None:
        """The error of a source without any range, where it says more than that no range is named like a pass."""
        ...

    def no_work(self) -> SourceError | None:
        """The error of a source without any GPU work to attribute."""
        ...

    def calls(self, pattern: str | None, processes: list[int]) -> Iterable[Piece]:
        """See by_launch.Calls."""
        ...

    def tasks(self, processes: list[int]) -> Iterable[Piece]:
        """See by_launch.Tasks."""
        ...

    def activity(self, ranges: pl.DataFrame, parts: Parts) -> GpuActivity:
        """The GPU work by range."""
        return attribute(ranges, self.calls, self.tasks, self.launching, parts)

    def ranks(self, ranges: Ranges, processes: list[int], devices: ByProcess) -> tuple[pl.DataFrame, list[Note]]:
        """The ranks of these processes, as `ranks.assigned` gives them, and notes on them."""
        ...

    def last_copies(self, ranges: Ranges) -> Callable[[pl.DataFrame], pl.Series] | None:
        """Finds where transfers without a kernel end, see transfers.transfers."""
        return None

    def kernels_of_nccl(self) -> pl.DataFrame | None:
        """NCCL's kernels, see transfers.KERNELS, where these say more than the ranges."""
        return None

    def devices(self) -> ByProcess:
        """Process → its GPU, of processes whose GPU work is not looked at."""
        return {}

    def notes(self, first: int) -> Sequence[Note]:
        """The notes on the source; its first block begins at `first`. Raises SourceError."""
        return ()


One = TypeVar("One", bound=Opened)
Open = Callable[[Source, ReadOptions, ExitStack], Sequence[One]]
"""Opens a source for as long as the stack is open: an `Opened` for every host in it, none where no rank of it is
wanted. Raises SourceError."""


@dataclass(frozen=True)
class _Start:
    """The processes of one start of the job: their `ranks`, how many ranks the job has (`world`), and what is to be
    said of them."""

    ranks: pl.DataFrame
    world: int | None
    notes: Sequence[Note]


@dataclass
class _Part:
    """The state of an opened source. `named_in_part`: the processes whose names say only some passes; `tables`: its
    named blocks, transfers and collectives; `far`: how many kernels of NCCL were left out for their times."""

    opened: Opened
    dialects: Dialects
    options: ReadOptions
    named: Named = field(init=False)
    ranges: Ranges = field(init=False)
    named_in_part: frozenset[int] = frozenset()
    inferred: dict[int, Inferred] = field(default_factory=dict)
    work: Attributed = field(init=False)
    tables: tuple[pl.DataFrame, ...] = ()
    far: int = 0
    contents: list[Content] = field(default_factory=list)
    starts: list[_Start] = field(default_factory=list)
    notes: list[Note] = field(default_factory=list)
    result: Result | None = None

    @property
    def path(self) -> Path:
        return self.opened.source.path

    @property
    def unnamed(self) -> dict[int, Inferred]:
        """The results for the processes without named passes."""
        return {process: one for process, one in self.inferred.items() if process not in self.ranges.marked}

    @property
    def outside(self) -> dict[int, float]:
        """By process, as far as that is known, see `outside` in model.RANKS."""
        return {process: share for content in self.contents for process, share in content.outside.items()}


def read(
    sources: Sequence[Source],
    options: ReadOptions,
    open_one: Open[One],
    prepare: Callable[[Sequence[One], Dialects], None] = lambda opened, dialects: None,
) -> list[Result]:
    """The profile of each source, or its error: where it is none of its format, or has no block with GPU work (unless
    `options.host_ranges` asks for the ranges themselves). `prepare` is called once with all that is open."""
    dialects = Dialects.of(options.markers)
    with ExitStack() as stack:
        opened = [caught(source.path, partial(open_one, source, options, stack)) for source in sources]
        hosts = [
            host for hosts_or_error in opened if not isinstance(hosts_or_error, SourceError) for host in hosts_or_error
        ]
        prepare(hosts, dialects)
        parts = [_Part(host, dialects, options) for host in hosts]
        good = _each(parts, _name)
        _find_ranges(good, dialects, options)
        good = _each(good, _infer, _check, _attribute)
        _make_tables(good)
        good = _each(good, _describe, _rank)
        _make_profiles(good)
    left = iter(parts)
    return [
        hosts_or_error
        if isinstance(hosts_or_error, SourceError)
        else _of_hosts([part.result for part in islice(left, len(hosts_or_error))])
        for hosts_or_error in opened
    ]


def _each(parts: Sequence[_Part], *steps: Callable[[_Part], None]) -> list[_Part]:
    """Does the steps for all parts, one after the other. Returns the parts in which none failed; the others keep their
    error as result."""
    good = list(parts)
    for step in steps:
        for part in good:
            part.result = caught(part.path, partial(step, part))
        good = [part for part in good if part.result is None]
    return good


def _of_hosts(results: Sequence[Result | None]) -> Result:
    """The result of a source from those of its hosts: an error only where none has a profile."""
    profiles = [result for result in results if isinstance(result, Profile)]
    if len(profiles) < 2:
        return next(iter((*profiles, *(result for result in results if result is not None))), Profile())
    return concat(profiles)


def _name(part: _Part) -> None:
    part.named = part.opened.named(part.dialects)


def _find_ranges(parts: Sequence[_Part], dialects: Dialects, options: ReadOptions) -> None:
    if options.infer == "only":
        for part in parts:
            part.ranges = Ranges.none()
        return
    named, calls = (_distinct(rows) for rows in ([p.named.ranges for p in parts], [p.named.calls for p in parts]))
    for part, ranges in zip(parts, _split(gather(named, calls, dialects), len(parts)), strict=True):
        part.ranges = ranges
        if dialects.of_user.rules:
            part.ranges = replace(ranges, unmatched=dialects.unmatched(part.named.texts))


def _infer(part: _Part) -> None:
    """Finds the passes of the processes that name none."""
    if part.options.infer == "off" or part.options.host_ranges:
        return
    processes = part.opened.without_passes(part.ranges)
    if processes is None:
        _find_passes(part, None)
    else:
        part.named_in_part = part.ranges.marked.intersection(processes)
        _find_passes(part, set(processes) - part.named_in_part)


def _find_passes(part: _Part, processes: Collection[int] | None) -> None:
    """Finds the passes of these processes (None: of all) from what they launched."""
    if processes is None or processes:
        from trace_export.inference.process import find_blocks, nothing  # with what they need 30 ms

        others = other_ranges(part.named.ranges, part.dialects, only=part.options.infer == "only")
        named = operators(part.opened.recorded()) if part.named.operators else {}
        for process, one in part.opened.launches(processes, named):
            if runs_several(one.devices):
                part.inferred[process] = nothing(SEVERAL)
                continue
            inferred = find_blocks(one, others.frame.filter(process=process))
            blocks = inferred.blocks.with_columns(process=pl.lit(process, pl.Int64), step=pl.lit(None, INT))
            stepped = with_steps(blocks, others.of("step"), "launched").drop("process")
            part.inferred[process] = inferred._replace(blocks=stepped)


def _check(part: _Part) -> None:
    """Raises SourceError when there is no block, or no GPU work for any."""
    ranges, opened = part.ranges, part.opened
    if (processes := len(ranges.marked | part.inferred.keys())) > MOST_PROCESSES:
        raise SourceError(part.path, f"pipeline ranges of {processes} processes, more than a machine has GPUs")
    if any(not one.impossible for one in part.inferred.values()):
        return
    if ranges.marked:
        error = None if part.options.host_ranges else opened.no_work()
        if error is not None:
            raise error
        return
    why = most_frequent_reason(part.inferred.values()) if part.inferred else ""
    counts = opened.counted_names()
    if not why and (error := opened.no_ranges(counts)):
        raise error
    if ranges.untimed:
        raise range_notes.no_times(part.path)
    rules = ranges.unmatched
    raise range_notes.no_names(part.path, opened.what, counts, opened.remedy, launches=why, rules=rules)


def _attribute(part: _Part) -> None:
    """Finds the work in the ranges, and other passes of the processes that name only some where they computed more."""
    on_device = part.ranges.marked and not part.options.host_ranges and not part.opened.short
    ranges = part.ranges
    part.work = attributed(part.path, ranges, part.opened.activity) if on_device else Attributed(ranges)
    if part.named_in_part and part.work.activity is not None:
        more = {process for process, share in part.work.activity.outside_shares().items() if share}
        _find_passes(part, more & part.named_in_part)


def _make_tables(parts: Sequence[_Part]) -> None:
    """The tables of the processes whose passes are named: those of short sources together."""
    named = [part for part in parts if part.ranges.marked]
    short = [part for part in named if part.opened.short]
    for some in ([short] if short else []) + [[part] for part in named if not part.opened.short]:
        for part, *tables in zip(some, *(_apart(table, len(some)) for table in _tables(some)), strict=True):
            part.tables = tuple(tables)


def _tables(parts: Sequence[_Part]) -> tuple[pl.DataFrame, pl.DataFrame, pl.DataFrame]:
    """Blocks, transfers and collectives of short parts, or of one that is not. Where no transfer of a source is named,
    the kernels of NCCL are its transfers."""
    first = parts[0]
    work = first.work if len(parts) == 1 else Attributed(_joined(parts))
    copies = first.opened.last_copies(work.ranges) if len(parts) == 1 and not work.devices.parts else None
    passes = blocks(work.worked, work.ranges, host=work.activity is None)
    p2p, joint = transfers(work.ranges, work.worked, copies), None
    kernels = _distinct([[] if (rows := _near_kernels(part)) is None else [rows] for part in parts])
    if kernels:
        calls = work.devices.placed(pl.concat(kernels))
        sides, others = transfers_of(calls).with_columns(part=_PLACE), p2p.select(part=_PLACE)
        silent = sides.join(others, on="part", how="anti", maintain_order="left").drop("part")
        p2p, joint = pl.concat([p2p, silent], how="diagonal_relaxed"), collectives_of(calls)
    return passes, p2p, collectives(work.worked) if joint is None else joint


def _near_kernels(part: _Part) -> pl.DataFrame | None:
    """The kernels of NCCL within a day of the ranges, as they are wherever they were launched."""
    kernels = part.opened.kernels_of_nccl()
    if kernels is None or kernels.is_empty():
        return kernels
    begin, end = part.ranges.frame.select(pl.col("start").min(), pl.col("end").max()).row(0)
    kept = kernels.filter(pl.col("start").is_between(begin - LONGEST_TASK_NS, end + LONGEST_TASK_NS))
    part.far = kernels.height - kept.height
    return kept


def _describe(part: _Part) -> None:
    """The content of the processes without named passes, and of those with them."""
    path, kernels = part.path, part.opened.kernels_of_nccl()
    unnamed = part.unnamed
    in_part = {process: one for process, one in part.inferred.items() if process not in unnamed}
    if any(not one.impossible for one in unnamed.values()):
        content = from_launches(path, unnamed)
        if kernels is not None:
            p2p = transfers_of(kernels)
            content = replace(content, p2p=p2p if p2p.height else content.p2p, collectives=collectives_of(kernels))
        elif part.named.calls and not part.opened.short:
            content = replace(content, collectives=_collectives_called(part, content))
        part.contents.append(content)
    if part.tables:
        named = marked(path, part.work, *part.tables)
        if part.far:
            text = f"sends, receives and collectives {UNTIMED}"
            named = replace(named, notes=(*named.notes, Note("times-unusable", "warning", text, str(path), part.far)))
        part.contents.append(completed(path, named, in_part) if in_part else named)


def _collectives_called(part: _Part, content: Content) -> pl.DataFrame:
    """The collectives that ranges of NCCL or calls of RCCL name, with their groups and sizes, in the processes of the
    `content`, whose passes no range names. Their transfers are those of the launches, which tell both sides of a group
    apart."""
    calls = gather((), part.named.calls, Dialects.of(()), every=True)
    drawn = pl.col("process").is_in(content.blocks["process"].unique().implode())
    calls = replace(calls, frame=calls.frame.filter(drawn))
    if calls.frame.is_empty():
        return content.collectives
    return collectives(attributed(part.path, calls, part.opened.activity).worked)


def _rank(part: _Part) -> None:
    """The ranks of the processes, and the notes on the whole source."""
    opened, work, options = part.opened, part.work, part.options
    gpus = {process: one.device for process, one in part.inferred.items() if one.device is not None}
    inferred = {process for process, one in part.inferred.items() if not one.impossible}
    processes = sorted({*inferred, *part.ranges.marked, *gpus})
    if part.ranges.marked:
        gpus |= opened.devices() if work.activity is None else work.gpus
    drawn = inferred | work.ranges.marked
    of_parts = {number: process for process, parts in work.devices.parts.items() for number in parts.values()}
    blocks = [
        c.blocks.with_columns(pl.col("process").replace(of_parts)) if of_parts else c.blocks for c in part.contents
    ]
    ranges = work.devices.without_names(part.ranges)
    for start in in_starts(processes, blocks, lambda some: opened.ranks(ranges, some, gpus)[0]):
        ranks, notes = opened.ranks(ranges, start, gpus)
        ranks = work.devices.ranks(ranks, work.ranges, part.path)
        if not drawn.issuperset(ranks["process"]):
            ranks = ranks.filter(pl.col("process").is_in(sorted(drawn)))
        ranks = ranks if options.ranks is None else ranks.filter(options.ranks.holds("rank"))
        part.starts.append(_Start(ranks, opened.world, notes))
    first = min(int(content.blocks["start"].to_numpy().min()) for content in part.contents)
    absent = [] if opened.short and part.ranges.marked else left_out(part.path, part.unnamed)
    if part.ranges.marked and (options.infer == "off" or options.host_ranges):
        others = set(opened.without_passes(part.ranges) or ()) - part.ranges.marked
        absent += not_asked_for(part.path, len(others), "--host" if options.host_ranges else "--infer off")
    part.notes = [*opened.notes(first), *range_notes.unmatched(part.path, part.ranges.unmatched), *absent]


def _make_profiles(parts: Sequence[_Part]) -> None:
    """The profile of each part, from the tables of all. Until they are split, the ranks are numbered by their place."""
    if not parts:
        return
    starts = [(part, start) for part in parts for start in part.starts]
    of_start = np.repeat(np.arange(len(starts)), [start.ranks.height for _, start in starts])
    hosts, sources = [part.opened.host for part, _ in starts], [part.opened.source for part, _ in starts]
    facts = pl.DataFrame(
        {
            "host": [host.key for host in hosts],
            "source": [path_text(source.path) for source in sources],
            "kind": [source.kind for source in sources],
            "offset_ns": pl.Series([host.offset_ns for host in hosts], dtype=TIME),
        }
    )[of_start]
    recorded = pl.concat([start.ranks for _, start in starts], how="vertical_relaxed")
    outside = [part.outside.get(process) for part, start in starts for process in start.ranks["process"]]
    ranks = recorded.with_columns(
        *facts, rank=pl.int_range(pl.len(), dtype=INT), outside=pl.Series(outside, dtype=pl.Float64)
    )
    numbers = pl.concat(_distinct([[start.ranks.select("process") for start in part.starts] for part in parts]))
    places = numbers.hstack(ranks.select("rank", "offset_ns"))

    def table(name: str, schema: Schema) -> pl.DataFrame:
        rows = _distinct([[getattr(content, name) for content in part.contents] for part in parts])
        return _in_unix_time(pl.concat(rows, how="diagonal_relaxed"), places, schema)

    rows = [(host.key, source.machine, host.label, host.epoch) for host, source in zip(hosts, sources, strict=True)]
    whole = Profile(
        hosts=pl.DataFrame(rows, HOSTS, orient="row"),
        ranks=conform(ranks, RANKS),
        spans=table("blocks", SPANS),
        p2p=table("p2p", P2P),
        collectives=table("collectives", COLLECTIVES),
    )
    made = iter(split(whole, recorded["rank"].to_list(), of_start.tolist(), range(len(starts))))
    for part in parts:
        profiles = [_finished(part, start, next(made)) for start in part.starts]
        part.result = replace(profiles[-1], earlier=tuple(profiles[:-1]))


def _in_unix_time(rows: pl.DataFrame, ranks: pl.DataFrame, schema: Schema) -> pl.DataFrame:
    """Rows of processes in session time → rows of ranks in unix time (`schema`), by start. `ranks`: process, rank,
    offset_ns."""
    placed = (
        rows.drop("rank", strict=False)
        .join(ranks, on="process", maintain_order="left")
        .with_columns(start_ns=pl.col("start") + pl.col("offset_ns"), end_ns=pl.col("end") + pl.col("offset_ns"))
        .sort("start_ns", "rank", maintain_order=True)
    )
    return conform(placed, schema)


def _finished(part: _Part, start: _Start, tables: Profile) -> Profile:
    """The profile of a start of the job in a part, of which the `tables` are."""
    opened = part.opened
    declared = reduce(Declared.or_else, (content.declared for content in part.contents))
    until = {}
    if opened.short:
        end = opened.end(inferred=bool(part.inferred))
        until[path_text(part.path)] = None if end is None else end + opened.host.offset_ns
    made = replace(
        tables,
        members=_members(part, tables.ranks),
        declared=replace(declared, world=start.world),
        notes=(*part.notes, *start.notes, *chain.from_iterable(content.notes for content in part.contents)),
        recorded_until=until,
    )
    return part.work.devices.restored(made, part.path)


def _members(part: _Part, ranks: pl.DataFrame) -> pl.DataFrame:
    """The members of communicators by their ranks."""
    members = part.opened.members
    if members is None or members.is_empty():
        return empty(MEMBERS)
    of_ranks = members.join(ranks.select("rank", "process"), on="process").rename({"own": "member"})
    return conform(of_ranks.sort("rank", "group"), MEMBERS)


def _split(whole: Ranges, count: int) -> list[Ranges]:
    """The ranges of each of `count` parts."""
    if count == 1:
        return [whole]
    numbered = whole.frame.with_columns(id=pl.int_range(pl.len(), dtype=pl.Int64).over(_PLACE))
    frames = [_apart(rows, count) for rows in (numbered, whole.unclosed, whole.unused, whole.invalid)]
    stages: list[dict[int, list[int]]] = [{} for _ in range(count)]
    for process, numbers in whole.stages.items():
        source, number = _of_part(process)
        stages[source][number] = numbers
    marked: list[set[int]] = [set() for _ in range(count)]
    for process in whole.marked:
        source, number = _of_part(process)
        marked[source].add(number)
    return [
        Ranges(frame, whole.transfers, unclosed, unused, invalid, stages[source], frozenset(marked[source]))
        for source, (frame, unclosed, unused, invalid) in enumerate(zip(*frames, strict=True))
    ]


def _joined(parts: Sequence[_Part]) -> Ranges:
    """The ranges of all parts."""
    frame = pl.concat(_distinct([[part.ranges.frame] for part in parts]))
    return parts[0].ranges.with_frame(frame.with_columns(id=pl.int_range(pl.len(), dtype=pl.Int64)))


_PLACE = (pl.col("process") + _HALF) // (1 << _BITS)
"""The place of the part whose process a row is of, see `_distinct`."""


def _of_part(process: int) -> tuple[int, int]:
    """The place of the part whose process this is, and its number there."""
    source = (process + _HALF) >> _BITS
    return source, process - (source << _BITS)


def _distinct(frames: Sequence[Sequence[pl.DataFrame]]) -> list[pl.DataFrame]:
    """The frames of all parts as one, if there are any, with other numbers of processes in those of each part."""
    every = list(chain.from_iterable(frames))
    if len(frames) == 1 or not every:
        return every
    whole = pl.concat(every, how="diagonal_relaxed")
    first = np.repeat(np.arange(len(frames)) << _BITS, [sum(map(len, part)) for part in frames])
    return [whole.with_columns(pl.col("process") + pl.Series(first, dtype=pl.Int64))]


def _apart(frame: pl.DataFrame, count: int) -> list[pl.DataFrame]:
    """The rows of each of `count` parts, in their order, with the numbers that processes have there."""
    if count == 1:
        return [frame]
    return by_source(frame, _PLACE, count, process=pl.col("process") - _PLACE * (1 << _BITS))
