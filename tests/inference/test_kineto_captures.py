"""Traces of torch.profiler in which no pass is named: every block that is found is that of the truth."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest

import trace_export
from samples.generators.kineto_trace import MAIN, Trace
from samples.generators.pipeline import Block
from samples.generators.unmarked import AUTOGRAD, Program, write
from trace_export.errors import SourceError
from trace_export.model import Profile
from trace_export.sources.kineto import unmarked
from trace_export.sources.ranges.ranges import Ranges
from trace_export.sources.read import read
from trace_export.sources.source import ReadOptions, Source

SMALL = Program(stages=3, microbatches=6, layers=1)
"""One stage of each kind: the first, one between, the last."""
PROGRAMS = {
    "1f1b": SMALL,
    "with varying experts": replace(SMALL, experts=True, varying=True),
    "graphs of layers": replace(SMALL, graphs=True),
    "through the host": replace(SMALL, host_transfers=True),
    "with operators": replace(SMALL, operators=True),
}


def of(folder: Path, rank: int, **options: object) -> Profile:
    path = next(folder.glob(f"node0_{700 + rank}.*.json.gz"))
    return read(Source("kineto", path, "node0"), ReadOptions(**options)).validate()  # type: ignore[arg-type]


def spans(profile: Profile) -> list[tuple[object, ...]]:
    return sorted(profile.spans.select("kind", "start_ns", "end_ns").rows())


def truth(blocks: list[Block], rank: int) -> list[tuple[object, ...]]:
    base = Trace.base_ns or 0
    return sorted((b.kind, b.start_ns + base, b.end_ns + base) for b in blocks if b.rank == rank)


@pytest.mark.parametrize(("name", "threads"), [*((name, True) for name in PROGRAMS), ("1f1b", False)])
def test_blocks_of_an_unmarked_trace_are_exact(tmp_path: Path, name: str, threads: bool) -> None:
    blocks = write(tmp_path, PROGRAMS[name], threads=threads, kineto=True)
    for rank in range(PROGRAMS[name].stages):
        profile = of(tmp_path, rank)
        assert spans(profile) == truth(blocks, rank), rank
        assert set(profile.spans["origin"]) == {"inferred"}
        assert profile.spans["marker"].null_count() == profile.spans.height


def test_in_traces_of_2021_the_nodes_name_the_thread_of_autograd(tmp_path: Path) -> None:
    """They name no thread, and number no operator."""
    blocks = write(tmp_path, replace(SMALL, operators=True), kineto="2021", threads=False)
    for rank in range(SMALL.stages):
        path = next(tmp_path.glob(f"node0_{700 + rank}.*.json.gz"))
        assert unmarked.read_process(path, Ranges.none()).named == {MAIN + AUTOGRAD}
        assert spans(of(tmp_path, rank)) == truth(blocks, rank)


def test_a_kernel_that_lasts_for_years_is_left_out_with_a_warning(tmp_path: Path) -> None:
    blocks = write(tmp_path, SMALL, kineto=True)
    hit = next(b for b in blocks if (b.rank, b.kind, b.microbatch) == (1, "F", 3))
    path = next(tmp_path.glob("node0_701.*.json.gz"))
    events = json.loads(gzip.decompress(path.read_bytes()))
    base = Trace.base_ns or 0
    (last,) = (
        e for e in events["traceEvents"]
        if e.get("cat") == "kernel" and round((e["ts"] + e["dur"]) * 1000) == hit.end_ns
    )  # fmt: skip
    last["dur"] = 3e13
    path.write_bytes(gzip.compress(json.dumps(events).encode()))
    profile = of(tmp_path, 1)
    ((kind, first, end),) = set(spans(profile)) - set(truth(blocks, 1))
    assert (kind, first) == ("F", hit.start_ns + base)
    assert isinstance(end, int)
    assert hit.start_ns + base < end < hit.end_ns + base
    (note,) = [note for note in profile.notes if note.code == "times-unusable"]
    assert (note.level, note.count) == ("warning", 1)


@pytest.mark.parametrize("name", ["1f1b", "with varying experts"])
def test_the_same_rules_hold_for_hip_and_rccl(tmp_path: Path, name: str) -> None:
    blocks = write(tmp_path, replace(PROGRAMS[name], waits=False), rocm=True)
    for rank in range(PROGRAMS[name].stages):
        profile = of(tmp_path, rank)
        assert spans(profile) == truth(blocks, rank), rank
        assert profile.p2p.height > 0


@pytest.mark.parametrize("kineto", [False, True], ids=["nsys", "kineto"])
def test_on_one_thread_sequence_numbers_tell_forwards_from_backwards(tmp_path: Path, kineto: bool) -> None:
    blocks = write(tmp_path, replace(SMALL, one_thread=True, operators=True), kineto=kineto)
    found = trace_export.load(tmp_path).spans
    columns = ("rank", "kind", "microbatch", "start_ns", "end_ns")
    base = Trace.base_ns or 0
    wanted = [(b.rank, b.kind, b.microbatch, b.start_ns + base, b.end_ns + base) for b in blocks]
    assert sorted(found.select(columns).rows(), key=str) == sorted(wanted, key=str)
    assert found["origin"].unique().to_list() == ["inferred"]


def test_the_fill_between_two_backwards_of_the_last_stage_is_the_later_ones(tmp_path: Path) -> None:
    """Rank 0 has the last stage of the V, and runs its backwards one after another."""
    blocks = write(tmp_path, Program(schedule="vee", tokens=False, operators=True), kineto=True)
    assert spans(of(tmp_path, 0)) == truth(blocks, 0)


def test_names_count_where_there_are_any(tmp_path: Path) -> None:
    blocks = write(tmp_path, replace(SMALL, marked=frozenset(range(3))), kineto=True)
    for options, origin in (({}, "device"), ({"infer": "off"}, "device"), ({"infer": "only"}, "inferred")):
        profile = of(tmp_path, 1, **options)
        assert spans(profile) == truth(blocks, 1)
        assert set(profile.spans["origin"]) == {origin}


def test_a_program_of_one_thread_is_refused(tmp_path: Path) -> None:
    write(tmp_path, replace(SMALL, one_thread=True), kineto=True)
    words = "no pass is named, and they cannot be found from the launches: one thread launches everything"
    with pytest.raises(SourceError, match=words):
        of(tmp_path, 0)
    with pytest.raises(SourceError, match="no annotation is named like a pipeline block"):
        of(tmp_path, 0, infer="off")


def test_the_step_and_the_optimizer_are_those_of_pytorchs_own_ranges(tmp_path: Path) -> None:
    trace = Trace()
    for step in range(3):
        at = 1_000_000 * (step + 1)
        trace.range(at, at + 900_000, f"ProfilerStep#{step + 7}")
        for number, (name, thread) in enumerate(
            [("gemm", 4001), ("norm", 4001), ("gemm", 4010), ("gemm_b", 4010), ("my_update", 4001), ("other", 4001)]
        ):
            launch = at + 10_000 * (number + 1)
            trace.kernel(launch + 5_000, launch + 14_000, trace.call(launch, thread=thread), name=name)
        trace.range(at + 49_000, at + 69_000, "Optimizer.step#Mine.step")
    trace.name_thread(4010, "thread 4010 (pt_autograd_0)")
    path = trace.write(tmp_path / "rank0.pt.trace.json")
    spans = read(Source("kineto", path, "node0"), ReadOptions()).spans
    assert spans.select("kind", "step").rows() == [(kind, step) for step in (7, 8, 9) for kind in ("F", "B", "OPT")]
    assert spans.filter(pl.col("kind") == "OPT")["end_ns"].to_list() == [
        (Trace.base_ns or 0) + 1_000_000 * step + 74_000 for step in (1, 2, 3)
    ]


def test_a_process_of_two_gpus_is_refused(tmp_path: Path) -> None:
    trace = Trace()
    for number in range(40):
        at = 1_000_000 + 10_000 * number
        call = trace.call(at, thread=4001 if number % 4 < 2 else 4010)
        trace.kernel(at + 1_000, at + 9_000, call, name=f"gemm_{number % 4}", device=number % 2)
    trace.name_thread(4010, "thread 4010 (pt_autograd_0)")
    path = trace.write(tmp_path / "rank0.pt.trace.json")
    with pytest.raises(SourceError, match="one process runs several GPUs"):
        read(Source("kineto", path, "node0"), ReadOptions())
