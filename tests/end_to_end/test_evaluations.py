"""Passes that are no training step: evaluations between steps, and runs without backwards."""

import random
from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest

import trace_export
from samples.generators import nsys
from samples.generators.pipeline import Block, Operation, simulate, with_evaluations
from tests.conftest import Cli
from tests.support.captures import CAPTURES, drawn, truth
from tests.support.rows import crossed
from trace_export.analysis.bubbles import Bubbles
from trace_export.steps.idle import CAUSES

STAGES, MICROBATCHES, STEPS = 4, 6, 3


class Numbered(nsys.Dialect):
    """Zero bubble's names, without ranges around steps."""

    steps = False


class Unfinished(nsys.Plain):
    """Megatron's function names without an optimizer; steps have ranges."""

    def names(self, block: Block, stage: int) -> list[str]:
        return [] if block.kind == "OPT" else super().names(block, stage)


class PlainAlone(nsys.Plain):
    """Megatron's function names and an optimizer, without ranges around steps."""

    steps = False


DIALECTS: dict[str, nsys.Dialect] = {
    "zero bubble": nsys.Dialect(), "zero bubble without steps": Numbered(), "plain": nsys.Plain(),
    "plain without optimizers": Unfinished(), "plain without steps": PlainAlone(), "torch": nsys.Torch(),
}  # fmt: skip
PLACES = {"between steps": (1,), "before all and after all": (0, STEPS), "after each": (1, 2, 3)}


def unnumbered(rows: list[tuple[object, ...]]) -> list[tuple[object, ...]]:
    """Without the micro-batches of evaluations, which names tell and order does not."""
    return sorted(((*row[:3], None, *row[4:]) if row[1] is None and row[2] == "F" else row for row in rows), key=str)


@pytest.mark.parametrize(("name", "place", "capture"), crossed(DIALECTS, PLACES, CAPTURES, every=2))
def test_evaluations_are_of_no_step(tmp_path: Path, name: str, place: str, capture: str) -> None:
    """They are drawn and counted, and all figures are those of the same run without them."""
    dialect = DIALECTS[name]
    trained = nsys.blocks_of(STAGES, MICROBATCHES, STEPS, random.Random(3), split=dialect.split)
    blocks = with_evaluations(trained, PLACES[place], 5, nsys.TIMING)
    kept = blocks if name != "plain without optimizers" else [b for b in blocks if b.kind != "OPT"]
    whole, alone = tmp_path / "whole", tmp_path / "alone"
    epoch = CAPTURES[capture](whole, blocks, dialect)
    run = trace_export.load(whole)
    assert unnumbered(drawn(run.profile)) == unnumbered(truth(kept, epoch))
    (note,) = [note for note in run.notes if note.code == "evaluation-forwards"]
    assert note.count == sum(b.step < 0 for b in blocks) == 5 * STAGES * len(PLACES[place])
    assert not [note for note in run.notes if note.code in ("blocks-missing", "blocks-in-excess", "microbatch-unknown")]
    CAPTURES[capture](alone, [b for b in blocks if b.step >= 0], dialect)
    measured, wanted = (Bubbles(trace_export.load(folder).profile) for folder in (whole, alone))
    if name == "zero bubble without steps":
        assert measured.profile.declared.schedule == wanted.profile.declared.schedule
    assert measured.windows.equals(wanted.windows)
    # Drawn by chance is when the kernels of transfers end, and with that whether they or a launch hold a block.
    others = [f"{cause}_ns" for cause in CAUSES if cause not in ("transfer", "late")]
    parts = [pl.col(others), (pl.col("transfer_ns") + pl.col("late_ns")).alias("transfer or launch")]
    drawn_by_chance = measured.ranks.select(parts) - wanted.ranks.select(parts)
    assert drawn_by_chance.select(pl.max_horizontal(pl.all().abs().max())).item() < 10_000
    begun = [n - 1 for n in PLACES[place] if 0 < n < STEPS]  # of these the time to the next step has an evaluation
    interrupted = pl.col("step").is_in(begun)
    assert measured.steps.equals(wanted.steps.with_columns(step_ns=pl.when(~interrupted).then("step_ns")))


def test_an_evaluation_stays_one_in_a_table(tmp_path: Path, run_cli: Cli) -> None:
    trained = nsys.blocks_of(STAGES, MICROBATCHES, STEPS, random.Random(3))
    blocks = with_evaluations(trained, (1, 2), 4, nsys.TIMING)
    CAPTURES["nsys"](tmp_path / "run", blocks, nsys.Dialect())
    done = run_cli("export", tmp_path / "run", "--out", tmp_path / "out", "--format", "parquet,chrome")
    assert done.returncode == 0, done.stderr
    assert "evaluation" in done.stderr
    table = pl.read_parquet(tmp_path / "out" / "pipeline_profile.parquet")
    assert table.filter(pl.col("step").is_null())["kind"].to_list() == ["F"] * 2 * 4 * STAGES
    again = trace_export.load(tmp_path / "out" / "pipeline_profile.parquet")
    assert again.profile.evaluations.height == 2 * 4 * STAGES
    assert trace_export.inspect(tmp_path / "run").ranks["steps"].to_list() == [STEPS] * STAGES
    first, second = (Bubbles(run.profile) for run in (trace_export.load(tmp_path / "run"), again))
    columns = ["step", "bubble", "pipeline_ns", "step_ns"]
    assert second.steps.select(columns).equals(first.steps.select(columns))


@pytest.mark.parametrize("capture", CAPTURES)
def test_a_step_that_the_capture_cuts_is_no_evaluation(tmp_path: Path, capture: str) -> None:
    """Its forwards are as many as its warm-up may have."""
    blocks = nsys.blocks_of(STAGES, MICROBATCHES, STEPS, random.Random(3), split=False)
    last = [b for b in blocks if b.step == STEPS - 1]
    cut = sorted(b.start_ns for b in last if b.kind == "B")[0]
    kept = [b for b in blocks if b.end_ns < cut]
    CAPTURES[capture](tmp_path, kept, PlainAlone())
    run = trace_export.load(tmp_path)
    assert run.profile.evaluations.is_empty()
    assert run.spans.filter(pl.col("step") == STEPS - 1).height == sum(b.step == STEPS - 1 for b in kept)


@pytest.mark.parametrize("capture", CAPTURES)
def test_a_run_without_backwards_numbers_the_forwards_of_each_rank(tmp_path: Path, capture: str) -> None:
    orders = [[Operation("F", m) for m in range(9)] for _ in range(STAGES)]
    blocks = [b for b in simulate(orders, nsys.TIMING, range(1), random.Random(5)).blocks if b.kind == "F"]
    epoch = CAPTURES[capture](tmp_path, blocks, PlainAlone())
    run = trace_export.load(tmp_path)
    assert drawn(run.profile) == truth(blocks, epoch)
    codes = [note.code for note in run.notes]
    assert codes.count("forward-only") == 1
    assert "inference, or a job that ended in its warm-up" in str(run.notes)
    assert not {"microbatch-unknown", "schedule-unknown", "step-ends-unknown", "blocks-missing"} & set(codes)
    idle = sum(
        max(b.end_ns for b in blocks) - min(b.start_ns for b in blocks)
        - sum(b.end_ns - b.start_ns for b in blocks if b.rank == rank) for rank in range(STAGES)
    )  # fmt: skip
    length = max(b.end_ns for b in blocks) - min(b.start_ns for b in blocks)
    assert Bubbles(run.profile).steps["bubble"].to_list() == pytest.approx([idle / (STAGES * length)])


@pytest.mark.parametrize("capture", CAPTURES)
def test_a_job_that_died_in_its_warm_up_is_not_said_to_evaluate(tmp_path: Path, capture: str) -> None:
    """The ranks have run their 4, 3, 2 and 1 forwards."""
    orders = [[Operation("F", m) for m in range(STAGES - stage)] for stage in range(STAGES)]
    blocks = [b for b in simulate(orders, nsys.TIMING, range(1), random.Random(5)).blocks if b.kind == "F"]
    CAPTURES[capture](tmp_path, blocks, PlainAlone())
    run = trace_export.load(tmp_path)
    assert run.spans["kind"].to_list() == ["F"] * 10
    assert run.profile.evaluations.is_empty()
    (note,) = [note for note in run.notes if note.code == "forward-only"]
    assert "a job that ended in its warm-up" in note.text
    assert "inference" not in note.text


@pytest.mark.parametrize("capture", CAPTURES)
def test_forwards_whose_backwards_have_no_name_are_not_explained(tmp_path: Path, capture: str) -> None:
    """Where a rank seems to wait it runs backwards: nobody is late, and nothing can be gained."""
    blocks = nsys.blocks_of(STAGES, MICROBATCHES, STEPS, random.Random(3), split=False)
    CAPTURES[capture](tmp_path, blocks, nsys.Together(STAGES, [(nsys.Plain(), {"F"})]))
    run = trace_export.load(tmp_path)
    assert run.spans["kind"].unique().to_list() == ["F"]
    explanation = run.explain()
    assert not explanation.trust.gains
    assert "B of rank 0" in explanation.trust.lacking
    assert not {"late-rank", "slow-rank"} & set(explanation.causes["code"])


@pytest.mark.parametrize(("capture", "slow"), crossed(CAPTURES, [None, 0, 2, 3]))
def test_a_run_without_backwards_is_explained_as_any_other(tmp_path: Path, capture: str, slow: int | None) -> None:
    """It lacks neither backwards nor weight gradients; the gain is that of the simulation without the slow stage."""
    orders = [[Operation("F", m) for m in range(12)] for _ in range(STAGES)]
    lengths = []
    for rank in (slow, None):
        timing = replace(nsys.TIMING, slow={} if rank is None else {rank: 1.4})
        run = simulate(orders, timing, range(1), random.Random(5))
        lengths.append(max(b.end_ns for b in run.blocks if b.kind == "F") - timing.first)
        if rank == slow:
            CAPTURES[capture](tmp_path, [b for b in run.blocks if b.kind == "F"], PlainAlone())
    report = trace_export.load(tmp_path, pp=STAGES).align().report()
    sentences = [sentence.text for sentence in report.verdict]
    assert "was not recorded" not in " ".join(sentences)
    if slow is None:
        assert "Nothing stands out" in sentences[0]
    else:
        assert f"Stage {slow} is slow" in sentences[0]
        (gain,) = [row["gain_ns"] for row in report.causes.filter(code="slow-stage").iter_rows(named=True)]
        assert gain == pytest.approx(lengths[0] - lengths[1], rel=0.15)
