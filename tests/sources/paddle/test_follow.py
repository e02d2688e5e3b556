"""Logs that grow give the same blocks as logs that are whole, however they are cut."""

from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from polars.testing import assert_frame_equal

from samples.generators.paddle import Job, log, write_logs
from tests.support.one_source import read
from tests.support.paddle_jobs import JOBS
from trace_export.errors import SourceError
from trace_export.sources.find import find
from trace_export.sources.paddle.follow import Follower
from trace_export.sources.source import ReadOptions, Source

JOB = Job(stages=2, microbatches=4, steps=range(3, 7), communication=True)
COMPARED = ["rank", "step", "kind", "microbatch", "chunk", "start_ns", "end_ns", "marker", "origin"]


def last_steps(sources: list[Source], keep: int) -> pl.DataFrame:
    """What the reader says of the whole logs, of the last steps on each rank."""
    spans = pl.concat([read(source, ReadOptions()).spans for source in sources]).drop_nulls("step")
    kept = spans.filter(pl.col("step") > pl.col("step").max().over("rank") - keep)
    return kept.select(COMPARED).sort("rank", "start_ns")


def followed(follower: Follower) -> pl.DataFrame:
    return follower.profile().spans.select(COMPARED).sort("rank", "start_ns")


EVALUATED = {
    f"evaluated {before}": replace(JOB, steps=range(3, 6), evaluated=before) for before in ((4,), (3, 5), (4, 5, 6))
}


@settings(max_examples=10)
@given(data=st.data(), name=st.sampled_from([*sorted(JOBS), *EVALUATED]), keep=st.integers(1, 3))
def test_a_log_that_is_appended_to_in_pieces(data: st.DataObject, name: str, keep: int) -> None:
    with TemporaryDirectory() as folder:
        root = Path(folder)
        write_logs(root, (JOBS | EVALUATED)[name])
        sources = list(find(root).sources)
        texts = {source: source.path.read_bytes() for source in sources}
        follower = Follower(keep)
        for source in sources:
            source.path.write_bytes(b"")
        cuts = {s: sorted(data.draw(st.lists(st.integers(0, len(t)), max_size=4))) for s, t in texts.items()}
        for place in range(5):
            for source, text in texts.items():
                begin, end = ([0, *cuts[source]] + [len(text)] * 5)[place : place + 2]
                with source.path.open("ab") as file:
                    file.write(text[begin:end])
                follower.advance(source)
            if data.draw(st.booleans()):
                follower.profile()
        result = followed(follower)  # and steps that nobody has asked for yet
        result = result.filter(pl.col("step") > pl.col("step").max().over("rank") - keep)
        assert_frame_equal(result, last_steps(sources, keep))


def test_a_rank_whose_records_come_after_the_step_of_the_other_in_its_log_was_closed(tmp_path: Path) -> None:
    job = Job(stages=2, microbatches=4, steps=range(3, 6), announced=False)
    blocks = job.blocks()
    parts = [log(replace(job, steps=range(step, step + 1)), blocks, rank) for step in job.steps for rank in range(2)]
    path = tmp_path / "workerlog.0"
    path.write_text("".join(parts))
    (source,) = find(tmp_path).sources
    whole = last_steps([source], 9)
    assert whole["rank"].n_unique() == 2
    path.write_text("")
    follower = Follower(9)
    for part in parts:
        with path.open("a") as file:
            file.write(part)
        follower.advance(source)
        follower.profile()
    assert_frame_equal(followed(follower), whole)


@pytest.fixture
def source(tmp_path: Path) -> Source:
    write_logs(tmp_path, JOB)
    return next(source for source in find(tmp_path).sources if source.rank == 0)


def test_a_copy_with_more_goes_on(source: Source) -> None:
    """As rsync makes it: another file under the name, which begins with what was read."""
    text = source.path.read_bytes()
    half = text.index(b"start at step", text.index(b"start at step") + 20)
    source.path.write_bytes(text[:half])
    follower = Follower(9)
    follower.advance(source)
    copy = source.path.with_name("copy")
    copy.write_bytes(text)
    copy.replace(source.path)
    follower.advance(source)
    assert_frame_equal(followed(follower), last_steps([source], 9))


def test_a_rotated_log_keeps_the_steps_before(source: Source) -> None:
    text = source.path.read_bytes()
    half = text.index(b"start at step", text.index(b"start at step") + 20)
    half = text.rindex(b"\n", 0, half) + 1
    whole = last_steps([source], 9)
    source.path.write_bytes(text[:half])
    follower = Follower(9)
    follower.advance(source)
    source.path.unlink()
    source.path.write_bytes(text[half:])
    follower.advance(source)
    assert_frame_equal(followed(follower), whole)


def test_a_log_that_is_written_anew_replaces_what_it_said(source: Source) -> None:
    follower = Follower(9)
    follower.advance(source)
    again = Job(stages=2, microbatches=4, steps=range(3, 5), communication=True, seed=7)
    source.path.write_text(log(again, again.blocks(), 0))
    follower.advance(source)
    assert_frame_equal(followed(follower), last_steps([source], 9))


def test_memory_does_not_grow_with_the_steps(source: Source) -> None:
    """Only the last steps are kept, whatever was read before."""
    text = source.path.read_bytes()
    follower = Follower(2)
    sizes = []
    for end in range(len(text) // 8, len(text) + 1, len(text) // 8):
        source.path.write_bytes(text[:end])
        follower.advance(source)
        sizes.append(follower.profile().spans.height)
    assert max(sizes) == 2 * 9


def test_a_log_that_is_gone(source: Source) -> None:
    follower = Follower(2)
    follower.advance(source)
    source.path.unlink()
    with pytest.raises(SourceError, match="cannot be read"):
        follower.advance(source)
    assert follower.profile().spans.height == 2 * 9  # what was read stays
