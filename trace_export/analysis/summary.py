"""A run in a few facts: what was read, how much of it, how sure its clocks are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import polars as pl

from trace_export.analysis.bubbles import Bubbles
from trace_export.errors import TraceExportError
from trace_export.model import OUTSIDE, WORK_KINDS, Note, Profile
from trace_export.pipeline.missing_ranks import absent
from trace_export.schedules.catalogue import TITLES


@dataclass(frozen=True)
class Summary:
    """The facts of a run. `hosts` are the names and `kinds` the formats of what has blocks; `stages` counts those
    that are here, `all_stages` those of the pipeline, `stage_origin` says how they are known. `schedule` is the one
    that the order of the blocks follows (None: unknown), with `schedule_certainty` exact, likely or unknown.
    `blocks` counts them by kind. `step_ns` is the mean time from the start of a step to that of the next (None
    where there are no two in a row), `pipeline_ns` that to the end of its last forward, backward or weight block,
    and `bubble` the share of idle time in the latter (global definition; None without steps), all of the
    `whole_steps` (on all ranks), or where there is none, of all. `host_times` is the share of the work whose times
    are those of the host and not of the device, `outside` the largest share of a device's computing that lies
    outside all blocks, None where that is little. `clocks` has the columns of `model.CLOCKS` and the label of the
    host, in the order of the machines."""

    hosts: list[str]
    kinds: list[str]
    ranks: int
    stages: int
    all_stages: int
    stage_origin: str
    schedule: str | None
    schedule_certainty: str
    steps: int
    whole_steps: int
    step_ns: int | None
    pipeline_ns: int | None
    blocks: dict[str, int]
    bubble: float | None
    host_times: float
    outside: float | None
    clocks: pl.DataFrame
    notes: tuple[Note, ...]
    failures: tuple[TraceExportError, ...]


def summarise(measured: Bubbles, notes: tuple[Note, ...], failures: Sequence[TraceExportError] = ()) -> Summary:
    """The summary of an interpreted and aligned profile, whose bubbles were `measured`, with the notes that apply to it
    now."""
    profile, all_steps = measured.profile, measured.steps
    drawn = profile.ranks_with_blocks
    recognition = profile.interpreted.recognition
    named = pl.when(pl.col("kind").is_null()).then(pl.lit("other")).otherwise("kind").alias("kind")
    counts = profile.spans.select(named).group_by("kind").len().sort("kind")
    hosts = profile.hosts.join(drawn, on="host", how="semi").sort("machine")
    return Summary(
        hosts=hosts["label"].to_list(),
        kinds=drawn["kind"].unique().sort().to_list(),
        ranks=drawn.height,
        stages=(stages := drawn["stage"].n_unique()),
        all_stages=max(stages, absent(measured.whole).stage_count),
        stage_origin=", ".join(drawn["stage_origin"].drop_nulls().unique().sort()) or "unknown",
        schedule=None if recognition.named is None else TITLES[recognition.named.name],
        schedule_certainty=recognition.certainty,
        steps=all_steps.height,
        whole_steps=int(all_steps["whole"].sum()),
        step_ns=None if measured.step_ns is None else round(measured.step_ns),
        pipeline_ns=None if measured.pipeline_ns is None else round(measured.pipeline_ns),
        blocks=dict(counts.iter_rows()),
        bubble=measured.bubble,
        host_times=host_share(profile),
        outside=outside_share(profile),
        clocks=_clocks(profile),
        notes=notes,
        failures=tuple(failures),
    )


OF_HOST = ", in times of the host and not of the device"
"""Follows figures that are made of the times at which the host issued work."""


def host_share(profile: Profile) -> float:
    """The share of the blocks of work whose times are those of the host, which issued them, and not of the device."""
    work = pl.col("kind").is_in(WORK_KINDS)
    count, of_host = profile.spans.select(count=work.sum(), host=(work & (pl.col("origin") == "host")).sum()).row(0)
    return int(of_host) / count if count else 0.0


def outside_share(profile: Profile) -> float | None:
    """The largest share of a device's computing that lies outside all blocks; None where it is too little to say."""
    shares = profile.ranks_with_blocks["outside"].drop_nulls().to_list()
    most = max(shares, default=0.0)
    return most if most >= OUTSIDE else None


def _clocks(profile: Profile) -> pl.DataFrame:
    """The table `clocks` with the label of their host, in the order of the machines."""
    hosts = profile.hosts.select("host", "label", "machine")
    return profile.clocks.join(hosts, on="host", how="left").sort("machine", "host").drop("machine")
