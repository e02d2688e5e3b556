"""The notes on an alignment."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING

import polars as pl

from trace_export.clocks import apply
from trace_export.clocks.observations import block_messages, first_times, hosts_of_ranks, violations, with_hosts
from trace_export.model import Note, Profile
from trace_export.units import duration, moment

if TYPE_CHECKING:
    from trace_export.clocks.fit import ClockFit

START_GAP_NS = 30 * 10**9
"""Hosts of one run do not start so far apart: their wall clocks are suspect."""
DRIFT_VARIES_NS = 1000.0
"""Smaller deviations from constant rates are ignored: they are within the error of any alignment."""
SHOWN = 6
OFTEN = 3
"""A clock that was set more often gets one note for all times."""


def of_alignment(profile: Profile, clocks: pl.DataFrame, fit: ClockFit | None) -> list[Note]:
    """The notes on the alignment of `profile`, whose times are uncorrected, by `clocks`."""
    if len(clocks) < 2:
        return _without_wall_clock(profile)
    notes = _start_gap(profile, clocks) + _without_wall_clock(profile)
    if fit is not None:
        notes += _on_fit(fit) + _not_aligned(clocks)
    return notes + _violations(profile, clocks)


def names(hosts: Sequence[str]) -> str:
    """The hosts in words, of many the first few."""
    shown = ", ".join(hosts[:SHOWN])
    return f"{shown} and {len(hosts) - SHOWN} more" if len(hosts) > SHOWN else shown


def _start_gap(profile: Profile, clocks: pl.DataFrame) -> list[Note]:
    placed = pl.col("host").is_in(profile.without_wall_clock)
    moved = pl.col("first") + pl.col("user_offset_ns").fill_null(0)
    first = first_times(profile).join(clocks, on="host", how="left").with_columns(first=moved)
    first = first.filter(~placed).sort("first", "host")
    if len(first) < 2 or first["first"][-1] - first["first"][0] <= START_GAP_NS:
        return []
    gap = first["first"][-1] - first["first"][0]
    text = f"clocks: {first['host'][-1]} starts {gap / 1e9:.1f} s after {first['host'][0]} by their own clocks"
    return [Note("clock-start-gap", "warning", text)]


def _without_wall_clock(profile: Profile) -> list[Note]:
    hosts = profile.without_wall_clock
    if not hosts:
        return []
    one = len(hosts) == 1
    text = f"the clock{'' if one else 's'} of {names(hosts)} {'has' if one else 'have'} no wall-clock time"
    if len(hosts) < profile.hosts["host"].n_unique():
        text += f"; what {'it exchanges' if one else 'they exchange'} with other hosts places {'it' if one else 'them'}"
    else:
        text += "; the chart shows no dates"
    return [Note("clock-without-wall-time", "note", text, count=len(hosts))]


def _on_fit(fit: ClockFit) -> list[Note]:
    notes = []
    if fit.drift_variation_ns >= DRIFT_VARIES_NS:
        text = f"clocks: rates are not constant, but vary by about {duration(fit.drift_variation_ns)}"
        notes.append(Note("clock-drift-varies", "note", text))
    notes += _set(fit)
    for host, *times in fit.shown_twice.iter_rows():
        text = f"the clock of {host} seems to have been set back: only between {' and '.join(map(moment, times))} on it"
        notes.append(Note("clock-set", "warning", f"{text} do blocks of its ranks overlap; no error is stated"))
    if fit.contradiction:
        text = f"clocks: no constant clock rates explain the observations of {names(fit.contradiction)}"
        notes.append(Note("clock-contradiction", "warning", f"{text}; they differ by up to {duration(fit.slack_ns)}"))
    if fit.one_way:
        text = f"clocks: messages go in one direction only between {names(fit.one_way)}"
        notes.append(Note("clock-one-way", "warning", f"{text}; their latency is taken as clock offset"))
    if fit.few_messages:
        notes.append(Note("clock-few-messages", "warning", f"clocks: few messages between {names(fit.few_messages)}"))
    if fit.asymmetric:
        text = "clocks: messages take longer in one direction than in the other, as collectives show"
        notes.append(Note("clock-asymmetric", "note", text))
    return notes


def _set(fit: ClockFit) -> list[Note]:
    """The clocks that were set: each time, or of a clock that was set more than `OFTEN` times how often."""
    notes, doubt = [], "; no error is stated" * bool(fit.contradiction or fit.one_way)
    for host, every in groupby(fit.steps.rows(named=True), key=itemgetter("host")):
        steps = list(every)
        for some in [steps] if len(steps) > OFTEN else [[step] for step in steps]:
            sizes, after, until = ([step[n] for step in some] for n in ("step_ns", "after_ns", "until_ns"))
            often, against = len(some) > 1, names(sorted({step["against"] for step in some}))
            other = f" (or that of {against} by the opposite)" * any(step["either"] for step in some)
            by = " to ".join(dict.fromkeys(duration(size, sign=True) for size in (min(sizes), max(sizes))))
            text = f"the clock of {host}{other} was set {f'{len(some)} times ' * often}by {by} between"
            text += f" {moment(min(after))} and {moment(max(until))} on its clock, as seen against {against};"
            text += f" {'all parts' if often else 'both sides'} are aligned, each by itself, and times between may be"
            text += f" wrong by as much{doubt}"
            notes.append(Note("clock-set", "warning", text))
    return notes


def _not_aligned(clocks: pl.DataFrame) -> list[Note]:
    wall = clocks.filter(pl.col("status") == "wall")["host"].to_list()
    if not wall:
        return []
    text = f"clock of {names(wall)}: too few observations with other hosts to align it; its wall clock is used"
    text += "; if it recorded another job, read that alone"
    return [Note("clock-not-aligned", "warning", text, count=len(wall))]


def _violations(profile: Profile, clocks: pl.DataFrame) -> list[Note]:
    """How many messages between hosts (without messages: blocks) precede their cause, before and after."""
    messages, what = (
        _between_hosts(profile.messages, profile.ranks),
        "messages between hosts arrived before they were sent",
    )
    if messages.is_empty():
        messages = _between_hosts(block_messages(profile), profile.ranks)
        what = "blocks started before the block on another host that they depend on had ended"
    if messages.is_empty():
        return []
    after = violations(apply.correct_messages(messages, profile.ranks, clocks))
    corrected = not apply.is_identity(clocks)
    if corrected and profile.without_wall_clock:  # before, their times had nothing to do with each other
        text = f"clocks: {after} of {len(messages)} {what} after alignment"
    else:
        before = violations(messages)
        text = f"clocks: {before} of {len(messages)} {what}" + (f", {after} after alignment" if corrected else "")
    return [Note("clock-violations", "warning" if corrected and after else "detail", text)]


def _between_hosts(messages: pl.DataFrame, ranks: pl.DataFrame) -> pl.DataFrame:
    across = with_hosts(messages, hosts_of_ranks(ranks)).filter(pl.col("src_host") != pl.col("dst_host"))
    return across.select(messages.columns)
