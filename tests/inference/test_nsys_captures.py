"""What is peculiar to captures of Nsight Systems in which no pass is named, and of parts of any."""

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import trace_export
from samples.generators.nsys_export import Export, thread_id
from samples.generators.unmarked import REDUCED, Program, write
from tests.inference import tools
from tests.inference.tools import SMALL, profiles, spans
from tests.support.databases import changing
from tests.support.rows import crossed
from trace_export.errors import SourceError
from trace_export.model import Profile

truth = partial(tools.truth, "nsys")


def of(folder: Path, **options: Any) -> Profile:
    (result,) = profiles("nsys", folder, **options)
    return result


def test_ranges_around_steps_without_a_number_give_none(tmp_path: Path) -> None:
    blocks = write(tmp_path, SMALL)
    with changing(tmp_path / "node0.sqlite") as db:
        db.execute("DROP TABLE IF EXISTS NVTX_EVENTS")
        db.execute("CREATE TABLE NVTX_EVENTS(start, end, eventType, text, globalTid, endGlobalTid, textId, domainId)")
        db.execute("INSERT INTO NVTX_EVENTS SELECT min(start) - 9, max(start), 59, 'training step', min(globalTid),"
                   " NULL, NULL, 0 FROM CUPTI_ACTIVITY_KIND_RUNTIME")  # fmt: skip
    profile = of(tmp_path, markers=("training step=>STEP",))
    assert spans(profile) == truth(blocks)
    assert profile.spans["step"].null_count() == profile.spans.height


@pytest.mark.parametrize(
    ("stream", "table"), crossed(["NULL", "-1", "4294967302", "streamId - 4294967296"], ["KERNEL", "MEMCPY"])
)
def test_a_stream_without_a_number_of_32_bits_changes_no_name(tmp_path: Path, table: str, stream: str) -> None:
    blocks = write(tmp_path, replace(SMALL, host_transfers=True))
    with changing(tmp_path / "node0.sqlite") as db:
        db.execute(f"UPDATE CUPTI_ACTIVITY_KIND_{table} SET streamId = {stream}")
    assert spans(of(tmp_path)) == truth(blocks)


def test_weight_gradients_of_the_calling_thread_are_products_after_the_first_backward(tmp_path: Path) -> None:
    blocks = write(tmp_path, Program(schedule="zb-h1"))
    result = spans(of(tmp_path))
    assert [row for row in result if row[1] != "W"] == truth(blocks, "F B OPT")
    weights = {row for row in result if row[1] == "W"}
    exact = weights & set(truth(blocks, "W"))
    assert len(exact) > 0.6 * len(truth(blocks, "W"))
    assert all(any(row[2] <= t[2] and t[3] <= row[3] for t in truth(blocks, "W")) for row in weights)  # others: several


def test_weight_gradients_without_numbers_are_no_part_of_numbered_forwards(tmp_path: Path) -> None:
    blocks = write(tmp_path, Program(schedule="zb-h1", operators=True))
    result = spans(of(tmp_path))
    assert [row for row in result if row[1] != "W"] == truth(blocks, "F B OPT")
    weights = {row for row in result if row[1] == "W"}
    assert len(weights & set(truth(blocks, "W"))) > 0.6 * len(truth(blocks, "W"))


@pytest.mark.parametrize("stages", [3, 4, 5])
def test_labels_of_an_interleaved_capture_follow_from_its_order(tmp_path: Path, stages: int) -> None:
    """Its ranks lead by two forwards more a stage, whatever the parity of the last one's."""
    blocks = write(tmp_path, Program(schedule="interleaved", stages=stages, microbatches=2 * stages))
    run = trace_export.load(tmp_path)
    assert run.ranks.sort("rank")["stage"].to_list() == list(range(stages))
    result = run.spans.filter(pl.col("kind").is_in(["F", "B"])).select("rank", "end_ns", "kind", "microbatch", "chunk")
    wanted = [
        (b.rank, b.end_ns + Export.epoch_ns, b.kind, b.microbatch, b.chunk or 0) for b in blocks if b.kind in "FB"
    ]
    assert sorted(result.rows()) == sorted(wanted)


def test_only_processes_without_names_are_inferred(tmp_path: Path) -> None:
    blocks = write(tmp_path, Program(marked=frozenset({1, 2})))
    profile = of(tmp_path)
    assert spans(profile) == truth(blocks)
    origins = profile.spans.group_by("rank").agg(pl.col("origin").unique()).sort("rank")["origin"].to_list()
    assert origins == [["inferred"], ["device"], ["device"], ["inferred"]]
    for options, said in (({"infer": "off"}, "--infer off"), ({"host_ranges": True}, "--host")):
        named = of(tmp_path, **options)
        assert set(named.spans["rank"]) == {0, 1}  # numbered by order, for two processes
        (note,) = [note for note in named.notes if note.code == "process-without-blocks"]
        assert (note.level, note.count) == ("warning", 2)
        assert said in note.text


def test_processes_of_which_nothing_can_be_inferred_are_not_dropped_in_silence(tmp_path: Path) -> None:
    """No thread is named like the autograd engine's."""
    write(tmp_path, Program(marked=frozenset({1, 2})), threads=False)
    named = of(tmp_path)
    assert set(named.spans["rank"]) == {0, 1}
    (note,) = [note for note in named.notes if note.code == "process-without-blocks"]
    assert (note.level, note.count) == ("warning", 2)
    assert "no thread is named" in note.text


def test_calls_of_unknown_names_launch_nevertheless(tmp_path: Path) -> None:
    blocks = write(tmp_path, Program(microbatches=4))
    with changing(tmp_path / "node0.sqlite") as db:
        db.execute("UPDATE CUPTI_ACTIVITY_KIND_RUNTIME SET nameId = NULL")
    assert spans(of(tmp_path)) == truth(blocks)


@pytest.mark.parametrize("name", ["cudaStreamWaitEvent_v3020", "cudaMemsetAsync_v3020", "cuStreamSynchronize"])
def test_what_the_calling_thread_asks_of_the_device_ends_a_backward(tmp_path: Path, name: str) -> None:
    export, process, engine = Export(), 4_000, 4_009
    export.string("pt_autograd_0")
    export.add("ThreadNames", export.string("pt_autograd_0"), None, thread_id(process, engine))

    def launch(at: int, name: str, thread: int | None = None) -> None:
        export.kernel(process, at, at + 800, export.call(process, at, thread=thread), name=name)

    for step in range(3):
        at = 100_000 * (step + 1)
        for n in range(2):
            launch(at + 2_000 * n, "gemm")
            launch(at + 2_000 * n + 1_000, "norm")
            export.call(process, at + 2_000 * n + 1_500, name="cudaDeviceSynchronize_v3020")
            launch(at + 10_000 + 2_000 * n, "gemm", engine)
            launch(at + 10_000 + 2_000 * n + 1_000, "norm_bwd", engine)
        export.call(process, at + 11_500, name=name)
        launch(at + 20_000, "multi_tensor_apply_kernel<Adam>")
    export.write(tmp_path / "node0.sqlite")
    assert of(tmp_path).spans["kind"].to_list() == ["F", "F", "B", "B", "OPT"] * 3


def test_graphs_of_whole_steps_are_refused(tmp_path: Path) -> None:
    export = Export()
    for step in range(3):
        call = export.call(4_000, 1_000_000 * (step + 1), name="cudaGraphLaunch_v10000")
        export.graph(4_000, 1_000_000 * (step + 1) + 5_000, 1_000_000 * (step + 1) + 900_000, call)
    export.write(tmp_path / "node0.sqlite")
    with pytest.raises(SourceError, match="one graph holds the whole step"):
        of(tmp_path)


def test_of_a_step_that_the_capture_cuts_only_the_backwards_are_drawn(tmp_path: Path) -> None:
    blocks = write(tmp_path, Program(steps=3))
    middle = max(b.end_ns for b in blocks if b.step == 0 and b.kind == "F" and b.microbatch == 4)
    with changing(tmp_path / "node0.sqlite") as db:
        db.execute("DELETE FROM CUPTI_ACTIVITY_KIND_RUNTIME WHERE start < ?", [middle])
    profile = of(tmp_path)
    result = set(spans(profile))
    assert result >= set(truth([b for b in blocks if b.step > 0]))
    assert {kind for _, kind, *_ in result - set(truth(blocks))} <= {"B"}
    late = [b for b in blocks if b.step == 0 and b.kind == "B" and b.start_ns > middle + 5_000_000]
    assert result >= set(truth(late))
    assert not {kind for rank, kind, *_ in result & set(truth([b for b in blocks if b.step == 0]))} & {"F"}
    (note,) = [note for note in profile.notes if note.code == "forwards-unknown"]
    assert (note.level, note.count) == ("warning", 4)
    assert "forwards for" in note.text
    assert "backwards are kept" in note.text


def test_a_capture_that_ends_inside_a_backward_draws_no_part_of_it(tmp_path: Path) -> None:
    blocks = write(tmp_path, Program(steps=2, stages=2))
    last = max((b for b in blocks if b.kind == "B" and b.rank == 1), key=lambda block: block.end_ns)
    with changing(tmp_path / "node0.sqlite") as db:
        db.execute(
            "DELETE FROM CUPTI_ACTIVITY_KIND_KERNEL WHERE start > ? AND globalPid ="
            " (SELECT max(globalPid) FROM CUPTI_ACTIVITY_KIND_KERNEL)",
            [(last.start_ns + last.end_ns) // 2],
        )
    profile = trace_export.load(tmp_path).profile
    assert not set(spans(profile)) - set(truth(blocks))
    assert profile.steps["whole"].to_list() == [True, False]


@pytest.mark.parametrize(("every", "level"), [(20, "warning"), (400, "note")])
def test_kernels_without_a_launch_are_told(tmp_path: Path, every: int, level: str) -> None:
    write(tmp_path, Program(steps=3))
    with changing(tmp_path / "node0.sqlite") as db:
        others = "SELECT id FROM StringIds WHERE value LIKE 'nccl%'"
        kernels = (
            f"SELECT correlationId, globalPid >> 24 FROM CUPTI_ACTIVITY_KIND_KERNEL WHERE shortName NOT IN ({others})"
        )
        where = f"rowid % {every} = 7 AND (correlationId, globalTid >> 24) IN ({kernels})"
        count = db.execute(f"DELETE FROM CUPTI_ACTIVITY_KIND_RUNTIME WHERE {where}").rowcount
    (note,) = [note for note in of(tmp_path).notes if note.code == "tasks-without-launch"]
    assert (note.level, note.count) == (level, count)


def test_half_the_transfers_missing_give_no_wrong_forward(tmp_path: Path) -> None:
    blocks = write(tmp_path, replace(SMALL, steps=2, waits=False))
    with changing(tmp_path / "node0.sqlite") as db:
        db.execute(
            "DELETE FROM CUPTI_ACTIVITY_KIND_KERNEL WHERE rowid % 2 = 0 AND shortName IN"
            " (SELECT id FROM StringIds WHERE value LIKE 'nccl%')"
        )
    try:
        result = spans(of(tmp_path))
    except SourceError:
        return
    wrong = set(result) - set(truth(blocks))
    assert not [row for row in wrong if row[1] == "F"]


def test_only_the_ranks_that_are_asked_for_come_out(tmp_path: Path) -> None:
    from trace_export.selection import Numbers

    write(tmp_path, Program())
    profile = of(tmp_path, ranks=Numbers.of([1, 3]))
    assert profile.ranks["rank"].to_list() == [1, 3]


@pytest.mark.parametrize("schedule", ["1f1b", "interleaved"])
def test_sequence_numbers_pair_backwards_with_forwards(tmp_path: Path, schedule: str) -> None:
    blocks = write(tmp_path, Program(schedule=schedule, operators=True))
    profile = of(tmp_path)
    (note,) = [note for note in profile.notes if note.code == "blocks-inferred"]
    assert "sequence numbers" in note.text
    times = {(b.rank, b.start_ns + Export.epoch_ns): (b.step, b.microbatch, b.chunk) for b in blocks}
    pairs: dict[tuple[int, int], list[object]] = {}
    for rank, kind, start, pair in profile.spans.select("rank", "kind", "start_ns", "pair").rows():
        if kind != "OPT":
            pairs.setdefault((rank, pair), []).append(times[rank, start])
    assert all(len(passes) == 2 and passes[0] == passes[1] for passes in pairs.values())
    assert "forwards-unknown" not in [note.code for note in profile.notes]


def test_with_sequence_numbers_a_cut_step_keeps_its_forwards(tmp_path: Path) -> None:
    blocks = write(tmp_path, Program(steps=2, operators=True))
    middle = max(b.end_ns for b in blocks if b.step == 1 and b.kind == "F" and b.microbatch == 4)
    with changing(tmp_path / "node0.sqlite") as db:
        for table in ("CUPTI_ACTIVITY_KIND_RUNTIME", "NVTX_EVENTS"):
            db.execute(f"DELETE FROM {table} WHERE start > ?", [middle])
    result = set(spans(of(tmp_path)))
    with_backward = {(b.rank, b.microbatch) for b in blocks if b.step == 1 and b.kind == "B" and b.end_ns < middle}
    whole = [b for b in blocks if b.step == 0 or ((b.rank, b.microbatch) in with_backward and b.kind in "FB")]
    assert result >= set(truth(whole))
    assert not {kind for _, kind, *_ in result - set(truth(blocks))} & {"F"}


def test_ranges_of_nccl_tell_the_collectives_of_inferred_passes(tmp_path: Path) -> None:
    blocks = write(tmp_path, replace(SMALL, nccl=True))
    profile = trace_export.load(tmp_path).profile
    assert spans(profile) == truth(blocks)
    with changing(tmp_path / "node0.sqlite") as db:
        reduced = db.execute(
            "SELECT start, end FROM CUPTI_ACTIVITY_KIND_KERNEL JOIN StringIds ON id = demangledName"
            " WHERE value LIKE '%ReduceScatter%'"
        ).fetchall()
    times = sorted((start + Export.epoch_ns, end + Export.epoch_ns) for start, end in reduced)
    assert sorted(profile.collectives.select("start_ns", "end_ns").rows()) == times
    assert set(profile.collectives.select("op", "group", "bytes").rows()) == {
        ("ncclReduceScatter", "0000000000000009", REDUCED)
    }
    assert sorted(profile.collectives["sequence"]) == sorted([*range(SMALL.steps)] * SMALL.stages)
