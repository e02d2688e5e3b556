"""Rules of the user, in every format with named ranges: what they reach, and what is said of those that match
nothing."""

import random
import shutil
from pathlib import Path

import polars as pl
import pytest

import trace_export
from samples.generators import nsys
from samples.generators.kineto_trace import MAIN, Trace
from samples.generators.pipeline import Block
from samples.generators.unmarked import Program, write
from tests.conftest import AscendRun
from tests.support.captures import CAPTURES, drawn, truth
from tests.support.databases import changing
from tests.support.torch_traces import loaded, times
from trace_export.errors import SourceError, TraceExportError


class Own(nsys.Plain):
    """Names of a program that no rule of ours knows."""

    def block(self, block: Block, stage: int) -> str:
        return {"F": f"fwd of mb {block.microbatch}", "B": f"bwd of mb {block.microbatch}", "OPT": "update"}[block.kind]


RULES = [r"fwd of mb (?P<microbatch>\d+)=>F", r"bwd of mb (?P<microbatch>\d+)=>B", "update=>OPT"]


@pytest.mark.parametrize("capture", CAPTURES)
def test_a_rule_that_matches_nothing_is_named(tmp_path: Path, capture: str) -> None:
    blocks = nsys.blocks_of(4, 4, 2, random.Random(3), split=False)
    epoch = CAPTURES[capture](tmp_path, blocks, Own())
    run = trace_export.load(tmp_path, markers=[*RULES, "recompute=>SKIP", "iteration .*=>STEP"])
    assert drawn(run.profile) == truth(blocks, epoch)
    said = {note.text for note in run.notes if note.code == "marker-unmatched"}
    assert said == {
        f"--marker '{rule}' matches no name of a range" for rule in ("recompute=>SKIP", "iteration .*=>STEP")
    }
    assert not [note for note in trace_export.load(tmp_path, markers=RULES).notes if note.code == "marker-unmatched"]


@pytest.mark.parametrize("capture", ["kineto", "rocpd"])
def test_a_rule_need_match_in_one_of_the_sources_only(tmp_path: Path, capture: str) -> None:
    """The first stage calls its embedding by a name that no other stage has."""
    blocks = nsys.blocks_of(4, 4, 2, random.Random(3), split=False)

    class Embedding(nsys.Plain):
        def block(self, block: Block, stage: int) -> str:
            return "embedding" if stage == 0 and block.kind == "F" else super().block(block, stage)

    epoch = CAPTURES[capture](tmp_path, blocks, Embedding())
    run = trace_export.load(tmp_path, markers=["embedding=>F", "absent=>F"])
    assert drawn(run.profile) == truth(blocks, epoch)
    assert [n.text for n in run.notes if n.code == "marker-unmatched"] == [
        "--marker 'absent=>F' matches no name of a range"
    ] * 4


@pytest.mark.parametrize("capture", CAPTURES)
def test_a_refusal_names_the_rules_that_matched_nothing(tmp_path: Path, capture: str) -> None:
    CAPTURES[capture](tmp_path, nsys.blocks_of(1, 4, 2, random.Random(3), split=False), Own())
    with pytest.raises(TraceExportError, match="no name is matched by `markers` 'absent=>F'"):
        trace_export.load(tmp_path, markers=["absent=>F"], infer="off")


@pytest.mark.parametrize("pieces", [1 << 22, 500])
def test_rules_reach_the_frames_of_python(tmp_path: Path, pieces: int) -> None:
    """Of a trace recorded with `with_stack`. Frames that no rule of the user matches are not looked at, even if a rule
    of ours would match."""
    trace = Trace()
    for at, name in enumerate(["train.py(57): run_forward", "Forward", "train.py(81): run_backward", "nn.Module: F_0"]):
        start = 1_000 + 10_000 * at
        trace.range(start, start + 5_000, name, cat="python_function")
        trace.kernel(start + 6_000, start + 7_000, trace.call(start + 10, thread=MAIN + at))
    path = trace.write(tmp_path / "t.json")
    result = loaded(path, markers=(r".*: run_forward=>F", r".*: run_backward=>B"), infer="off")
    assert times(result) == [
        ("train.py(57): run_forward", 7_000, 8_000), ("train.py(81): run_backward", 27_000, 28_000)
    ]  # fmt: skip
    with pytest.raises(SourceError):
        loaded(path, infer="off")


def test_rules_reach_the_ranges_of_pytorch_in_an_ascend_database(tmp_path: Path, ascend_run: AscendRun) -> None:
    """Its own operators and annotations, beside markers; times of these tables are texts."""
    folder = tmp_path / "run"
    shutil.copytree(ascend_run("1f1b")[0], folder)
    wanted = trace_export.load(folder, host_ranges=True)
    for path in folder.rglob("*.db"):
        with changing(path) as db:
            db.execute("CREATE TABLE PYTORCH_API (startNs TEXT, endNs TEXT, globalTid INTEGER, connectionId INTEGER,"
                       " name INTEGER, type INTEGER)")  # fmt: skip
            db.execute(
                "INSERT INTO PYTORCH_API SELECT startNs, endNs, globalTid, NULL, message, 50001 FROM MSTX_EVENTS"
            )
            db.execute("DROP TABLE MSTX_EVENTS")
            db.execute("UPDATE STRING_IDS SET value = 'mine: forward' WHERE value LIKE '%forward_step%'")
            db.execute("UPDATE STRING_IDS SET value = 'mine: backward' WHERE value LIKE '%backward_step%'")
    rules = ["mine: forward=>F", "mine: backward=>B", "absent=>F"]
    run = trace_export.load(folder, host_ranges=True, markers=rules)
    columns = ["rank", "kind", "start_ns", "end_ns", "microbatch"]
    assert run.spans.select(columns).sort(columns).equals(wanted.spans.select(columns).sort(columns))
    assert {n.text for n in run.notes if n.code == "marker-unmatched"} == {
        "--marker 'absent=>F' matches no name of a range"
    }


def test_rules_beside_passes_that_are_inferred(tmp_path: Path) -> None:
    write(tmp_path, Program(stages=3, microbatches=6, layers=1))
    run = trace_export.load(tmp_path, markers=["absent=>F"])
    assert set(run.spans["origin"]) == {"inferred"}
    assert [n.count for n in run.notes if n.code == "marker-unmatched"] == [1]
    assert run.spans.filter(pl.col("kind") == "F").height == 3 * 6 * 2


@pytest.mark.parametrize("sample", ["paddle/single", "recorder/two_hosts"])
def test_a_rule_for_a_format_without_names_is_said(sample: str, samples: Path) -> None:
    run = trace_export.load(samples / sample, markers=["absent=>F"])
    (note,) = [note for note in run.notes if note.code == "marker-unmatched"]
    assert (note.level, note.text.split(", and ")[1]) == (
        "warning",
        f"a profile of {sample.split('/')[0]} has no names",
    )
