"""Steps that are interpreted one by one, as their records come, are those of the whole logs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest.mock import patch

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from polars.testing import assert_frame_equal

from samples.generators.paddle import Job
from tests.live.test_look import looks, steps
from tests.support.growing_logs import GrowingLogs
from tests.support.paddle_jobs import JOBS
from trace_export import load
from trace_export.analysis.bubbles import Bubbles
from trace_export.live import window
from trace_export.live.board import Board
from trace_export.live.look import Look

NAMES = (
    "1f1b with communication jobs",
    "all forwards first",
    "interleaved",
    "zb-h1",
    "zb-v",
    "tensor and data parallel",
)
STEPS = 6
LAST = 3
SPANS = ["rank", "step", "kind", "microbatch", "chunk", "phase", "start_ns", "end_ns", "marker", "labels"]


def longer(name: str) -> Job:
    return replace(JOBS[name], steps=range(STEPS), announced=False)


def pictures(look: Look) -> list[bytes]:
    board = Board("run")
    board.put(look)
    return [panel.svg(board._span_ns) for panel in board._panels]


@settings(max_examples=3, phases=[Phase.explicit, Phase.reuse, Phase.generate])
@given(data=st.data(), name=st.sampled_from(NAMES), fit=st.sampled_from((2, 1000)))
def test_however_the_logs_were_appended_to(data: st.DataObject, name: str, fit: int) -> None:
    with TemporaryDirectory() as place, patch.multiple(window, FIT_STEPS=fit, ONE_CLOCK_STEPS=fit):
        job = longer(name)
        logs = GrowingLogs(Path(place), job)
        texts = ["".join(logs.text(rank, step) for step in job.steps).encode() for rank in range(job.ranks)]
        ends = [0] * job.ranks
        several = data.draw(st.integers(1, 9), label="pieces")

        def append(share: float) -> Callable[[], None]:
            def write() -> None:
                for rank, text in enumerate(texts):
                    end = len(text) if share == 1 else data.draw(st.integers(0, int(share * len(text))))
                    with logs.path(rank).open("ab") as file:
                        file.write(text[ends[rank] : end])
                    ends[rank] = max(ends[rank], end)

            return write

        append(1 / (several + 1))()
        found = looks(logs.folder, [append(piece / several) for piece in range(1, several + 1)], last=LAST)
        whole = looks(logs.folder, [], last=LAST)[-1]
        reported = steps(found)
        assert reported == list(range(int(reported[0] or 0), STEPS))  # each once, in order
        expected = {row["step"]: row for row in Bubbles(load(logs.folder).align().profile).steps.iter_rows(named=True)}
        for figures in (step for look in found for step in look.steps):
            row = expected[figures.step]
            assert (figures.start_ns, figures.pipeline_ns) == (row["start_ns"], row["pipeline_ns"])
            assert figures.bubble == pytest.approx(row["bubble"])
            assert figures.bubble_own == pytest.approx(row["bubble_own"])
        last = found[-1]
        assert last.run is not None
        assert whole.run is not None
        order = ["rank", "start_ns", "end_ns", "marker"]
        assert_frame_equal(
            last.run.profile.spans.select(SPANS).sort(order), whole.run.profile.spans.select(SPANS).sort(order)
        )
        assert pictures(last) == pictures(whole)
