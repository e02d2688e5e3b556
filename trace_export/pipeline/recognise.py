"""Which schedule a run follows: the measured order of each rank's blocks against the orders of `schedules`.

An order is a list of keys, one for each forward, backward and weight gradient; an overlapped pair is its forward, then
its backward. Micro-batches are numbered from 0 per chunk, so that a run that counts on is recognised too.
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
from trace_export.pipeline.schedules import TITLES, Schedule, canonical, schedule

STEP = ["run", "step"]
LETTERS = "FBW"
KEY = (pl.col("microbatch").cast(pl.Int64) * 4096 + pl.col("chunk")) * 4 + pl.when(pl.col("kind") == "F").then(0).when(
    pl.col("kind") == "B"
).then(1).otherwise(2)
"""What a block is, as one number; -1 is no block."""

LIKELY = 0.02
"""An order that is not exact is named when this share of its blocks, at most, is missing or elsewhere."""

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
    `runner_up` the next best and its distance. `twins` are schedules that cannot be told from it.
    """

    schedule: Schedule | None = None
    certainty: Literal["exact", "likely", "unknown"] = "unknown"
    distance: float = 1.0
    runner_up: tuple[str, float] | None = None
    twins: tuple[str, ...] = ()

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
    step = sequences(profile, _fullest(profile.spans))
    if step.is_empty() or not step["kind"].is_in(["B"]).any():
        return Recognition()
    numbers = _numbers(step)
    candidates = {s.name: s for s in _candidates(numbers, profile.declared.schedule)}
    if not candidates:
        return Recognition()
    expected = {name: expected_order(s, numbers.weights) for name, s in candidates.items()}
    distances = _distances(step, expected)
    best, *others = sorted(distances, key=lambda name: (*distances[name], list(TITLES).index(name)))
    found = candidates[best]
    differs, distance = distances[best]
    twins = tuple(n for n in others if distances[n] == distances[best])
    runner_up = next(((n, distances[n][1]) for n in others if n not in twins), None)
    clear = runner_up is None or runner_up[1] >= 2 * distance
    return Recognition(
        schedule=found,
        certainty="exact" if not differs else "likely" if distance < LIKELY and clear else "unknown",
        distance=distance,
        runner_up=runner_up,
        twins=(*twins, *(() if numbers.weights else TWINS.get(best, ()))),
    )


def declare(profile: Profile) -> Profile:
    """`profile` that declares the schedule its order shows, where it declares none and the order is certain enough."""
    if profile.declared.schedule is not None or (found := recognise(profile)).named is None:
        return profile
    s = found.named
    assert s is not None
    numbers = Declared(
        schedule=s.name,
        microbatches=s.microbatches,
        chunks=s.chunks,
        placement=None if s.placement == "both" else s.placement,
    )
    how = "exactly" if found.certainty == "exact" else f"but for {found.distance:.1%} of the blocks"
    twins = f" (or {', '.join(TITLES[n] for n in found.twins)}, which would look the same)" if found.twins else ""
    note = Note("note", f"the order of the blocks is {how} that of {s.title}{twins}")
    return replace(profile, declared=profile.declared.or_else(numbers)).with_notes([note])


def sequences(profile: Profile, spans: pl.DataFrame | None = None) -> pl.DataFrame:
    """The measured orders of `spans` (with their `row`), or of all the profile's.

    Columns run, step, rank, stage, position, kind (F, B, W), chunk, microbatch (from 0 per chunk, by occurrence where
    null), row (of `Profile.spans`); sorted by (run, step, rank, position).
    """
    rows = profile.spans.with_row_index("row") if spans is None else spans
    rows = rows.with_columns(pl.col("chunk", "chunk_b").fill_null(0))
    common = ["row", "rank", *STEP, "start_ns", "end_ns"]
    plain = rows.filter(pl.col("kind").is_in(["F", "B", "W"])).select(*common, "kind", "chunk", "microbatch", half=0)
    pairs = rows.filter(pl.col("kind") == "FB")
    forward = pairs.select(*common, kind=pl.lit("F"), chunk="chunk", microbatch="microbatch", half=0)
    back = pairs.select(*common, kind=pl.lit("B"), chunk="chunk_b", microbatch="microbatch_b", half=1)
    halves = pl.concat([plain, forward, back]).join(profile.ranks.select("rank", "stage"), on="rank", how="inner")
    ordered = halves.sort(*STEP, "rank", "start_ns", "half", "end_ns", "row").with_row_index("at")
    first = pl.any_horizontal(pl.col(c).ne_missing(pl.col(c).shift(1)) for c in [*STEP, "rank"]) | (pl.col("at") == 0)
    position = pl.col("at") - pl.when(first).then("at").forward_fill()
    # Of two blocks that overlap by more than half of the shorter, the forward counts as the first.
    after = {c: pl.col(c).shift(-1) for c in ("kind", "start_ns", "end_ns")}
    both = pl.min_horizontal("end_ns", after["end_ns"]) - after["start_ns"]
    shorter = pl.min_horizontal(pl.col("end_ns") - pl.col("start_ns"), after["end_ns"] - after["start_ns"])
    turned = (pl.col("kind") == "B") & (after["kind"] == "F") & ~first.shift(-1, fill_value=True)
    swap = (turned & (2 * both > shorter)).fill_null(False)
    placed = ordered.with_columns(position=position.cast(pl.Int32), swap=swap).with_columns(
        position=pl.col("position") + pl.col("swap").cast(pl.Int32)
        - pl.col("swap").shift(1, fill_value=False).cast(pl.Int32)
    )  # fmt: skip
    columns = [*STEP, "rank", "stage", "position", "kind", "chunk", "microbatch", "row"]
    if placed["swap"].any():
        placed = placed.sort(*STEP, "rank", "position")
    return _counted(placed.select(columns))


def _counted(orders: pl.DataFrame) -> pl.DataFrame:
    """`orders` with micro-batches from 0 in each step and chunk; by occurrence where they are null."""
    if orders["microbatch"].null_count():
        counted = pl.int_range(pl.len(), dtype=pl.Int32).over("rank", *STEP, "kind", "chunk")
        orders = orders.with_columns(pl.coalesce("microbatch", counted))
    least = orders.filter(pl.col("kind") == "F").group_by(*STEP, "chunk").agg(least=pl.col("microbatch").min())
    if not (least["least"] != 0).any():
        return orders
    return (
        orders.join(least, on=[*STEP, "chunk"], how="left", nulls_equal=True, maintain_order="left")
        .with_columns(pl.col("microbatch") - pl.col("least").fill_null(0))
        .drop("least")
    )


def expected_order(s: Schedule, weights: bool) -> pl.DataFrame:
    """The order of a schedule in the form of `sequences`: stage, position, kind, chunk, microbatch, op (row of `ops`),
    full; without its W blocks where `weights` is false, as in a run that does not record them."""
    rows = s.ops.with_row_index("op")
    columns = ["op", "stage", "position", "kind", "chunk", "microbatch", "full"]
    plain = rows.filter(pl.col("kind") != "FB").select(*columns, half=0)
    pairs = rows.filter(pl.col("kind") == "FB")
    forward = pairs.with_columns(kind=pl.lit("F"), full=None).select(*columns, half=0)
    back = pairs.with_columns(kind=pl.lit("B"), chunk="chunk_b", microbatch="microbatch_b").select(*columns, half=1)
    halves = pl.concat([plain, forward, back], how="vertical_relaxed")
    kept = halves if weights else halves.filter(pl.col("kind") != "W")
    first = pl.col("microbatch").min().over("chunk")
    return (
        kept.sort("stage", "position", "half")
        .with_columns(
            position=pl.int_range(pl.len(), dtype=pl.Int32).over("stage"), microbatch=pl.col("microbatch") - first
        )
        .drop("half")
    )  # fmt: skip


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
    """Whether the step differs from each order, and by how much; exactly so for the closest two.

    The rest are compared by how many blocks are followed by the right one, which is never less than the distance.
    """
    found = step.select("rank", "stage", "position", key=KEY)
    rough = {name: _rough(found, order) for name, order in expected.items()}
    close = sorted(rough, key=lambda name: rough[name])[:2]
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


def deviations(orders: pl.DataFrame, found: Schedule) -> pl.DataFrame:
    """Where ranks leave the order of `found` in `orders` (as `sequences` gives them).

    Columns `DEVIATIONS`: a row per rank and step that differs, with the first position where it does, the block
    expected there and the one found (null: none). Steps with other numbers of micro-batches are compared with the
    order for theirs.
    """
    weights = bool((orders["kind"] == "W").any())
    counts = (
        orders.filter((pl.col("kind") == "F") & (pl.col("chunk") == 0))
        .group_by(*STEP, "rank").len().group_by(STEP).agg(m=pl.col("len").max())
    )  # fmt: skip
    parts = [pl.DataFrame(schema=DEVIATIONS)]
    for m in counts["m"].unique():
        s = _same(found, m if found.placement != "both" else 2 * m)
        if s is not None:
            steps = counts.filter(pl.col("m") == m)
            part = orders.join(steps, on=STEP, how="semi", nulls_equal=True, maintain_order="left")
            parts.append(_first_differences(part, expected_order(s, weights)))
    return pl.concat(parts).sort(*STEP, "rank")


def _same(found: Schedule, m: int) -> Schedule | None:
    if m == found.microbatches:
        return found
    try:
        return schedule(found.name, found.stages, m, found.chunks)
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
