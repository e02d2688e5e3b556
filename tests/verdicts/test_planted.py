"""A planted cause is the first that `report` names, at its place, with the gain of the same run without it."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest

from samples.generators.data_parallel import WRITERS
from samples.generators.pipeline import US
from tests.support.command import command
from tests.support.rows import seeds
from tests.verdicts.cases import AWAITED, IN_PARTS, PLANTED, drawn, drawn_hidden, drawn_nested, drawn_two
from tests.verdicts.judge import causes, is_at, judge, report

FAST, SEEDS = 1, 16
WRONG = {
    "slow link, blocks alone": (
        (12,),
        "receives posted early, two chunks: most transfers are over before their block could start",
    ),
    "held host, blocks alone": (
        (3, 7, 10, 12, 13),
        "all blocks of a stage in the middle need others: that their host is late looks like its clock",
    ),
    "slow link, two chunks": ((15,), "tensor-parallel ranks that nothing tells from replicas: the link has no ends"),
}
"""Seeds of a cause whose place or gain `report` has wrong, and why: they stay in the table."""

LEARNED = [("unequal micro-batches", 770_023), ("unequal, few micro-batches", 770_074)]
"""Cases that were wrong once: replicas whose micro-batches are longer by chance, and receives that are posted late."""


def _marks(name: str, seed: int) -> list[pytest.MarkDecorator]:
    marks = [] if seed < FAST else [pytest.mark.slow]
    seeds, why = WRONG.get(name, ((), ""))
    return [*marks, pytest.mark.xfail(reason=why, strict=True)] if seed in seeds else marks


CASES = [
    pytest.param(name, 1000 * n + seed, id=f"{name}-{seed}", marks=_marks(name, seed))
    for n, name in enumerate(PLANTED)
    for seed in range(SEEDS)
]
CASES += [pytest.param(name, seed, id=f"{name}-{seed}") for name, seed in LEARNED]


@pytest.mark.parametrize(("name", "seed"), CASES)
def test_a_planted_cause_is_named_first(
    name: str, seed: int, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    found = judge(tmp_path, drawn(seed, name))
    record_property("verdict", found.row)
    assert not found.wrong


@pytest.mark.parametrize("name", ["slow stage", "slow rank", "loss, sends awaited"])
@pytest.mark.parametrize("seed", seeds(1, 16))
def test_sends_are_awaited_where_one_kernel_sends_and_receives(
    name: str, seed: int, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    """What such a kernel records is when the last of its transfers was done."""
    found = judge(tmp_path, drawn(seed, name, ("nsys", "kineto")[seed % 2], **AWAITED))
    record_property("verdict", found.row)
    assert not found.wrong


@pytest.mark.parametrize("name", ["slow stage", "slow rank", "slow replica", "data loading", "long collective"])
@pytest.mark.parametrize("seed", seeds(1, 16))
def test_gradients_are_reduced_while_the_last_backward_goes_on(
    name: str, seed: int, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    """A rank that waits for the slow one begins later with each part than it could."""
    form = ("nsys", "kineto", "table")[seed % 3]
    found = judge(tmp_path, drawn(seed, name, form, **IN_PARTS))
    record_property("verdict", found.row)
    assert not found.wrong


@pytest.mark.parametrize("name", ["slow stage", "slow rank", "slow replica", "slow link"])
@pytest.mark.parametrize("seed", seeds(1, 16))
def test_a_few_steps_of_work_alone_are_enough(
    name: str, seed: int, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    """Nobody recorded an optimizer or a collective, and the first step does not show that replicas wait for another."""
    found = judge(tmp_path, drawn(seed, name, "work", steps=(4, 3, 2, 5)[seed % 4]))
    record_property("verdict", found.row)
    assert not found.wrong


@pytest.mark.parametrize("name", ["slow rank", "slow replica"])
@pytest.mark.parametrize("seed", seeds(1, 16))
def test_most_of_many_replicas_wait_for_one(
    name: str, seed: int, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    """In a table of work alone: what they wait at the end of a step is no pause of their later stages."""
    case = drawn(seed, name, "work", replicas=8, tensor=1, steps=4, stages=2 + seed % 3)
    found = judge(tmp_path, case)
    record_property("verdict", found.row)
    assert not found.wrong


@pytest.mark.parametrize("seed", seeds(1, 8))
@pytest.mark.parametrize(("form", "told"), [("paddle", False), ("kineto", True)])
def test_which_of_a_tensor_group_is_slow_may_be_unknown(
    form: str, told: bool, seed: int, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Blocks of its ranks are as long as those of the slowest; only collectives inside of them tell which that is."""
    if (form, seed) == ("paddle", 4):
        why = "the size of tensor groups is recorded in no log, and guessed as 1 from the block times of this one"
        request.applymarker(pytest.mark.xfail(reason=why, strict=True))
    case = drawn(seed, "slow rank in its group" if told else "slow rank", form, tensor=2)
    first = causes(report(tmp_path, case.job, form))[0]
    assert is_at(first, case.place)
    assert ("one of them alone may slow" in first["text"]) != told


def test_a_host_that_nobody_recorded_is_not_said(tmp_path: Path) -> None:
    """A table without a column of hosts says nothing of them."""
    case = drawn(3, "slow rank", "work", tensor=1)
    WRITERS["work"](tmp_path, case.job)
    rows = pl.concat([pl.read_parquet(file) for file in sorted(tmp_path.glob("*/*.parquet"))])
    rows.drop("host").write_csv(tmp_path / "blocks.csv")
    said = command("report", tmp_path / "blocks.csv").stdout
    assert f"Rank {case.place['rank']} " in said
    assert "host" not in said
    assert "unknown" not in said


@pytest.mark.parametrize("seed", seeds(1, 8))
def test_a_rank_that_stops_in_the_only_whole_step_is_late(
    seed: int, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    """Nothing tells whether it will do so again, but no other rank is nearly as late."""
    found = judge(tmp_path, drawn(seed, "collecting rank", steps=2))
    record_property("verdict", found.row)
    assert not found.wrong


GPIPE = {**AWAITED, "schedule": "gpipe"}


BOTH_WAYS = pytest.mark.xfail(reason="the other way is never alone in a batch: both are named, the gain is right")
IN_TABLES = [
    pytest.param(
        name,
        seed,
        marks=[
            *([pytest.mark.slow] if seed else []),
            *([BOTH_WAYS] if (name, seed) in (("slow link", 5), ("slow link", 12)) else []),
        ],
    )
    for name in ("slow link", "slow stage")
    for seed in range(16)
]


@pytest.mark.parametrize(("name", "seed"), IN_TABLES)
def test_sends_are_awaited_in_a_table_of_blocks(
    name: str, seed: int, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    """Also with GPipe. The transfers of a batch end together: those that are alone in one tell which way is slow."""
    case = drawn(seed, name, "table", **(AWAITED if name == "slow link" else GPIPE))
    found = judge(tmp_path, case)
    record_property("verdict", found.row)
    assert not found.wrong


@pytest.mark.parametrize("awaited", [True, False])
@pytest.mark.parametrize("seed", seeds(1, 16))
def test_a_slow_link_of_gpipe_is_no_late_rank(
    seed: int, awaited: bool, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    """A sender that waits for it goes on with the receiver. Where receives are posted late, all blocks that need the
    link start late although their data are there; others of their rank do not."""
    draw = random.Random(seed)
    more = {
        **GPIPE,
        "rendezvous": awaited,
        "hop": draw.choice((100, 300, 800)) * US,
        "stages": draw.choice((2, 3, 4, 6)),
    }
    found = judge(tmp_path, drawn(seed, "slow link", ("table", "paddle")[seed % 2], tensor=1, **more))
    record_property("verdict", found.row)
    assert not found.wrong


UNSEEN = pytest.mark.xfail(
    reason="when a receive was posted that was recorded late, nobody knows: without the slow rank it would wait for it",
    strict=True,
)
TWO = [
    pytest.param(n, marks=[*([] if n < FAST else [pytest.mark.slow]), *([UNSEEN] if n == 3 else [])])
    for n in range(SEEDS)
]


@pytest.mark.parametrize("seed", TWO)
def test_two_planted_causes_are_both_named(seed: int, tmp_path: Path) -> None:
    """Each with the gain of the same run without it alone."""
    job, cases = drawn_two(seed)
    named = causes(report(tmp_path, job, "nsys"))
    for case in cases:
        said = [sentence["facts"]["gain_ns"] for sentence in named if is_at(sentence, case.place)]
        assert said, f"{case.name} at {case.place} is not named"
        assert said[0] == pytest.approx(case.gain_ns, rel=0.2)


@pytest.mark.parametrize("seed", seeds(2, 16))
def test_a_slow_rank_of_a_slow_stage_is_named_beside_it(seed: int, tmp_path: Path) -> None:
    """Neither takes what the other costs for its own: each has the gain of the same run without it alone."""
    job, form, cases = drawn_nested(seed)
    named = causes(report(tmp_path, job, form))
    for case in cases:
        said = [sentence["facts"]["gain_ns"] for sentence in named if is_at(sentence, case.place)]
        assert said, f"{case.name} at {case.place} is not named"
        assert said[0] == pytest.approx(case.gain_ns, rel=0.15)


@pytest.mark.parametrize("seed", seeds(2, 16))
def test_causes_that_hide_one_another_are_named_together(seed: int, tmp_path: Path) -> None:
    """With the gain of the same run without both."""
    case = drawn_hidden(seed)
    named = causes(report(tmp_path, case.job, case.form))
    said = [sentence["facts"]["gain_ns"] for sentence in named if is_at(sentence, case.place)]
    assert said, f"ranks {case.place['ranks']} are not named together"
    assert said[0] == pytest.approx(case.gain_ns, rel=0.1)
