"""The best split of the layers, by simulations of the same job with other splits and by trying all of them."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import trace_export
from samples.generators import nsys
from samples.generators.block_kernels import Shape
from samples.generators.data_parallel import WRITERS, Job, simulate
from samples.generators.layer_ranges import SPELLINGS, LayerRanges
from samples.generators.nsys_export import Export
from samples.generators.pipeline import MS, US
from tests.support.command import command
from tests.support.rows import crossed, seeds, slow
from trace_export.analysis.layer_ranges import layers
from trace_export.analysis.layers import SURE, Split, best_split, layout, modules, parse
from trace_export.errors import UsageError

LAYER = 0.25
"""Of the length of a block that the job states."""


def with_layers(job: Job, split: Split, embedding: float, head: float) -> Job:
    """The job with its blocks as long as this many layers, and the embedding and the head, which count in layers."""
    besides = [embedding, *[0.0] * (len(split) - 2), head]
    return replace(job, parts=tuple(LAYER * (n + more) for n, more in zip(split, besides, strict=True)))


def splits(layers: int, stages: int) -> list[Split]:
    """All splits with at least one layer on each stage."""
    cuts = combinations(range(1, layers), stages - 1)
    return [tuple(b - a for a, b in zip((0, *cut), (*cut, layers), strict=True)) for cut in cuts]


@pytest.mark.parametrize("seed", seeds(3, 8))
def test_the_best_split_is_that_of_all_simulations(seed: int, tmp_path: Path) -> None:
    """Its step is within 1 % of the shortest of all splits, and its gain is that of the simulation."""
    draw = random.Random(seed)
    stages, chunks = (3, 2) if seed >= 6 else (draw.choice((3, 4)), 1)
    parts = stages * chunks
    layers = 9 if chunks == 2 else stages * draw.choice((2, 3))
    job = Job(
        stages=stages, microbatches=6 if chunks == 2 else 8, replicas=1 if chunks == 2 else draw.choice((1, 2)),
        steps=2, gap=4 * MS, jitter=0.0, schedule="interleaved" if chunks == 2 else draw.choice(("1f1b", "gpipe")),
        receives="early", seed=seed,
    )  # fmt: skip
    extra = draw.uniform(0, 1), draw.uniform(0.5, 3)
    split = (layers // parts,) * parts if chunks == 1 else (2, 1, 2, 1, 2, 1)
    WRITERS["table"](tmp_path, with_layers(job, split, *extra))
    graph = trace_export.load(tmp_path)._bubbles.graph
    result = best_split(graph, split if chunks == 2 else (layers,), "layers", "loop" if chunks == 2 else None)
    true = {each: simulate(with_layers(job, each, *extra)).step_ns for each in splits(layers, parts)}
    assert true[result.best] <= 1.01 * min(true.values())
    assert result.gain_ns == pytest.approx(true[split] - true[result.best], rel=0.1, abs=0.002 * true[split])


def drawn(seed: int) -> tuple[Job, Split, tuple[float, float]]:
    """A job whose blocks and stages vary, how its layers lie, and what the embedding and the head are beside them."""
    draw = random.Random(seed)
    stages = draw.choice((3, 4, 6))
    schedule: Any = draw.choice(("1f1b", "gpipe", "zb-h1", "interleaved"))
    chunks = 2 if schedule == "interleaved" else 1
    backward = 4 if schedule == "zb-h1" else 8
    job = Job(
        stages=stages, microbatches=stages * draw.choice((2, 3)), replicas=draw.choice((1, 2)), steps=4, clipped=False,
        jitter=draw.choice((0, 0.01, 0.03)), spread=draw.choice((0, 0.01)), hop=draw.choice((100, 200, 400)) * US,
        receives=draw.choice(("early", "at once", "random")), schedule=schedule, seed=seed, forward=4 * MS // chunks,
        backward=backward * MS // chunks,
    )  # fmt: skip
    split = tuple(draw.choice((3, 4, 5)) if draw.random() < 0.4 else 4 for _ in range(stages * chunks))
    return job, split, (draw.uniform(0, 1), draw.uniform(0, 3))


@pytest.mark.parametrize("seeds", [range(10), pytest.param(range(10, 60), marks=pytest.mark.slow)])
def test_the_band_holds_nine_of_ten_jobs(seeds: range, tmp_path: Path) -> None:
    """Each job is simulated with the split that is said, and with other chances."""
    off = []
    for seed in seeds:
        job, split, extra = drawn(seed)
        now = WRITERS["table"](tmp_path / str(seed), with_layers(job, split, *extra)).step_ns
        graph = trace_export.load(tmp_path / str(seed)).align()._bubbles.graph
        result = best_split(graph, split, "layers", "loop" if job.chunks == 2 else None)
        after = simulate(replace(with_layers(job, result.best, *extra), seed=seed + 1000))
        off.append(result.gain - (1 - after.step_ns / now))
    assert sum(abs(each) <= SURE for each in off) >= 0.9 * len(off), sorted(off)
    assert max(map(abs, off)) <= 2 * SURE, sorted(off)


def test_a_layout_is_read_as_megatron_lm_writes_it() -> None:
    assert parse("80", "layers") == (80,)
    assert parse("17,20,22,21", "layers") == (17, 20, 22, 21)
    assert parse("Et*4|(t*7|)*5t*8|tmL", "layers") == (4, 7, 7, 7, 7, 7, 8, 1)
    assert parse(layout((9, 8, 8, 7)), "layers") == (9, 8, 8, 7)
    for wrong in ("", "a", "Et|x|L", "1,,2", "tt|tt"):
        with pytest.raises(UsageError):
            parse(wrong, "layers")


def test_the_modules_of_torchtitan_are_the_layers_in_order() -> None:
    """As in its documentation: the embedding first, norm and head last; the layers are numbered over all parts."""
    assert modules((2, 1)) == [["tok_embeddings", "layers.0", "layers.1"], ["layers.2", "norm", "lm_head"]]
    assert [len(part) for part in modules((9, 8, 8, 7))] == [10, 8, 8, 9]


def test_a_report_says_which_split_is_best(tmp_path: Path) -> None:
    """Three layers too many on the last stage: one goes to each of the others, as frameworks take it."""
    job = with_layers(Job(stages=4, steps=3, replicas=1, receives="early"), (8, 8, 8, 8), 0, 3)
    WRITERS["table"](tmp_path / "run", job)
    done = command("report", "run", "--layers", "32", "--json", cwd=tmp_path)
    said = next(each for each in json.loads(done.stdout)["verdict"] if each["code"] == "layers")
    best = said["facts"]["best"]
    assert sum(best) == 32
    assert best[-1] < 8
    assert said["facts"]["layout"] == layout(tuple(best))
    assert said["facts"]["modules"] == modules(tuple(best))
    after = simulate(with_layers(replace(job, parts=()), tuple(best), 0, 3)).step_ns
    assert said["facts"]["step_ns"] == pytest.approx(after, rel=SURE)
    assert "± 2.5 points" in said["text"]
    assert f"--num-layer-list {','.join(map(str, best))}" in said["next"]
    assert "--layers" in command("report", "run", "--layers", "33", cwd=tmp_path).stderr
    even = with_layers(Job(stages=4, steps=3, replicas=1, receives="early"), (8, 8, 8, 8), 0, 0)
    WRITERS["table"](tmp_path / "even", even)
    assert "No split into whole layers is better" in " ".join(
        command("report", "even", "--layers", "8,8,8,8", cwd=tmp_path).stdout.split()
    )


@pytest.mark.parametrize(("schedule", "code"), [("interleaved", 0), ("vee", 2)])
def test_chunks_in_a_v_have_the_loss_elsewhere(schedule: Any, code: int, tmp_path: Path) -> None:
    """In a V the last part is on the first stage: nothing is said rather than something wrong."""
    WRITERS["table"](tmp_path / "run", Job(stages=4, steps=3, replicas=1, schedule=schedule))
    done = command("report", "run", "--layers", "32", cwd=tmp_path)
    assert (done.returncode, "those of this run do not" in done.stderr) == (code, code == 2), done.stderr


def test_layers_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    WRITERS["table"](tmp_path / "a", Job(stages=3, replicas=1))
    WRITERS["table"](tmp_path / "b", Job(stages=2, replicas=1))
    with pytest.raises(UsageError, match="do not fit"):
        best_split(trace_export.load(tmp_path / "a")._bubbles.graph, (7,), "layers")
    with pytest.raises(UsageError, match="two parts"):
        best_split(trace_export.load(tmp_path / "b")._bubbles.graph, (8,), "layers")


HELD = (5, 3, 4, 2)
"""The layers of each stage in ranges; kernels have 4 of each."""
RANGED = Job(stages=4, microbatches=4, replicas=1, steps=2, receives="early", shapes={})
NAMES = {
    "fsdp": "FSDP::pre_forward", "megatron-fsdp": "MFSDP … forward", "megatron-overlapped": "layer_…f",
    "megatron": "self_attention", "modules": "nn.Module",
}  # fmt: skip
"""How it is said which ranges were counted."""


def counted(folder: Path, **options: Any) -> tuple[Split, str]:
    verdict = trace_export.load(folder, **options).align().report(layers="count").verdict
    (said,) = [each for each in verdict if each.code == "layers"]
    return tuple(said.facts["layers"]), said.facts["counted_by"]


@pytest.mark.parametrize(("form", "spelling"), crossed(["nsys", "kineto"], SPELLINGS, every=2))
def test_layers_are_counted_in_the_ranges_of_forwards(form: str, spelling: str, tmp_path: Path) -> None:
    """Also where the kernels say something else. Backwards repeat the ranges on the thread of the autograd engine."""
    WRITERS[form](tmp_path, replace(RANGED, layers=LayerRanges(HELD, spelling)))
    assert counted(tmp_path) == (HELD, f"the ranges {NAMES[spelling]}")
    if form == "kineto":
        assert counted(tmp_path, detail="kernels")[0] == HELD


@pytest.mark.parametrize("form", ["nsys", "kineto"])
@pytest.mark.parametrize("spelling", [*list(SPELLINGS)[:1], *slow(list(SPELLINGS)[1:])])
def test_the_ranges_of_layers_are_those_of_each_chunk(form: str, spelling: str, tmp_path: Path) -> None:
    held = (2, 3, 1, 4, 1, 2)
    job = replace(RANGED, stages=3, microbatches=6, schedule="interleaved", layers=LayerRanges(held, spelling))
    WRITERS[form](tmp_path, job)
    assert counted(tmp_path)[0] == held


BESIDE = {
    "fsdp": ("FSDP::pre_forward (visual.blocks.{})", "FSDP::pre_forward (mtp.layers.{})"),
    "megatron-fsdp": ("MFSDP module.vision.layers.{} forward", "MFSDP module.mtp.layers.{} forward"),
    "modules": ("nn.Module: VisionTransformerLayer_{}", "nn.Module: MtpDecoderLayer_{}"),
}
"""Layers of an encoder and those that predict further tokens."""


@pytest.mark.parametrize(("form", "spelling"), crossed(["nsys", "kineto"], BESIDE))
def test_layers_that_only_one_stage_has_are_no_layers_of_the_model(form: str, spelling: str, tmp_path: Path) -> None:
    first, last = ([name.format(n) for n in range(3)] for name in BESIDE[spelling])
    WRITERS[form](tmp_path, replace(RANGED, layers=LayerRanges(HELD, spelling, {0: first, 3: last})))
    assert counted(tmp_path)[0] == HELD


def test_layers_of_two_kinds_are_not_counted(tmp_path: Path) -> None:
    """Nothing says that they cost the same."""
    beside = {stage: ["nn.Module: MoeDecoderLayer_0"] for stage in range(4)}
    WRITERS["kineto"](tmp_path, replace(RANGED, layers=LayerRanges(HELD, "modules", beside)))
    with pytest.raises(UsageError, match="no ranges name the passes and layers"):
        counted(tmp_path)


@pytest.mark.parametrize("form", ["nsys", "kineto"])
def test_ranges_that_some_stages_lack_count_no_layers(form: str, tmp_path: Path) -> None:
    """Then kernels are counted, as without ranges."""
    shapes = {stage: Shape(layers=count) for stage, count in enumerate(HELD)}
    WRITERS[form](tmp_path, replace(RANGED, shapes=shapes, layers=LayerRanges((4, 4, 0, 4), "fsdp")))
    split, by = counted(tmp_path, detail="kernels")
    assert (split, "flash_fwd_kernel" in by) == (HELD, True)
    with pytest.raises(UsageError, match="no ranges name the passes and layers"):
        counted(tmp_path)


def test_forwards_that_overlap_on_the_host_count_no_layers() -> None:
    """By hand: of two threads of a process, whose layers time does not tell apart."""
    blocks = pl.DataFrame({"rank": 0, "stage": 0, "chunk": 0, "start_ns": [0, 100], "end_ns": [90, 190]})
    ranges = pl.DataFrame({"rank": 0, "start_ns": [5, 6, 95, 105, 185, 190], "marker": "a.self_attention"})
    assert layers(blocks, ranges) == ((2,), "the ranges self_attention")
    assert layers(blocks.with_columns(end_ns=pl.Series([110, 190])), ranges) is None


@pytest.mark.parametrize("unnamed", ["F", "FBW"])
def test_ranges_of_layers_beside_passes_without_names(unnamed: str, tmp_path: Path) -> None:
    """Nothing says where a forward began on the host."""
    job = replace(RANGED, layers=LayerRanges(HELD, "megatron"))
    dialect = nsys.Unnamed(*unnamed)
    ranks = [Export(host=f"node{rank}") for rank in range(4)]
    writers = [
        nsys.Rank(export, rank, 0, dialect=dialect, layers=job.layers, stages=4) for rank, export in enumerate(ranks)
    ]
    nsys.fill_met(writers, simulate(job), random.Random(1))
    for export in ranks:
        export.write(tmp_path / f"{export.host}.sqlite")
    with pytest.raises(UsageError, match="no ranges name the passes and layers"):
        counted(tmp_path)
