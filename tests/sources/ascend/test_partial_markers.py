"""Markers that name forwards or backwards alone: the kernels show the others, or it is said that they are not drawn."""

from collections.abc import Callable
from pathlib import Path

import pytest

import trace_export
from samples.generators.ascend import Job, plain_marker, record
from samples.generators.pipeline import Block, Operation
from tests.support.rows import crossed
from trace_export.sources.ascend import database

NAMED: dict[str, Callable[[Block], bool]] = {
    "no backwards": lambda block: block.kind != "B",
    "backwards of the last stage alone": lambda block: block.kind != "B" or block.rank == 3,
    "forwards of the first stage alone": lambda block: block.kind != "F" or block.rank == 0,
}


def marked(named: Callable[[Block], bool]) -> Callable[[Block], str | None]:
    return lambda block: plain_marker(block) if named(block) else None


@pytest.mark.parametrize(("named", "text"), crossed(NAMED, [False, True]))
def test_the_passes_that_no_marker_names_are_inferred(named: str, text: bool, tmp_path: Path) -> None:
    truth = record(tmp_path, Job(marker=marked(NAMED[named]), text=text))
    run = trace_export.load(tmp_path, jobs=1)
    passes = run.spans.filter(run.spans["kind"].is_in(["F", "B"])).select(
        "rank", "kind", "step", "microbatch", "start_ns"
    )
    want = [(b.rank, b.kind, b.step, b.microbatch, b.start_ns) for b in truth.blocks if b.kind in ("F", "B")]
    drawn = sorted(passes.rows(), key=lambda row: (row[0], row[4]))
    assert [row[:4] for row in drawn] == [row[:4] for row in sorted(want, key=lambda row: (row[0], row[4]))]
    counts = [note.count for note in run.notes if note.code == "blocks-inferred"]
    assert sum(counts) == sum(not NAMED[named](b) for b in truth.blocks if b.kind in ("F", "B"))


def test_where_kernels_do_not_show_them_it_is_said(tmp_path: Path) -> None:
    """Of every second forward and no backward there is a marker: the kernels show twice as many."""
    record(tmp_path, Job(marker=marked(lambda block: block.kind == "F" and (block.microbatch or 0) % 2 == 0)))
    run = trace_export.load(tmp_path, jobs=1)
    texts = [note.text for note in run.notes if note.code == "names-partial"]
    assert len(texts) == 4
    assert all("no marker names backwards" in text for text in texts)
    assert set(run.spans["kind"]) == {"F"}


def test_a_run_of_forwards_alone_is_one(tmp_path: Path) -> None:
    record(tmp_path, Job(orders=[[Operation("F", m) for m in range(6)]] * 4))
    assert not [
        note for note in trace_export.load(tmp_path, jobs=1).notes if note.code in ("names-partial", "blocks-inferred")
    ]


@pytest.mark.parametrize("text", [False, True])
@pytest.mark.parametrize("unmarked", [{0}, {2}, {1, 3}])
def test_ranks_without_any_marker_have_the_steps_of_the_others(unmarked: set[int], text: bool, tmp_path: Path) -> None:
    truth = record(
        tmp_path, Job(marker=lambda block: None if block.rank in unmarked else plain_marker(block), text=text)
    )
    run = trace_export.load(tmp_path, jobs=1)
    result = run.spans.filter(run.spans["kind"].is_in(["F", "B"])).group_by("rank", "step", "kind").len().rows()
    assert {(rank, step): count for rank, step, kind, count in result if kind == "F"} == {
        (b.rank, b.step): 6 for b in truth.blocks if b.kind == "F"
    }
    assert "no-whole-step" not in {note.code for note in run.notes}


@pytest.mark.parametrize(("every", "steps", "text"), crossed([0, 3, 6], [None, 0], [False, True]))
def test_what_is_computed_in_passes_without_markers_is_told(
    every: int, steps: int | None, text: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of `every` so many micro-batches one has no marker. Without an index each task is looked at once."""
    if steps is not None:
        monkeypatch.setattr(database, "BUSY_STEPS", steps)

    def marker(block: Block) -> str | None:
        unmarked = every and block.kind in ("F", "B") and (block.microbatch or 0) % every == every - 2
        return None if unmarked else plain_marker(block)

    truth = record(tmp_path, Job(marker=marker, text=text))
    run = trace_export.load(tmp_path, jobs=1)
    told = sum(note.count for note in run.notes if note.code == "compute-outside-blocks")
    assert told == (4 if every else 0)
    passes = [block for block in truth.blocks if block.kind in ("F", "B")]
    for rank, outside in run.ranks.select("rank", "outside").iter_rows() if every else ():
        of_rank = [(b.end_ns - b.start_ns, marker(b) is None) for b in passes if b.rank == rank]
        share = sum(length for length, unmarked in of_rank if unmarked) / sum(length for length, _ in of_rank)
        assert outside == pytest.approx(share, abs=0.04)
