"""Why the steps of a run take as long as they do: levels, causes, path and trust, all from replays of one graph."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import polars as pl

from trace_export.analysis.causes import WORTH, Candidate, Candidates, scenario
from trace_export.analysis.hidden import hidden
from trace_export.analysis.trust import Trust, trust
from trace_export.analysis.typical import ALIKE, Overhead, Typical
from trace_export.memory import give_back
from trace_export.model import INT, REAL, STEP_KEY, TEXT, Schema
from trace_export.steps.graph import OPTIMIZER, Floats, Graph, Ints
from trace_export.steps.path import CriticalPath
from trace_export.steps.replay import Replay, Scenario, Windows

CAUSES: Schema = {
    "code": TEXT, "stage": INT, "replica": INT, "ranks": pl.List(INT), "hosts": pl.List(TEXT),
    "device": INT, "src_rank": INT, "dst_rank": INT, "direction": TEXT, "group": TEXT, "ratio": REAL, "late_ns": REAL,
    "gain_ns": REAL, "gain": REAL, "even_ns": REAL, "band": REAL, "sentence": pl.Boolean(), "run": INT, "step": INT,
    "parts": pl.List(TEXT), "unread": pl.Boolean(), "undivided": pl.Boolean(),
}  # fmt: skip
"""A cause, the one that gains most first. `code` as in `verdict`. Where: `stage` and `replica` where it is one, `ranks`
and `hosts`, of one rank its `device`; of a link `src_rank`, `dst_rank` and `direction` (F or B; null where both ways
are slow, or the ranks are several); of a collective its `group`. `ratio`: its mean length by that of its peers, null
where it starts late, by `late_ns` of a step. `gain_ns`: what a step takes less with the cause as its peers, in a
replay; `gain`: as a share of the step; null where the replay is not to be trusted. `even_ns`: the same where the
surplus of a slow stage is spread evenly over all stages. `band`: the true gain lies within this share of it; null
without one. `sentence`: whether it is worth one: it gains enough, and cannot gain nothing. `run`, `step`: the step that
it costs most, null where it is a mean only. `parts`: the places of causes that hide one another, null of every other.
`unread`: true of a rank or host that is slow beside other stages, where no other rank of its stages was read: its
stages may have more work; else null. `undivided`: true where the ranks run each block together, and nothing that was
recorded tells which of them is slow; else null."""

LEVELS: Schema = {"level": TEXT, "step_ns": REAL, "adds_ns": REAL, "share": REAL}
"""How the time of a step comes about: each level is a replay with one thing more as it was measured. `step_ns`: the
step so far; `adds_ns`: what this level adds, `share` of the measured step. The additions sum up to the step. They may
be negative, and depend on their order."""

SAID = 0.01
"""A cause that gains at least this share of a step gets a sentence."""
LONG_PAUSE, LONG_OPTIMIZER, BOTH = 0.06, 0.15, 0.1
"""From this share of a step on, a pause between steps, the optimizer on the critical path, and a pause that may contain
an optimizer are causes: every job has some of each."""
PLAIN = 0.05
PLAIN_CODES = ("slow-stage", "slow-replica", "slow-host", "slow-rank")
"""If gains cannot be given, these causes are named without one, if their blocks are slower than those of their peers by
this share."""
BAND = 0.1
"""The least uncertainty of a gain."""


@dataclass(frozen=True)
class Explanation:
    """`step_ns`: the mean time of a measured step, of `steps` of them; 0 where there is none. `causes` and `levels`
    have the columns of `CAUSES` and `LEVELS`; an `incomplete` one has no levels."""

    _graph: Graph = field(repr=False)
    _windows: Windows = field(repr=False)
    path: CriticalPath
    step_ns: float
    causes: pl.DataFrame
    levels: pl.DataFrame
    trust: Trust
    correlation: float
    _overhead: Overhead

    @property
    def steps(self) -> int:
        return self._windows.steps

    @property
    def incomplete(self) -> bool:
        """Whether stages, or too many of the operations that ranks wait for, were not read to say what a step is made
        of."""
        return self._graph.recorded.incomplete or self.trust.unrecorded


def explain(graph: Graph, shown: pl.DataFrame | None = None) -> Explanation:
    """The explanation of a graph. Its means are over all steps, or over those in `shown` (run, step); causes are
    searched in all steps. O(operations × scenarios) time: ten levels, and one or two for each cause."""
    typical, replay = Typical(graph), Replay(graph)
    every, apart = replay.windows, np.zeros(len(graph), np.int8)
    sure_begins = every.of(np.setdiff1d(every.step, typical.from_before[1]))
    if len(sure_begins):
        every = replay.windows = sure_begins
    if shown is not None:
        rows = _rows(graph, shown)
        replay.windows, apart = every.of(rows), np.isin(graph.step, rows).astype(np.int8)
    if not len(replay.windows):
        path, nothing = CriticalPath(graph, replay.windows), _causes([], [], 0.0, {}, [], [], [], exact=False)
        return Explanation(
            graph, replay.windows, path, 0.0, nothing, _levels([]), Trust(1.0, 0.0, 0.0), 0.0, typical.overhead
        )
    path = CriticalPath(graph, replay.windows)
    optimizer = path.optimizer_ns
    usual, measured = replay.means([typical.usual, (typical.length, typical.delay)]).tolist()
    give_back()
    candidates = _costly(Candidates(typical, every, measured).all(), typical, replay, usual + WORTH * measured)
    lengths = replay.means(_asked(typical, candidates))
    gains = _gains(candidates, lengths[0] - lengths[1:])
    late = [
        each.changes[0].rows
        for each, (gain, _) in zip(candidates, gains, strict=True)
        if each.late and gain >= WORTH * measured
    ]
    give_back()
    sure = trust(typical, replay.windows, late, float(lengths[0]), measured)
    give_back()
    work = _work(typical, replay.windows, apart)
    prompt, scenarios = zip(*_scenarios(typical, apart), strict=True)
    steps = [work, *replay.without_launches().means(make() for make in scenarios), usual, measured]
    levels = _levels(list(zip(("work", *prompt, "delays", "late"), steps, strict=True)))
    pause = _pause(levels)
    marked = bool((graph.sort == OPTIMIZER).any())  # else it is in the pause, and no step could do without
    paused = _longest_pause(typical, replay.windows)
    long = {
        "long-pause": (pause, LONG_PAUSE if marked else BOTH, True, -pause if marked else 0.0, paused),
        "long-optimizer": (optimizer, LONG_OPTIMIZER, False, 0.0, (None, None)),
    }
    if graph.recorded.partial:
        long = {}  # ranks that are not here may work in the pause, and optimizers wait for them
    parts: list[int] = []
    exact = sure.gains and not graph.recorded.incomplete
    if (
        exact
        and (shared := hidden(candidates, [gain for gain, _ in gains], float(lengths[0]), typical, replay, measured))
        is not None
    ):
        joint, gain, parts = shared
        candidates, gains = [*candidates, joint], [*gains, (gain, None)]
    seen = [_seen(typical, replay.windows, each) for each in candidates]
    unsure = [_unsure(typical, each) for each in candidates]
    causes = _causes(candidates, gains, measured, long, seen, unsure, parts, exact=exact)
    whole = Explanation(
        graph, replay.windows, path, measured, causes, levels, sure, typical.correlation, typical.overhead
    )
    return replace(whole, levels=levels.clear()) if whole.incomplete else whole


def _costly(candidates: Sequence[Candidate], typical: Typical, replay: Replay, least: float) -> list[Candidate]:
    """The candidates, without late starts that alone make no step as long as `least`: these hold up nobody, and their
    ranks may have waited for something that nobody recorded, such as the slow optimizer of another."""
    late = [n for n, each in enumerate(candidates) if each.late]
    lengths = replay.means(candidates[n].changes[0].of(typical.usual) for n in late).tolist() if late else []
    idle = {n for n, length in zip(late, lengths, strict=True) if length < least}
    return [each for n, each in enumerate(candidates) if n not in idle]


def _asked(typical: Typical, candidates: Sequence[Candidate]) -> Iterator[Scenario]:
    """A run with all causes; and without each of them, followed, if it has one, by that with its surplus spread."""
    yield scenario(typical, candidates)
    for n, each in enumerate(candidates):
        yield scenario(typical, candidates, [n])
        if each.even is not None:
            yield each.even.of(scenario(typical, candidates))


def _rows(graph: Graph, shown: pl.DataFrame) -> Ints:
    """The rows of `recorded.steps` that are shown."""
    steps = graph.recorded.steps.with_row_index("row")
    kept = steps.join(shown.select(STEP_KEY), on=STEP_KEY, how="semi", nulls_equal=True)
    return kept["row"].cast(pl.Int64).to_numpy()


def _scenarios(typical: Typical, apart: Ints) -> Iterator[tuple[str, Callable[[], Scenario]]]:
    """The levels without launches, each with the function that makes its scenario, with means over the operations of
    the same number in `apart`. Scenarios are made one after the other: all at once take several times as much memory as
    the graph."""
    block, length, zero = typical.is_block, typical.length, np.zeros(len(typical.graph))
    ranks = typical.means(typical.graph.rank, apart)

    def only_blocks(lengths: Floats) -> Scenario:
        return np.where(block, lengths, 0.0), zero

    yield "schedule", lambda: only_blocks(typical.means(apart))
    yield "stages", lambda: only_blocks(typical.means(typical.stage, apart))
    yield "ranks", lambda: only_blocks(ranks)
    if typical.correlation >= ALIKE:
        yield "microbatches", lambda: only_blocks(ranks * typical.factor(ranks))
    yield "jitter", lambda: only_blocks(length)
    yield "transfers", lambda: (np.where(block | typical.transfer, length, 0.0), zero)
    yield "collectives", lambda: (length, zero)
    yield "pause", lambda: (length, np.where(typical.graph.pause, typical.ordinary_delay, 0.0))


def _work(typical: Typical, windows: Windows, apart: Ints) -> float:
    """The mean work of a rank in a step."""
    of_step = np.isin(typical.graph.step, windows.step) & typical.is_block
    ranks = max(len(np.unique(typical.graph.rank[of_step])), 1)
    return float(typical.means(apart)[of_step].sum()) / windows.steps / ranks


def _levels(steps: Sequence[tuple[str, float]]) -> pl.DataFrame:
    frame = pl.DataFrame(list(steps), schema={"level": TEXT, "step_ns": REAL}, orient="row")
    adds = pl.col("step_ns") - pl.col("step_ns").shift(fill_value=0.0)
    return frame.with_columns(adds_ns=adds, share=adds / pl.col("step_ns").last()).select(*LEVELS)


def _pause(levels: pl.DataFrame) -> float:
    """How long a step waits before its first block, although nothing is missing."""
    pause = levels.filter(pl.col("level") == "pause")["adds_ns"]
    return float(pause[0]) if len(pause) else 0.0


def _gains(candidates: Sequence[Candidate], shorter: Floats) -> list[tuple[float, float | None]]:
    """How much `shorter` a step is without each cause, and with its surplus spread; in the order of `_asked`."""
    left = iter(shorter.tolist())
    return [(next(left), None if each.even is None else next(left)) for each in candidates]


def _seen(typical: Typical, windows: Windows, cause: Candidate) -> tuple[int | None, int | None]:
    """The run and step that a cause costs most, in which its operations are longest or latest compared with their
    usual."""
    recorded, costs = typical.graph.recorded, np.zeros(len(typical.graph.recorded.steps))
    for change in cause.changes:
        step = typical.graph.step[change.rows]
        here = np.isin(step, windows.step)
        costs += np.bincount(step[here], change.costs(typical.usual)[here], len(costs))
    if not costs.any():
        return None, None
    costliest: tuple[int | None, int | None] = recorded.steps.select(STEP_KEY).row(int(np.argmax(costs)))
    return costliest


def _unsure(typical: Typical, cause: Candidate) -> float:
    """How far the clocks may be off in the operations of a cause, by what these cost."""
    wrong = sum(float(typical.clock_error[change.rows].sum()) for change in cause.changes)
    if not wrong:
        return 0.0
    costs = sum(float(change.costs(typical.usual).sum()) for change in cause.changes)
    return wrong / max(costs, 1.0)


def _longest_pause(typical: Typical, windows: Windows) -> tuple[int | None, int | None]:
    """The run and step after which the ranks pause longest."""
    graph, steps = typical.graph, typical.graph.recorded.steps
    rows = np.flatnonzero(graph.pause & graph.counted)
    before = np.bincount(graph.step[rows], typical.delay[rows], len(steps) + 1)
    longest: tuple[int | None, int | None] = steps.select(STEP_KEY).row(
        int(windows.step[before[windows.step + 1].argmax()])
    )
    return longest


def _causes(
    candidates: Sequence[Candidate],
    gains: Sequence[tuple[float, float | None]],
    measured: float,
    long: Mapping[str, tuple[float, float, bool, float, tuple[int | None, int | None]]],
    seen: Sequence[tuple[int | None, int | None]],
    unsure: Sequence[float],
    parts: Sequence[int],
    *,
    exact: bool,
) -> pl.DataFrame:
    """The table `CAUSES` of the causes that gain enough, and of `long`, the operations of all ranks: how long each
    takes, the share of a step from which on it is a cause, whether a step could do without it, its sort key (for
    others minus the gain), and the run and step that it costs most. `seen`: the run and step that each costs most.
    `parts`: those of the last cause, if that is several which hide one another. Each gets a row, whatever it gains
    alone, and if one gets a sentence, the one that gains most comes before the whole. `exact`: gains can be given."""
    rows: list[dict[str, object]] = []
    joint, most = len(candidates) - 1 if parts else None, max((gains[n][0] for n in parts), default=0.0)
    for code, (lasts, least, spare, order, (run, step)) in long.items():
        if lasts > least * measured:
            gain = lasts if spare and exact else None
            rows.append(
                {
                    "code": code, "ranks": [], "hosts": [], "late_ns": lasts, "order": order,
                    "gain_ns": gain, "gain": None if gain is None else gain / measured,
                    "band": None if gain is None else BAND, "sentence": True, "run": run, "step": step,
                }
            )  # fmt: skip
    for n, (each, (gain, even), (run, step)) in enumerate(zip(candidates, gains, seen, strict=True)):
        little = gain < WORTH * measured and n not in parts
        if little if exact else each.code not in PLAIN_CODES or each.excess < PLAIN:
            continue
        band = max(BAND, 2 / each.sigmas if each.sigmas else BAND, unsure[n])
        order = 1 - most if n == joint and most >= SAID * measured else -gain
        rows.append(
            {
                **{name: each.place.get(name) for name in CAUSES if name in each.place}, "code": each.code,
                "ratio": 1 + each.excess if each.excess and not each.late else None,
                "late_ns": each.excess if each.late and each.excess else None, "order": order,
                "gain_ns": gain if exact else None, "gain": gain / measured if exact else None,
                "even_ns": even if exact else None, "band": band if exact else None,
                "sentence": (gain >= SAID * measured and band < 1) or not exact, "run": run, "step": step,
            }
        )  # fmt: skip
    frame = pl.DataFrame(rows, schema={**CAUSES, "order": REAL})
    return frame.sort("order", "code", maintain_order=True).drop("order")
