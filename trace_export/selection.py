"""The part of a run that the user asks for: sets of whole numbers ("2-4,7"), windows of time ("1.5s-2.0s"), and a
profile filtered by them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import polars as pl

from trace_export.errors import UsageError
from trace_export.model import STEP_KEY, WORK_KINDS, Note, Profile
from trace_export.units import LIMIT_NS, duration, nanoseconds

TIMES = {
    "evaluations": ("start_ns", "start_ns"),
    "p2p": ("start_ns", "end_ns"),
    "messages": ("send_start_ns", "send_start_ns"),
    "collectives": ("start_ns", "end_ns"),
    "counters": ("ts_ns", "ts_ns"),
}
"""The table's columns that decide whether a row lies in the window: the times between which it reaches into it. A
receive that waits for the first block begins before it, and is drawn with the device tasks of that time."""
FEW, MANY = 4, 100_000
"""Numbers of more ranges than these, up to this many numbers, are looked up in a list."""
SHOWN = 32
"""This many ranges of a set are named in a message."""


@dataclass(frozen=True)
class Numbers:
    """A set of whole numbers as inclusive ranges, so that 0-9999999 costs nothing."""

    ranges: tuple[tuple[int, int], ...]

    @staticmethod
    def parse(text: str, parameter: str) -> Numbers | None:
        """`all` gives None, "0,2-4" the numbers 0, 2, 3, 4. Raises UsageError that names `parameter`."""
        if text.strip().lower() == "all":
            return None
        ranges = []
        for part in text.split(","):
            match = re.fullmatch(r"\s*(\d{1,9})\s*(?:-\s*(\d{1,9})\s*)?", part)
            if match is None or int(match[1]) > int(match[2] or match[1]):
                what = f'"{text[:100]}" is not a list of numbers'
                raise UsageError(what, "write it like 0,1,4-7", parameter=parameter)
            ranges.append((int(match[1]), int(match[2] or match[1])))
        return Numbers(tuple(sorted(ranges)))

    @staticmethod
    def of(numbers: Iterable[int]) -> Numbers:
        ranges: list[tuple[int, int]] = []
        for number in sorted(set(numbers)):
            low = ranges.pop()[0] if ranges and ranges[-1][1] == number - 1 else number
            ranges.append((low, number))
        return Numbers(tuple(ranges))

    def without(self, other: Numbers) -> Numbers:
        """The numbers of this set that are not in the `other`."""
        left = []
        after = 0
        for low, high in self.ranges:
            low = max(low, after)
            for start, end in (r for r in other.ranges if low <= r[1] and r[0] <= high):
                if low < start:
                    left.append((low, start - 1))
                low = end + 1
            if low <= high:
                left.append((low, high))
            after = max(after, low, high + 1)
        return Numbers(tuple(left))

    def count(self) -> int:
        """How many numbers there are."""
        return sum(high - low + 1 for low, high in self.ranges)

    def named(self, word: str) -> str:
        """As in "rank 3" or "ranks 0-2", with the `word` for one of them."""
        return f"{word}{'s' * (self.count() != 1)} {self}"

    def __contains__(self, number: int) -> bool:
        return any(low <= number <= high for low, high in self.ranges)

    def holds(self, column: str) -> pl.Expr:
        """True where the column's number is one of these, False where it is another or null."""
        if len(self.ranges) > FEW and self.count() <= MANY:  # then one look-up takes less time than many comparisons
            numbers = [number for low, high in self.ranges for number in range(low, high + 1)]
            return pl.col(column).is_in(pl.Series(numbers, dtype=pl.Int64).implode()).fill_null(False)
        return pl.any_horizontal(pl.col(column).is_between(low, high) for low, high in self.ranges).fill_null(False)

    def __str__(self) -> str:
        """As `parse` reads it, shortened where there are very many ranges."""
        shown = self.ranges if len(self.ranges) <= SHOWN else (*self.ranges[: SHOWN - 1], None, self.ranges[-1])
        return ",".join("…" if r is None else str(r[0]) if r[0] == r[1] else f"{r[0]}-{r[1]}" for r in shown)


@dataclass(frozen=True)
class Window:
    """A part of the time, in nanoseconds since the start of the first block."""

    start_ns: int
    end_ns: int

    @staticmethod
    def parse(text: str, parameter: str) -> Window:
        """`1.5s-2.0s`. Raises UsageError that names `parameter`."""
        start, dash, end = text.partition("-")
        if not dash:
            what = f'"{text[:100]}" is not a window of time'
            raise UsageError(what, "write it like 1.5s-2.0s", parameter=parameter)
        return Window(nanoseconds(start, parameter), nanoseconds(end, parameter)).checked(parameter)

    def checked(self, parameter: str) -> Window:
        """Itself. Raises UsageError that names `parameter` where it ends before it starts."""
        if self.start_ns >= self.end_ns:
            raise UsageError(f"the window of {self} ends before it starts", parameter=parameter)
        return self

    def __str__(self) -> str:
        return f"{duration(self.start_ns)} to {duration(self.end_ns)}"


@dataclass(frozen=True)
class Selection:
    """The blocks of `steps`, on `stages`, that touch `window` (relative to the first block); None: all."""

    steps: Numbers | None = None
    stages: Numbers | None = None
    window: Window | None = None

    def text(self) -> str:
        """What is asked for: "steps 2-4, stage 0"."""
        parts = [numbers.named(word) for word, numbers in (("step", self.steps), ("stage", self.stages)) if numbers]
        return ", ".join([*parts, *([f"the time {self.window}"] if self.window else [])]) or "the options"


def select(profile: Profile, wanted: Selection) -> Profile:
    """Only the blocks of `wanted`; all other rows of the same ranks within the time of these blocks."""
    spans, ranks = profile.spans, profile.ranks
    if wanted == Selection():
        return profile
    if wanted.window is not None and spans.height:
        zero = int(spans["start_ns"].min())  # type: ignore[arg-type]
        start, end = zero + wanted.window.start_ns, zero + wanted.window.end_ns
        inside = (pl.col("end_ns") > start) & (pl.col("start_ns") < end)
        profile = _truncated(profile, spans.filter(~inside))
        spans = spans.filter(inside)
    if wanted.steps is not None:
        spans = spans.filter(wanted.steps.holds("step"))
    if wanted.stages is not None:
        ranks = ranks.filter(wanted.stages.holds("stage"))
        spans = spans.join(ranks, on="rank", how="semi", maintain_order="left")
    if spans.is_empty():
        return replace(profile, spans=spans, ranks=ranks)
    start, end = int(spans["start_ns"].min()), int(spans["end_ns"].max())  # type: ignore[arg-type]
    rows = {name: frame for name in TIMES if not (frame := getattr(profile, name)).is_empty()}
    frames = {name: frame.filter(_reaching(*TIMES[name], start, end)) for name, frame in rows.items()}
    for name in frames.keys() & {"evaluations", "p2p", "collectives", "counters"}:
        frames[name] = frames[name].join(ranks, on="rank", how="semi", maintain_order="left")
    kernels = tuple(k for k in profile.kernels if k.rank in set(ranks["rank"]))
    return replace(profile, spans=spans, ranks=ranks, kernels=kernels, window_ns=(start, end), **frames)


def _reaching(first: str, last: str, start: int, end: int) -> pl.Expr:
    """Whether the time from the column `first` to `last`, which may be null, reaches into that between the two."""
    return (pl.col(first) <= end) & (pl.coalesce(last, first) >= start)


def absent(profile: Profile, wanted: Selection) -> list[Note]:
    """Notes on the steps and stages of `wanted` that the profile does not have."""
    asked = (("step", wanted.steps, profile.spans["step"]), ("stage", wanted.stages, profile.ranks["stage"]))
    texts = (not_in_data(what, numbers, existing) for what, numbers, existing in asked)
    return [Note("selection-absent", "note", text) for text in texts if text]


def not_in_data(what: str, asked: Numbers | None, existing: pl.Series) -> str:
    """Which of the `asked` numbers are not among the `existing` ones; empty where all are."""
    if asked is None:
        return ""
    has = Numbers.of(existing.drop_nulls().unique())
    lacking = asked.without(has)
    there = f", which has {has.named(what)}" if has.ranges else ""
    are = "is" if lacking.count() == 1 else "are"
    return f"--{what}s {asked}: {lacking.named(what)} {are} not in the data{there}" if lacking.ranges else ""


def offsets_by_host(profiles: Sequence[Profile], offsets: Mapping[str, int]) -> dict[str, int]:
    """The `offsets` (host or its label → ns) by the host's key. Raises UsageError where no profile has such a host."""
    if not offsets:
        return {}
    hosts = pl.concat(
        [
            table
            for profile in profiles
            for table in (profile.ranks.select("host", label="host"), profile.hosts.select("host", "label"))
        ]
    ).unique().drop_nulls("host")  # fmt: skip
    by_host: dict[str, int] = {}
    for name, offset in offsets.items():
        named = hosts.filter((pl.col("host") == name) | (pl.col("label") == name))["host"].unique()
        if named.is_empty():
            called = hosts.select(pl.coalesce("label", "host").unique().sort()).to_series()
            part = " in the run that is read" if any(len(profile.runs) > 1 for profile in profiles) else ""
            what = f'there is no host "{name}"{part}'
            raise UsageError(what, f"the hosts are {', '.join(called)}", parameter="offsets_ns")
        for host in named:
            by_host[host] = by_host.get(host, 0) + offset
            if abs(by_host[host]) > LIMIT_NS:
                what = f'"{name}" is moved by more than 146 years'
                raise UsageError(what, "times are 64-bit nanoseconds", parameter="offsets_ns")
    return by_host


def _truncated(profile: Profile, outside: pl.DataFrame) -> Profile:
    """`profile` in which the steps that lose the spans `outside` are no longer whole."""
    cut = outside.filter(pl.col("kind").is_in(WORK_KINDS)).select(*STEP_KEY, truncated=True).unique()
    steps = profile.steps.join(cut, on=STEP_KEY, how="left", nulls_equal=True, maintain_order="left")
    kept = pl.col("whole", "counts") & pl.col("truncated").is_null()
    return replace(profile, steps=steps.with_columns(kept).drop("truncated"))


def extent(profile: Profile) -> str:
    """What there is to choose from: "steps 3-5, stages 0-3, 1.52 s from the first block to the last"."""
    parts = []
    for what, numbers in (("step", profile.spans["step"]), ("stage", profile.ranks["stage"])):
        if values := numbers.drop_nulls().unique().sort().to_list():
            parts.append(Numbers(((values[0], values[-1]),)).named(what))
    seconds = profile.spans.select((pl.col("end_ns").max() - pl.col("start_ns").min()) / 1e9).item() or 0.0
    return ", ".join([*parts, f"{seconds:.3g} s from the first block to the last"])
