"""Two stages whose blocks come in the order of two chunks of two micro-batches, and of the first stages of a longer
pipeline with four micro-batches."""

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from samples.generators import nsys, unmarked
from samples.generators.nsys_export import Export
from samples.generators.pipeline import Block, simulate
from tests.support.rows import crossed
from trace_export import Run, load

FORMATS: dict[str, dict[str, Any]] = {"nsys": {}, "kineto": {"kineto": True}, "rocpd": {"rocpd": True}}


def numbers(run: Run) -> list[tuple[int, int, str, int, int]]:
    passes = run.spans.filter(run.spans["kind"].is_in(["F", "B"]))
    return sorted(passes.select("rank", "start_ns", "kind", "microbatch", "chunk").iter_rows())


def true(blocks: Sequence[Block], ranks: Sequence[int], ahead_ns: int) -> list[tuple[Any, ...]]:
    read = (b for b in blocks if b.kind in "FB" and b.rank in ranks)
    return sorted((b.rank, b.start_ns + ahead_ns, b.kind, b.microbatch, b.chunk or 0) for b in read)


def ahead(run: Run, blocks: Sequence[Block]) -> int:
    first: int = run.spans["start_ns"].min()  # type: ignore[assignment]
    return first - min(b.start_ns for b in blocks)


@pytest.mark.parametrize("form", FORMATS)
def test_messages_tell_two_chunks_of_two_micro_batches(form: str, tmp_path: Path) -> None:
    program = unmarked.Program("interleaved", stages=2, microbatches=2)
    blocks = unmarked.write(tmp_path, program, **FORMATS[form])
    run = load(tmp_path)
    assert numbers(run) == true(blocks, [0, 1], ahead(run, blocks))
    assert "Interleaved 1F1B" in " ".join(note.text for note in run.notes)


@pytest.mark.parametrize(("kept", "microbatches"), crossed([(0, 1), (1, 2), (2, 3)], [4, 6]))
def test_two_stages_of_four(kept: tuple[int, int], microbatches: int, tmp_path: Path) -> None:
    program = unmarked.Program("1f1b", stages=4, microbatches=microbatches)
    blocks = unmarked.write(tmp_path, program, kineto=True)
    for rank in {0, 1, 2, 3} - set(kept):
        for path in tmp_path.glob(f"node0_{700 + rank}.*"):
            path.unlink()
    run = load(tmp_path)
    read = [b for b in blocks if b.rank in kept]
    assert numbers(run) == true(read, kept, ahead(run, read))


@pytest.mark.parametrize("chunks", [2, 3])
def test_without_messages_the_wait_for_the_first_backward_tells(chunks: int, tmp_path: Path) -> None:
    """The last of both stages begins its first backward at once, and waits where others follow it."""
    orders = [unmarked.interleaved(stage, 2, 2, chunks) for stage in range(2)]
    blocks = simulate(orders, unmarked.TIMING, range(2), random.Random(1), chunks=chunks).blocks
    export = Export()
    for rank in range(2):
        made = nsys.Rank(export, rank, 0, dialect=nsys.Plain())
        of_rank = [b for b in blocks if b.rank == rank]
        for block in of_rank:
            made.block(block, random.Random(1))
        made.steps(of_rank)
    export.write(tmp_path / "node0.sqlite")
    run = load(tmp_path)
    assert numbers(run) == true(blocks, [0, 1], ahead(run, blocks))
