"""Why blocks are slow, by their kernels: what generators plant in the blocks of a rank, in the formats with kernels.

What each planted part takes is that of the simulated blocks, not of anything that the program says.
"""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import trace_export
from samples.generators.block_kernels import LAYERS, PRODUCTS, USUAL, Shape
from samples.generators.data_parallel import WRITERS, Job, Run, write_rocpd
from samples.generators.pipeline import MS
from tests.support.command import command
from tests.support.rows import seeds, slow
from trace_export.analysis.block_work import Asked, layers, sentence
from trace_export.answer import Sentence
from trace_export.model import INT, KERNELS, TEXT, TIME

FORMS = {"nsys": WRITERS["nsys"], "kineto": WRITERS["kineto"], "ascend": WRITERS["ascend"], "rocpd": write_rocpd}
JOB = Job(stages=4, microbatches=6, replicas=1, steps=3, clipped=False, gap=MS, receives="early")
LOSS = {"cunn_SoftMaxForward": 0.12, "nll_loss_forward_reduce_cuda_kernel_2d": 0.03}

SHAPES = {
    "more work": (Shape(more={"router_sort_kernel": 0.3}), {"more": 0.3}),
    "one product more": (Shape(more={"vocab_gemm": 0.3}), {"more": 0.3}),
    "head and loss": (Shape(more={"vocab_gemm": 0.2, **LOSS}), {"output": 0.2, "loss": 0.15}),
    "the loss most": (Shape(more={"vocab_gemm": 0.1, **LOSS}), {"output": 0.1, "loss": 0.15}),
    "embedding": (Shape(more={"embedding_backward_feature_kernel": 0.2}), {"embedding": 0.2}),
    "more layers": (Shape(layers=LAYERS + 1), {"layers": 1 / LAYERS}),
    "all slower": (Shape(slower=1.31), {"slower": 0.31}),
    "one pause": (Shape(gaps=0.25), {"gaps": 0.25}),
    "launches": (Shape(gaps=0.25, pauses=12), {"gaps": 0.25}),
    "slower, with gaps": (Shape(slower=1.2, gaps=0.15, pauses=3), {"slower": 0.2, "gaps": 0.15}),
    "more and slower": (
        Shape(slower=1.15, more={"router_sort_kernel": 0.2}),
        {"slower": 0.15, "more": 0.2},
    ),
    "layers, head and loss": (
        Shape(layers=LAYERS + 1, more={"vocab_gemm": 0.2, **LOSS}),
        {"layers": 1 / LAYERS, "output": 0.2, "loss": 0.15},
    ),
    "loss and another kernel": (
        Shape(more={"router_sort_kernel": 0.2, **LOSS}),
        {"loss": 0.15, "more": 0.2},
    ),
    "a head without a name, slow products": (
        Shape(products=1.3, more={"nvjet_tst_192x192_64x4_gemm": 0.2, **LOSS}),
        {"output": 0.2, "loss": 0.15, "kernel": 0.3 * PRODUCTS},
    ),
}  # fmt: skip


def why(folder: Path) -> Sentence:
    """The sentence on the blocks of the first cause, which stands below it."""
    verdict = trace_export.load(folder, detail="kernels").align().report().verdict
    at = next(n for n, said in enumerate(verdict) if said.code.startswith("slow-blocks"))
    assert verdict[at - 1].code in ("slow-stage", "slow-rank")
    assert not (verdict[at].next and verdict[at - 1].next)
    return verdict[at]


def per_step(run: Run, rank: int, shape: Shape) -> float:
    """What a usual block of the rank takes, all of a step together, in nanoseconds."""
    work = [b for b in run.blocks if b.rank == rank and b.kind != "OPT"]
    steps = {b.step for b in work}
    return sum(b.end_ns - b.start_ns for b in work) / shape.factor / len(steps)


def parts(facts: Mapping[str, Any]) -> dict[str, float]:
    sums: dict[str, float] = {}
    for part in facts["parts"]:
        sums[part["what"]] = sums.get(part["what"], 0.0) + part["ns"]
    return sums


WORDS = {
    "one product more": ["vocab_gemm,", "find out what launches"],
    "head and loss": ["in the output layer", "in the loss", "move layers"],
    "the loss most": ["fuse the loss"],
    "more layers": ["more layers (", "move layers"],
    "all slower": ["all kernels take 1.31 × as long", "clock rate"],
    "one pause": ["in one pause of a block"],
    "launches": ["launches late", "profile the CPU"],
}  # fmt: skip
"""What is said of some shapes."""


PAIRS = [(planted, form) for n, planted in enumerate(SHAPES) for form in (*FORMS, *FORMS)[n % 4 : n % 4 + 4]]


def check(said: Sentence, run: Run, rank: int, shape: Shape, expected: Mapping[str, float]) -> None:
    """Each part is within 3 % of the difference, and together they are that of the simulated blocks."""
    usual = per_step(run, rank, shape)
    more = said.facts["more_ns"]
    assert (said.code, said.facts["ranks"]) == ("slow-blocks", [rank])
    assert more == pytest.approx((shape.factor - 1) * usual, rel=0.03)
    result = parts(said.facts)
    assert sum(result.values()) == pytest.approx(more, abs=1)
    for what in {*result, *expected}:
        assert result.get(what, 0.0) == pytest.approx(expected.get(what, 0.0) * usual, abs=0.03 * more), (what, result)


@pytest.mark.parametrize(("planted", "form"), [*PAIRS[4::8], *slow(pair for n, pair in enumerate(PAIRS) if n % 8 != 4)])
def test_the_parts_are_what_was_planted(planted: str, form: str, tmp_path: Path) -> None:
    shape, expected = SHAPES[planted]
    rank = 1 if planted in WORDS else random.Random(planted + form).randrange(JOB.stages)
    run = FORMS[form](tmp_path / "run", replace(JOB, shapes={rank: shape}, jitter=0.002))
    said = why(tmp_path / "run")
    check(said, run, rank, shape, expected)
    text = f"{said.text} {said.next}"
    assert [word for word in WORDS.get(planted, []) if word not in text] == [], text


def mixture(seed: int) -> tuple[Shape, dict[str, float], str]:
    """A shape of up to three things at once, with the parts that it adds, and a format."""
    draw = random.Random(seed)
    what = draw.sample(["layers", "slower", "more", "head", "embedding", "gaps"], draw.choice((2, 2, 3)))
    layers = draw.choice((5, 6, 7)) if "layers" in what else LAYERS
    slower = draw.uniform(1.08, 1.6) if "slower" in what else 1.0
    gaps = draw.uniform(0.1, 0.4) if "gaps" in what else 0.0
    share = {name: draw.uniform(0.1, 0.3) for name in ("more", "output", "loss", "embedding")}
    names = ["router_sort_kernel", "permute_kernel<__nv_bfloat16, 8>", "_ZN3moe17topkGatingEv", "aclnnSort_Sort"]
    kernels = {"more": draw.choice(names), "embedding": "embedding_backward_feature_kernel"}
    more = {name: share[part] for part, name in kernels.items() if part in what}
    added = {part: share[part] for part in kernels if part in what}
    if "head" in what:
        of_loss = {name: part / 0.15 * share["loss"] for name, part in LOSS.items()}
        more |= {draw.choice(["vocab_gemm", "nvjet_tst_192x192_gemm"]): share["output"], **of_loss}
        added |= {"output": share["output"], "loss": share["loss"]}
    added |= {"gaps": gaps, "slower": (slower - 1) * layers / LAYERS, "layers": layers / LAYERS - 1}
    shape = Shape(layers=layers, more=more, slower=slower, gaps=gaps, pauses=draw.choice((1, 2, 7, 15)))
    return shape, added, draw.choice([*FORMS])


@pytest.mark.parametrize("seed", seeds(2, 60))
def test_mixtures(seed: int, tmp_path: Path) -> None:
    shape, added, form = mixture(seed)
    run = FORMS[form](tmp_path / "run", replace(JOB, shapes={seed % 4: shape}, jitter=0.005, seed=seed))
    check(why(tmp_path / "run"), run, seed % 4, shape, added)


def test_work_of_a_stage_is_moved_also_where_only_one_of_its_ranks_is_read(tmp_path: Path) -> None:
    """Then the rank is named and not the stage; its device is not to blame all the same."""
    job = replace(JOB, replicas=2)
    loss = SHAPES["the loss most"][0]
    WRITERS["nsys"](tmp_path / "run", replace(job, shapes={job.rank(a, 3): loss for a in range(2)}))
    one = [job.rank(0, stage) for stage in range(4)]
    report = trace_export.load(tmp_path / "run", ranks=one, detail="kernels").align().report()
    cause, said = report.verdict[:2]
    assert (cause.code, said.code) == ("slow-rank", "slow-blocks")
    assert "fuse the loss" in said.next
    assert "move layers" in said.next


@pytest.mark.parametrize("form", ["nsys", *slow(["kineto", "ascend"])])
def test_a_slow_rank_is_held_against_the_others_of_its_stage(form: str, tmp_path: Path) -> None:
    """Its stage has a loss that all of its ranks have; what is said is what it has more than they."""
    job = replace(JOB, replicas=3, stages=3, steps=3)
    loss = Shape(more={"vocab_gemm": 0.1, **LOSS})
    last = [job.rank(a, job.stages - 1) for a in range(job.replicas)]
    slower = Shape(slower=1.4, more={name: 1.4 * share for name, share in loss.more.items()})
    shapes = dict.fromkeys(last, loss) | {last[1]: slower}
    FORMS[form](tmp_path / "run", replace(job, shapes=shapes))
    document = json.loads(command("report", tmp_path / "run", "--detail", "kernels", "--json").stdout)
    said = [s for s in document["verdict"] if s["code"] == "slow-blocks" and s["facts"]["ranks"] == [last[1]]]
    assert len(said) == 1, [s["text"] for s in document["verdict"]]
    assert set(said[0]["facts"]["peers"]) == set(last) - {last[1]}
    assert said[0]["facts"]["parts"][0]["what"] == "slower"
    assert parts(said[0]["facts"])["slower"] == pytest.approx(said[0]["facts"]["more_ns"], rel=0.03)


@pytest.mark.parametrize("form", ["ascend", "rocpd", *slow(["nsys", "kineto"])])
def test_layers_are_counted_by_attention(form: str, tmp_path: Path) -> None:
    """In forwards, which have one kernel of it for each layer; a report then says how to split them better."""
    held = (5, 3, 4, 2)
    shapes = {stage: Shape(layers=count) for stage, count in enumerate(held)}
    FORMS[form](tmp_path / "run", replace(JOB, shapes=shapes))
    run = trace_export.load(tmp_path / "run", detail="kernels").align()
    (said,) = [each for each in run.report(layers="count").verdict if each.code == "layers"]
    assert tuple(said.facts["layers"]) == held
    assert (sum(said.facts["best"]), max(said.facts["best"])) == (14, 4)
    assert "flash_fwd_kernel" in said.facts["counted_by"]
    assert f"(counted by {said.facts['counted_by']})" in said.text


@pytest.mark.parametrize(("shared", "expected"), [(False, (2, 3, 1)), (True, None)])
def test_layers_are_counted_by_their_numbers_in_names(shared: bool, expected: Any) -> None:
    """Graphs of MindSpore name the cell of each kernel; numbers that begin anew on each stage tell no layers apart."""
    held, first, frames, blocks = (2, 3, 1), 0, {}, []
    for stage, count in enumerate(held):
        names = [
            f"Default/network-Model/layers-CellList/{n if shared else first + n}-Layer/block/{op}-op{n}"
            for n in range(count) for op in ("MatMul", "Softmax")
        ]  # fmt: skip
        rows = [("7", name, "compute", n * MS, (n + 1) * MS) for n, name in enumerate([*names, "Default/head-op1"])]
        frames[stage] = pl.DataFrame(rows, KERNELS, orient="row")
        blocks.append((stage, stage, None, 0, len(rows) * MS))
        first += count
    spans = pl.DataFrame(
        blocks, {"rank": INT, "stage": INT, "chunk": INT, "start_ns": TIME, "end_ns": TIME}, orient="row"
    )
    result = layers(spans, frames)
    assert (result and result[0]) == expected


def test_layers_that_cannot_be_counted(tmp_path: Path) -> None:
    WRITERS["nsys"](tmp_path / "run", replace(JOB, shapes=None))
    for detail, words in (
        ("kernels", "no attention kernel runs equally often"),
        ("spans", "no ranges name the passes and layers"),
    ):
        done = command("report", tmp_path / "run", "--layers", "count", "--detail", detail)
        assert done.returncode == 2
        assert words in " ".join(done.stderr.split())


def test_blocks_without_device_tasks(tmp_path: Path) -> None:
    WRITERS["table"](tmp_path / "run", replace(JOB, shapes={1: SHAPES["all slower"][0]}))
    assert why(tmp_path / "run").code == "slow-blocks-unknown"


def test_nothing_is_read_without_a_slow_block(tmp_path: Path) -> None:
    WRITERS["nsys"](tmp_path / "run", replace(JOB, shapes={1: USUAL}))
    document = json.loads(command("report", tmp_path / "run", "--detail", "kernels", "--json").stdout)
    assert not [said for said in document["verdict"] if said["code"].startswith("slow-")]


def test_streams_that_overlap_and_communication_that_is_waited_for() -> None:
    """By hand, in ms. The slow rank waits 2 for a collective inside the block, and its copy runs beside the product; a
    receive that was posted ahead runs all the time, and is nobody's wait."""
    blocks = [(0, 0, 10), (1, 0, 7)]
    tasks = {
        0: [("gemm", "compute", 0, 4), ("Memcpy HtoD", "memory", 1, 5), ("ncclAllReduce", "communication", 5, 7),
            ("gelu", "compute", 7, 10), ("ncclSendRecv", "communication", 0, 20)],
        1: [("gemm", "compute", 0, 3), ("Memcpy HtoD", "memory", 3, 4), ("gelu", "compute", 4, 7)],
    }  # fmt: skip
    spans = pl.DataFrame(
        [(rank, 0, 0, "F", None, a * MS, b * MS) for rank, a, b in blocks],
        {"rank": INT, "run": INT, "step": INT, "kind": TEXT, "chunk": INT, "start_ns": TIME, "end_ns": TIME},
        orient="row",
    )
    frames = {
        rank: pl.DataFrame([("7", name, of, a * MS, b * MS) for name, of, a, b in rows], KERNELS, orient="row")
        for rank, rows in tasks.items()
    }
    cause = {"code": "slow-rank", "ranks": [0]}
    later = {1: frames[1].with_columns(pl.col("start_ns", "end_ns") + 100 * MS)}  # in no block
    assert sentence(Asked(0, [0], [1]), cause, spans, frames | later, "").code == "slow-blocks-unknown"
    said = sentence(Asked(0, [0], [1]), cause, spans, frames, "")
    assert parts(said.facts) == {"communication": 2 * MS, "kernel": MS, "rest": 0}
    assert said.facts["more_ns"] == 3 * MS


@pytest.mark.parametrize("sample", ["ascend", "kineto", *slow(["nsys"])])
def test_reading_the_tasks_changes_nothing_else_that_is_said(samples: Path, sample: str) -> None:
    """The kernels of an optimizer that is not marked are seen only where tasks are read."""
    said = [
        json.loads(command("report", samples / sample, "--json", *more).stdout)
        for more in ([], ["--detail", "kernels"])
    ]
    for name in ("verdict", "levels", "causes", "steps", "stages", "idle"):
        assert said[0][name] == said[1][name], name
