"""Several devices of one process: a rank for each where names or devices tell them apart, else a refusal."""

import random
from collections.abc import Callable, Sequence
from pathlib import Path

import polars as pl
import pytest

import trace_export
from samples.generators import kineto, nsys
from samples.generators.kineto_trace import Trace
from samples.generators.nsys import Dialect, Plain, Torch
from samples.generators.nsys_export import Export as Nsys
from samples.generators.pipeline import MS, US, Block
from samples.generators.rocpd_export import Export as Rocpd
from tests.support.rows import crossed
from trace_export import Run
from trace_export.clocks.apply import task_batches
from trace_export.errors import TraceExportError

FORMATS: dict[str, tuple[Callable[[str, int], nsys.Recorder], str]] = {
    "nsys": (lambda host, job: Nsys(host=host), ".sqlite"),
    "rocpd": (lambda host, job: Rocpd(host=host, pid=4_000 + 11 * job), "_results.db"),
    "kineto": (lambda host, job: kineto.Recorder(Trace(rank=None, host=host)), ".1760000000000000000.pt.trace.json"),
}
EVERY = pytest.mark.parametrize("form", FORMATS)


class Numbered(Dialect):
    """F3 and B3, and nothing about steps or stages."""

    steps = False

    def block(self, block: Block, stage: int) -> str:
        return "Optimizer" if block.kind == "OPT" else f"{block.kind}{block.microbatch}"


def write(
    folder: Path, form: str, blocks: list[Block], dialect: Dialect, *, devices: int = 4, threads: bool = True
) -> None:
    """A file for each process, which is alone on its host and runs this many devices."""
    stages, chance = 1 + max(block.rank for block in blocks), random.Random(2)
    new, ending = FORMATS[form]
    recorders = [new(f"node{job}", job) for job in range(stages // devices)]
    ranks = [
        nsys.Rank(recorders[rank // devices], rank, 0, dialect=dialect, devices=devices, threads=threads)
        for rank in range(stages)
    ]
    nsys.fill(ranks, blocks, chance)
    if isinstance(dialect, Stepped):
        for rank in ranks:
            dialect.write_steps(rank, blocks)
    for job, recorder in enumerate(recorders):
        (folder / recorder.host).mkdir(parents=True, exist_ok=True)
        recorder.write(folder / recorder.host / f"{recorder.host}_{700 + job}{ending}")


def drawn(run: Run, rank: int) -> list[tuple[str, int, int]]:
    spans = run.spans.filter(rank=rank).sort("start_ns")
    first = run.spans["start_ns"].min()
    return [
        (kind, start - first, end - first) for kind, start, end in spans.select("kind", "start_ns", "end_ns").rows()
    ]


def true(blocks: list[Block], rank: int) -> list[tuple[str, int, int]]:
    first = min(block.start_ns for block in blocks)
    of_rank = sorted((b for b in blocks if b.rank == rank), key=lambda b: b.start_ns)
    return [(b.kind, b.start_ns - first, b.end_ns - first) for b in of_rank]


@pytest.mark.parametrize(("form", "dialect"), crossed(FORMATS, [Dialect(), Torch(), Numbered()]))
def test_each_device_is_a_rank(form: str, dialect: Dialect, tmp_path: Path) -> None:
    """Backwards are launched by a thread of the device's autograd engine, while ranges of other threads are open."""
    blocks = nsys.blocks_of(4, 6, 2, random.Random(1))
    write(tmp_path, form, blocks, dialect)
    run = trace_export.load(tmp_path, jobs=1)
    assert run.ranks.select("rank", "rank_origin", "device", "stage").rows() == [
        (n, "inferred", n, n) for n in range(4)
    ]
    for rank in range(4):
        assert drawn(run, rank) == true(blocks, rank)
    assert "each of its 4 devices is drawn as a rank" in " ".join(note.text for note in run.notes)
    assert run.profile.p2p.height == 2 * 6 * 2 * 3 * 2
    assert not {note.code for note in run.notes if note.level == "warning"}


class Stepped(Torch):
    """With a profiler that each device's thread steps after its optimizer."""

    steps = False

    def write_steps(self, rank: nsys.Rank, blocks: list[Block]) -> None:
        ends = [b.start_ns for b in blocks if b.rank == rank.rank and b.kind == "OPT"]
        begins = [min(b.start_ns for b in blocks) - MS, *ends[:-1]]
        for step, (start, end) in enumerate(zip(begins, ends, strict=True)):
            rank.range(start, end - US, f"ProfilerStep#{step}")


class Marked(Dialect):
    """Our own marks, which name a rank for each device; `names` says which."""

    split, steps = False, False

    def __init__(self, names: Sequence[int]) -> None:
        self.numbers = names

    def block(self, block: Block, stage: int) -> str:
        what = "Optimizer" if block.kind == "OPT" else f"{block.kind}{block.microbatch}"
        return f"te:{what} stage={stage} step={block.step} rank={self.numbers[stage]}"


@pytest.mark.parametrize(("form", "devices"), crossed(FORMATS, [2, 4]))
def test_marks_name_the_rank_of_each_device(form: str, devices: int, tmp_path: Path) -> None:
    blocks = nsys.blocks_of(4, 6, 2, random.Random(1), split=False)
    numbers = 7, 6, 5, 4
    write(tmp_path, form, blocks, Marked(numbers), devices=devices)
    run = trace_export.load(tmp_path, jobs=1)
    result = run.ranks.sort("rank").select("rank", "rank_origin", "device", "stage").rows()
    assert result == [(numbers[n], "recorded", n % devices, n) for n in (3, 2, 1, 0)]
    for stage, number in enumerate(numbers):
        assert drawn(run, number) == true(blocks, stage)
    assert "each of its" in " ".join(note.text for note in run.notes)


@EVERY
def test_marks_of_two_ranks_on_each_device_are_refused(form: str, tmp_path: Path) -> None:
    """What wrote them was one process, or several of one number: nothing tells which."""
    blocks = nsys.blocks_of(4, 6, 2, random.Random(1), split=False)
    new, ending = FORMATS[form]
    recorder = new("node0", 0)
    ranks = [nsys.Rank(recorder, stage, 0, dialect=Marked((0, 1, 2, 3)), process=4_000) for stage in range(4)]
    for rank in ranks:
        rank.device = rank.rank % 2
    nsys.fill(ranks, blocks, random.Random(2))
    recorder.write(tmp_path / f"node0_700{ending}")
    with pytest.raises(TraceExportError, match=r"marks of ranks (0, 2|1, 3) as those of one device") as error:
        trace_export.load(tmp_path, jobs=1)
    assert "wrote it" not in str(error.value)


@EVERY
def test_steps_of_a_device_are_those_of_its_thread(form: str, tmp_path: Path) -> None:
    """The last stage begins its next step while the first has backwards left."""
    blocks = nsys.blocks_of(4, 6, 3, random.Random(1), split=False)
    write(tmp_path, form, blocks, Stepped())
    result = trace_export.load(tmp_path, jobs=1).spans.group_by("rank", "step", "kind").len()
    wanted = {(rank, step, kind): 6 if kind != "OPT" else 1 for rank in range(4) for step in range(3) for kind in
              ("F", "B", "OPT")}  # fmt: skip
    assert {(rank, step, kind): count for rank, step, kind, count in result.iter_rows()} == wanted


@EVERY
def test_one_thread_that_launches_the_work_of_all_devices(form: str, tmp_path: Path) -> None:
    """Without overlap, as in a model that is split over devices: each range is of the device of its kernels."""
    blocks = nsys.blocks_of(4, 1, 3, random.Random(1), split=False)
    write(tmp_path, form, blocks, Plain(), threads=False)
    run = trace_export.load(tmp_path, jobs=1)
    assert run.ranks.select("rank", "device").rows() == [(n, n) for n in range(4)]
    for rank in range(4):  # the optimizers of all devices are launched at once
        result, wanted = ([row for row in rows if row[0] != "OPT"] for rows in (drawn(run, rank), true(blocks, rank)))
        assert result == wanted


@pytest.mark.parametrize(("form", "ranks"), crossed(FORMATS, [range(4), [2]]))
def test_device_tasks_are_those_of_the_device(form: str, ranks: Sequence[int], tmp_path: Path) -> None:
    blocks = nsys.blocks_of(4, 6, 2, random.Random(1))
    write(tmp_path / "in", form, blocks, Dialect())
    run = trace_export.load(tmp_path / "in", jobs=1, detail="kernels").align()
    profile, failures = run._with_device_tasks(list(ranks), tmp_path)
    assert failures == []
    for rank in ranks:
        tasks = pl.concat(task_batches(profile, rank)).filter(pl.col("category") == "compute").sort("start_ns")
        wanted = [time for b in blocks if b.rank == rank for time in (b.start_ns, b.end_ns)]
        first = min(b.start_ns for b in blocks)
        zero = run.spans["start_ns"].min()
        assert (tasks["start_ns"].min() - zero, tasks["end_ns"].max() - zero) == (
            min(wanted) - first,
            max(wanted) - first,
        )
        assert tasks.height == 4 * sum(b.rank == rank for b in blocks)


@pytest.mark.parametrize("more", [0, 1])
def test_processes_whose_one_thread_launches_for_all_devices_lose_none(more: int, tmp_path: Path) -> None:
    """Also where one device of each runs more kernels, which does not make its thread that of the device alone."""
    blocks = nsys.blocks_of(4, 6, 2, random.Random(1), split=False)
    export = Nsys()
    ranks = [
        nsys.Rank(export, rank, 0, kernels=4 if rank % 2 == more else 3, dialect=Plain(), devices=2, threads=False)
        for rank in range(4)
    ]
    nsys.fill(ranks, blocks, random.Random(2))
    export.write(tmp_path / "node0.sqlite")
    run = trace_export.load(tmp_path, jobs=1)
    for rank in range(4):
        assert drawn(run, rank) == true(blocks, rank)


def test_devices_of_a_process_with_a_rank_come_after_those_of_the_ranks_before_it(tmp_path: Path) -> None:
    """The rank that the trace records counts processes of two devices each; that of rank 0 is not there."""
    recorder = kineto.Recorder(Trace(rank=1, world=2, host="node1"))
    ranks = [nsys.Rank(recorder, rank, 0, dialect=Dialect(), devices=2, threads=True) for rank in range(2)]
    nsys.fill(ranks, nsys.blocks_of(2, 4, 2, random.Random(1)), random.Random(2))
    recorder.write(tmp_path / "node1_701.1760000000000000000.pt.trace.json")
    assert trace_export.load(tmp_path, jobs=1).ranks["rank"].to_list() == [2, 3]


def test_processes_with_the_same_devices_count_in_their_order(tmp_path: Path) -> None:
    """Whichever of its devices a process uses a little more."""
    blocks = [b for b in nsys.blocks_of(4, 6, 2, random.Random(1)) if (b.rank, b.step, b.kind) != (0, 1, "OPT")]
    export, chance = Nsys(host="node0"), random.Random(2)
    ranks = [nsys.Rank(export, rank, 0, dialect=Numbered(), devices=2) for rank in range(4)]
    nsys.fill(ranks, blocks, chance)
    export.write(tmp_path / "node0.sqlite")
    run = trace_export.load(tmp_path, jobs=1)
    assert run.ranks.select("rank", "device", "stage").rows() == [(0, 0, 0), (1, 1, 1), (2, 0, 2), (3, 1, 3)]
    for rank in range(4):
        assert drawn(run, rank) == true(blocks, rank)


@pytest.mark.parametrize(("form", "kinds"), crossed(FORMATS, ["FB", "F"]))
def test_blocks_that_work_on_all_devices_are_refused(form: str, kinds: str, tmp_path: Path) -> None:
    """As with nn.DataParallel: nothing tells whose a block of these `kinds` is."""
    new, ending = FORMATS[form]
    recorder = new("node0", 0)
    for number in range(6):
        for kind in "FB":
            at = 1_000_000 * (2 * number + (kind == "B") + 1)
            recorder.range(4_000, at, at + 500_000, f"{kind}{number}.0.0", thread=4_000)
            for device in range(4) if kind in kinds else [number % 4]:
                call = recorder.call(4_000, at + 1_000 * (device + 1), thread=4_000)
                recorder.kernel(4_000, at + 100_000, at + 300_000, call, device=device)
    recorder.write(tmp_path / f"node0_700{ending}")
    with pytest.raises(TraceExportError, match="one process runs several GPUs, and its blocks work on more than one"):
        trace_export.load(tmp_path, jobs=1)


@EVERY
def test_a_few_kernels_on_another_device_change_nothing(form: str, tmp_path: Path) -> None:
    new, ending = FORMATS[form]
    recorder = new("node0", 0)
    for number in range(30):
        at = 1_000_000 * (number + 1)
        recorder.range(4_000, at, at + 500_000, f"{'FB'[number % 2]}{number // 2}.0.0", thread=4_000)
        call = recorder.call(4_000, at + 1_000, thread=4_000)
        recorder.kernel(4_000, at + 100_000, at + 300_000, call, device=int(number == 7))
    recorder.write(tmp_path / f"node0_700{ending}")
    run = trace_export.load(tmp_path, jobs=1)
    assert run.ranks["rank"].to_list() == [0]
    assert run.spans.height == 30


@EVERY
def test_a_file_that_two_ranks_wrote_is_refused(form: str, tmp_path: Path) -> None:
    new, ending = FORMATS[form]
    recorder = new("node0", 0)
    for number in range(6):
        at = 1_000_000 * (number + 1)
        rank = 2 if number > 3 else 0
        recorder.range(4_000, at, at + 500_000, f"te:F{number}.0 stage={rank} step=0 rank={rank}", thread=4_000)
        call = recorder.call(4_000, at + 1_000, thread=4_000)
        recorder.kernel(4_000, at + 100_000, at + 300_000, call)
    recorder.write(tmp_path / f"node0_700{ending}")
    with pytest.raises(TraceExportError, match="holds marks of ranks 0, 2 as those of one process"):
        trace_export.load(tmp_path, jobs=1)


class Silent(Numbered):
    """Without a name on the blocks of some devices."""

    def __init__(self, *stages: int) -> None:
        self.stages = stages

    def names(self, block: Block, stage: int) -> list[str]:
        return [] if stage in self.stages else super().names(block, stage)

    def transfer(self, what: str, block: Block, stage: int) -> str:
        return f"data of {stage}"


@pytest.mark.parametrize(("form", "silent"), crossed(FORMATS, [(3,), (1, 2, 3), (0,)]))
def test_a_device_on_which_nothing_is_named_is_no_rank(form: str, silent: tuple[int, ...], tmp_path: Path) -> None:
    """Such as one that prepares data, or evaluates a model. A thread of the autograd engine launches its kernels while
    ranges of other devices are open: these have no part in it, and lost no kernel."""
    blocks = nsys.blocks_of(4, 6, 2, random.Random(1))
    write(tmp_path, form, blocks, Silent(*silent))
    run = trace_export.load(tmp_path, jobs=1, infer="off")
    named = [device for device in range(4) if device not in silent]
    assert run.ranks["device"].to_list() == named
    first = min(b.start_ns for b in blocks if b.rank in named)
    for rank in named:
        of_rank = sorted((b for b in blocks if b.rank == rank), key=lambda b: b.start_ns)
        assert drawn(run, rank) == [(b.kind, b.start_ns - first, b.end_ns - first) for b in of_rank]
    warnings = {note.code: note.text for note in run.notes if note.level == "warning"}
    assert (
        f"device{'s' * (len(silent) > 1)} {'1-3' if len(silent) > 1 else silent[0]}"
        in warnings["devices-without-blocks"]
    )
    assert "kernels-lost" not in warnings
    assert "compute-outside-blocks" not in warnings
