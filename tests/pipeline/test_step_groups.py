"""What is computed of some steps at a time is what comes of all steps at once."""

from dataclasses import replace
from unittest.mock import patch

import numpy as np
import polars as pl
from hypothesis import given
from hypothesis import strategies as st
from polars.testing import assert_frame_equal

from tests.support.profiles import concluded
from tests.support.rows import examples
from trace_export.analysis.bubbles import Bubbles
from trace_export.model import MESSAGES, RANKS, SPANS, Profile, conform
from trace_export.pipeline import step_groups
from trace_export.pipeline.block_order import sequences
from trace_export.schedules.schedule import schedule
from trace_export.schedules.simulate import as_profile, start_and_end

SCHEDULES = ["1f1b", "gpipe", "interleaved", "dualpipev"]


@st.composite
def runs(draw: st.DrawFn) -> Profile:
    """Steps of different numbers of micro-batches, with recorded receives, of which some began in the step before."""
    stages, name = 2, draw(st.sampled_from(SCHEDULES))
    rng = np.random.default_rng(draw(st.integers(0, 1000)))
    blocks, at = [], 0
    for step in range(draw(st.integers(1, 5))):
        s = schedule(name, stages, 2 * draw(st.integers(2, 4)))
        start, end = start_and_end(s, rng.integers(1, 40, len(s.ops)).astype(float), rng.integers(0, 9))
        made = as_profile(s, start, end).spans
        made = made.with_columns(pl.col("start_ns", "end_ns") + at, step=pl.lit(step, pl.Int32))
        if draw(st.booleans()):
            made = made.with_columns(step=pl.lit(None, pl.Int32))
        blocks.append(made)
        at += int(end.max()) + 1_000_000
    spans = pl.concat(blocks).sample(fraction=1.0, shuffle=True, seed=int(rng.integers(1 << 30)))
    ranks = conform(pl.DataFrame({"rank": range(stages), "stage": range(stages)}), RANKS)
    profile = concluded(Profile(ranks=ranks, spans=conform(spans, SPANS)))
    return replace(profile, messages=_messages(profile, rng))


def _messages(profile: Profile, rng: np.random.Generator) -> pl.DataFrame:
    """Receives for half of the blocks that need data of the other rank, until shortly before or after these start; a
    tenth of them were posted a whole step before."""
    edges = profile.edge_rows().sample(fraction=0.5, seed=0)
    taken = profile.spans[edges["dst"]]
    early = pl.Series(rng.choice([0, 1_000_000], len(edges), p=[0.9, 0.1]))
    begun = taken["start_ns"] - pl.Series(rng.integers(0, 60, len(edges))) - early
    return conform(
        pl.DataFrame(
            {
                "src_rank": profile.spans["rank"].gather(edges["src"]), "dst_rank": taken["rank"],
                "direction": edges["direction"], "microbatch": taken["microbatch"], "chunk": taken["chunk"],
                "recv_start_ns": begun,
                "recv_end_ns": taken["start_ns"] - pl.Series(rng.integers(-5, 30, len(edges))),
                "src_pass": edges["src_pass"], "dst_pass": edges["dst_pass"],
            }
        ),
        MESSAGES,
    )  # fmt: skip


def _tables(profile: Profile) -> list[pl.DataFrame]:
    bubbles = Bubbles(profile)
    waits = bubbles.waits.sort(pl.all())
    return [bubbles.ranks, bubbles.steps, waits, bubbles.slices.sort(pl.all()), sequences(profile.passes())]


@examples(3)
@given(profile=runs(), size=st.integers(1, 60))
def test_tables_of_groups_are_those_of_all_steps(profile: Profile, size: int) -> None:
    whole = _tables(profile)
    with patch.object(step_groups, "GROUP_ROWS", size):
        for result, expected in zip(_tables(profile), whole, strict=True):
            assert_frame_equal(result, expected, check_exact=True)
