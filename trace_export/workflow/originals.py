"""The traces that a run was read from, for viewers that open them beside the chart."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import polars as pl

from trace_export.chart.size import drawn_ranks
from trace_export.choices import Tracks
from trace_export.clocks.apply import CLOCK, clock_of, offset_at, recorded_window
from trace_export.errors import UsageError
from trace_export.model import Profile
from trace_export.sources.formats import FORMATS, of_kind
from trace_export.writers.traces.archive import Member


def check(kinds: Iterable[str | None]) -> None:
    """Raises UsageError where sources of these kinds are no traces that Perfetto opens."""
    titles = {row.kind: row.title for row in FORMATS if row.original is None}
    opened = {row.kind: row.title for row in FORMATS if row.original is not None}
    for kind in kinds:
        if kind not in opened:
            what = f"these are {titles[kind]}" if kind in titles else "this run was not read from profiles"
            raise UsageError(
                f"perfetto-archive holds {' and '.join(opened.values())}, and {what}",
                "choose perfetto, with --detail kernels for the device tasks",
                parameter="formats",
            )


def members(profile: Profile, tracks: Tracks) -> list[Member]:
    """The traces of the ranks that are drawn, each with the distance between its times and the corrected ones in the
    middle of its blocks. Raises UsageError, SourceError."""
    drawn = profile.ranks.filter(pl.col("rank").is_in(drawn_ranks(profile, tracks))).sort("rank")
    check(drawn["kind"].unique())
    sources = drawn.group_by("source", "kind", "host", maintain_order=True).agg("rank")
    found = []
    for source, kind, host, ranks in sources.iter_rows():
        load = of_kind(kind).load_original()
        assert load is not None, "the kinds were checked"
        trace = load(Path(source))
        numbers = "-".join(map(str, ranks))
        offset = trace.zero_ns - _correction(profile, ranks)
        found.append(
            Member(f"rank{numbers}.{trace.extension}", trace.path, f"rank {numbers} on {host}", offset, trace.clock)
        )
    return found


def drift_left_ns(profile: Profile, tracks: Tracks) -> int:
    """How far the times of such a trace are from the corrected ones at the ends of its blocks at most, because a viewer
    adds the same to all of them."""
    spans = profile.spans.filter(pl.col("rank").is_in(drawn_ranks(profile, tracks)))
    lengths = spans.group_by("rank").agg(length=pl.col("end_ns").max() - pl.col("start_ns").min())
    drifts = profile.ranks.join(profile.clocks, on="host").select("rank", pl.col("drift").abs())
    left = lengths.join(drifts, on="rank").select((pl.col("length") / 2 * pl.col("drift")).max()).item()
    return round(left or 0)


def _correction(profile: Profile, ranks: list[int]) -> int:
    """What is taken from the times of a source in the middle of its blocks."""
    clock = clock_of(profile, ranks[0])
    blocks = profile.spans.filter(pl.col("rank").is_in(ranks))
    if clock.is_empty() or blocks.is_empty():
        return int(clock["offset_ns"].sum())
    middle: int = blocks.select(
        pl.col("start_ns").min() + (pl.col("end_ns").max() - pl.col("start_ns").min()) // 2
    ).item()
    offset, drift, reference = clock.select(CLOCK).row(0)
    return offset_at(recorded_window((middle, middle), clock)[0] + 2, offset, drift, reference)
