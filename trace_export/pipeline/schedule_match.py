"""Which schedule a run follows: the measured order of each rank's blocks against the orders of `schedules`.

Exact orders are found by equality. Else the distance is how many blocks are missing, superfluous or displaced.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import polars as pl

from trace_export.errors import UsageError
from trace_export.model import Declared, Note, Profile
from trace_export.pipeline.block_order import KEY, LETTERS, STEP, expected_order, sequences, without_pieces
from trace_export.schedules.schedule import TITLES, Schedule, canonical, schedule

LIKELY = ((0.02, 2), (0.1, 5))
"""An order that is not exact is named when its distance is below the first number, and the runner-up's above the
second number times that; one of the pairs suffices."""

TWINS = {"1f1b": ("zb-h1",), "eager-1f1b": ("zb-h2",)}
"""Without recorded W blocks these cannot be told from the schedules on the right."""

DEVIATIONS = {
    "run": pl.Int32(), "step": pl.Int32(), "rank": pl.Int32(), "stage": pl.Int32(), "position": pl.Int32(),
    "expected": pl.String(), "found": pl.String(),
}  # fmt: skip


@dataclass(frozen=True)
class Recognition:
    """What was recognised. `schedule` is the closest order, None where nothing fits the numbers; `certainty` says
    whether to believe it: `exact` on all ranks, `likely`, or `unknown` (then it has no name, only the closest).

    `distance` is the share of blocks that are missing, superfluous or elsewhere, in the step that was compared;
    `runner_up` the next best and its distance. `twins` are schedules that cannot be told from it. `weights` is false
    where weight gradients were not compared, because none or only some were recorded.
    """

    schedule: Schedule | None = None
    certainty: Literal["exact", "likely", "unknown"] = "unknown"
    distance: float = 1.0
    runner_up: tuple[str, float] | None = None
    twins: tuple[str, ...] = ()
    weights: bool = True

    @property
    def named(self) -> Schedule | None:
        """The schedule, where it is certain enough to be named."""
        return None if self.certainty == "unknown" else self.schedule


@dataclass(frozen=True)
class _Numbers:
    """p stages, m forwards per chunk and rank, v chunks, g forwards of chunk 0 before the first of chunk 1."""

    p: int
    m: int
    v: int
    g: int
    weights: bool


def recognise(profile: Profile) -> Recognition:
    """The schedule of the profile's fullest step.

    Blocks need kind and chunk (null: 0); where the micro-batch is null, the order of occurrence stands for it. Needs
    ranks.stage. A run without a backward (evaluation) has no schedule.
    """
    step = without_pieces(sequences(profile, _fullest(profile.spans)))
    kinds = dict(step.group_by("kind").len().iter_rows())
    if "B" not in kinds or "F" not in kinds:
        return Recognition()
    found = _closest(step, profile.declared.schedule)
    if found.certainty != "exact" and 0 < kinds.get("W", 0) < kinds["B"]:
        # Some runs record the weight gradients of a part of the step only.
        other = _closest(_without_weights(step), profile.declared.schedule)
        if other.certainty == "exact" and other.schedule is not None and other.schedule.splits:
            return other
    return found


def _without_weights(orders: pl.DataFrame) -> pl.DataFrame:
    position = pl.int_range(pl.len(), dtype=pl.Int32).over("rank", *STEP)
    return orders.filter(pl.col("kind") != "W").with_columns(position=position)


def _closest(step: pl.DataFrame, declared: str | None) -> Recognition:
    numbers = _numbers(step)
    candidates = {s.name: s for s in _candidates(numbers, declared)}
    if not candidates:
        return Recognition()
    expected = {name: expected_order(s, numbers.weights) for name, s in candidates.items()}
    distances = _distances(step, expected)
    best, *others = sorted(distances, key=lambda name: (*distances[name], list(TITLES).index(name)))
    differs, distance = distances[best]
    twins = tuple(n for n in others if distances[n] == distances[best])
    runner_up = next(((n, distances[n][1]) for n in others if n not in twins), None)
    further = runner_up[1] if runner_up else 1.0
    likely = any(distance < most and further >= times * distance for most, times in LIKELY)
    return Recognition(
        schedule=candidates[best],
        certainty="exact" if not differs else "likely" if likely else "unknown",
        distance=distance,
        runner_up=runner_up,
        twins=(*twins, *(() if numbers.weights else TWINS.get(best, ()))),
        weights=numbers.weights,
    )


def declare(profile: Profile) -> Profile:
    """`profile` that declares the schedule its order shows, where it declares none and the order is certain enough.

    A single stage has no schedule to speak of.
    """
    if profile.declared.schedule is not None:
        return profile
    found = recognise(profile)
    s = found.named
    if s is None or s.stages == 1:
        return profile
    numbers = Declared(
        schedule=s.title,
        microbatches=s.microbatches,
        chunks=s.chunks,
        placement=None if s.placement == "both" else s.placement,
    )
    differing = f"{found.distance:.1%}" if found.distance >= 0.001 else "less than 0.1%"
    how = "exactly" if found.certainty == "exact" else f"but for {differing} of the blocks"
    twins = f" (or {', '.join(TITLES[n] for n in found.twins)}, which would look the same)" if found.twins else ""
    note = Note("schedule-recognised", "note", f"the order of the blocks is {how} that of {s.title}{twins}")
    return replace(profile, declared=profile.declared.or_else(numbers)).with_notes([note])


def _fullest(spans: pl.DataFrame) -> pl.DataFrame:
    """The rows of the step with the most blocks, the first of several, with their `row`."""
    counts = spans.filter(pl.col("kind").is_in(["F", "B", "W", "FB"])).group_by(STEP).len()
    most = counts.sort("len", *STEP, descending=[True, False, False]).head(1)
    return spans.with_row_index("row").join(most, on=STEP, how="semi", nulls_equal=True, maintain_order="left")


def _numbers(step: pl.DataFrame) -> _Numbers:
    forwards = step.filter(pl.col("kind") == "F")
    counts = forwards.group_by("rank", "chunk").len()["len"].to_numpy()
    turn = forwards.filter(pl.col("chunk") == 1).group_by("rank").agg(turn=pl.col("position").min())
    before = (
        forwards.filter(pl.col("chunk") == 0)
        .join(turn, on="rank")
        .filter(pl.col("position") < pl.col("turn"))
        .group_by("rank").len()["len"].to_numpy()
    )  # fmt: skip
    return _Numbers(
        p=int(step["stage"].to_numpy().max()) + 1,
        m=int(counts.max()) if len(counts) else 0,
        v=int(forwards["chunk"].to_numpy().max()) + 1 if len(forwards) else 1,
        g=int(before.min()) if len(before) else 0,
        weights=bool((step["kind"] == "W").any()),
    )


def _candidates(n: _Numbers, declared: str | None) -> Iterable[Schedule]:
    """The schedules that fit the numbers; with recorded weight gradients those that split the backward, without
    them all but those that would be the same as another."""
    names = list(TITLES)
    if not n.weights:
        names = [name for name in names if name not in ("zb-h1", "zb-h2", "zbh1-paddle", "interleaved-split-paddle")]
    if n.m != n.p:
        names.remove("interleaved-paddle")  # differs from interleaved only in steps as short as the pipeline
    if declared is not None:
        names = list(dict.fromkeys([*_canonical(declared), *names]))
    for name in names:
        many = name.startswith("interleaved")
        group = n.g if name == "interleaved" and n.g > n.p else None
        try:
            found = schedule(name, n.p, 2 * n.m if name == "dualpipe" else n.m, n.v if many else None, group)
        except UsageError:  # its rules do not allow these numbers
            continue
        if found.chunks == n.v and (found.splits or not n.weights):
            yield found


def _canonical(name: str) -> list[str]:
    try:
        return [canonical(name)]
    except UsageError:  # a name of a framework that we have no order for
        return []


def _distances(step: pl.DataFrame, expected: dict[str, pl.DataFrame]) -> dict[str, tuple[bool, float]]:
    """Whether the step differs from each order, and by how much; where none is exact, counted for the closest two.

    The rest are compared by how many blocks are followed by the right one: more than the distance, and quickly known.
    """
    found = step.select("rank", "stage", "position", key=KEY)
    rough = {name: _rough(found, order) for name, order in expected.items()}
    close = sorted(rough, key=lambda name: rough[name])[:2] if min(rough.values()) > 0 else []
    return {
        name: (far > 0, _edits(found, expected[name]) if name in close and far else far) for name, far in rough.items()
    }


def _rough(found: pl.DataFrame, order: pl.DataFrame) -> float:
    """The share of blocks whose follower is not the expected one; 0 when and only when all ranks are exact."""
    following = pl.col("key").shift(-1).fill_null(-1)
    links = found.with_columns(next=following.over("rank"), first=pl.col("position") == 0)
    right = order.select("stage", "position", key=KEY).with_columns(
        next=following.over("stage"), first=pl.col("position") == 0
    )
    matched = len(links.join(right, on=["stage", "key", "next", "first"], how="semi"))
    wanted = found.select("rank", "stage").unique().join(right.group_by("stage").len(), on="stage")["len"].sum()
    total = max(len(found), wanted)
    return float(1 - matched / total) if total else 0.0


def _edits(found: pl.DataFrame, order: pl.DataFrame) -> float:
    """(missing + superfluous + displaced blocks) / blocks. Blocks missing at both ends are free: the window was cut."""
    places = {
        stage: dict(zip(keys, range(len(keys)), strict=True))
        for stage, keys in order.group_by("stage").agg(KEY).iter_rows()
    }
    wrong = total = 0
    for stage, keys in found.group_by("rank").agg(pl.col("stage").first(), "key").select("stage", "key").iter_rows():
        where = places.get(stage, {})
        known = [where[k] for k in dict.fromkeys(keys) if k in where]
        span = max(known) - min(known) + 1 if known else 0
        wrong += (len(keys) - len(known)) + (span - len(known)) + (len(known) - _increasing(known))
        total += max(len(keys), span)
    return wrong / total if total else 1.0


def _increasing(values: list[int]) -> int:
    """The length of the longest increasing subsequence: so many blocks can stay where they are."""
    tails: list[int] = []
    for value in values:
        at = bisect_left(tails, value)
        tails[at : at + 1] = [value]
    return len(tails)


def deviations(orders: pl.DataFrame, found: Recognition) -> pl.DataFrame:
    """Where ranks leave the recognised order in `orders` (as `observed.sequences` gives them).

    Columns `DEVIATIONS`: a row per rank and step that differs, with the first position where it does, the block
    expected there and the one found (null: none). Steps with other numbers of micro-batches are compared with the
    order for theirs.
    """
    if found.schedule is None:
        return pl.DataFrame(schema=DEVIATIONS)
    orders = without_pieces(orders)
    if not found.weights:
        orders = _without_weights(orders)
    counts = (
        orders.filter((pl.col("kind") == "F") & (pl.col("chunk") == 0))
        .group_by(*STEP, "rank").len().group_by(STEP).agg(m=pl.col("len").max())
    )  # fmt: skip
    parts = [pl.DataFrame(schema=DEVIATIONS)]
    for m in counts["m"].unique():
        s = _same(found.schedule, m if found.schedule.placement != "both" else 2 * m)
        if s is not None:
            steps = counts.filter(pl.col("m") == m)
            part = orders.join(steps, on=STEP, how="semi", nulls_equal=True, maintain_order="left")
            parts.append(_first_differences(part, expected_order(s, found.weights)))
    return pl.concat(parts).sort(*STEP, "rank")


def _same(found: Schedule, m: int) -> Schedule | None:
    if m == found.microbatches:
        return found
    try:
        return schedule(found.name, found.stages, m, found.chunks, found.group)
    except UsageError:  # a step with too few micro-batches for the schedule
        return None


def _first_differences(orders: pl.DataFrame, expected: pl.DataFrame) -> pl.DataFrame:
    # A row per stage, long enough for all, so that expected blocks are looked up and not joined.
    stage, position = (orders[c].to_numpy() for c in ("stage", "position"))
    lengths = [orders["position"], expected["position"]]
    shape = (1 + max(stage.max(), expected["stage"].to_numpy().max()), 2 + max(p.to_numpy().max() for p in lengths))
    table = np.full(shape, -1, np.int64)
    table[expected["stage"].to_numpy(), expected["position"].to_numpy()] = expected.select(KEY).to_series().to_numpy()
    group = [*STEP, "rank", "stage"]
    keyed = orders.select(*group, "position", found=KEY, expected=pl.Series(table[stage, position]))
    ends = keyed.group_by(group).agg(pl.col("position").max() + 1)
    after = pl.Series(table[ends["stage"].to_numpy(), ends["position"].to_numpy()])
    short = ends.with_columns(found=pl.lit(-1, pl.Int64), expected=after)
    wrong = pl.concat([keyed, short.select(keyed.columns)]).filter(pl.col("found") != pl.col("expected"))
    first = wrong.sort("position").group_by(group, maintain_order=True).first()
    return first.with_columns(_name("found"), _name("expected")).select(
        pl.col(name).cast(dtype) for name, dtype in DEVIATIONS.items()
    )


def _name(column: str) -> pl.Expr:
    """`B3.1` for the key of the backward of micro-batch 3 in chunk 1."""
    key = pl.col(column)
    letter = (key % 4).replace_strict(dict(enumerate(LETTERS)), default=None, return_dtype=pl.String)
    return pl.when(key >= 0).then(pl.format("{}{}.{}", letter, key // 4 // 4096, key // 4 % 4096)).alias(column)
