"""Plausible damage to what was recorded: the figures of the steps that are called whole are right, or a warning says
that something is wrong."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from itertools import product

import polars as pl
import pytest

from tests.conftest import ROOT
from trace_export.analysis.bubbles import Bubbles
from trace_export.clocks.align import align
from trace_export.model import Declared, Profile
from trace_export.pipeline import completeness
from trace_export.pipeline.interpret import interpret
from trace_export.sources.find import find
from trace_export.sources.merge import merge
from trace_export.sources.read import read
from trace_export.sources.source import ReadOptions

SOURCES = ("paddle/single", "paddle/two_machines", "nsys/two_hosts", "kineto/two_hosts", "ascend", "mindspore")
RIGHT = 0.01
"""So much may the bubble of a step differ, and its length in proportion: the clocks are fitted to fewer data."""
TABLES = ("spans", "p2p", "collectives")
Damage = Callable[[Profile, int, float], Profile]


@cache
def recorded(sample: str) -> Profile:
    """A sample as its readers give it."""
    folder = ROOT / "samples" / sample
    profile, refused = merge(read(source, ReadOptions()) for source in find(folder).sources)
    assert not refused
    return profile


def understood(profile: Profile) -> Profile:
    """What `load` and `align` make of what was read."""
    done = align(interpret(profile, Declared()))
    return completeness.mark_whole_steps(done, one_clock=True, all_ranks=True)


@cache
def undamaged(sample: str) -> dict[tuple[int, int], tuple[float, int]]:
    done = understood(recorded(sample))
    assert done.steps["whole"].all()
    assert not [note for note in done.notes if note.level == "warning"]
    return figures(done)


def figures(profile: Profile) -> dict[tuple[int, int], tuple[float, int]]:
    """Bubble and length of each whole step."""
    steps = Bubbles(profile).steps.filter("whole")
    return {(run, step): (bubble, end - start) for run, step, start, end, bubble in
            steps.select("run", "step", "start_ns", "end_ns", "bubble").iter_rows()}  # fmt: skip


def on_rank(profile: Profile, rank: int, change: Callable[[pl.DataFrame], pl.DataFrame]) -> Profile:
    """`profile` with all tables of one rank changed."""
    tables = {
        name: pl.concat([frame.filter(pl.col("rank") != rank), change(frame.filter(pl.col("rank") == rank))])
        for name in TABLES
        for frame in [getattr(profile, name)]
    }
    return replace(profile, **tables)  # type: ignore[arg-type]


def moment(profile: Profile, rank: int, share: float) -> int:
    """The time at which a rank's recording is over but for a part."""
    own = profile.spans.filter(pl.col("rank") == rank)
    first, last = own["start_ns"].min(), own["end_ns"].max()
    return int(first + share * (last - first))  # type: ignore[operator]


def cut(profile: Profile, rank: int, share: float) -> Profile:
    end = moment(profile, rank, share)
    return on_rank(profile, rank, lambda rows: rows.filter(pl.col("end_ns") <= end))


def late(profile: Profile, rank: int, share: float) -> Profile:
    begin = moment(profile, rank, share)
    return on_rank(profile, rank, lambda rows: rows.filter(pl.col("start_ns") >= begin))


def all_cut(profile: Profile, rank: int, share: float) -> Profile:
    """One moment ends all recordings, as when the profiler is stopped."""
    end = moment(profile, rank, share)
    tables = {name: getattr(profile, name).filter(pl.col("end_ns") <= end) for name in TABLES}
    return replace(profile, **tables)


def doubled(profile: Profile, rank: int, share: float) -> Profile:
    return on_rank(profile, rank, lambda rows: pl.concat([rows, rows]))


def half_doubled(profile: Profile, rank: int, share: float) -> Profile:
    """As an upload that was begun twice."""
    end = moment(profile, rank, share)
    return on_rank(profile, rank, lambda rows: pl.concat([rows.filter(pl.col("end_ns") <= end), rows]))


def shuffled(profile: Profile, rank: int, share: float) -> Profile:
    return on_rank(profile, rank, lambda rows: rows.sample(fraction=1, shuffle=True, seed=int(share * 1e6)))


def holed(profile: Profile, rank: int, share: float) -> Profile:
    """A tenth of the recording is gone."""
    begin, end = moment(profile, rank, 0.9 * share), moment(profile, rank, 0.9 * share + 0.1)
    return on_rank(profile, rank, lambda rows: rows.filter((pl.col("end_ns") < begin) | (pl.col("start_ns") > end)))


def without_a_step(profile: Profile, rank: int, share: float) -> Profile:
    known = understood(profile).spans.filter(pl.col("rank") == rank)
    steps = known["step"].drop_nulls().unique().sort()
    times = known.filter(pl.col("step") == steps[int(share * len(steps))])
    begin, end = int(times["start_ns"].min()), int(times["end_ns"].max())  # type: ignore[arg-type]
    inside = pl.col("start_ns").is_between(begin - MARGIN_NS, end + MARGIN_NS)
    return on_rank(profile, rank, lambda rows: rows.filter(~inside))


MARGIN_NS = 5_000_000
"""Corrections of the samples' clocks are smaller, the time between their steps is longer."""


def swapped(profile: Profile, rank: int, share: float) -> Profile:
    """Two files have changed their names."""
    ranks = profile.ranks["rank"].sort()
    other = ranks[(ranks.to_list().index(rank) + 1 + int(share * (len(ranks) - 1))) % len(ranks)]
    names = {rank: other, other: rank}
    tables = {
        name: getattr(profile, name).with_columns(pl.col("rank").replace(names).cast(pl.Int32)) for name in TABLES
    }
    return replace(profile, **tables)


def copied(profile: Profile, rank: int, share: float) -> Profile:
    """One file lies in place of another."""
    other = next(r for r in profile.ranks["rank"].sort() if r != rank)
    tables = {
        name: pl.concat([frame.filter(pl.col("rank") != other),
                         frame.filter(pl.col("rank") == rank).with_columns(rank=pl.lit(other, pl.Int32))])
        for name in TABLES for frame in [getattr(profile, name)]
    }  # fmt: skip
    return replace(profile, **tables)


DAMAGE: dict[str, Damage] = {
    "cut": cut, "late": late, "all cut": all_cut, "doubled": doubled, "half doubled": half_doubled,
    "shuffled": shuffled, "holed": holed, "without a step": without_a_step, "swapped": swapped, "copied": copied,
}  # fmt: skip


def half(samples: Sequence[str], damages: Sequence[str]) -> list[tuple[str, str]]:
    """Half of the damages for each sample, the others for the next: all come up, and from files of every format in
    `test_damage_files`."""
    return [pair for pair in product(samples, damages) if (samples.index(pair[0]) + damages.index(pair[1])) % 2 == 0]


@pytest.mark.parametrize(
    ("sample", "damage"), half(SOURCES[1:5], [name for name in DAMAGE if name not in ("doubled", "shuffled")])
)
def test_figures_are_right_or_a_warning_says_why_not(sample: str, damage: str, request: pytest.FixtureRequest) -> None:
    for seed in range(50 if request.config.getoption("--slow") else 1):
        chance = random.Random(f"{sample}, {damage} {seed}")
        rank, share = chance.randrange(4), chance.uniform(0, 0.99)
        damaged = DAMAGE[damage](recorded(sample), rank, share)
        if damaged.spans.is_empty():
            continue
        done = understood(damaged)
        if any(note.level == "warning" for note in done.notes):
            continue
        true, found = undamaged(sample), figures(done)
        assert set(found) <= set(true), f"rank {rank}, share {share}"
        for step, (bubble, length) in found.items():
            assert bubble == pytest.approx(true[step][0], abs=RIGHT), f"rank {rank}, share {share}, {step}"
            assert length == pytest.approx(true[step][1], rel=RIGHT), f"rank {rank}, share {share}, {step}"


@pytest.mark.parametrize(("sample", "damage"), half(SOURCES, ["doubled", "shuffled"]))
def test_what_is_only_repeated_or_in_another_order_changes_no_figure(sample: str, damage: str) -> None:
    assert figures(understood(DAMAGE[damage](recorded(sample), 2, 0.5))) == undamaged(sample)


@pytest.mark.parametrize(("sample", "damage"), half(SOURCES, ["cut", "holed", "copied"]))
def test_what_is_lost_in_the_middle_of_one_rank_is_a_warning(sample: str, damage: str) -> None:
    damaged = DAMAGE[damage](recorded(sample), 2, 0.4)
    assert len(damaged.spans) < len(recorded(sample).spans) or damage == "copied"
    assert [note for note in understood(damaged).notes if note.level == "warning"]
