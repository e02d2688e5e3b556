"""How a host's clock was corrected, in words."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import polars as pl

from trace_export.model import BY_BLOCKS, Profile
from trace_export.units import duration, moment


def clock_method(clock: Mapping[str, Any]) -> str:
    """How a host's clock (a row of `CLOCKS`) was corrected: user offset +3.2 ms, p2p+collective, against node0."""
    parts = [] if clock["user_offset_ns"] is None else [f"user offset {duration(clock['user_offset_ns'], sign=True)}"]
    words = {
        "fitted": clock["evidence"], "confirmed": f"wall, confirmed by {clock['evidence']}",
        "single-host": "the only host, nothing to align", "none": "as recorded",
    }  # fmt: skip
    parts.append(words.get(clock["status"], clock["status"]) or "uncorrected")
    if clock["status"] == "fitted" and clock["reference_host"] is not None:
        parts.append(f"against {clock['reference_host']}")
    if clock["component"] is not None:
        parts.append("nothing connects its group of hosts to the others")
    if clock["steps"]:
        parts.append(f"set {len(clock['steps'])} ×")
    return ", ".join(parts)


UNSEEN_NS = 200_000
"""Steps of a clock that may go unnoticed are mentioned from this size on: smaller ones change no wait by much."""


def clocks_line(clocks: pl.DataFrame) -> str:
    """All clocks (`CLOCKS`, with the label of the host) in a line: 8 hosts aligned by p2p+collective, worst ±525 ns (1
    sd), each off by at most 40 µs unless a clock was set; farthest off is node1, +3.2 ms against node0."""
    if len(clocks) < 2:
        return "one host, nothing to align"
    return "; ".join(_clock_facts(clocks))


def _clock_facts(clocks: pl.DataFrame) -> Iterator[str]:
    aligned = clocks.filter(pl.col("status").is_in(["fitted", "confirmed", "file"]))
    if len(aligned):
        how = ", ".join(aligned["evidence"].drop_nulls().unique().sort()) or "a file"
        confirmed = ", which agrees with the wall clocks" * bool((aligned["status"] == "confirmed").all())
        errors = [
            text.format(duration(float(worst)))
            for name, text in (
                ("sd_ns", "worst ±{} (1 sd)"),
                ("bound_ns", "each off by at most {} unless a clock was set"),
            )
            if not aligned[name].null_count() and isinstance(worst := aligned[name].max(), float)
        ]
        yield ", ".join([f"{len(aligned)} hosts aligned by {how}{confirmed}", *errors])
        # The reference is 0 in mid-window, and at its start, where offsets are told, as far off as it drifts.
        moved = aligned.with_columns(shift=pl.col("offset_ns") + pl.col("user_offset_ns").fill_null(0))
        zero = moved.select(reference_host="host", against=pl.coalesce("label", "host"), zero="shift")
        moved = moved.join(zero, on="reference_host", how="left").with_columns(
            pl.col("shift") - pl.col("zero").fill_null(0)
        )
        far = moved.sort(pl.col("shift").abs(), "host", descending=[True, False]).row(0, named=True)
        if far["shift"]:
            against = "" if far["against"] is None else f" against {far['against']}"
            yield f"farthest off is {_name(far)}, {duration(far['shift'], sign=True)}{against}"
    if kept := int((clocks["status"] == "none").sum()):
        yield f"{kept} hosts, as recorded"
    wall = clocks.filter(pl.col("status") == "wall")
    if len(wall):
        one = f"{_name(wall.row(0, named=True))} on its wall clock"
        yield one if len(wall) == 1 else f"{len(wall)} hosts on their wall clocks"
    user = clocks.drop_nulls("user_offset_ns")
    if len(user):
        given = [f"{_name(c)} {duration(c['user_offset_ns'], sign=True)}" for c in user.iter_rows(named=True)]
        yield f"moved by you: {', '.join(given[:SHOWN])}{', …' * (len(given) > SHOWN)}"
    if (groups := unconnected(clocks)) > 1:
        yield f"{groups} groups of hosts that nothing connects, each on its own time axis"
    for clock in clocks.drop_nulls("steps").iter_rows(named=True):
        count = len(clock["steps"])
        yield f"the correction of {_name(clock)} changes {'once' if count == 1 else f'{count} times'}"


def unconnected(clocks: pl.DataFrame) -> int:
    """The number of groups of hosts that nothing connects to one another; 0 if all are connected."""
    return clocks["component"].drop_nulls().n_unique()


def _name(clock: Mapping[str, Any]) -> str:
    return str(clock["label"] or clock["host"])


SHOWN = 4
"""This many hosts that the user moved are named."""


def clock_texts(profile: Profile) -> dict[str, str]:
    """Host → how its clock was corrected and the error that is left, with all digits."""
    texts = {}
    for clock in profile.clocks.iter_rows(named=True):
        words = [clock_method(clock)]
        if clock["offset_ns"]:
            words.append(f"moved by {-clock['offset_ns']} ns")
        if clock["drift"]:
            words.append(f"drift {clock['drift'] * 1e6:.3g} ppm")
        if clock["sd_ns"] is not None:
            words.append(f"error {clock['sd_ns'] / 1000:.3g} µs (standard deviation)")
        if clock["bound_ns"] is not None:
            words.append(f"at most {clock['bound_ns'] / 1000:.3g} µs unless the clock was set")
        texts[clock["host"]] = ", ".join(words)
    return texts


def of_blocks_ns(clocks: pl.DataFrame) -> float | None:
    """How far two clocks may be apart that are aligned by the order of blocks alone: each by its hard bound. None
    without such clocks, or without a bound."""
    worst = clocks.filter(BY_BLOCKS)["bound_ns"].max()
    return 2 * worst if isinstance(worst, float) else None


def _while_set(clocks: pl.DataFrame) -> str:
    """That these `clocks` agree less around the times at which their correction changes."""
    if clocks.is_empty():
        return ""
    hosts, begins = clocks["host"].sort(), clocks["steps"].explode().struct.field("from_ns")
    named = f"{', '.join(hosts[:SHOWN])}{', …' * (len(hosts) > SHOWN)}"
    if len(begins) == 1:
        return f", but not around {moment(begins[0])}, when the correction of {named} changes"
    return f", but not around the times when the correction of {named} changes"


def conditions(clocks: pl.DataFrame) -> str:
    """What is added to the certainty of clocks: between blocks, late starts look like data on their way; and a clock
    may have been set by much more, with a trace or without."""
    bound = of_blocks_ns(clocks)
    evenly = "" if bound is None else f" if data take equally long both ways (else two may be {duration(bound)} apart)"
    evenly += _while_set(clocks.filter(pl.col("steps").list.len() > 0))
    fitted = clocks.filter(pl.col("status").is_in(["fitted", "confirmed"]))
    if fitted["unseen_step_ns"].null_count():
        return f"{evenly}, unless one was set in between"
    worst = fitted["unseen_step_ns"].max()
    if not isinstance(worst, float) or worst <= UNSEEN_NS:
        return evenly
    return f"{evenly}, unless one was set in between by less than {duration(worst)}"
