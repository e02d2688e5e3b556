"""One clock for all hosts, from tables alone: `fit_clocks(messages, collectives, ranks) -> ClockFit`."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
import polars as pl
import scipy.sparse as sparse
from numpy.typing import NDArray
from scipy.sparse import csgraph
from scipy.sparse.linalg import splu

from trace_export.clocks import causality, check
from trace_export.clocks.edges import BLOCKS, MESSAGE, Floats, Ints, Ties, gather
from trace_export.clocks.solve import Problem, Settings, Solution, Weights
from trace_export.model import CLOCKS, conform

RESAMPLES = 16
RESAMPLED = 100
"""So many messages of each directed pair are resampled; of more the uncertainty is stated too large."""
LEAST_SD_US = 0.5
FEW = 8
"""A host pair with fewer messages than this leans on what was thought likely beforehand."""

PAIRS = {
    "host_a": pl.String(), "host_b": pl.String(), "made_of": pl.String(), "messages_ab": pl.Int64(),
    "messages_ba": pl.Int64(), "lag_ns": pl.Float64(), "q05_ns": pl.Float64(), "q50_ns": pl.Float64(),
    "q95_ns": pl.Float64(), "disagreement_ns": pl.Float64(),
}  # fmt: skip
"""How well the two hosts of a pair fit: messages each way, the fitted lag, quantiles of the residuals, and by how much
the pair taken alone would move its two hosts against each other (0 where nothing else ties them)."""


@dataclass(frozen=True)
class ClockFit:
    """The correction of each host and how well it is known.

    `clocks` has the schema `model.CLOCKS`; `pairs` that of `PAIRS`. `holdout_ns` is how far the placements of two fits,
    each on half of the data, differ at most; `slack_ns` what the hard bounds had to allow for, `contradiction` the
    hosts around which the data contradict constant rates by more than that allows.
    """

    clocks: pl.DataFrame
    pairs: pl.DataFrame
    holdout_ns: float | None = None
    slack_ns: float = causality.SLACK_US * 1e3
    contradiction: tuple[str, ...] = ()
    few_messages: tuple[str, ...] = ()
    one_sided: tuple[str, ...] = ()
    asymmetric: bool = False
    span_ns: int = 0
    settings: Settings = field(default_factory=Settings)

    @property
    def worst_pair(self) -> tuple[str, str, float] | None:
        """The two hosts whose own messages disagree most with the joint fit, and by how many ns."""
        known = self.pairs.drop_nulls("disagreement_ns")
        if known.is_empty():
            return None
        row = known.sort(pl.col("disagreement_ns").abs(), descending=True).row(0, named=True)
        return row["host_a"], row["host_b"], row["disagreement_ns"]


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
        return ClockFit(_wall(ties.hosts), pl.DataFrame(schema=PAIRS), settings=settings)
    component = _components(ties)
    return _Fit(ties, component, settings).result()


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
    graph = sparse.coo_matrix((np.ones(len(one)), (one, other)), shape=(hosts + events, hosts + events))
    label = csgraph.connected_components(graph, directed=False)[1][:hosts]
    _, first, number = np.unique(label, return_index=True, return_inverse=True)
    return np.argsort(np.argsort(first))[number]


class _Fit:
    """The steps of one fit; what they share is what they work on."""

    def __init__(self, ties: Ties, component: Ints, settings: Settings) -> None:
        self.ties, self.component, self.settings = ties, component, settings
        self.anchors = np.unique(component, return_index=True)[1]

    def result(self) -> ClockFit:
        problem = Problem(self.ties, self.anchors, self.settings)
        few = Problem(self.ties.thinned(RESAMPLED), self.anchors, self.settings)
        solution = problem.fit()
        asymmetry = self._lags_that_differ(few) if len(self.ties.event) and len(self.ties.pair) else None
        if asymmetry is not None:
            problem, few = problem.with_asymmetry(asymmetry), few.with_asymmetry(asymmetry)
            solution = problem.fit()
        sd_mid, sd_drift, holdout = self._uncertainty(few)
        if np.all(np.abs(self._centred(solution.drift)) < 2 * sd_drift):
            problem, few = problem.without_drift(), few.without_drift()
            solution = replace(problem.fit(), drift=np.zeros(len(self.ties.hosts)))
            sd_mid, _, holdout = self._uncertainty(few)
        bound, slack, cycle = check.bounds(self.ties, solution, self.component)
        sd = np.sqrt(sd_mid**2 + sd_drift**2 / 12)
        clocks = self._clocks(solution, sd, bound, sd_mid)
        pairs = self._pairs(solution)
        names = self.ties.hosts
        return ClockFit(
            clocks=clocks,
            pairs=pairs,
            holdout_ns=holdout * 1e3,
            slack_ns=slack * 1e3,
            contradiction=tuple(names[h] for h in cycle),
            few_messages=self._few(pairs),
            one_sided=self._one_sided(pairs),
            asymmetric=asymmetry is not None,
            span_ns=round(self.ties.span_us * 1e3),
            settings=self.settings,
        )

    def _lags_that_differ(self, problem: Problem) -> Floats | None:
        """By about how much (µs) the two directions' lags differ, where collectives prove that they do; else None."""
        joined = self._joined()
        if not joined.any():
            return None
        tight = problem.fit()
        loose = problem.with_asymmetry(np.where(joined, 1000.0, self.settings.same_lag_us))
        freed = loose.fit()
        free, members = int(joined.sum()), len(problem.ties.event)
        left = max(members - len(problem.event_size) - free, 1)
        spread = freed.member_us * np.sqrt(members / left)
        better = (_huber(tight.disagreement / spread) - _huber(freed.disagreement / spread)).sum()
        if better < free + 6 * np.sqrt(2 * free):
            return None
        lags = loose.lags(freed)[joined]
        about = float(np.sqrt(np.nanmean((lags[:, 0] - lags[:, 1]) ** 2))) / 2
        return np.where(joined, about, self.settings.same_lag_us)

    def _joined(self) -> NDArray[np.bool_]:
        """Of each host pair with messages: do collectives alone tie its two hosts?"""
        ties = self.ties
        hosts, events = len(ties.hosts), int(ties.event.max()) + 1
        graph = sparse.coo_matrix(
            (np.ones(len(ties.event)), (ties.member, ties.event + hosts)), shape=(hosts + events, hosts + events)
        )
        label = csgraph.connected_components(graph, directed=False)[1]
        low, high = self._links()
        return np.asarray(label[low] == label[high])

    def _links(self) -> tuple[Ints, Ints]:
        low, high = np.minimum(self.ties.source, self.ties.target), np.maximum(self.ties.source, self.ties.target)
        both = np.unique(low * len(self.ties.hosts) + high)
        return both // len(self.ties.hosts), both % len(self.ties.hosts)

    def _centred(self, values: Floats) -> Floats:
        """Without the mean of each component: what is common to all its hosts cannot be seen."""
        size = np.bincount(self.component)
        return np.asarray(values - (np.bincount(self.component, values) / size)[self.component])

    def _mid(self, solution: Solution) -> Floats:
        return self._centred(solution.offset + solution.drift / 2)

    def _uncertainty(self, problem: Problem) -> tuple[Floats, Floats, float]:
        """Standard deviation (µs) of each host's place at mid-window and of its drift (over the span), and the largest
        difference between two fits on half of the data each.

        The larger of: the scatter over resampled data, half the difference of the halves, and what the data leave open.
        """
        draw = np.random.default_rng(self.settings.seed)
        solution = problem.fit()
        places, drifts = [], []
        events = len(problem.event_size) if len(self.ties.event) else 0
        for _ in range(RESAMPLES):
            times, event_times = draw.exponential(size=len(problem.delay)), draw.exponential(size=events)
            again = problem.fit(times, event_times, start=solution, rounds=6)
            places.append(self._mid(again))
            drifts.append(self._centred(again.drift))
        times, event_times = check.halves(problem.ties)
        odd = problem.fit(times, event_times, start=solution)
        even = problem.fit(1 - times, 1 - event_times, start=solution)
        apart = np.abs(self._mid(odd) - self._mid(even))
        open_mid, open_drift = self._left_open(problem, solution)
        mid = np.maximum.reduce([np.std(places, axis=0), apart / 2, open_mid, np.full(len(apart), LEAST_SD_US)])
        drift = np.maximum(np.std(drifts, axis=0), open_drift)
        return mid, drift, float(apart[self.ties.used].max())

    def _left_open(self, problem: Problem, solution: Solution) -> tuple[Floats, Floats]:
        """The standard deviations that the data's geometry and the priors alone would give (µs, at mid-window)."""
        hosts = len(self.ties.hosts)
        loss = solution.losses
        weight = np.zeros(len(problem.delay))
        for kind, rows in problem.rows.items():
            weight[rows] = 1 / (loss[kind].scale * loss[kind].zone)
        member = np.full(len(self.ties.event), 1 / solution.member_us**2)
        matrix, _, _ = problem.normal(Weights(weight / 10, member))
        factor = splu(matrix, permc_spec="MMD_AT_PLUS_A", options={"SymmetricMode": True})
        mid, drift = np.zeros(hosts), np.zeros(hosts)
        count = np.bincount(self.component)
        for at in range(0, hosts, check.CHUNK):
            rows = np.arange(at, min(at + check.CHUNK, hosts))
            for values, slope in ((mid, 0.5), (drift, None)):
                probe = np.zeros((matrix.shape[0], len(rows)))
                same = self.component[rows][None, :] == self.component[:, None]
                share = -same.astype(float) / count[self.component[rows]][None, :]
                share[rows, np.arange(len(rows))] += 1
                probe[:hosts] = share if slope is not None else 0.0
                probe[hosts : 2 * hosts] = share * (1.0 if slope is None else slope)
                values[rows] = np.sqrt(np.maximum((probe * factor.solve(probe)).sum(0), 0.0))
        return mid, drift

    def _clocks(self, solution: Solution, sd: Floats, bound: Floats, sd_mid: Floats) -> pl.DataFrame:
        ties = self.ties
        span_ns = ties.span_us * 1e3
        drift = np.where(ties.used, solution.drift / ties.span_us, 0.0)
        at_base = ties.base_ns + np.round(solution.offset * 1e3).astype(np.int64)
        at_mid = at_base + np.round(drift * span_ns / 2).astype(np.int64)
        offset = np.zeros(len(ties.hosts), np.int64)
        for number in range(int(self.component.max()) + 1):
            members = (self.component == number) & ties.used
            if members.any():
                offset[members] = at_base[members] - _middle(at_mid[members])
        sent = self._count_messages()
        frame = pl.DataFrame({
            "host": ties.hosts, "method": self._methods(), "offset_ns": offset, "drift": drift,
            "reference_ns": np.where(ties.used, ties.base_ns, 0), "sd_ns": np.where(ties.used, sd * 1e3, np.nan),
            "bound_ns": np.where(ties.used & np.isfinite(bound), bound * 1e3, np.nan), "messages": sent,
            "collectives": np.bincount(ties.member, minlength=len(ties.hosts)),
        })  # fmt: skip
        return conform(frame.with_columns(pl.col("sd_ns", "bound_ns").fill_nan(None)), CLOCKS)

    def _count_messages(self) -> Ints:
        ties = self.ties
        per_pair = np.bincount(ties.pair, minlength=len(ties.source))
        both = np.bincount(ties.source, per_pair, len(ties.hosts)) + np.bincount(ties.target, per_pair, len(ties.hosts))
        return both.astype(np.int64)

    def _methods(self) -> list[str]:
        """What ties each host's component, and which component it is where there are several."""
        ties, number = self.ties, self.component
        real = [n for n in range(int(number.max()) + 1) if ties.used[number == n].any()]
        words = {}
        for place, n in enumerate(real, 1):
            kinds = set(ties.kind[number[ties.source] == n].tolist())
            parts = [w for k, w in ((MESSAGE, "p2p"), (BLOCKS, "blocks")) if k in kinds]
            parts += ["collective"] if (number[ties.member] == n).any() else []
            words[n] = "+".join(parts) + (f", component {place}" if len(real) > 1 else "")
        return [words[int(n)] if used else "wall" for n, used in zip(number, ties.used, strict=True)]

    def _pairs(self, solution: Solution) -> pl.DataFrame:
        ties, names = self.ties, self.ties.hosts
        if not len(ties.pair):
            return pl.DataFrame(schema=PAIRS)
        low, high = np.minimum(ties.source, ties.target), np.maximum(ties.source, ties.target)
        row = pl.DataFrame({
            "low": low[ties.pair], "high": high[ties.pair], "forward": (ties.source < ties.target)[ties.pair],
            "blocks": (ties.kind == BLOCKS)[ties.pair], "lag": solution.lag[ties.pair], "r": solution.residual,
        })  # fmt: skip
        tau = self.settings.tau
        ahead, behind = pl.col("r").filter("forward"), pl.col("r").filter(~pl.col("forward"))
        table = row.group_by("low", "high").agg(
            made_of=pl.when(pl.col("blocks").first()).then(pl.lit("blocks")).otherwise(pl.lit("p2p")),
            messages_ab=pl.col("forward").sum().cast(pl.Int64),
            messages_ba=(~pl.col("forward")).sum().cast(pl.Int64),
            lag_ns=pl.col("lag").mean() * 1e3,
            q05_ns=pl.col("r").quantile(0.05) * 1e3,
            q50_ns=pl.col("r").quantile(0.5) * 1e3,
            q95_ns=pl.col("r").quantile(0.95) * 1e3,
            disagreement_ns=(ahead.quantile(tau) - behind.quantile(tau)) * 500,
        )
        host = pl.DataFrame({"host": names, "n": pl.Series(range(len(names)), dtype=pl.Int64)})
        table = table.sort("low", "high").join(host.rename({"host": "host_a", "n": "low"}), on="low")
        return conform(table.join(host.rename({"host": "host_b", "n": "high"}), on="high"), PAIRS)

    def _few(self, pairs: pl.DataFrame) -> tuple[str, ...]:
        few = pairs.filter(pl.col("messages_ab") + pl.col("messages_ba") < FEW)
        return tuple(f"{a} – {b}" for a, b in few.select("host_a", "host_b").iter_rows())

    def _one_sided(self, pairs: pl.DataFrame) -> tuple[str, ...]:
        one = pairs.filter(pl.min_horizontal("messages_ab", "messages_ba") == 0)
        return tuple(f"{a} – {b}" for a, b in one.select("host_a", "host_b").iter_rows())


def _huber(r: Floats, knee: float = 3.0) -> Floats:
    away = np.abs(r)
    return np.where(away < knee, away**2, 2 * knee * away - knee**2)


def _middle(values: Ints) -> int:
    """The median; of an even number the lower one, so that it stays an exact integer."""
    return int(np.sort(values)[(len(values) - 1) // 2])
