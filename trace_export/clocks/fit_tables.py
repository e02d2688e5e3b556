"""A solution as tables: the correction of each host, and how well each pair of hosts fits."""

from __future__ import annotations

import numpy as np
import polars as pl
from numpy.typing import NDArray

from trace_export.clocks.observations import BLOCKS, MESSAGE, Floats, Ints, Ties
from trace_export.clocks.solve import Solution
from trace_export.model import CLOCKS, conform

PAIRS = {
    "host_a": pl.String(), "host_b": pl.String(), "made_of": pl.String(), "messages_ab": pl.Int64(),
    "messages_ba": pl.Int64(), "lag_ns": pl.Float64(), "q05_ns": pl.Float64(), "q50_ns": pl.Float64(),
    "q95_ns": pl.Float64(), "disagreement_ns": pl.Float64(),
}  # fmt: skip
"""How well the two hosts of a pair fit: messages each way, the fitted lag, quantiles of the residuals, and by how much
the pair taken alone would move its two hosts against each other (about 0 where nothing else ties them: else a loop does
not close)."""


def clocks(ties: Ties, solution: Solution, component: Ints, sd: Floats, bound: Floats, *, still: bool) -> pl.DataFrame:
    """The corrections (schema `CLOCKS`), placed so that the median correction of each component is 0.

    `still`: all rates are equal. If then no host of a component is clearly off, its wall clocks are as good as the fit
    and stay.
    """
    drift = np.where(ties.used, solution.drift / ties.span_us, 0.0)
    at_base = ties.base_ns + np.round(solution.offset * 1e3).astype(np.int64)
    at_mid = at_base + np.round(drift * ties.span_us * 500).astype(np.int64)
    offset, kept = np.zeros(len(ties.hosts), np.int64), np.zeros(len(ties.hosts), bool)
    for number in np.unique(component[ties.used]):
        members = (component == number) & ties.used
        offset[members] = at_base[members] - _middle(at_mid[members])
        kept[members] = still and bool(np.all(np.abs(offset[members]) < 2e3 * sd[members]))
    methods = [f"wall, confirmed by {m}" if k else m for m, k in zip(_methods(ties, component), kept, strict=True)]
    per_pair = np.bincount(ties.pair, minlength=len(ties.source))
    hosts = len(ties.hosts)
    frame = pl.DataFrame({
        "host": ties.hosts, "method": methods, "offset_ns": np.where(kept, 0, offset), "drift": drift,
        "reference_ns": np.where(ties.used, ties.base_ns, 0), "sd_ns": np.where(ties.used, sd * 1e3, np.nan),
        "bound_ns": np.where(ties.used & np.isfinite(bound), bound * 1e3, np.nan),
        "messages": np.bincount(ties.source, per_pair, hosts) + np.bincount(ties.target, per_pair, hosts),
        "collectives": np.bincount(ties.member, minlength=hosts),
    })  # fmt: skip
    return conform(frame.with_columns(pl.col("sd_ns", "bound_ns").fill_nan(None)), CLOCKS)


def _methods(ties: Ties, component: Ints) -> list[str]:
    """What ties each host's component, and which component it is where there are several."""
    words = {}
    numbers = np.unique(component[ties.used])
    for place, number in enumerate(numbers, 1):
        kinds = set(ties.kind[component[ties.source] == number].tolist())
        parts = [w for k, w in ((MESSAGE, "p2p"), (BLOCKS, "blocks")) if k in kinds]
        parts += ["collective"] if (component[ties.member] == number).any() else []
        words[number] = "+".join(parts) + (f", component {place}" if len(numbers) > 1 else "")
    return [words[n] if used else "wall" for n, used in zip(component, ties.used, strict=True)]


def pairs(ties: Ties, solution: Solution, tau: float) -> pl.DataFrame:
    """The host pairs that exchange messages (schema `PAIRS`), by host."""
    forward: NDArray[np.bool_] = ties.source < ties.target
    rows = pl.DataFrame({
        "low": np.minimum(ties.source, ties.target)[ties.pair], "high": np.maximum(ties.source, ties.target)[ties.pair],
        "forward": forward[ties.pair], "blocks": (ties.kind == BLOCKS)[ties.pair], "lag": solution.lag[ties.pair],
        "r": solution.residual,
    })  # fmt: skip
    ahead, behind = pl.col("r").filter("forward"), pl.col("r").filter(~pl.col("forward"))
    table = rows.group_by("low", "high").agg(
        made_of=pl.when(pl.col("blocks").first()).then(pl.lit("blocks")).otherwise(pl.lit("p2p")),
        messages_ab=pl.col("forward").sum(),
        messages_ba=(~pl.col("forward")).sum(),
        lag_ns=pl.col("lag").mean() * 1e3,
        q05_ns=pl.col("r").quantile(0.05) * 1e3,
        q50_ns=pl.col("r").quantile(0.5) * 1e3,
        q95_ns=pl.col("r").quantile(0.95) * 1e3,
        disagreement_ns=(ahead.quantile(tau) - behind.quantile(tau)) * 500,
    )
    hosts = pl.DataFrame({"host": ties.hosts, "n": pl.Series(range(len(ties.hosts)), dtype=pl.Int64)})
    table = table.sort("low", "high").join(
        hosts.rename({"host": "host_a", "n": "low"}), on="low", maintain_order="left"
    )
    return conform(table.join(hosts.rename({"host": "host_b", "n": "high"}), on="high", maintain_order="left"), PAIRS)


def _middle(values: Ints) -> int:
    """The median; of an even number the lower one, so that it stays an exact integer."""
    return int(np.sort(values)[(len(values) - 1) // 2])
