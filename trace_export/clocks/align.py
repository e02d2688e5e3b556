"""Puts all hosts of a profile on one clock and says how well: `align(profile, "auto") -> Profile`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import polars as pl

from trace_export.choices import Align
from trace_export.clocks import alignment_file, split_hosts
from trace_export.clocks.causality import violations
from trace_export.clocks.observations import block_messages
from trace_export.errors import AlignmentError, UsageError
from trace_export.model import CLOCKS, TIME, Note, Profile, conform
from trace_export.units import duration

if TYPE_CHECKING:
    from trace_export.clocks.fit import ClockFit

How = Align | Path

SKEW_NS = 30 * 10**9
EPOCH_NS = 10**17
"""Times below this (1973) count from the start of something: they are no wall clock."""


def align(
    profile: Profile,
    how: How = "auto",
    *,
    offsets: Mapping[str, int] | None = None,
    block_edges: pl.DataFrame | None = None,
    max_error_ns: float | None = None,
) -> Profile:
    """`profile` with all hosts on one clock: every time column of every table corrected, `clocks` filled, notes added.

    The order within a rank stays as it is.

    `how`: `auto` fits (nothing to do for one host), `strict` fits and refuses what is not sure, `wall` and `none` keep
    the hosts' clocks, a path is a `clock_alignment.json` to use again. `offsets` (host → ns) are added to a host's
    times first. `block_edges`: rows of `profile.spans` that feed each other (src, dst, direction). A host whose
    uncertainty (one standard deviation) exceeds `max_error_ns` keeps its wall clock; with `strict` that is an error.
    Raises AlignmentError, UsageError (an unknown host in `offsets`), SourceError (the file cannot be read).
    """
    moves = _known(profile, offsets or {})
    if how not in ("none", "wall"):
        profile, moves = _split(profile, moves)
    one_host = profile.ranks["host"].n_unique() <= 1 and profile.hosts.height <= 1
    if how in ("none", "wall") or (one_host and not isinstance(how, Path)):
        method = "none" if how == "none" else "single-host" if one_host else "wall"
        return _apply(profile, _told(_unmoved(profile, method), moves), None, block_edges)
    if isinstance(how, Path):
        return _apply(profile, _told(alignment_file.read(how, profile), moves), None, block_edges)
    from trace_export.clocks.fit import fit_clocks  # its solvers take longer to import than most runs to draw

    shifted = _moved(profile, _told(_unmoved(profile, "wall"), moves)) if moves else profile
    edges = None if block_edges is None else block_messages(shifted.spans, block_edges)
    fit = fit_clocks(shifted.messages, shifted.collectives, shifted.ranks, edges=edges)
    clocks = _checked(shifted, fit, strict=how == "strict", max_error_ns=max_error_ns)
    return _apply(profile, _told(clocks, moves), fit, block_edges)


def _known(profile: Profile, offsets: Mapping[str, int]) -> dict[str, int]:
    """The `offsets` by host key; a host may also be named by its label."""
    keys = {h: h for h in profile.ranks["host"].drop_nulls().unique().sort()}
    labels = dict(profile.hosts.select("label", "host").drop_nulls().iter_rows())
    moves: dict[str, int] = {}
    for name, offset in offsets.items():
        host = keys.get(name) or labels.get(name)
        if host is None:
            raise UsageError(f'--offset names the host "{name}"', f"the hosts are {', '.join(keys)}")
        moves[host] = moves.get(host, 0) + offset
    return moves


def _split(profile: Profile, moves: dict[str, int]) -> tuple[Profile, dict[str, int]]:
    """The profile with its hosts taken apart where they are several; each part has what its host was told."""
    parts = split_hosts.split(profile)
    names = parts.ranks.select("host", old=profile.ranks["host"]).drop_nulls().unique()
    return parts, {host: moves[old] for host, old in names.iter_rows() if old in moves}


def _unmoved(profile: Profile, method: str) -> pl.DataFrame:
    hosts = profile.ranks.select("host").drop_nulls().unique().sort("host")
    return conform(
        hosts.with_columns(method=pl.lit(method), offset_ns=0, drift=0.0, reference_ns=0, messages=0, collectives=0),
        CLOCKS,
    )


def _told(clocks: pl.DataFrame, moves: Mapping[str, int]) -> pl.DataFrame:
    """`clocks` that were found for times moved by `moves`, made to fit the times as they were read."""
    if not moves:
        return clocks
    moved = pl.col("host").replace_strict(moves, default=0, return_dtype=TIME)
    told = pl.col("host").is_in(list(moves))
    return clocks.with_columns(
        offset_ns=pl.col("offset_ns") - moved,
        reference_ns=pl.col("reference_ns") - moved,
        method=pl.when(told).then(pl.lit("told+") + pl.col("method")).otherwise("method"),
    )


def _moved(profile: Profile, clocks: pl.DataFrame) -> Profile:
    """All tables of `profile` on the corrected clock."""
    if _unchanged(clocks):
        return profile
    by_rank = _by_rank(profile, clocks)
    one = [("rank", ["start_ns", "end_ns"])]
    return replace(
        profile,
        spans=_correct(profile.spans, by_rank, one),
        p2p=_correct(profile.p2p, by_rank, one),
        collectives=_correct(profile.collectives, by_rank, one),
        counters=_correct(profile.counters, by_rank, [("rank", ["ts_ns"])]),
        messages=correct_messages(profile.messages, by_rank),
    )


def _unchanged(clocks: pl.DataFrame) -> bool:
    return clocks.filter((pl.col("offset_ns") != 0) | (pl.col("drift") != 0)).is_empty()


def _by_rank(profile: Profile, clocks: pl.DataFrame) -> pl.DataFrame:
    known = profile.ranks.select("rank", "host").join(clocks, on="host").unique("rank")
    return known.select("rank", "offset_ns", "drift", "reference_ns")


def correct_messages(messages: pl.DataFrame, by_rank: pl.DataFrame) -> pl.DataFrame:
    """Each side of the messages on its own rank's corrected clock."""
    sides = [("src_rank", ["send_start_ns", "send_end_ns"]), ("dst_rank", ["recv_start_ns", "recv_end_ns"])]
    return _correct(messages, by_rank, sides)


def _correct(frame: pl.DataFrame, by_rank: pl.DataFrame, sides: list[tuple[str, list[str]]]) -> pl.DataFrame:
    columns = frame.columns
    for rank, times in sides:
        clock = by_rank.rename({"rank": rank})
        frame = frame.join(clock, on=rank, how="left", maintain_order="left")
        late = (pl.col("drift") * (pl.col(time) - pl.col("reference_ns")) for time in times)
        frame = frame.with_columns(
            pl.col(time) - pl.col("offset_ns").fill_null(0) - drifted.round().cast(TIME).fill_null(0)
            for time, drifted in zip(times, late, strict=True)
        ).select(columns)
    return frame


def _apply(profile: Profile, clocks: pl.DataFrame, fit: ClockFit | None, block_edges: pl.DataFrame | None) -> Profile:
    """Moves the times and tells what that did."""
    done = replace(_moved(profile, clocks), clocks=clocks)
    if len(clocks) < 2:
        return done
    notes = _skew(profile) + _clock_notes(clocks, fit)
    return done.with_notes(notes + _causality(profile, clocks, block_edges))


def _causality(profile: Profile, clocks: pl.DataFrame, block_edges: pl.DataFrame | None) -> list[Note]:
    """How many messages between hosts (where there are none: blocks) precede their cause, before and after."""
    ties, words = _between_hosts(profile, profile.messages), "messages between hosts arrived before they were sent"
    if ties.is_empty() and block_edges is not None:
        ties = _between_hosts(profile, block_messages(profile.spans, block_edges))
        words = "blocks started before what feeds them on another host had ended"
    if ties.is_empty():
        return []
    before, after = violations(ties), violations(correct_messages(ties, _by_rank(profile, clocks)))
    moved = not _unchanged(clocks)
    text = f"clocks: {before} of {len(ties)} {words}" + (f", {after} after alignment" if moved else "")
    return [Note("clock-violations", "warning" if moved and after else "note", text)]


def _between_hosts(profile: Profile, messages: pl.DataFrame) -> pl.DataFrame:
    host = profile.ranks.select("rank", "host").unique("rank")
    return (
        messages.join(host.rename({"rank": "src_rank", "host": "a"}), on="src_rank")
        .join(host.rename({"rank": "dst_rank", "host": "b"}), on="dst_rank")
        .filter(pl.col("a") != pl.col("b"))
        .select(messages.columns)
    )


def _checked(profile: Profile, fit: ClockFit, *, strict: bool, max_error_ns: float | None) -> pl.DataFrame:
    """The fit's clocks, with the wall clock where the fit is not sure enough.

    Raises AlignmentError with `strict` where a host is not tied as well as asked for, and always where hosts without a
    common axis have no wall clock either.
    """
    clocks = fit.clocks
    untied = clocks.filter(pl.col("method") == "wall")["host"].to_list()
    parts = clocks.filter(pl.col("method").str.contains("component"))["host"].to_list()
    unsure = clocks.filter(pl.col("sd_ns") > max_error_ns)["host"].to_list() if max_error_ns is not None else []
    if strict:
        _refuse(fit, untied, parts, unsure, max_error_ns)
    if untied or parts:
        first = _first_stamps(profile)
        baseless = first.filter(pl.col("first") < EPOCH_NS)["host"].to_list()
        if baseless and len(first) > 1:
            raise AlignmentError(
                f"{_names(baseless)}: the times are no wall clock, and nothing ties the host to the others",
                "give --offset, or --align none to draw the times as they are",
            )
    keep = pl.col("host").is_in(unsure)
    return clocks.with_columns(
        method=pl.when(keep).then(pl.lit("wall")).otherwise("method"),
        offset_ns=pl.when(keep).then(0).otherwise("offset_ns"),
        drift=pl.when(keep).then(0.0).otherwise("drift"),
    )


def _refuse(fit: ClockFit, untied: list[str], parts: list[str], unsure: list[str], limit: float | None) -> None:
    remedy = "leave out --align strict to keep what is known"
    if untied:
        raise AlignmentError(f"nothing ties {_names(untied)} to the other hosts", remedy)
    if parts:
        raise AlignmentError(f"the hosts fall into groups that nothing ties together: {_names(parts)}", remedy)
    if unsure and limit is not None:
        raise AlignmentError(f"the clock of {_names(unsure)} is known less well than {duration(limit)}", remedy)
    if fit.one_sided:
        raise AlignmentError(f"messages go only one way between {_names(fit.one_sided)}", remedy)
    if fit.contradiction:
        raise AlignmentError(f"the messages between {_names(fit.contradiction)} contradict each other", remedy)


def _first_stamps(profile: Profile) -> pl.DataFrame:
    """host, first: the first time of each host in any table."""
    times = [
        frame.group_by("rank").agg(first=pl.col("start_ns").min())
        for frame in (profile.spans, profile.p2p, profile.collectives)
    ]
    host = profile.ranks.select("rank", "host").unique("rank")
    firsts = pl.concat(times).join(host, on="rank").group_by("host").agg(pl.col("first").min())
    return firsts.drop_nulls().sort("host")


def _clock_notes(clocks: pl.DataFrame, fit: ClockFit | None) -> list[Note]:
    if fit is None:
        return []
    notes = _fit_notes(fit)
    wall = clocks.filter(pl.col("method").str.ends_with("wall"))["host"].to_list()
    if wall:
        text = f"clock of {_names(wall)}: nothing ties it to the other hosts well enough, wall clock kept"
        notes.append(Note("clock-not-aligned", "warning", text, count=len(wall)))
    return notes


def _skew(profile: Profile) -> list[Note]:
    first = _first_stamps(profile).sort("first", "host")
    if len(first) < 2 or first["first"][-1] - first["first"][0] <= SKEW_NS:
        return []
    gap = first["first"][-1] - first["first"][0]
    return [
        Note(
            "clock-start-gap",
            "warning",
            f"clocks: {first['host'][-1]} starts {gap / 1e9:.1f} s after {first['host'][0]} by their own clocks",
        )
    ]


def _fit_notes(fit: ClockFit) -> list[Note]:
    notes = []
    if fit.worst_pair is not None:
        a, b, off = fit.worst_pair
        notes.append(
            Note(
                "clock-worst-pair",
                "note",
                f"clocks: {a} and {b} fit worst: what ties them disagrees by {duration(abs(off))}",
            )
        )
    if fit.wander_ns:
        notes.append(
            Note("clock-wander", "note", f"clocks: they stray from constant rates by about {duration(fit.wander_ns)}")
        )
    if fit.holdout_ns is not None:
        notes.append(
            Note(
                "clock-holdout",
                "note",
                f"clocks: fits on halves of the data differ by {duration(fit.holdout_ns)} at most",
            )
        )
    if fit.contradiction:
        text = f"clocks: the data around {_names(fit.contradiction)} contradict constant clock rates"
        notes.append(Note("clock-contradiction", "warning", f"{text} by up to {duration(fit.slack_ns)}"))
    if fit.one_sided:
        text = f"clocks: messages go only one way between {_names(fit.one_sided)}, their travel time counts as offset"
        notes.append(Note("clock-one-way", "warning", text))
    if fit.few_messages:
        notes.append(Note("clock-few-messages", "warning", f"clocks: few messages between {_names(fit.few_messages)}"))
    if fit.asymmetric:
        notes.append(
            Note("clock-asymmetric", "note", "clocks: messages take longer one way than the other, as collectives show")
        )
    elif not fit.pairs.is_empty():
        text = "clocks: both ways are taken to last alike; half of a difference counts as offset, per host pair"
        notes.append(Note("clock-symmetry-assumed", "note", text))
    return notes


def _names(names: list[str] | tuple[str, ...], most: int = 6) -> str:
    shown = ", ".join(names[:most])
    return f"{shown} and {len(names) - most} more" if len(names) > most else shown
