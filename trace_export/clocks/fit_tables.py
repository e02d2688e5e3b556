"""A solution as a table: the correction of each host."""

from __future__ import annotations

import numpy as np
import polars as pl
from numpy.typing import NDArray

from trace_export.clocks.observations import BLOCKS, MESSAGE, Floats, Ints, Observations
from trace_export.clocks.solve import Solution
from trace_export.model import CLOCKS, TIME, conform

WORST, SUMMED = ["sd_ns", "bound_ns", "unseen_step_ns"], ["messages", "collectives"]
"""A clock that was set has the largest value of its parts for the first columns, and the sum for the second."""


def clocks(
    data: Observations,
    solution: Solution,
    component: Ints,
    sd: Floats,
    bound: Floats,
    unseen: Floats,
    *,
    still: bool,
    wall: NDArray[np.bool_],
    steps: pl.DataFrame,
) -> pl.DataFrame:
    """The corrections (schema `CLOCKS`), placed so that the median correction of those hosts of each component is 0
    that have a `wall` clock. If no host has one, the correction of the host whose clock shows most is 0: its zero is
    the earliest, so that no time lies clearly before it.

    `still`: all rates are equal. If then no host of a component is clearly off, its wall clocks are as good as the fit
    and stay; the correction of the fit adds to their uncertainty.
    """
    drift = np.where(data.observed, solution.drift / data.span_us, 0.0)
    at_base = data.base_ns + np.round(solution.offset * 1e3).astype(np.int64)
    at_mid = at_base + np.round(drift * data.span_us * 500).astype(np.int64)
    sd, bound = sd.copy(), bound.copy()
    offset, kept = np.zeros(len(data.hosts), np.int64), np.zeros(len(data.hosts), bool)
    reference: list[str | None] = [None] * len(data.hosts)
    for number in np.unique(component[data.observed]):
        members = (component == number) & data.observed
        walls = members & wall
        zero = _middle(at_mid[walls]) if walls.any() else at_mid[members].max()
        offset[members] = at_base[members] - zero
        nearest = np.flatnonzero(members)[np.argmin(np.abs(at_mid[members] - zero))]
        reference = [data.hosts[nearest] if here else name for here, name in zip(members, reference, strict=True)]
        kept[members] = still and bool(np.all(np.abs(offset[members]) < 2e3 * sd[members]))
        if kept[members].any():
            uncorrected = np.abs(offset[members] - offset[members].mean()) / 1e3
            sd[members], bound[members] = np.hypot(sd[members], uncorrected), bound[members] + uncorrected
    evidence, numbers = _evidence(data, component)
    per_pair = np.bincount(data.pair, minlength=len(data.source))
    hosts = len(data.hosts)
    frame = pl.DataFrame(
        {
            "host": data.hosts,
            "status": np.where(data.observed, np.where(kept, "confirmed", "fitted"), "wall"),
            "evidence": evidence,
            "component": numbers,
            "reference_host": reference,
            "offset_ns": np.where(kept, 0, offset),
            "drift": drift,
            "reference_ns": np.where(data.observed, data.base_ns, 0),
            "sd_ns": np.where(data.observed, sd * 1e3, np.nan),
            "bound_ns": np.where(data.observed & np.isfinite(bound), bound * 1e3, np.nan),
            "unseen_step_ns": unseen * 1e3,
            "messages": np.bincount(data.source, per_pair, hosts) + np.bincount(data.target, per_pair, hosts),
            "collectives": np.bincount(data.member, minlength=hosts),
        }
    )
    frame = frame.with_columns(pl.col(WORST).fill_nan(None))
    return conform(frame if steps.is_empty() else _by_host(frame, steps), CLOCKS)


def _by_host(clocks: pl.DataFrame, steps: pl.DataFrame) -> pl.DataFrame:
    """A row for each host: the rows after its first one, the last of `clocks`, which are those of `steps`, become its
    `steps`. When exactly a clock was set is not known, so that a time between may be wrong by as much as it was set."""
    unsure = steps.filter("between")
    set_by = (
        pl.concat(
            [unsure.select("host", "step_ns"), unsure.filter("either").select("step_ns", host="against")],
            how="diagonal",
        )
        .group_by("host")
        .agg(pl.col("step_ns").abs().max())
    )
    since = pl.concat([pl.Series([None] * (len(clocks) - len(steps)), dtype=TIME), steps["from_ns"]])
    rows = clocks.with_columns(from_ns=since).sort("host", "from_ns")
    following = pl.struct("from_ns", "offset_ns", "drift", "reference_ns").slice(1)
    one = [pl.col(name).first() for name in clocks.columns if name not in ("host", *WORST, *SUMMED)]
    merged = rows.group_by("host", maintain_order=True).agg(
        *one, pl.col(WORST).max(), pl.col(SUMMED).sum(), steps=pl.when(pl.len() > 1).then(following.implode())
    )
    uncertain = merged.join(set_by, on="host", how="left", maintain_order="left")
    return uncertain.with_columns(bound_ns=pl.col("bound_ns") + pl.col("step_ns").fill_null(0))


def _evidence(data: Observations, component: Ints) -> tuple[list[str | None], list[int | None]]:
    """The kinds of observations that connect each host's component, and its number where there are several."""
    kinds_of: dict[int, str] = {}
    numbers = np.unique(component[data.observed])
    for number in numbers:
        kinds = set(data.kind[component[data.source] == number].tolist())
        parts = [w for k, w in ((MESSAGE, "p2p"), (BLOCKS, "blocks")) if k in kinds]
        parts += ["collective"] if (component[data.member] == number).any() else []
        kinds_of[number] = "+".join(parts)
    number_of = {number: count if len(numbers) > 1 else None for count, number in enumerate(numbers, 1)}
    return (
        [kinds_of[c] if seen else None for c, seen in zip(component, data.observed, strict=True)],
        [number_of[c] if seen else None for c, seen in zip(component, data.observed, strict=True)],
    )


def _middle(values: Ints) -> int:
    """The median; of an even number the lower one, so that it stays an exact integer."""
    return int(np.sort(values)[(len(values) - 1) // 2])
