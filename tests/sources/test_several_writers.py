"""Files that several ranks wrote, where nothing in them says so: passes of one rank seem to run at the same time."""

import random
from collections.abc import Callable
from pathlib import Path

import pytest

import trace_export
from samples.generators import ascend, kineto, nsys
from samples.generators.ascend_export import Recording
from samples.generators.kineto_trace import Trace
from samples.generators.nsys_export import Export
from samples.generators.pipeline import one_f_one_b, simulate
from trace_export.errors import SourceError

STAGES = 4


class Plain(nsys.Plain):
    steps = False  # whose names have the rank


def _ranges(folder: Path, recorder: nsys.Recorder, name: str) -> None:
    """The ranks 0 and 2 of a run as one process on one device."""
    blocks = nsys.blocks_of(STAGES, 6, 2, random.Random(1), split=False)
    for rank in (0, 2):
        one = nsys.Rank(recorder, rank, 0, dialect=Plain(), process=4001)
        for block in (b for b in blocks if b.rank == rank):
            one.block(block, random.Random(rank))
    recorder.write(folder / name)


def _nsys(folder: Path) -> None:
    _ranges(folder, Export(), "node0.sqlite")


def _kineto(folder: Path) -> None:
    _ranges(folder, kineto.Recorder(Trace(world=STAGES)), "trace.json")


def _ascend(*, text: bool, marker: ascend.Marker = ascend.plain_marker) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        job, chance = ascend.Job(2, 4, 2, hosts=1, text=text, marker=marker), random.Random(1)
        run = simulate([one_f_one_b(stage, 2, 4) for stage in range(2)], ascend.TIMING, range(2), chance)
        one, other = (Recording(rank, 0, "node0", ascend.metadata(job, rank)) for rank in range(2))
        for rank in (one, other):
            ascend.fill(rank, job, run, ascend.EPOCH_NS)
            ascend.transfer(rank, job, run, ascend.EPOCH_NS, chance, ascend.Sides())
        one.marks += other.marks
        one.kernels += other.kernels
        one.operators += other.operators
        ascend.save(one, job, folder)

    return write


WRITERS = {
    "nsys": _nsys, "kineto": _kineto, "ascend": _ascend(text=False), "ascend, text": _ascend(text=True),
    "ascend without marks": _ascend(text=False, marker=ascend.no_marker),
    "ascend without marks, text": _ascend(text=True, marker=ascend.no_marker),
}  # fmt: skip


@pytest.mark.parametrize("capture", WRITERS)
def test_passes_of_several_ranks_in_one_file_are_refused(tmp_path: Path, capture: str) -> None:
    WRITERS[capture](tmp_path)
    with pytest.raises(
        SourceError, match=r"(begin while another one runs|run past the next one).*as where several ranks"
    ):
        trace_export.load(tmp_path)
