"""Two runs in one chart: every pair of steps begins together, and none overlaps with the next."""

from dataclasses import replace

import polars as pl
from hypothesis import given
from hypothesis import strategies as st

from tests.support.profiles import profile, span
from tests.support.rows import examples
from trace_export.chart.comparison import overlay_of, paired
from trace_export.chart.layout import ChartOptions, lay_out
from trace_export.model import STEP_KEY, Profile


def run(lengths: list[int], first_step: int, start: int) -> Profile:
    """A forward of each length in a step of its own, 10 apart."""
    blocks, at = [], start
    for number, length in enumerate(lengths):
        blocks.append(span(0, "F", 0, at, at + length, step=first_step + number))
        at += length + 10
    return profile(blocks, {0: 0})


def starts(one: Profile) -> dict[int, int]:
    return dict(one.spans.group_by("step").agg(pl.col("start_ns").min()).iter_rows())


def test_steps_of_other_numbers_are_paired_in_order() -> None:
    a, b = paired(run([100, 50], 3, 0), run([80, 70, 60], 7, 12345))
    assert starts(a) == {step: at for step, at in starts(b).items() if step in (3, 4)}
    first = starts(a)[3]
    assert starts(b) == {3: first, 4: first + 110, 9: first + 110 + 80}  # the third step of B has none beside it
    assert b.spans["end_ns"].to_list() == [starts(b)[3] + 80, starts(b)[4] + 70, starts(b)[9] + 60]


def test_blocks_of_no_step_are_drawn_where_there_are_no_steps() -> None:
    bare = replace(run([10], 0, 5), spans=run([10], 0, 5).spans.with_columns(step=pl.lit(None, pl.Int32)))
    a, b = paired(bare, run([20], 0, 0))
    assert (a.spans.height, b.spans.height) == (1, 1)
    mixed = replace(bare, spans=pl.concat([bare.spans, run([10], 1, 50).spans]))
    assert paired(mixed, bare)[0].spans["step"].to_list() == [1]


@examples(10)
@given(
    a=st.lists(st.integers(1, 1000), min_size=1, max_size=6), b=st.lists(st.integers(1, 1000), min_size=1, max_size=6)
)
def test_every_step_begins_together_and_none_overlaps(a: list[int], b: list[int]) -> None:
    one, other = paired(run(a, 0, 0), run(b, 0, 777))
    both = pl.concat([one.spans, other.spans]).group_by(STEP_KEY).agg(
        pl.col("start_ns").n_unique().alias("starts"), pl.col("start_ns").min(), pl.col("end_ns").max()
    ).sort("start_ns")  # fmt: skip
    assert set(both["starts"]) == {1}
    assert (both["end_ns"].shift(1) <= both["start_ns"]).all()
    for made, lengths in ((one, a), (other, b)):
        assert (made.spans["end_ns"] - made.spans["start_ns"]).to_list() == lengths


def test_stages_that_only_the_other_run_has_are_drawn_below() -> None:
    """Two stages beside four."""
    few, many = (
        profile([span(rank, "F", 0, 10 * rank, 10 * rank + 5) for rank in range(n)], {rank: rank for rank in range(n)})
        for n in (2, 4)
    )
    chart = lay_out(few, ChartOptions(runs=("a", "b"), other=many, overlays=(overlay_of(many, "b"),)))
    assert chart.title == "PP chart · a and b · 1F1B · PP=2 and 4"
    names = {track.id: track.name for track in chart.main.tracks}
    drawn = chart.main.slices.filter(pl.col("of_run") == "b")["track"].replace_strict(names, return_dtype=pl.String)
    assert drawn.to_list() == [f"stage {rank} · rank {rank} (b)" for rank in range(4)]
    order = [name for name in names.values() if name.startswith("stage ")]
    assert order == [
        "stage 0 · rank 0 (a)", "stage 0 · rank 0 (b)", "stage 1 · rank 1 (a)", "stage 1 · rank 1 (b)",
        "stage 2 · rank 2 (b)", "stage 3 · rank 3 (b)",
    ]  # fmt: skip


def test_names_may_hold_braces() -> None:
    overlay = overlay_of(run([10], 0, 0), "a{b}")
    assert overlay.track.format(3, rank=5) == "stage 3 · rank 5 (a{b})"
