"""One clock for all hosts, from tables alone: `fit_clocks(messages, collectives, ranks) -> ClockFit`."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
import polars as pl
from numpy.typing import NDArray

from trace_export.clocks import bounds, fit_tables
from trace_export.clocks.causality import SLACK_US
from trace_export.clocks.graph import components
from trace_export.clocks.loss import Settings
from trace_export.clocks.observations import Floats, Ints, Ties, gather
from trace_export.clocks.solve import Problem
from trace_export.clocks.uncertainty import RESAMPLED, centred, uncertainty, unsteadiness
from trace_export.model import CLOCKS, conform

FEW = 8


@dataclass(frozen=True)
class ClockFit:
    """The correction of each host and how well it is known.

    `clocks` has the schema `model.CLOCKS`; `pairs` that of `report.PAIRS`. `holdout_ns` is how far the placements of
    two fits, each on half of the data, differ at most; `wander_ns` how far the clocks stray from constant rates;
    `slack_ns` what the hard bounds had to allow for, `contradiction` the hosts around which the data contradict
    constant rates by more than that allows. `asymmetric`: the two directions' lags were found to differ.
    """

    clocks: pl.DataFrame
    pairs: pl.DataFrame
    holdout_ns: float | None = None
    wander_ns: float = 0.0
    slack_ns: float = SLACK_US * 1e3
    contradiction: tuple[str, ...] = ()
    asymmetric: bool = False
    settings: Settings = field(default_factory=Settings)

    @property
    def worst_pair(self) -> tuple[str, str, float] | None:
        """The two hosts whose own messages disagree most with the joint fit, and by how many ns."""
        known = self.pairs.drop_nulls("disagreement_ns")
        if known.is_empty():
            return None
        row = known.sort(pl.col("disagreement_ns").abs(), descending=True).row(0, named=True)
        return row["host_a"], row["host_b"], row["disagreement_ns"]

    @property
    def one_sided(self) -> list[str]:
        """The host pairs whose messages go one way only."""
        return self._named(pl.min_horizontal("messages_ab", "messages_ba") == 0)

    @property
    def few_messages(self) -> list[str]:
        """The host pairs with so few messages that what was thought likely beforehand decides."""
        return self._named(pl.col("messages_ab") + pl.col("messages_ba") < FEW)

    def _named(self, which: pl.Expr) -> list[str]:
        return [f"{a} – {b}" for a, b in self.pairs.filter(which).select("host_a", "host_b").iter_rows()]


def fit_clocks(
    messages: pl.DataFrame,
    collectives: pl.DataFrame,
    ranks: pl.DataFrame,
    *,
    edges: pl.DataFrame | None = None,
    settings: Settings | None = None,
) -> ClockFit:
    """The clock correction of every host in `ranks`, from what its ranks exchanged with those of other hosts.

    `messages`, `collectives`, `ranks` have the schemas of `model`; `edges` are pseudo messages (schema MESSAGES: the
    end of a producing block, the start of its consumer), used between hosts that exchange no messages. The corrected
    time is `t - offset_ns - round(drift * (t - reference_ns))`. Only differences between hosts are known: within each
    set of hosts that are tied together the median correction is 0. A host without ties keeps its wall clock (method
    `wall`). The result does not depend on the order of rows, and shifting all times of one host changes nothing else.
    """
    settings = settings or Settings()
    ties = gather(messages, collectives, ranks, edges)
    if not ties.used.any():
        return ClockFit(_wall(ties.hosts), pl.DataFrame(schema=fit_tables.PAIRS), settings=settings)
    return _fit(ties, settings)


def _wall(hosts: list[str]) -> pl.DataFrame:
    method = "single-host" if len(hosts) == 1 else "wall"
    frame = pl.DataFrame({"host": hosts}, schema={"host": pl.String}).with_columns(
        method=pl.lit(method), offset_ns=0, drift=0.0, reference_ns=0, messages=0, collectives=0
    )
    return conform(frame, CLOCKS)


def _components(ties: Ties) -> Ints:
    """Which hosts are tied together: a component number per host, counted by the first host's name."""
    hosts, events = len(ties.hosts), int(ties.event.max()) + 1 if len(ties.event) else 0
    one = np.concatenate([ties.source, ties.member])
    other = np.concatenate([ties.target, ties.event + hosts])
    return np.unique(components(one, other, hosts + events)[:hosts], return_inverse=True)[1]


def _fit(ties: Ties, settings: Settings) -> ClockFit:
    component = _components(ties)
    anchors = np.unique(component, return_index=True)[1]
    problem, few = Problem(ties, anchors, settings), Problem(ties.thinned(RESAMPLED), anchors, settings)
    asymmetry = _lags_that_differ(few)
    if asymmetry is not None:
        problem, few = problem.with_asymmetry(asymmetry), few.with_asymmetry(asymmetry)
    solution, known = problem.fit(), uncertainty(few, component)
    still = bool(np.all(np.abs(centred(solution.drift, component)) < 2 * known.drift))
    if still:
        problem, few = problem.without_drift(), few.without_drift()
        solution = replace(problem.fit(), drift=np.zeros(len(ties.hosts)))
        known = replace(uncertainty(few, component), drift=known.drift)
    bound, slack, cycle = bounds.bounds(ties, solution, component)
    wander = unsteadiness(ties, solution)
    sd = np.minimum(np.sqrt(known.mid**2 + known.drift**2 / 12 + wander**2), bound)
    return ClockFit(
        clocks=fit_tables.clocks(ties, solution, component, sd, bound, still=still),
        pairs=fit_tables.pairs(ties, solution, settings.tau),
        holdout_ns=known.holdout * 1e3,
        wander_ns=wander * 1e3,
        slack_ns=slack * 1e3,
        contradiction=tuple(ties.hosts[h] for h in cycle),
        asymmetric=asymmetry is not None,
        settings=settings,
    )


def _lags_that_differ(problem: Problem) -> Floats | None:
    """By about how much (µs) the two directions' lags differ, where collectives prove that they do; else None."""
    joined = _joined(problem)
    if not joined.any():
        return None
    same = problem.settings.same_lag_us
    loose = problem.with_asymmetry(np.where(joined, 1000.0, same))
    tight, freed = problem.fit(), loose.fit()
    free, members = int(joined.sum()), len(problem.ties.event)
    left = max(members - len(problem.event_size) - free, 1)
    spread = freed.member_us * np.sqrt(members / left)
    better = (_huber(tight.disagreement / spread) - _huber(freed.disagreement / spread)).sum()
    if better < free + 6 * np.sqrt(2 * free):
        return None
    lags = loose.lags(freed)[joined]
    about = float(np.sqrt(np.nanmean((lags[:, 0] - lags[:, 1]) ** 2))) / 2
    return np.where(joined, about, same)


def _joined(problem: Problem) -> NDArray[np.bool_]:
    """Of each host pair with messages both ways: do collectives alone tie its two hosts?"""
    ties = problem.ties
    if not len(ties.event) or not len(ties.pair):
        return np.zeros(len(problem.low), bool)
    hosts = len(ties.hosts)
    label = components(ties.member, ties.event + hosts, hosts + len(problem.event_size))
    both_ways = np.bincount(problem.link, minlength=len(problem.low)) == 2
    return np.asarray((label[problem.low] == label[problem.high]) & both_ways)


def _huber(r: Floats, knee: float = 3.0) -> Floats:
    away = np.abs(r)
    return np.where(away < knee, away**2, 2 * knee * away - knee**2)
