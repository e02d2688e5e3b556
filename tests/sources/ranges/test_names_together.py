"""Names of several runtimes in one capture, in every format whose blocks are named ranges."""

import random
from pathlib import Path

import pytest

import trace_export
from samples.generators import nsys
from samples.generators.pipeline import Block, Timing, simulate
from tests.support.captures import CAPTURES, drawn, truth
from tests.support.mindspeed import dualpipev
from tests.support.rows import crossed

ZERO_BUBBLE, TORCH, DEEPSPEED, PLAIN, MEGATRON = (
    nsys.Dialect(), nsys.Torch(), nsys.DeepSpeed(), nsys.Plain(), nsys.Megatron()
)  # fmt: skip
STAGES = 4
PROGRAMS = {
    "plain passes, weight gradients of a store": nsys.Together(STAGES, [(MEGATRON, {"F", "B", "W", "OPT"})]),
    "plain backwards around the engine of DeepSpeed": nsys.Together(
        STAGES, [(PLAIN, {"F", "B", "OPT"}), (DEEPSPEED, {"F"})], [(DEEPSPEED, {"B"})]
    ),
    "forwards of one, backwards of another": nsys.Together(STAGES, [(DEEPSPEED, {"F"}), (PLAIN, {"B", "OPT"})]),
    "weight gradients of the zero-bubble runtime": nsys.Together(
        STAGES, [(PLAIN, {"F", "B"}), (ZERO_BUBBLE, {"W", "OPT"})]
    ),
    "all of two": nsys.Together(STAGES, [(PLAIN, {"F", "B", "OPT"}), (ZERO_BUBBLE, {"F", "B", "W", "OPT"})]),
}


def split(dialect: nsys.Together) -> bool:
    """Whether weight gradients have names."""
    return any("W" in kinds for _, kinds in dialect.parts)


@pytest.mark.parametrize(("program", "capture"), crossed(PROGRAMS, CAPTURES))
def test_names_of_several_runtimes_complement_each_other(tmp_path: Path, program: str, capture: str) -> None:
    dialect = PROGRAMS[program]
    blocks = nsys.blocks_of(STAGES, 6, 2, random.Random(3), split=split(dialect))
    epoch = CAPTURES[capture](tmp_path, blocks, dialect)
    run = trace_export.load(tmp_path)
    assert drawn(run.profile) == truth(blocks, epoch)
    assert not [note for note in run.notes if note.code == "names-unused"]


@pytest.mark.parametrize("capture", CAPTURES)
def test_other_work_by_a_weaker_name_is_counted_with_the_option_that_draws_it(tmp_path: Path, capture: str) -> None:
    """Forwards of a reference model, which the runtime does not name, have a plain name beside its own."""
    blocks = nsys.blocks_of(STAGES, 4, 2, random.Random(3))
    length = max(b.end_ns for b in blocks)
    other = [Block(rank, 9, "F", m, length + (4 * rank + m) * 10**6, length + (4 * rank + m) * 10**6 + 500_000)
             for rank in range(STAGES) for m in range(3)]  # fmt: skip

    class Two(nsys.Dialect):
        def block(self, block: Block, stage: int) -> str:
            return "Forward" if block.step == 9 else super().block(block, stage)

    epoch = CAPTURES[capture](tmp_path, [*blocks, *other], Two())
    run = trace_export.load(tmp_path)
    assert drawn(run.profile) == truth(blocks, epoch)
    notes = [note for note in run.notes if note.code == "names-unused"]
    assert sum(note.count for note in notes) == len(other)
    assert {note.level for note in notes} == {"warning"}
    assert all("--marker 'Forward=>F'" in note.text for note in notes)
    named = trace_export.load(tmp_path, markers=["Forward=>F"])
    assert named.spans.height == len(blocks) + len(other)


@pytest.mark.parametrize("capture", CAPTURES)
def test_the_users_rules_count_beside_our_own_marks(tmp_path: Path, capture: str) -> None:
    blocks = nsys.blocks_of(STAGES, 4, 2, random.Random(3))

    class Marked(nsys.Dialect):
        def block(self, block: Block, stage: int) -> str:
            if block.kind == "W":
                return "my weights"
            name = "Optimizer" if block.kind == "OPT" else f"{block.kind}{block.microbatch}"
            return f"te:{name} stage={stage} step={block.step} rank={stage}"

    epoch = CAPTURES[capture](tmp_path, blocks, Marked())
    wanted = [row if row[2] != "W" else (*row[:3], None, *row[4:]) for row in truth(blocks, epoch)]
    result = trace_export.load(tmp_path, markers=["my weights=>W"]).profile
    rows = [row if row[2] != "W" else (*row[:3], None, *row[4:]) for row in drawn(result)]
    assert sorted(rows, key=str) == sorted(wanted, key=str)


@pytest.mark.parametrize("capture", CAPTURES)
def test_pithtrain(tmp_path: Path, capture: str) -> None:
    """Its names say micro-batch and chunk, and its setup rank, stage and sizes."""
    stages, microbatches = 2, 6
    timing = Timing({"F": 10**6, "B": 2 * 10**6, "FB": 25 * 10**5, "W": 4 * 10**5, "OPT": 10**6}, 10**5, lead=10**5)
    orders = [[op for op, *_ in stage if op.kind != "L"] for stage in dualpipev(stages, microbatches)]
    blocks = simulate(orders, timing, range(1), random.Random(1), chunks=2, vee=True).blocks

    ranks = [0, 1] if capture == "kineto" else [1, 3]  # torch.profiler records them itself

    class Setup(nsys.PithTrain):
        def names(self, block: Block, stage: int) -> list[str]:
            of_rank = [b for b in blocks if b.rank == block.rank]
            setup = f"rank={ranks[stage]}; pp={stage}/2 dp=1/2 cp=0/1 ep=0/1; mbs=1 seq=2048"
            return [*([setup] if block is of_rank[0] else []), *super().names(block, stage)]

    epoch = CAPTURES[capture](tmp_path, blocks, Setup())
    run = trace_export.load(tmp_path)
    assert run.ranks.sort("rank").select("stage", "stage_origin").rows() == [(0, "recorded"), (1, "recorded")]
    columns = ["kind", "microbatch", "chunk", "microbatch_b", "chunk_b", "start_ns", "end_ns"]
    wanted = [
        (b.kind, *((None, None) if b.kind in ("W", "OPT") else (b.microbatch, b.chunk)), b.microbatch_b, b.chunk_b,
         b.start_ns + epoch, b.end_ns + epoch) for b in blocks
    ]  # fmt: skip
    assert sorted(run.spans.select(columns).rows(), key=str) == sorted(wanted, key=str)
    declared = run.profile.declared
    assert (declared.pp, declared.dp, declared.cp, declared.placement) == (2, 2, 1, "vee")
    assert run.profile.interpreted.placement == "vee"
    assert run.profile.interpreted.recognition.plan is not None
    assert run.profile.interpreted.recognition.plan.name.startswith("dualpipev")
    assert run.ranks.sort("rank").select("rank", "rank_origin").rows() == [(rank, "recorded") for rank in ranks]
