"""Aligns the clocks of each run by itself: between two runs a clock may have been set, or its host started again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import polars as pl

from trace_export.clocks import align as alignment
from trace_export.clocks.apply import CLOCK
from trace_export.clocks.observations import hosts_of_ranks
from trace_export.model import CLOCKS, Profile, conform
from trace_export.segments import cut, joined


def align(
    profile: Profile,
    how: alignment.How = "auto",
    *,
    offsets: Mapping[str, int] | None = None,
    max_error_ns: float | None = None,
) -> Profile:
    """`align.align` for each run of a profile. A host has one row of `clocks`, whose `steps` are the corrections from
    the later runs on; its error is the largest of the runs. Raises as that does.

    If there is one run, or nothing is fitted, or the ranks of a host are on several machines in one of the runs,
    everything is aligned at once.
    """
    runs = cut(profile, ["run"]) if how in ("auto", "strict") and profile.hosts.height > 1 else [profile]
    if len(runs) > 1:
        done = [alignment.align(run, how, offsets=offsets, max_error_ns=max_error_ns) for run in runs]
        if all(run.ranks["host"].equals(profile.ranks["host"]) for run in done):
            return replace(joined(done, profile), clocks=_of_all(runs, [run.clocks for run in done]))
    return alignment.align(profile, how, offsets=offsets, max_error_ns=max_error_ns)


def _of_all(runs: Sequence[Profile], clocks: Sequence[pl.DataFrame]) -> pl.DataFrame:
    """The table CLOCKS of `runs`, whose times are as recorded, from the tables of each run, the oldest first."""
    extents = [_extents(run) for run in runs]
    rows: dict[str, dict[str, Any]] = {}
    ends: dict[str, int] = {}
    for extent, table in zip(extents, clocks, strict=True):
        for clock in table.iter_rows(named=True):
            host = clock["host"]
            first, last = extent.get(host, (None, None))
            before = rows.get(host)
            if first is None:
                rows.setdefault(host, clock)
            elif before is None or host not in ends:  # no earlier run has a block of it
                rows[host] = clock
            else:
                begins = ends[host] + (first - ends[host]) // 2
                later = [{"from_ns": begins, **{name: clock[name] for name in CLOCK}}, *(clock["steps"] or [])]
                rows[host] = clock | {
                    **{name: before[name] for name in CLOCK},
                    "steps": [*(before["steps"] or []), *later],
                    **{name: _largest(before[name], clock[name]) for name in ("sd_ns", "bound_ns", "unseen_step_ns")},
                    **{name: before[name] + clock[name] for name in ("messages", "collectives")},
                }
            if last is not None:
                ends[host] = last
    return conform(pl.DataFrame(list(rows.values()), CLOCKS, orient="row"), CLOCKS).sort("host")


def _extents(run: Profile) -> dict[str, tuple[int, int]]:
    """The first and the last time of the blocks of each host."""
    spans = run.spans.join(hosts_of_ranks(run.ranks), on="rank").group_by("host")
    times = spans.agg(first=pl.col("start_ns").min(), last=pl.col("end_ns").max()).drop_nulls()
    return {host: (first, last) for host, first, last in times.iter_rows()}


def _largest(one: float | None, other: float | None) -> float | None:
    return None if one is None or other is None else max(one, other)
