"""Laws that hold whatever is planted: sums, selections, and the names of ranks."""

from __future__ import annotations

import random
from pathlib import Path

import polars as pl
import pytest

from samples.generators.data_parallel import WRITERS, write_table
from tests.support.rows import seeds
from tests.verdicts.cases import Case, drawn
from trace_export import load
from trace_export.analysis.bubbles import Bubbles
from trace_export.run import Run
from trace_export.steps.idle import CAUSES

DRAWS = seeds(1, 60)


def _loaded(folder: Path, case: Case) -> Run:
    WRITERS[case.form](folder, case.job)
    return load(folder, multi_machine=case.form == "paddle" and case.job.hosts > 1).align()


@pytest.mark.parametrize("seed", DRAWS)
def test_what_is_said_adds_up(seed: int, tmp_path: Path) -> None:
    """Levels and path to the step, idle parts to the bubble; what is exposed of transfers is on a wire; no gain is more
    than the step; the bubble is a share."""
    run = _loaded(tmp_path, drawn(9000 + seed))
    result, measured = run.explain(), Bubbles(run.profile)
    assert result.levels["adds_ns"].sum() == pytest.approx(result.step_ns)
    assert result.path.parts["ns"].sum() == result.path.steps["length_ns"].sum()
    assert result.path.steps["length_ns"].mean() == pytest.approx(result.step_ns)
    ranks = measured.ranks
    assert (ranks.select(pl.sum_horizontal(f"{c}_ns" for c in CAUSES)).to_series() == ranks["global_ns"]).all()
    assert ranks["transfer_ns"].sum() <= int(result._graph.length[result._graph.src >= 0].sum())
    assert 0 <= (measured.bubble or 0) <= 1
    assert (result.causes["gain_ns"].fill_null(0) <= result.step_ns).all()
    assert (result.causes["late_ns"].drop_nulls() > 0).all()


@pytest.mark.parametrize("seed", DRAWS)
def test_what_is_shown_changes_nothing_that_is_said(seed: int, tmp_path: Path) -> None:
    """Of a step, some stages or a time: the same causes, levels and figures of ranks as of the whole."""
    case, draw = drawn(9500 + seed), random.Random(seed)
    run = _loaded(tmp_path, case)
    whole, begin = run.report(), draw.uniform(0, 0.1)
    for part in (
        run.select(steps=draw.randrange(min(1, case.job.steps - 2), case.job.steps - 1)),
        run.select(stages=draw.randrange(case.job.stages)),
        run.select(window=f"{begin:.3f}s-{begin + draw.uniform(0.05, 0.3):.3f}s"),
    ):  # fmt: skip
        shown = part.report()
        assert shown.causes.equals(whole.causes)
        assert shown.explanation.levels.equals(whole.explanation.levels)
        key = ["run", "step", "rank"]
        rows = whole.ranks.join(shown.ranks.select(key), on=key, how="semi", nulls_equal=True, maintain_order="left")
        assert shown.ranks.equals(rows)


@pytest.mark.parametrize("seed", DRAWS)
def test_other_names_of_replicas_change_names_alone(seed: int, tmp_path: Path) -> None:
    case = drawn(9900 + seed, random.Random(seed).choice(("slow rank", "slow replica", "data loading")), "table")
    job, draw = case.job, random.Random(seed)
    order = draw.sample(range(job.replicas), job.replicas)
    write_table(tmp_path / "one", job)
    renamed = {rank: job.rank(order[a], s, t) for rank in range(job.ranks) for a, s, t in (job.place(rank),)}
    for file in (tmp_path / "one").rglob("*.parquet"):
        other = tmp_path / "other" / file.relative_to(tmp_path / "one")
        other.parent.mkdir(parents=True)
        pl.read_parquet(file).with_columns(
            pl.col("rank").replace_strict(renamed), pl.col("dp").replace_strict(dict(enumerate(order)))
        ).write_parquet(other)
    one, other_ = (load(tmp_path / name).align().explain() for name in ("one", "other"))
    assert other_.levels["step_ns"].to_list() == pytest.approx(one.levels["step_ns"].to_list())
    said = [
        sorted(
            (sorted(names[rank] for rank in row["ranks"]), row["code"], round(row["gain_ns"] / 1e4))
            for row in result.causes.iter_rows(named=True)
        )
        for result, names in ((one, renamed), (other_, {rank: rank for rank in range(job.ranks)}))
    ]
    assert said[0] == said[1]
