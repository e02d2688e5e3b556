"""Steps that are interpreted one by one, as their records come, are those of the whole logs."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import pytest
from polars.testing import assert_frame_equal

from tests.live.test_look import looks, steps
from tests.support.growing_logs import GrowingLogs
from tests.support.paddle_jobs import JOBS
from tests.support.rows import crossed
from trace_export import load
from trace_export.analysis.bubbles import Bubbles
from trace_export.live import window

NAMES = ("interleaved", "zb-v", "all forwards first", "zb-h1", "tensor and data parallel")
STEPS, LAST, PIECES = 5, 3, 3
SPANS = ["rank", "step", "kind", "microbatch", "chunk", "phase", "start_ns", "end_ns", "marker", "labels"]


@pytest.mark.parametrize(("name", "fit"), crossed(NAMES, (2, 1000), every=3))
def test_however_the_logs_were_appended_to(name: str, fit: int, tmp_path: Path) -> None:
    """Each log in pieces that end anywhere. `fit`: from how many steps the clocks are fitted."""
    job, draw = replace(JOBS[name], steps=range(STEPS), announced=False), random.Random(name)
    logs = GrowingLogs(tmp_path, job)
    texts = ["".join(logs.text(rank, step) for step in job.steps).encode() for rank in range(job.ranks)]
    cuts = [[0, *sorted(draw.randrange(len(text)) for _ in range(PIECES)), len(text)] for text in texts]

    def append(piece: int) -> None:
        for rank, (text, ends) in enumerate(zip(texts, cuts, strict=True)):
            with logs.path(rank).open("ab") as file:
                file.write(text[ends[piece] : ends[piece + 1]])

    with patch.multiple(window, FIT_STEPS=fit, ONE_CLOCK_STEPS=fit):
        append(0)
        result = looks(logs.folder, [lambda n=n: append(n) for n in range(1, PIECES + 1)], last=LAST)  # type: ignore[misc]
        whole = looks(logs.folder, [], last=LAST)[-1]
    reported = steps(result)
    assert reported == list(range(int(reported[0] or 0), STEPS))  # each once, in order
    expected = {row["step"]: row for row in Bubbles(load(logs.folder).align().profile).steps.iter_rows(named=True)}
    for figures in (step for look in result for step in look.steps):
        row = expected[figures.step]
        assert (figures.start_ns, figures.pipeline_ns) == (row["start_ns"], row["pipeline_ns"])
        assert figures.bubble == pytest.approx(row["bubble"])
        assert figures.bubble_own == pytest.approx(row["bubble_own"])
    last = result[-1]
    assert last.run is not None
    assert whole.run is not None
    order = ["rank", "start_ns", "end_ns", "marker"]
    assert_frame_equal(
        last.run.profile.spans.select(SPANS).sort(order), whole.run.profile.spans.select(SPANS).sort(order)
    )
