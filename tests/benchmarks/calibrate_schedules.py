"""What the thresholds for naming a schedule (`schedule_match.LIKELY`) do with orders that are not exact.

    python tests/benchmarks/calibrate_schedules.py [--runs 5] [--stages 4] [--microbatches 8]

Takes a step of every schedule, exchanges neighbouring blocks of a rank or drops blocks until the given share of them is
touched, and compares it with all schedules once as it is, and once without its own and those of the same order, as if
it were one that the program does not know. Prints for each threshold how many of the first were named and named
rightly, and how many of the second were named, which is always wrong.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Iterator

import polars as pl

from tests.support.profiles import placed
from trace_export.model import Profile
from trace_export.pipeline import schedule_match
from trace_export.pipeline.block_order import expected_order, sequences
from trace_export.pipeline.order_distance import distances_to
from trace_export.pipeline.passes import passes_of
from trace_export.schedules.catalogue import CATALOGUE
from trace_export.schedules.schedule import of_plan
from trace_export.schedules.simulate import default_costs, simulate
from trace_export.schedules.words import profile_blocks

SHARES = (0.01, 0.02, 0.05, 0.1, 0.2)
MOST = (0.01, 0.02, 0.05, 0.1, 0.2)
TIMES = (1, 2, 3, 5, 10)


def damaged(profile: Profile, share: float, drop: bool, draw: random.Random) -> Profile:
    """`profile` with so large a share of its blocks dropped, or exchanged with the next of their rank."""
    spans = profile.spans.sort("rank", "start_ns")
    rows = spans.rows(named=True)
    count = max(1, round(share * len(rows) / (1 if drop else 2)))
    if drop:
        gone = set(draw.sample(range(len(rows)), count))
        kept = [row for number, row in enumerate(rows) if number not in gone]
        return Profile(ranks=profile.ranks, spans=pl.DataFrame(kept, spans.schema))
    pairs = [number for number in range(len(rows) - 1) if rows[number]["rank"] == rows[number + 1]["rank"]]
    for number in draw.sample(pairs, count):
        one, other = rows[number], rows[number + 1]
        for time in ("start_ns", "end_ns"):
            one[time], other[time] = other[time], one[time]
        rows[number], rows[number + 1] = other, one
    return Profile(ranks=profile.ranks, spans=pl.DataFrame(rows, spans.schema))


def compared(profile: Profile, without: frozenset[str]) -> tuple[str, tuple[str, ...], float, float] | None:
    """The closest schedule but for some, those at the same distance, the distance, and that of the next."""
    step = sequences(passes_of(profile))
    numbers = schedule_match._numbers(step, None)
    plans = {plan.name: plan for plan in schedule_match._comparable(numbers) if plan.name not in without}
    if not plans:
        return None
    stages = tuple(step["stage"].unique().sort())
    expected = {name: expected_order(profile_blocks(plan, stages), numbers.weights) for name, plan in plans.items()}
    distances = distances_to(expected, step)
    best, *others = sorted(distances, key=lambda name: distances[name])
    twins = tuple(name for name in others if distances[name] == distances[best])
    further = min((distances[name][1] for name in others if name not in twins), default=1.0)
    return best, twins, distances[best][1], further


def cases(runs: int, stages: int, microbatches: int) -> Iterator[tuple[bool, bool, float, float]]:
    """Whether the schedule was among the candidates, whether it is the closest, the distance, that of the next."""
    draw = random.Random(1)
    for name in CATALOGUE:
        plans = [p for p in schedule_match.candidates(stages, microbatches, None) if p.name == name]
        for plan in plans[:1]:
            made = simulate(of_plan(plan), default_costs(of_plan(plan)))
            exact = compared(placed(made), frozenset())
            same = frozenset((name, exact[0], *exact[1])) if exact and exact[2] == 0 else frozenset((name,))
            for share in SHARES:
                for drop in (False, True) * runs:
                    profile = placed(damaged(made, share, drop, draw))
                    if result := compared(profile, frozenset()):
                        yield True, bool(same & {result[0], *result[1]}), result[2], result[3]
                    if result := compared(profile, same):
                        yield False, False, result[2], result[3]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--stages", type=int, default=4)
    parser.add_argument("--microbatches", type=int, default=8)
    options = parser.parse_args()
    schema = {"known": pl.Boolean, "right": pl.Boolean, "distance": pl.Float64, "further": pl.Float64}
    rows = list(cases(options.runs, options.stages, options.microbatches))
    table = pl.DataFrame(rows, schema, orient="row").filter(pl.col("distance") > 0)
    known, unknown = table.filter("known"), table.filter(~pl.col("known"))
    print(f"{known.height} steps of known schedules, {unknown.height} of unknown ones")
    print("distance below  next above    named  of them right  unknown named")
    pairs = [((most, times),) for most in MOST for times in TIMES]
    for choice in [*pairs, schedule_match.LIKELY]:
        believed = pl.any_horizontal(
            (pl.col("distance") < most) & (pl.col("further") >= times * pl.col("distance")) for most, times in choice
        )
        named = known.filter(believed)
        right = f"{named['right'].mean():14.1%}" if named.height else f"{'-':>14}"
        wrong = unknown.filter(believed).height / max(unknown.height, 1)
        below, above = ("/".join(f"{value:g}" for value in values) for values in zip(*choice, strict=True))
        print(f"{below:>14}  {above:>10}  {named.height / max(known.height, 1):7.1%}{right}  {wrong:13.1%}")


if __name__ == "__main__":
    main()
