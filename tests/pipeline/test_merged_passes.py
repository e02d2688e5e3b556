"""Inferred passes of ranks on which two stages of the model follow each other are left out."""

from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest

import trace_export
from samples.generators.unmarked import Program, write
from tests.support.profiles import profile, span
from trace_export.model import Declared, Plan, Profile
from trace_export.pipeline.interpret import interpret
from trace_export.pipeline.merged_passes import without_merged
from trace_export.schedules.words import profile_blocks, word

LENGTH, STEP = 1_000, 1_000_000


def recorded(words: list[str], *, steps: int = 2, origin: str = "inferred") -> Profile:
    """A rank for each word, which is that of each of its steps; O is the optimizer."""
    rows = [
        span(rank, {"O": "OPT"}.get(letter, letter), None, at * LENGTH, at * LENGTH + 990, origin=origin, step=None)
        for rank, letters in enumerate(words)
        for step in range(steps)
        for at, letter in enumerate(letters, STEP // LENGTH * step)
    ]
    return replace(profile(rows, dict.fromkeys(range(len(words)))), declared=Declared())


def ranks_left(one: Profile) -> list[int]:
    return without_merged(one).spans.filter(pl.col("kind") == "B")["rank"].unique().sort().to_list()


FULL, HALF = "F" * 8 + "B" * 8 + "O", "F" * 4 + "B" * 4 + "O"


@pytest.mark.parametrize(
    ("words", "left"),
    [
        ([FULL, FULL, HALF], [0, 1]),
        ([FULL, HALF], [0]),
        ([FULL, "FFFFFBBBBBBO", FULL], [0, 2]),  # not all forwards were found, and some backwards are two
        ([FULL, FULL, "B" * 5 + "O"], [0, 1]),  # no forward was found, and the second step is between two optimizers
        ([FULL, FULL, "FFFBBBO"], [0, 1, 2]),  # fewer than half: something else
        ([FULL, HALF, HALF], [0, 1, 2]),  # most ranks do not turn
        ([FULL, FULL, FULL], [0, 1, 2]),
    ],
)
def test_passes_of_a_rank_with_fewer_backwards_than_the_others_are_left_out(words: list[str], left: list[int]) -> None:
    done = without_merged(recorded(words))
    assert ranks_left(recorded(words)) == left
    assert set(done.spans.filter(pl.col("kind") == "OPT")["rank"]) == set(range(len(words)))
    assert [note.code for note in done.notes] == ["passes-merged"] * (len(left) < len(words))


def test_what_is_named_is_what_it_is() -> None:
    made = recorded([FULL, FULL, HALF], origin="device")
    assert ranks_left(made) == [0, 1, 2]
    only = pl.when(pl.col("kind") == "OPT").then(pl.lit("inferred")).otherwise("origin").alias("origin")
    assert ranks_left(replace(made, spans=made.spans.with_columns(only))) == [0, 1, 2]


def test_a_step_that_the_capture_cuts_is_compared_with_nothing() -> None:
    """Of rank 2 only the end of the first step was recorded, with six of eight backwards."""
    one = recorded([FULL, FULL, FULL], steps=1)
    late = pl.col("start_ns") >= one.spans["start_ns"].min() + 10 * LENGTH
    assert ranks_left(replace(one, spans=one.spans.filter((pl.col("rank") != 2) | late))) == [0, 1, 2]


def test_the_other_ranks_of_zb_v_have_its_numbers() -> None:
    plan = Plan("zb-v", 4, 8, 2)
    turn = word(plan, 3).replace("FF", "F").replace("BB", "B")
    done = interpret(recorded([*(word(plan, stage) + "O" for stage in range(3)), turn + "O"]), Declared(pp=4))
    columns = ["stage", "kind", "microbatch", "chunk"]
    result = done.spans.join(done.ranks.select("rank", "stage"), on="rank").filter(pl.col("kind") != "OPT", step=0)
    wanted = profile_blocks(plan, (0, 1, 2)).select(columns)
    assert sorted(result.select(columns).rows()) == sorted(wanted.rows())
    assert done.declared.schedule == "ZB-V"


@pytest.mark.parametrize("kineto", [False, True], ids=["nsys", "kineto"])
def test_of_a_v_that_no_schedule_describes_the_blocks_have_no_number(tmp_path: Path, kineto: bool) -> None:
    write(tmp_path, Program(schedule="vee", tokens=False, steps=2), kineto=kineto)
    run = trace_export.load(tmp_path)
    assert {note.code for note in run.notes} >= {"passes-merged", "schedule-unknown"}
    assert "schedule-recognised" not in {note.code for note in run.notes}
    passes = run.spans.filter(pl.col("kind").is_in(["F", "B"]))
    assert set(passes["rank"]) == {0, 1, 2}
    assert passes["microbatch"].null_count() == passes.height
