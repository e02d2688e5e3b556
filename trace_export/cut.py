"""A profile → the part of it that the user asked for: devices, steps, stages, a window of time."""

from __future__ import annotations

from dataclasses import replace

import polars as pl

from trace_export.model import Profile
from trace_export.selection import Numbers, Window

MANY_RANKS = ("nsys",)
"""Kinds of source that hold several ranks, so that devices can only be chosen once they are read."""
TIMES = {"p2p": "start_ns", "messages": "send_start_ns", "collectives": "start_ns", "counters": "ts_ns"}
"""The table's column that decides whether a row lies in the window."""


def inside(column: str, numbers: Numbers) -> pl.Expr:
    """True where the column's number is one of `numbers`."""
    return pl.any_horizontal(pl.col(column).is_between(low, high) for low, high in numbers.ranges).fill_null(False)


def on_devices(profile: Profile, devices: Numbers) -> Profile:
    """Only the ranks that are one of `devices` of their host, counted in the order of their numbers; of the kinds in
    MANY_RANKS, as the sources of the others were chosen already."""
    place = pl.int_range(pl.len()).over("host", order_by="rank")
    counted = profile.ranks.with_columns(device_of_host=place)
    kept = counted.filter(~pl.col("kind").is_in(MANY_RANKS) | inside("device_of_host", devices)).drop("device_of_host")
    tables = {
        name: getattr(profile, name).join(kept, on="rank", how="semi", maintain_order="left")
        for name in ("spans", "p2p", "collectives", "counters")
    }
    return replace(profile, ranks=kept, **tables)


def extent(profile: Profile) -> str:
    """What there is to choose from: "steps 3-5, stages 0-3, 1.52 s from the first block to the last"."""
    parts = []
    for what, numbers in (("steps", profile.spans["step"]), ("stages", profile.ranks["stage"])):
        if known := numbers.drop_nulls().unique().sort().to_list():
            parts.append(f"{what} {Numbers(((known[0], known[-1]),))}")
    seconds = profile.spans.select((pl.col("end_ns").max() - pl.col("start_ns").min()) / 1e9).item() or 0.0
    return ", ".join([*parts, f"{seconds:.3g} s from the first block to the last"])


def cut(profile: Profile, steps: Numbers | None, stages: Numbers | None, window: Window | None) -> Profile:
    """Only the blocks of `steps`, on `stages`, that touch `window` (relative to the first block); all other rows of the
    same ranks within the time of these blocks."""
    spans, ranks = profile.spans, profile.ranks
    if steps is None and stages is None and window is None:
        return profile
    if window is not None and spans.height:
        zero = int(spans["start_ns"].min())  # type: ignore[arg-type]
        spans = spans.filter((pl.col("end_ns") > zero + window.start_ns) & (pl.col("start_ns") < zero + window.end_ns))
    if steps is not None:
        spans = spans.filter(inside("step", steps))
    if stages is not None:
        ranks = ranks.filter(inside("stage", stages))
        spans = spans.join(ranks, on="rank", how="semi", maintain_order="left")
    if spans.is_empty():
        return replace(profile, spans=spans, ranks=ranks)
    start, end = int(spans["start_ns"].min()), int(spans["end_ns"].max())  # type: ignore[arg-type]
    frames = {name: getattr(profile, name).filter(pl.col(time).is_between(start, end)) for name, time in TIMES.items()}
    for name in ("p2p", "collectives", "counters"):
        frames[name] = frames[name].join(ranks, on="rank", how="semi", maintain_order="left")
    kernels = tuple(k for k in profile.kernels if k.rank in set(ranks["rank"]))
    return replace(profile, spans=spans, ranks=ranks, kernels=kernels, window_ns=(start, end), **frames)
