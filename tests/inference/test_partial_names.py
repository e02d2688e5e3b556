"""Captures in which names say only some of the passes, in every format with launches: the others are inferred where
the launches show those that are named, too."""

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import trace_export
from samples.generators import nsys
from samples.generators.nsys_export import Export
from samples.generators.unmarked import Program, write
from tests.support.captures import CAPTURES, drawn, truth
from tests.support.databases import changing
from tests.support.rows import crossed

SMALL = Program(stages=3, microbatches=6, layers=1)
FORMATS: dict[str, dict[str, Any]] = {"nsys": {}, "kineto": {"kineto": True}, "rocpd": {"rocpd": "db"}}


@pytest.mark.parametrize(
    ("capture", "named", "experts"), crossed(FORMATS, ["deepspeed", "forwards", "backwards"], [False, True])
)
def test_passes_without_a_name_are_those_of_the_truth(tmp_path: Path, named: Any, experts: bool, capture: str) -> None:
    program = replace(SMALL, named=named, experts=experts)
    blocks = write(tmp_path, program, **FORMATS[capture])
    run = trace_export.load(tmp_path)
    epoch = 0 if capture == "rocpd" else Export.epoch_ns
    assert drawn(run.profile) == truth(blocks, epoch)
    names = {b.kind: program.name(b.kind, last=b.rank == 2) for b in blocks if b.rank == 2}
    last = run.spans.filter(pl.col("rank") == 2).group_by("kind").agg(pl.col("origin").unique()).rows()
    assert dict(last) == {kind: ["device" if name else "inferred"] for kind, name in names.items()}
    notes = {note.code: note for note in run.notes}
    assert "names say only some" in notes["blocks-inferred"].text
    assert not {"tasks-outside-blocks", "names-partial"} & notes.keys()
    assert not [note for note in run.notes if note.level == "warning" or note.code == "messages-unpaired"]


@pytest.mark.parametrize("capture", FORMATS)
def test_nothing_is_inferred_where_the_user_says_so(tmp_path: Path, capture: str) -> None:
    blocks = write(tmp_path, replace(SMALL, named="deepspeed"), **FORMATS[capture])
    run = trace_export.load(tmp_path, infer="off")
    assert run.spans.height == sum(b.kind == "F" or (b.kind == "B" and b.rank == 2) for b in blocks)


@pytest.mark.parametrize("capture", ["nsys", "rocpd"])
@pytest.mark.parametrize("kinds", ["F", "B"])
def test_messages_that_may_be_paired_in_several_ways_have_a_counterpart(
    kinds: str, capture: str, tmp_path: Path
) -> None:
    """Passes of one kind alone say too little of the messages of the others; no profile is missing."""
    blocks = nsys.blocks_of(3, 6, 2, random.Random(1), split=False)
    CAPTURES[capture](tmp_path, blocks, nsys.Unnamed(*{"F", "B", "OPT"} - {kinds}))
    notes = {note.code: note.text for note in trace_export.load(tmp_path).notes}
    assert "messages-ambiguous" in notes
    assert "messages-unpaired" not in notes


OPTIMIZER = {
    "the optimizer alone": ([(nsys.Plain(), {"OPT"})], []),
    "and forwards": ([(nsys.DeepSpeed(), {"F", "OPT"})], [(nsys.DeepSpeed(), {"B"})]),
    "and backwards": ([(nsys.DeepSpeed(), {"B", "OPT"})], [(nsys.DeepSpeed(), {"F"})]),
}  # fmt: skip


@pytest.mark.parametrize(("capture", "names"), crossed(CAPTURES, OPTIMIZER))
def test_a_named_optimizer_shows_that_a_nameless_thread_launches_backwards(
    tmp_path: Path, names: str, capture: str
) -> None:
    """No kernel has a name that says so, and no thread has one."""
    blocks = nsys.blocks_of(4, 6, 2, random.Random(1), split=False)
    epoch = CAPTURES[capture](tmp_path, blocks, nsys.Together(4, *OPTIMIZER[names]))
    assert drawn(trace_export.load(tmp_path).profile) == truth(blocks, epoch)


def test_why_nothing_is_inferred_beside_names_is_said(tmp_path: Path) -> None:
    """Only forwards have names, and nothing shows that there is more."""
    blocks = nsys.blocks_of(3, 4, 2, random.Random(1), split=False)
    nsys.record(tmp_path, blocks, 1, (0,), random.Random(1), nsys.Together(3, [(nsys.Plain(), {"F"})]))
    (note,) = [note for note in trace_export.load(tmp_path).notes if note.code == "names-partial"]
    assert (note.level, note.count) == ("warning", 3)
    assert "no kernel is named like a backward or an optimizer" in note.text


READERS = {"nsys": "read_processes", "kineto": "read_process", "rocpd": "read_process"}


@pytest.mark.parametrize("capture", CAPTURES)
def test_launches_are_not_read_where_names_say_all_that_computes(
    capture: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reading them takes three times as long as all else."""
    blocks = [b for b in nsys.blocks_of(3, 4, 2, random.Random(1), split=False) if b.kind == "F"]
    epoch = CAPTURES[capture](tmp_path, blocks, nsys.Plain())
    monkeypatch.delattr(f"trace_export.sources.{capture}.unmarked.{READERS[capture]}")
    run = trace_export.load(tmp_path, jobs=1)
    result = sorted(run.profile.spans.select("rank", "kind", "start_ns", "end_ns").rows())
    assert result == sorted((b.rank, "F", b.start_ns + epoch, b.end_ns + epoch) for b in blocks)


def test_launches_that_contradict_the_names_are_not_believed(tmp_path: Path) -> None:
    """A forward without a name leaves one less by names than by launches: the option that draws these is named."""
    blocks = write(tmp_path, replace(SMALL, named="deepspeed"))
    with changing(tmp_path / "node0.sqlite") as db:
        db.execute("DELETE FROM NVTX_EVENTS WHERE start = (SELECT min(start) FROM NVTX_EVENTS)")
    (note,) = [note for note in trace_export.load(tmp_path).notes if note.code == "names-partial"]
    assert note.level == "warning"
    assert note.count == 1
    assert "--infer only" in note.text
    inferred = trace_export.load(tmp_path, infer="only")
    assert drawn(inferred.profile) == truth(blocks, Export.epoch_ns)
