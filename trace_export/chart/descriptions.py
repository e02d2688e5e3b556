"""Texts of a chart: its title, the descriptions of its tracks, and its metadata."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import polars as pl

from trace_export.chart.chart import Part
from trace_export.chart.critical_path import TRACK
from trace_export.model import Profile
from trace_export.schedules.catalogue import readable
from trace_export.units import utc

FIRST_STEP: Final = "first_step_ns"
PINNED: Final = "pinned"
"""The attributes of a trace by which `open` knows what to show first, see `first_view`."""


def title(profile: Profile, runs: tuple[str, str] | None = None, other: Profile | None = None) -> str:
    """`PP chart · 1F1B · PP=4`, without unknown parts; of two compared `runs` with their names, and both schedules and
    numbers of stages where those of the `other` differ."""
    drawn = [each for each in (profile, other) if each is not None]
    schedules = dict.fromkeys(readable(each.declared.schedule) for each in drawn)
    stages = dict.fromkeys(map(_stages, drawn))
    sizes = " and ".join(str(count) for count in stages if count)
    words = [" and ".join(runs or ()), " and ".join(filter(None, schedules)), f"PP={sizes}" if sizes else ""]
    return " · ".join(filter(None, ["PP chart", *words]))


def _stages(profile: Profile) -> int:
    """The stages of the pipeline, of which a part may be drawn."""
    named = profile.interpretation and profile.interpretation.recognition.named
    recognised = named.stages if named else profile.ranks["stage"].drop_nulls().n_unique()
    return profile.declared.pp or recognised


def root_text(profile: Profile, origin_ns: int, clocks: Mapping[str, str]) -> str:
    """Description of the whole chart, including the time at which it starts."""
    lines = [
        f"Time 0 is {utc(origin_ns)} (unix time {origin_ns} ns)."
        if _has_wall_clock(profile)
        else f"Time 0 is {origin_ns} ns; no host has a wall clock.",
        f"{len(profile.ranks)} ranks on {profile.ranks['host'].n_unique()} hosts, {len(profile.spans)} blocks read.",
    ]
    return " ".join(lines + [f"Clock of {host}: {text}." for host, text in clocks.items()])


def rank_text(rank: dict[str, Any], clocks: Mapping[str, str]) -> str:
    """`rank` is a row of `ranks`."""
    words = [f"rank {rank['rank']}", f"host {rank['host']}"]
    words += [f"{key} {rank[key]}" for key in ("device", "stage", "dp", "tp", "cp") if rank[key] is not None]
    if rank["stage_origin"] in ("inferred", "assumed", "user-specified"):
        words.append(f"stage is {rank['stage_origin']}")
    if rank["rank_origin"] == "assumed":
        words.append("rank number is assumed")
    if clock := clocks.get(rank["host"]):
        words.append(f"clock: {clock}")
    return " · ".join(words)


def attributes(profile: Profile, origin_ns: int, clocks: Mapping[str, str]) -> dict[str, str | int]:
    """Facts for the metadata of a trace file."""
    wall = _has_wall_clock(profile)
    facts: dict[str, str | int | None] = {
        "origin_unix_ns" if wall else "origin_ns": origin_ns,
        "origin_utc": utc(origin_ns) if wall else None,
        "schedule": profile.declared.schedule,
        "microbatches": profile.declared.microbatches,
    }
    facts |= {f"clock {host}": text for host, text in clocks.items()}
    return {key: value for key, value in facts.items() if value is not None}


def first_view(main: Part, origin_ns: int) -> dict[str, str | int]:
    """What a viewer is to show first: start and end of the first step in the trace's own time, and the track that it
    puts at the top. They come before all other attributes, so that the head of the file has them."""
    steps = main.slices.filter(pl.col("category") == "step").select("start_ns", "end_ns").sort("start_ns")
    view: dict[str, str | int] = {}
    if steps.height:
        start, end = steps.row(0)
        view[FIRST_STEP] = f"{start - origin_ns}-{end - origin_ns}"
    if any(track.name == TRACK for track in main.tracks):
        view[PINNED] = TRACK
    return view


def _has_wall_clock(profile: Profile) -> bool:
    """Whether the times of the chart are those of the Unix epoch: one host's clock is enough for all."""
    return len(profile.without_wall_clock) < max(profile.ranks["host"].n_unique(), 1)
