"""The correction of a clock, and everything that applies it: tables, device tasks, windows of time.

A host's clock shows t. The corrected time is

    t - offset_ns - round(drift * (t - reference_ns))

The product is taken of the distance to the reference only, so that a float never holds an epoch: Unix times in ns are
256 apart in a float64.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import polars as pl

from trace_export.clocks.observations import hosts_of_ranks
from trace_export.errors import AlignmentError
from trace_export.model import CLOCKS, TIME, WIRE_NS, Profile, conform

LAST_NS = 2**63 - 2**13
"""Times are Int64; the margin is the rounding of a float64 of that size."""

CLOCK = ["offset_ns", "drift", "reference_ns"]

Sides = list[tuple[str, list[str]]]
"""Columns of times, with the column of the rank whose clock showed them."""


def corrected_time(time: pl.Expr, offset: pl.Expr | int, drift: pl.Expr | float, reference: pl.Expr | int) -> pl.Expr:
    """The corrected `time` (ns) of a clock; `offset` and `reference` in ns."""
    return time - offset - (drift * (time - reference)).round().cast(TIME)


def offset_at(time_ns: int, offset_ns: int, drift: float, reference_ns: int) -> int:
    """The whole correction of a clock at `time_ns`: its `offset_ns` if `time_ns` were its reference."""
    return offset_ns + round(drift * (time_ns - reference_ns))


def uncorrected(ranks: pl.DataFrame, status: str) -> pl.DataFrame:
    """The table `CLOCKS` of the hosts in `ranks` that leaves all times as they are."""
    hosts = ranks.select("host").drop_nulls().unique().sort("host")
    zero = {"offset_ns": 0, "drift": 0.0, "reference_ns": 0, "messages": 0, "collectives": 0}
    return conform(hosts.with_columns(status=pl.lit(status), **{n: pl.lit(v) for n, v in zero.items()}), CLOCKS)


def is_identity(clocks: pl.DataFrame) -> bool:
    """Whether `clocks` leave all times as they are."""
    moved = (pl.col("offset_ns") != 0) | (pl.col("drift") != 0) | pl.col("steps").is_not_null()
    return clocks.filter(moved).is_empty()


def _with_corrected(frame: pl.DataFrame, times: list[str], clocks: pl.DataFrame) -> pl.DataFrame:
    """`frame` with its `times` corrected by the columns `CLOCK`, or, where the clock of the row's `host` was set before
    that time, by the values of `clocks` from then on."""
    later = clocks.drop_nulls("steps").select("host", "steps").explode("steps").unnest("steps")
    later = later.select("host", "from_ns", *CLOCK).sort("from_ns")
    first = [pl.col(c).fill_null(0) for c in CLOCK]
    for time in times:
        if later.is_empty():
            frame = frame.with_columns(corrected_time(pl.col(time), *first))
            continue
        asked = frame.select("host", pl.col(time).alias("from_ns")).with_row_index("row").sort("from_ns")
        at = asked.join_asof(later, on="from_ns", by="host", check_sortedness=False).sort("row")
        clock = [pl.coalesce(at[name], here) for name, here in zip(CLOCK, first, strict=True)]
        frame = frame.with_columns(corrected_time(pl.col(time), *clock))
    return frame


def correct_profile(profile: Profile, clocks: pl.DataFrame) -> Profile:
    """`profile` with every column of times corrected by `clocks` (schema `CLOCKS`). The order within a rank stays.

    Raises AlignmentError where a corrected time does not fit Int64.
    """
    one = [("rank", ["start_ns", "end_ns"])]
    return replace(
        profile,
        spans=_correct_table(profile.spans, profile.ranks, clocks, one),
        evaluations=_correct_table(profile.evaluations, profile.ranks, clocks, one),
        p2p=_correct_table(profile.p2p, profile.ranks, clocks, one),
        collectives=_correct_table(profile.collectives, profile.ranks, clocks, one),
        counters=_correct_table(profile.counters, profile.ranks, clocks, [("rank", ["ts_ns"])]),
        messages=correct_messages(profile.messages, profile.ranks, clocks),
    )


def correct_messages(messages: pl.DataFrame, ranks: pl.DataFrame, clocks: pl.DataFrame) -> pl.DataFrame:
    """`messages` (schema `MESSAGES`) with each side on the corrected clock of its own rank. Raises AlignmentError."""
    sides = [("src_rank", ["send_start_ns", "send_end_ns", "ready_ns"]), ("dst_rank", ["recv_start_ns", "recv_end_ns"])]
    moved = _correct_table(messages, ranks, clocks, sides)
    return messages if moved is messages else moved.with_columns(wire_ns=WIRE_NS)


def _correct_table(frame: pl.DataFrame, ranks: pl.DataFrame, clocks: pl.DataFrame, sides: Sides) -> pl.DataFrame:
    if frame.is_empty() or is_identity(clocks):
        return frame
    columns = frame.columns
    by_rank = hosts_of_ranks(ranks).join(clocks, on="host").select("rank", "host", *CLOCK)
    for rank, times in sides:
        frame = frame.join(by_rank.rename({"rank": rank}), on=rank, how="left", maintain_order="left")
        _check_range(frame, times, clocks)
        frame = _with_corrected(frame, times, clocks).select(columns)
    return frame


def _check_range(frame: pl.DataFrame, times: list[str], clocks: pl.DataFrame) -> None:
    """Raises AlignmentError where one of `clocks` would move a time of its `host`, a column of `frame`, out of Int64.

    The correction is monotone, so the first and the last time decide; most often those of all hosts together do.
    """
    first, last = _extremes(frame, times)
    for host, *clock in clocks.select("host", *CLOCK).iter_rows():
        if _fits(first, last, *clock):
            continue
        if not _fits(*_extremes(frame.filter(pl.col("host") == host), times), *clock):
            raise AlignmentError(
                f"the corrected times of {host} do not fit into 64 bits of nanoseconds",
                "check `offsets_ns` and the file given to `align`",
            )


def _extremes(frame: pl.DataFrame, times: list[str]) -> tuple[int | None, int | None]:
    first, last = pl.min_horizontal(pl.col(times).min()), pl.max_horizontal(pl.col(times).max())
    return frame.select(first=first, last=last).row(0)


def _fits(first: int | None, last: int | None, offset: int, drift: float, reference: int) -> bool:
    """Whether no step of the correction of a time from `first` to `last` (null: there is none) overflows."""
    distances = [time - reference for time in (first, last) if time is not None]
    reached = [abs(reference + d - offset - drift * d) for d in distances]
    return max(map(abs, distances), default=0) < LAST_NS and max(reached, default=0) < LAST_NS


def clock_of(profile: Profile, rank: int) -> pl.DataFrame:
    """The row of `Profile.clocks` of the host of `rank`; no row where its clock was not looked at."""
    host = profile.ranks.filter(pl.col("rank") == rank)["host"]
    return profile.clocks.filter(pl.col("host") == host[0]) if len(host) else profile.clocks.clear()


def correct_tasks(tasks: pl.DataFrame, clock: pl.DataFrame) -> pl.DataFrame:
    """`tasks` (schema `KERNELS`) of one rank on the corrected clock; `clock` as from `clock_of`.

    Raises AlignmentError where a corrected time does not fit Int64.
    """
    if clock.is_empty() or is_identity(clock):
        return tasks
    times = ["start_ns", "end_ns"]
    here = tasks.with_columns(
        pl.lit(value).alias(name) for name, value in clock.select("host", *CLOCK).row(0, named=True).items()
    )
    _check_range(here, times, clock)
    return _with_corrected(here, times, clock).select(tasks.columns)


def task_batches(profile: Profile, rank: int, rows: int = 1 << 20) -> Iterator[pl.DataFrame]:
    """The device tasks of `rank` inside `profile.window_ns` on the corrected clock, in frames (schema `KERNELS`) of at
    most `rows` rows, by start."""
    clock, window = clock_of(profile, rank), profile.window_ns
    for file in profile.kernels:
        if file.rank != rank:
            continue
        scan = pl.scan_ipc(file.path)
        total = scan.select(pl.len()).collect().item()
        for at in range(0, total, rows):
            batch = correct_tasks(scan.slice(at, rows).collect(), clock)
            if window is not None:
                batch = batch.filter((pl.col("end_ns") >= window[0]) & (pl.col("start_ns") <= window[1]))
            yield batch


def recorded_window(window_ns: tuple[int, int], clock: pl.DataFrame) -> tuple[int, int]:
    """A window of corrected time in the clock of a host (`clock` as from `clock_of`), at most 2 ns wider each way.

    Inverse of `corrected_time`: with u = t - reference and v the corrected time less the reference and plus the offset,
    v = u - drift * u, so u = v + v * drift / (1 - drift).
    """
    if clock.is_empty():
        return window_ns
    later = clock.select(pl.col("steps").explode()).drop_nulls().unnest("steps") if clock["steps"].count() else clock
    firsts, lasts = [], []
    for offset, drift, reference in pl.concat([clock.select(CLOCK), later.select(CLOCK)]).iter_rows():
        shifted = (time + offset - reference for time in window_ns)
        first, last = (reference + v + round(v * drift / (1 - drift)) for v in shifted)
        firsts.append(first)
        lasts.append(last)
    return min(firsts) - 2, max(lasts) + 2
