"""Theory beside the measurement: the model of a run."""

from dataclasses import replace

import polars as pl
import pytest

from tests.support.profiles import concluded
from tests.support.reports import report_of
from trace_export.analysis.theory import modelled_blocks
from trace_export.model import Declared, Profile
from trace_export.schedules.schedule import schedule
from trace_export.schedules.simulate import Costs, as_profile, durations, simulate, start_and_end


@pytest.mark.parametrize("name", ["1f1b", "zb-v", "dualpipe", "interleaved"])
def test_model_of_a_model_is_the_model(name: str) -> None:
    """Two steps of a run that follows its schedule exactly, the second one later and with two replicas."""
    s = schedule(name, 4, 8)
    one = as_profile(s, *start_and_end(s, durations(s, Costs(1000, 1500, 700))))
    late = one.spans.with_columns(pl.col("start_ns") + 10**6, pl.col("end_ns") + 10**6, step=pl.lit(1, pl.Int32))
    profile = concluded(Profile(ranks=one.ranks, spans=pl.concat([one.spans, late])))
    model = modelled_blocks(profile)
    key = ["step", "stage", "start_ns", "end_ns", "kind", "microbatch", "chunk", "microbatch_b", "chunk_b"]
    measured = profile.spans.with_columns(stage="rank").select(key)
    assert model.select(key).sort(key).equals(measured.sort(key))
    assert set(model["origin"]) == {"model"}


def test_of_some_stages_nothing_is_computed_of_the_whole_pipeline() -> None:
    """The schedule is that of four stages, of which the last was not read: nobody knows how long its blocks take."""
    whole, read = simulate(schedule("1f1b", 4, 8), Costs(1000, 2000)), pl.col("rank") < 3
    part = replace(whole, ranks=whole.ranks.filter(read), spans=whole.spans.filter(read), declared=Declared(pp=4))
    result = report_of(concluded(part)).theory
    assert result.recognition.plan.stages == 4
    assert result.closed_form is None
    assert result.changes.is_empty()


def test_no_model_of_an_unknown_order() -> None:
    assert modelled_blocks(concluded(Profile())).is_empty()


def test_steps_of_another_size_than_the_one_that_was_recognised_have_their_own_model() -> None:
    """Batch size ramp-up: 4, then 8 micro-batches; then only the first step is asked for."""
    small, large = (simulate(schedule("1f1b", 2, m), Costs(1000, 2000)) for m in (4, 8))
    spans = pl.concat([small.spans, large.spans.with_columns(step=pl.lit(1, pl.Int32))])
    whole = concluded(Profile(ranks=small.ranks, spans=spans))
    assert whole.interpreted.recognition.plan.microbatches == 8
    first = replace(whole, spans=whole.spans.filter(step=0))
    assert modelled_blocks(first)["microbatch"].max() == 3
    result = report_of(first).theory
    assert result.recognition.plan.microbatches == 4
    assert result.changes["pipeline_ns"][0] == (4 + 1) * 3000
