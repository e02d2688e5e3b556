"""What is peculiar to databases of rocprofv3 in which no pass is named."""

from pathlib import Path

import trace_export
from samples.generators.pipeline import Block
from samples.generators.unmarked import Program, write
from tests.inference.test_captures import table
from tests.inference.tools import SMALL, Rows, profiles, spans, truth
from tests.support.databases import changing
from trace_export.model import Profile


def of(folder: Path, rank: int) -> Profile:
    return profiles("rocpd", folder)[rank]


def of_rank(blocks: list[Block], rank: int) -> Rows:
    return truth("rocpd", [block for block in blocks if block.rank == rank])


def test_a_kernel_that_runs_past_the_next_one_is_cut_and_one_before_its_launch_left_out(tmp_path: Path) -> None:
    """The first kernels of two forwards: the one keeps its times, the other begins with its second kernel."""
    blocks = write(tmp_path, SMALL, rocpd=True)
    long, early = (
        next(b for b in blocks if (b.rank, b.kind, b.microbatch, b.step) == (1, "F", number, 1)) for number in (2, 4)
    )
    with changing(tmp_path / "4011_results.db") as db:
        kernels = table(db, "kernel_dispatch")
        db.execute(f'UPDATE {kernels} SET "end" = "end" + 3000000000 WHERE start = {long.start_ns}')
        shifted = 'SET start = start - 300000000, "end" = "end" - 300000000'
        assert db.execute(f"UPDATE {kernels} {shifted} WHERE start = {early.start_ns}").rowcount == 1
    profile = of(tmp_path, 1)
    ((_, kind, first, last),) = set(spans(profile)) - set(of_rank(blocks, 1))
    assert isinstance(first, int)
    assert early.start_ns < first < early.end_ns
    assert (kind, last, len(spans(profile))) == ("F", early.end_ns, len(of_rank(blocks, 1)))
    notes = {note.code: (note.level, note.count) for note in profile.notes}
    assert notes["tasks-past-next"] == notes["tasks-before-launch"] == ("warning", 1)


def test_stages_micro_batches_and_the_schedule_follow(tmp_path: Path) -> None:
    blocks = write(tmp_path, Program(), rocpd=True)
    run = trace_export.load(tmp_path)
    result = run.spans.sort("rank", "end_ns")
    wanted = sorted((b.rank, b.end_ns, b.kind, b.microbatch) for b in blocks)
    labels = [(rank, kind, number) for rank, _, kind, number in wanted]
    assert result.select("rank", "kind", "microbatch").rows() == labels
    assert run.ranks.sort("rank")["stage"].to_list() == [0, 1, 2, 3]
    (note,) = [note.text for note in run.notes if note.code == "schedule-recognised"]
    assert "exactly that of 1F1B" in note


def test_transfers_are_told_from_collectives_by_the_calls_of_rccl(tmp_path: Path) -> None:
    """The kernels of both have one name. Without recorded calls the waits of the host separate the passes."""
    blocks = write(tmp_path, SMALL, rocpd=True)
    with changing(tmp_path / "4000_results.db") as db:
        strings, regions = table(db, "string"), table(db, "region")
        db.execute(f"DELETE FROM {regions} WHERE name_id IN (SELECT id FROM {strings} WHERE string GLOB 'nccl*')")
    without = of(tmp_path, 0)
    assert spans(without) == of_rank(blocks, 0)
    assert without.p2p.is_empty()
    (note,) = [note.text for note in without.notes if note.code == "blocks-inferred"]
    assert "waits of the host" in note
    assert of(tmp_path, 1).p2p.height > 0


def test_only_whole_times_count(tmp_path: Path) -> None:
    """Kernels of invalid times are left out, as in marked databases."""
    blocks = write(tmp_path, Program(stages=2, microbatches=4), rocpd=True)
    with changing(tmp_path / "4000_results.db") as db:
        db.execute(f'UPDATE {table(db, "kernel_dispatch")} SET "end" = start - 5 WHERE rowid % 50 = 0')
    result = {(kind, start) for _, kind, start, _ in spans(of(tmp_path, 0))}
    assert len(result & {(kind, start) for _, kind, start, _ in of_rank(blocks, 0)}) > 8
