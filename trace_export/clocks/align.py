"""Puts all hosts of a profile on one clock and says how well: `align(profile, "auto") -> Profile`."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import polars as pl

from trace_export.choices import Align
from trace_export.clocks import alignment_file, apply, notes, split_hosts
from trace_export.clocks.observations import block_messages, first_times, gather
from trace_export.errors import AlignmentError
from trace_export.model import CLOCKS, TIME, Profile
from trace_export.selection import offsets_by_host
from trace_export.units import EPOCH_NS, duration, moment

if TYPE_CHECKING:
    from trace_export.clocks.fit import ClockFit

How = Align | Path


def align(
    profile: Profile,
    how: How = "auto",
    *,
    offsets: Mapping[str, int] | None = None,
    max_error_ns: float | None = None,
) -> Profile:
    """`profile` with all hosts on one clock: every time column of every table corrected, `clocks` filled, notes added.

    The order within a rank stays as it is. Dependencies of blocks constrain the clocks where the profile has been
    interpreted.

    `how`: `auto` fits (nothing to do for one host), `strict` fits and refuses what is not sure, `wall` and `none` keep
    the hosts' clocks, a path is a `clock_alignment.json` to use again. `offsets` (host → ns) are added to a host's
    times first. A host whose uncertainty (one standard deviation) exceeds `max_error_ns` keeps its wall clock; with
    `strict` that is an error, and always for a host that has no wall clock (`hosts.epoch`) and no offset of the user.
    Such hosts cannot stay on their clocks beside another host, except with `none`. A clock that was set back by some
    blocks is refused. Raises AlignmentError, UsageError (an unknown host or an impossible offset in `offsets`),
    SourceError (the file cannot be read).
    """
    by_host = offsets_by_host([profile], offsets or {})
    if how not in ("none", "wall"):
        profile, by_host = _hosts_apart(profile, by_host)
    one_host = profile.ranks["host"].n_unique() <= 1 and profile.hosts.height <= 1
    fit = None
    if isinstance(how, Path):
        clocks = alignment_file.read(how, profile)
        _refuse_without_wall_clock(profile, by_host, clocks.filter(pl.col("status") == "wall")["host"].to_list())
    elif how in ("none", "wall") or one_host:
        if how == "wall" and not one_host:
            _refuse_without_wall_clock(profile, by_host, profile.ranks["host"].drop_nulls().unique().to_list())
        clocks = apply.uncorrected(profile.ranks, "none" if how == "none" else "single-host" if one_host else "wall")
    else:
        from trace_export.clocks.clock_steps import find_steps
        from trace_export.clocks.fit import fit_observations  # its solvers take longer to import than most runs to draw
        from trace_export.clocks.overlaps import overlapping, set_back

        _refuse_set_back(set_back(profile))
        moved = apply.correct_profile(profile, _with_offsets(apply.uncorrected(profile.ranks, "wall"), by_host))
        edges = block_messages(moved, prompt=moved.messages.is_empty())
        unplaced = set(moved.without_wall_clock) - set(by_host)
        observed = moved.messages, moved.collectives, moved.ranks, edges
        data = gather(*observed)
        steps = find_steps(data, moved)
        shown_twice = overlapping(moved)
        if len(steps):
            _refuse_overlapping(shown_twice)
            data = gather(*observed, steps.select("host", "from_ns").rows())
        fit = fit_observations(data, moved.ranks, without_wall_clock=unplaced, steps=steps)
        if len(shown_twice):
            nothing = pl.lit(None, CLOCKS["sd_ns"])
            unknown = fit.clocks.with_columns(sd_ns=nothing, bound_ns=nothing)
            fit = replace(fit, clocks=unknown, shown_twice=shown_twice)
        clocks = _checked(moved, fit, by_host, strict=how == "strict", max_error_ns=max_error_ns)
    clocks = _with_offsets(clocks, by_host)
    done = replace(apply.correct_profile(profile, clocks), clocks=clocks)
    return done.with_notes(notes.of_alignment(profile, clocks, fit))


def _hosts_apart(profile: Profile, by_host: dict[str, int]) -> tuple[Profile, dict[str, int]]:
    """The profile with its hosts split where they are several machines; each part has the user's offset of its host."""
    parts = split_hosts.by_clock(profile)
    names = parts.ranks.select("host", old=profile.ranks["host"]).drop_nulls().unique()
    return parts, {host: by_host[old] for host, old in names.iter_rows() if old in by_host}


def _with_offsets(clocks: pl.DataFrame, by_host: Mapping[str, int]) -> pl.DataFrame:
    """`clocks` of times that were moved by the user's offsets, changed to fit the recorded times."""
    if not by_host:
        return clocks
    user = pl.col("host").replace_strict(by_host, default=None, return_dtype=TIME)
    moved = user.fill_null(0)
    rows = clocks.with_columns(
        user_offset_ns=user, offset_ns=pl.col("offset_ns") - moved, reference_ns=pl.col("reference_ns") - moved
    )
    if not clocks["steps"].count():
        return rows
    times = ("from_ns", "offset_ns", "reference_ns")
    return pl.concat(
        one.with_columns(
            pl.col("steps").list.eval(
                pl.element().struct.with_fields(pl.field(name) - (one["user_offset_ns"][0] or 0) for name in times)
            )
        )
        for one in rows.iter_slices(1)
    )


def _checked(
    profile: Profile, fit: ClockFit, by_host: Mapping[str, int], *, strict: bool, max_error_ns: float | None
) -> pl.DataFrame:
    """The fit's clocks, with the wall clock if the fit of a host is not sure enough.

    Raises AlignmentError with `strict` if a host is less certain than was asked for, and always if hosts without a
    common axis have no wall clock either.
    """
    clocks = fit.clocks
    unconstrained = clocks.filter(pl.col("status") == "wall")["host"].to_list()
    separate = clocks.filter(pl.col("component").is_not_null())["host"].to_list()
    unsure: list[str] = []
    if max_error_ns is not None:
        unknown = pl.col("evidence").is_not_null() & pl.col("sd_ns").is_null()
        unsure = clocks.filter((pl.col("sd_ns") > max_error_ns) | unknown)["host"].to_list()
    if strict:
        _refuse(fit, unconstrained, separate, unsure, max_error_ns)
    _refuse_without_wall_clock(profile, by_host, [*unconstrained, *separate, *unsure])
    keep = pl.col("host").is_in(unsure)
    return pl.concat([clocks.filter(~keep), apply.uncorrected(profile.ranks, "wall").filter(keep)]).sort("host")


def _refuse_set_back(hosts: pl.DataFrame) -> None:
    """Raises AlignmentError for the first of `hosts`, as `set_back` gives them: times before and after the setting may
    be equal on its clock, and sends are paired in its order."""
    for host, step, back_ns in hosts.head(1).iter_rows():
        raise AlignmentError(
            f"the clock of {host} was set back while it was recorded: there step {step} begins at least "
            f"{duration(back_ns)} before the step before it ends",
            "choose other ranks with `ranks`, or draw the times as they are with `align` none",
        )


def _refuse_overlapping(hosts: pl.DataFrame) -> None:
    """Raises AlignmentError for `hosts`, as `overlapping` gives them, where messages show that a clock was set, too."""
    for host, first_ns, last_ns in hosts.iter_rows():
        raise AlignmentError(
            f"the clock of {host} was set back while it was recorded: between {moment(first_ns)} and "
            f"{moment(last_ns)} on it, and only there, blocks of its ranks overlap",
            "choose other ranks with `ranks`, or draw the times as they are with `align` none",
        )


def _refuse_without_wall_clock(profile: Profile, by_host: Mapping[str, int], unaligned: Collection[str]) -> None:
    """Raises AlignmentError where some of the hosts that are not aligned have no wall clock either."""
    first = first_times(profile)
    early = first.filter(pl.col("first") < EPOCH_NS)["host"].to_list()
    lost = sorted({*early, *profile.without_wall_clock} & {*unaligned} - {*by_host})
    if lost and len(first) > 1:
        raise AlignmentError(
            f"{notes.names(lost)}: no wall-clock times, and too few observations connect the host to the others",
            "record sends and receives or collectives, give `offsets_ns`, or draw the times as they are"
            " with `align` none",
        )


def _refuse(
    fit: ClockFit, unconstrained: list[str], separate: list[str], unsure: list[str], limit: float | None
) -> None:
    """Raises AlignmentError for the first reason why the alignment is not sure."""
    remedy = "leave out `align` strict to keep what is known"
    if unconstrained:
        raise AlignmentError(f"no observation connects {notes.names(unconstrained)} to the other hosts", remedy)
    if separate:
        raise AlignmentError(f"no observation connects the groups of the hosts {notes.names(separate)}", remedy)
    if unsure and limit is not None:
        raise AlignmentError(f"the clock of {notes.names(unsure)} is known less well than {duration(limit)}", remedy)
    if fit.one_way:
        raise AlignmentError(f"messages go in one direction only between {notes.names(fit.one_way)}", remedy)
    if fit.contradiction:
        raise AlignmentError(f"the messages between {notes.names(fit.contradiction)} contradict each other", remedy)
