"""What the Nsight reader makes of names, ranks, clocks and of files that are not as they should be."""

import os
import stat
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import trace_export
from samples.generators import nsys as generator
from samples.generators.nsys_export import Export, thread_id
from tests.support.databases import changing
from tests.support.one_source import read
from trace_export.errors import SourceError
from trace_export.model import Profile
from trace_export.sources.find import find
from trace_export.sources.merge import merge
from trace_export.sources.nsys.reader import read_tasks
from trace_export.sources.source import ReadOptions, Source, TaskRequest

A, B, C, D = 700, 710, 720, 730
CANARY = "CANARY_ENV=must-not-appear"


def block(export: Export, process: int, at: int, text: str) -> None:
    """A range with one kernel, 100 after the range's start and 50 long."""
    export.range(process, at, at + 90, text)
    export.kernel(process, at + 100, at + 150, export.call(process, at + 10))


def load(export: Export, folder: Path, options: ReadOptions | None = None) -> Profile:
    source = Source("nsys", export.write(folder / "x.sqlite"), "folder")
    return read(source, options or ReadOptions()).validate()


def labels(profile: Profile) -> list[tuple[object, ...]]:
    return profile.spans.select("rank", "step", "kind", "microbatch", "chunk").rows()


def test_the_clock(tmp_path: Path) -> None:
    export = Export(epoch_ns=5_000_000, shift_ns=1_000)
    block(export, A, 2_000, "F0.0.0")
    assert load(export, tmp_path).spans.select("start_ns", "end_ns").rows() == [(5_001_100, 5_001_150)]
    for impossible in (0, -1, 2**62):
        unknown = Export(epoch_ns=impossible)
        block(unknown, A, 2_000, "F0.0.0")
        profile = load(unknown, tmp_path)
        assert profile.spans["start_ns"].to_list() == [2_100]
        assert "start-time-unknown" in [n.code for n in profile.notes]


@pytest.mark.parametrize("schema", ["3.0.0", "3.7.2", "3.20.3", "3.25.0"])
def test_schemas(tmp_path: Path, schema: str) -> None:
    export = Export(schema=schema)
    block(export, A, 0, "F0.0.0")
    profile = load(export, tmp_path)
    assert profile.spans.height == 1
    assert ("schema-newer" in [n.code for n in profile.notes]) == (schema == "3.25.0")


def test_steps_from_ranges(tmp_path: Path) -> None:
    export = Export()
    block(export, A, 0, "F0.0.0")  # before the first step that was seen whole
    for step, at in ((3, 1_000), (4, 2_000)):
        export.range(A, at, at + 900, f"iter_6_{step}")
        block(export, A, at + 100, "F0.0.0")
        block(export, A, at + 950, "Optimizer")  # a little late
    export.range(A, 3_000, None, "iter_6_5")
    block(export, A, 3_100, "F0.0.0")
    profile = load(export, tmp_path)
    assert profile.spans["step"].to_list() == [2, 3, 3, 4, 4, 5]
    assert profile.spans["rank"].unique().to_list() == [6]
    assert ["iter_6_5" in n.text for n in profile.notes if n.code == "steps-unclosed"] == [True]


def test_numbers_that_never_change_mean_nothing(tmp_path: Path) -> None:
    export = Export()
    export.range(A, 0, 9_000, "iter_0_1")
    for i in range(3):
        block(export, A, 100 + 1_000 * i, "F0.0.0")
    block(export, A, 5_000, "B0.0.0")
    assert labels(load(export, tmp_path)) == [(0, 1, "F", None, None)] * 3 + [(0, 1, "B", None, None)]


def test_a_single_weight_gradient_beside_the_rest_in_one_keeps_its_number(tmp_path: Path) -> None:
    export = Export()
    export.range(A, 0, 9_000, "iter_0_1")
    names = ["F0.0.0", "F1.0.0", "B0.0.0", "W0.0.0", "B1.0.0", "W_clear.0.0"]
    for at, name in enumerate(names):
        block(export, A, 100 + 1_000 * at, name)
    assert [row[2:4] for row in labels(load(export, tmp_path))] == [
        ("F", 0), ("F", 1), ("B", 0), ("W", 0), ("B", 1), ("W", None),
    ]  # fmt: skip


@pytest.mark.parametrize("lost", [False, True])
def test_one_block_may_hold_the_last_weight_gradients(tmp_path: Path, lost: bool) -> None:
    """Zero bubble's W_clear: the step is whole, unless a block of the others is missing on one of the ranks."""
    generator.write(tmp_path, stages=4, microbatches=6, steps=3, hosts=1, clock_errors_ns=(0,))
    with changing(next(tmp_path.glob("*.sqlite"))) as db:
        db.execute("UPDATE NVTX_EVENTS SET text = 'W_clear.0.0' WHERE text = 'W5.0.0' AND globalTid & 16777215 != 4000")
        db.execute("DELETE FROM NVTX_EVENTS WHERE text = 'W4.0.0' AND globalTid & 16777215 != 4000")
        if lost:
            which = "SELECT max(start) FROM NVTX_EVENTS WHERE text = 'W2.0.0' AND globalTid & 16777215 = 4022"
            db.execute(f"DELETE FROM NVTX_EVENTS WHERE text = 'W2.0.0' AND start = ({which})")
    run = trace_export.load(tmp_path).align()
    assert run.profile.declared.schedule == "ZB-H1"
    assert run.profile.spans.filter(kind="W")["microbatch"].null_count() == 3 * 3
    warnings = {note.code: note.text for note in run.notes if note.level == "warning"}
    warnings.pop("compute-outside-blocks", None)  # that of the blocks whose ranges were deleted
    assert warnings.keys() == ({"blocks-missing"} if lost else set())
    if lost:
        assert "stage 2 (rank 2): step 2 has 16 of 17 blocks" in warnings["blocks-missing"]
    assert run.profile.steps["whole"].to_list() == [True, True, not lost]


def test_chunks_are_places_among_the_stages_of_a_process(tmp_path: Path) -> None:
    export = Export()
    for process, stages in ((A, (0, 3)), (B, (1, 2))):
        for at, stage in enumerate(stages):
            block(export, process, 1_000 * at, f"PP:{stage}F7")
        block(export, process, 3_000, f"PP:({stages[1]}F8;{stages[0]}B2)OVERLAP_F_B")
    profile = load(export, tmp_path)
    columns = ["rank", "kind", "microbatch", "chunk", "microbatch_b", "chunk_b"]
    assert profile.spans.sort("rank", "start_ns").select(columns).rows() == [
        row
        for rank in (0, 1)
        for row in [
            (rank, "F", 7, 0, None, None),
            (rank, "F", 7, 1, None, None),
            (rank, "FB", 8, 1, 2, 0),
        ]
    ]
    declared = profile.declared
    assert (declared.placement, declared.pp, declared.chunks) == ("vee", 2, 2)
    assert profile.ranks.select("rank", "rank_origin", "stage", "stage_origin").rows() == [
        (r, "assumed", r, "recorded") for r in (0, 1)
    ]


def test_ends_that_lie_are_repaired_where_they_do(tmp_path: Path) -> None:
    export = Export(epoch_ns=0)
    for process, end in ((A, 5_000), (B, 900)):
        export.range(process, 0, end, "PP:1RECV_F0, op_id = 3")  # swallows its block in process A
        export.range(process, 1_000, 1_100, "PP:1F0, op_id = 4")
        export.kernel(process, 3_000, 3_500, export.call(process, 2_000 if process == A else 1_050))
        export.range(process, 6_000, 6_500, "Optimizer.step#SGD.step")
    profile = load(export, tmp_path)
    assert profile.spans.select("start_ns", "end_ns").rows() == [(3_000, 3_500)] * 2
    (note,) = [n for n in profile.notes if n.code == "range-ends-repaired"]
    assert note.count == 2
    host = load(export, tmp_path, ReadOptions(host_ranges=True)).spans.filter(pl.col("kind") == "F")
    assert sorted(host.select("start_ns", "end_ns").rows()) == [(1_000, 1_100), (1_000, 6_000)]
    assert host["origin"].unique().to_list() == ["host"]


def four(export: Export) -> Export:
    for process in (A, B, C, D):
        block(export, process, 0, "F0.0.0")
    return export


def ranks_of(profile: Profile) -> list[tuple[object, ...]]:
    return profile.ranks.select("rank", "rank_origin").rows()


def test_ranks_by_device_and_process_when_nothing_else_is_known(tmp_path: Path) -> None:
    export = four(Export())
    for gpu, process in enumerate((C, A, D, B)):
        export.add("TARGET_INFO_CUDA_DEVICE", gpu, 0, process)
        block(export, process, 1_000 + 200 * gpu, "B0.0.0")
    profile = load(export, tmp_path)
    assert ranks_of(profile) == [(r, "assumed") for r in range(4)]
    assert profile.ranks["device"].to_list() == [0, 1, 2, 3]
    backward = profile.spans.filter(pl.col("kind") == "B").sort("start_ns")
    assert backward["rank"].to_list() == [0, 1, 2, 3]
    assert ranks_of(load(four(Export()), tmp_path)) == [(r, "assumed") for r in range(4)]


def test_a_gpu_that_is_not_recorded_has_the_number_that_its_process_gives_it(tmp_path: Path) -> None:
    export = four(Export())
    for process in (A, B, C, D):
        export.add("TARGET_INFO_CUDA_DEVICE", None, 0, process)
    assert load(export, tmp_path).ranks["device"].to_list() == [0] * 4


def test_ranks_from_mpi(tmp_path: Path) -> None:
    export = four(Export())
    for process, rank in ((A, 7), (B, 5), (C, 6), (D, 4)):
        export.add("MPI_RANKS", thread_id(process), rank)
    assert ranks_of(load(export, tmp_path)) == [(r, "recorded") for r in (4, 5, 6, 7)]


@pytest.mark.parametrize("variable", ["RANK", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID"])
@pytest.mark.parametrize("place", ["system", "capture"])
def test_ranks_from_the_environment_of_a_single_process(tmp_path: Path, variable: str, place: str) -> None:
    export = Export(environment=f"{CANARY};{variable}=3;LOCAL_RANK=1" if place == "system" else CANARY)
    if place == "capture":
        export.add("META_DATA_CAPTURE", "PROCESS_0:ENVIRONMENT_VARIABLE", f'{variable}="3"')
    block(export, A, 0, "F0.0.0")
    assert ranks_of(load(export, tmp_path)) == [(3, "recorded")]
    assert ranks_of(load(four(export), tmp_path)) == [(r, "assumed") for r in range(4)]


def test_assumed_ranks_make_room_for_recorded_ones(tmp_path: Path) -> None:
    export = four(Export())
    export.range(B, 0, 1_000, "iter_0_0")
    export.range(D, 0, 1_000, "iter_2_0")
    profile = load(export, tmp_path)
    assert ranks_of(profile) == [(0, "recorded"), (1, "assumed"), (2, "recorded"), (3, "assumed")]
    replicas = Export()
    for process, stage in ((A, 0), (B, 1), (C, 0), (D, 1)):
        block(replicas, process, 0, f"PP:{stage}F0")
    profile = load(replicas, tmp_path)
    assert ranks_of(profile) == [(r, "assumed") for r in range(4)]
    assert profile.ranks["stage"].to_list() == [0, 1, 0, 1]


def test_two_processes_of_one_rank_are_not_mixed(tmp_path: Path) -> None:
    export = Export()
    for process, blocks in ((A, 1), (B, 3)):
        export.range(process, 0, 9_000, "iter_2_0")
        for i in range(blocks):
            block(export, process, 1_000 * i, f"F{i}.0.0")
    profile = load(export, tmp_path)
    assert profile.spans["microbatch"].to_list() == [0, 1, 2]
    assert ["rank 2" in n.text for n in profile.notes if n.code == "rank-duplicate"] == [True]


def test_host_names(tmp_path: Path) -> None:
    for name, host in (("gpu-17", "gpu-17"), ("localhost", "folder"), ("", "folder")):
        export = Export(host=name)
        block(export, A, 0, "F0.0.0")
        profile = load(export, tmp_path)
        assert profile.hosts["host"].to_list() == profile.ranks["host"].to_list() == [host]


def test_containers_of_one_name_on_two_machines_are_two_hosts(tmp_path: Path) -> None:
    for number, uuid in enumerate(["11-aa", "22-bb", "22-bb"]):
        export = Export(host="trainer")
        export.add("TARGET_INFO_GPU", 0, uuid)
        export.range(A, 0, 1_000, f"iter_{number}_0")
        block(export, A, 0, "F0.0.0")
        export.write(tmp_path / f"{number}.sqlite")
    parts = [read(source, ReadOptions()) for source in find(tmp_path).sources]
    whole, _ = merge(parts)
    assert whole.hosts["label"].to_list() == ["trainer"] * 2
    hosts = whole.ranks.sort("rank")["host"].to_list()
    assert hosts[0] != hosts[1] == hosts[2]
    assert "11-aa" not in str(hosts)
    single, _ = merge(parts[:1])
    assert single.ranks["host"].to_list() == ["trainer"]


def test_transfers_and_collectives(tmp_path: Path) -> None:
    export = Export(epoch_ns=0)
    block(export, A, 0, "F0.0.0")
    export.range(A, 200, 300, "SEND_FORWARD.0.0.0_RECV_BACKWARD.4.1.0")
    export.range(A, 210, 230, "ncclSend", registered=True, domain=1)
    export.kernel(A, 400, 480, export.call(A, 215), name="ncclDevKernel_SendRecv")
    export.kernel(A, 490, 500, export.call(A, 225), name="ncclDevKernel_SendRecv")
    export.range(A, 600, 700, "RECV_FORWARD.1.0.0")
    for at in (610, 630):
        export.copy(A, at + 200, at + 220, export.call(A, at, name="cudaMemcpyAsync_v3020"))
    export.range(A, 1_000, 1_050, "ncclRecv", registered=True, domain=1)
    export.kernel(A, 1_200, 1_300, export.call(A, 1_010), name="ncclDevKernel_SendRecv")
    export.range(A, 1_300, 1_400, "SEND_FORWARD.1.0.0")
    for at in (1_500, 1_600):
        export.range(A, at, at + 50, "ncclAllReduce", registered=True, domain=1)
    export.kernel(A, 1_700, 1_800, export.call(A, 1_610), name="ncclKernel_AllReduce_RING")
    export.range(A, 2_000, 2_100, "ncclCommInitRankConfig", registered=True, domain=1)
    profile = load(export, tmp_path)
    columns = ["role", "direction", "microbatch", "chunk", "sequence", "start_ns", "end_ns"]
    assert profile.p2p.select(columns).rows() == [
        ("send", "F", 0, 0, None, 400, 500),
        ("recv", "B", 4, 1, None, 400, 500),
        ("recv", "F", 1, 0, None, 600, 850),
        ("recv", None, None, None, 0, 1_200, 1_300),  # no block comes after it
        ("send", "F", 1, 0, None, 1_300, 1_400),
    ]
    assert profile.collectives.select("op", "sequence", "start_ns", "end_ns").rows() == [
        ("ncclAllReduce", 0, 1_500, 1_550),
        ("ncclAllReduce", 1, 1_700, 1_800),
    ]
    assert profile.spans.select("start_ns", "end_ns").rows() == [(100, 150)]


def test_calls_between_blocks_go_the_way_of_the_blocks(tmp_path: Path) -> None:
    export = Export(epoch_ns=0)
    names = {0: "ncclRecv", 10: "forward_step", 200: "ncclSend", 250: "ncclRecv", 300: "backward_step"}
    for at, text in (names | {310: "ncclSend", 500: "ncclSend", 600: "optimizer_step"}).items():
        export.range(A, at, at + (90 if "step" in text else 5), text, registered=True)
    export.kernel(A, 15, 20, export.call(A, 12))
    profile = load(export, tmp_path)
    assert profile.p2p.select("role", "direction", "start_ns").rows() == [
        ("recv", "F", 0),
        ("send", "F", 200),
        ("recv", "B", 250),
        ("send", None, 310),  # inside a block it may be an all-to-all
        ("send", "B", 500),
    ]
    (note,) = [n for n in profile.notes if n.code == "transfer-direction-inferred"]
    assert note.count == 4


@pytest.mark.parametrize("detail", ["comm", "kernels"])
def test_device_tasks(tmp_path: Path, detail: Any) -> None:
    export = Export(epoch_ns=10)
    block(export, A, 0, "F0.0.0")
    export.kernel(A, 300, 400, None, name="ncclDevKernel_SendRecv", stream=20)
    export.copy(A, 20, 30, 900, kind=8)
    export.graph(A, 500, 600, 901)
    export.clear(A, 700, 710, 902)
    block(export, B, 0, "F0.0.0")
    export.kernel(C, 1, 2, None)  # of a process without blocks
    spill = tmp_path / "spill"
    spill.mkdir()
    profile = load(export, tmp_path)
    ranks = dict(profile.ranks.select("process", "rank").iter_rows())
    files = read_tasks(TaskRequest(Source("nsys", tmp_path / "x.sqlite", "folder"), detail, ranks, None, spill))
    result = {k.rank: pl.read_ipc(k.path).cast({"name": pl.String}).rows() for k in files}
    nccl = ("stream 20", "ncclDevKernel_SendRecv", "communication", 310, 410)
    assert (
        result
        == {
            "comm": {0: [nccl]},
            "kernels": {
                0: [
                    ("stream 14", "Memcpy DtoD", "memory", 30, 40),
                    ("stream 7", "gemm", "compute", 110, 160),
                    nccl,
                    ("stream 7", "CUDA graph 3", "compute", 510, 610),
                    ("stream 7", "Memset", "memory", 710, 720),
                ],
                1: [("stream 7", "gemm", "compute", 110, 160)],
            },
        }[detail]
    )


@pytest.mark.parametrize(
    ("name", "start", "length", "said"),
    [
        ("CUPTI Buffer flush", 500, 2_500, "2.5 ms"),
        ("CUPTI Buffer flush", 500, 400, ""),
        ("CUDA profiling initialization", -9_000, 5_000, ""),
        ("CUDA profiling data flush on cudaProfilerStop", 500, 9_000, ""),
        ("CUDA profiling data flush on process exit", 500, 9_000, ""),
    ],
)
def test_a_profiler_that_works_between_the_blocks(
    name: str, start: int, length: int, said: str, tmp_path: Path
) -> None:
    """Times in µs, of which the first block is at 10 ms. What it does before, at the end or for less than 1 ms is none
    of that."""
    export, zero = Export(), 10_000_000
    block(export, A, zero, "F0.0.0")
    block(export, A, zero + 20_000_000, "F1.0.0")
    export.overhead(A, zero + 1_000 * start, zero + 1_000 * (start + length), name)
    (source,) = find(export.write(tmp_path / "x.sqlite").parent).sources
    notes = [note.text for note in read(source, ReadOptions()).notes if note.code == "profiler-worked"]
    assert len(notes) == bool(said)
    assert all(said in text for text in notes)


def refusal(path: Path) -> str:
    (source,) = find(path.parent).sources
    with pytest.raises(SourceError) as caught:
        read(source, ReadOptions())
    return str(caught.value)


def test_files_that_cannot_be_drawn(tmp_path: Path) -> None:
    path = tmp_path / "x.sqlite"
    no_ranges = Export()
    no_ranges.kernel(A, 0, 1, no_ranges.call(A, 0))
    no_ranges.write(path)
    assert "no NVTX ranges" in refusal(path)
    unnamed = Export()
    for i in range(20):
        unnamed.range(A, i, i + 1, f"aten::linear, seq = {i}, op_id = {i}")
        unnamed.range(A, i, i + 1, f"my layer, seq = {i}, op_id = {i}")
    unnamed.range(A, 50, 60, "gloo:recv")
    unnamed.range(A, 70, 80, "Optimizer.step#AdamW.step")
    unnamed.write(path)
    text = refusal(path)
    assert "the most frequent names here: my layer; say which" in text
    assert "markers" in text
    ranges_only = Export()
    ranges_only.range(A, 0, 9, "F0.0.0")
    ranges_only.write(path)
    assert "no GPU work in the file" in refusal(path)
    with changing(tmp_path / "other.sqlite") as db:
        db.execute("CREATE TABLE runs(id)")
    path.unlink()
    with pytest.raises(SourceError, match="not an Nsight Systems export"):
        read(Source("nsys", tmp_path / "other.sqlite", "h"), ReadOptions())


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE NVTX_EVENTS SET start = 'soon'",
        'UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET "end" = 1.5',
        "UPDATE CUPTI_ACTIVITY_KIND_RUNTIME SET globalTid = 'x', start = x'ff'",
        "ALTER TABLE CUPTI_ACTIVITY_KIND_KERNEL DROP COLUMN correlationId",
        "ALTER TABLE NVTX_EVENTS DROP COLUMN text",
        "DROP TABLE CUPTI_ACTIVITY_KIND_RUNTIME",
        "DELETE FROM NVTX_EVENTS",
        "UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET globalPid = NULL, correlationId = NULL",
        "UPDATE NVTX_EVENTS SET globalTid = NULL",
        "DROP TABLE StringIds",
    ],
)
def test_tables_that_are_not_as_they_should_be(tmp_path: Path, change: str) -> None:
    path = four(Export()).write(tmp_path / "x.sqlite")
    with changing(path) as db:
        db.execute(change)
    text = refusal(path)
    assert str(path) in text
    assert "StringIds" not in change or "has no table StringIds" in text


def test_columns_in_capitals_are_the_columns(tmp_path: Path) -> None:
    """SQL takes no notice of case, and SQLite calls a result as the table does."""
    path = four(Export()).write(tmp_path / "x.sqlite")
    source = Source("nsys", path, "folder")
    spans = read(source, ReadOptions()).spans
    with changing(path) as db:
        for (table,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall():
            for _, column, *_ in db.execute(f"PRAGMA table_info({table})").fetchall():
                if column != column.upper():
                    db.execute(f'ALTER TABLE {table} RENAME COLUMN "{column}" TO "{column}_"')
                    db.execute(f'ALTER TABLE {table} RENAME COLUMN "{column}_" TO "{column.upper()}"')
    assert read(source, ReadOptions()).spans.equals(spans)
    numbers = dict(read(source, ReadOptions()).ranks.select("process", "rank").rows())
    assert len(read_tasks(TaskRequest(source, "kernels", numbers, None, tmp_path))) == 4


def test_odd_values_do_no_harm(tmp_path: Path) -> None:
    path = four(Export()).write(tmp_path / "x.sqlite")
    with changing(path) as db:
        db.execute(
            "INSERT INTO NVTX_EVENTS SELECT 5, 9, 59, CAST(x'46ff' AS TEXT), globalTid, NULL, NULL, 0 FROM NVTX_EVENTS"
        )
        db.execute("INSERT INTO NVTX_EVENTS SELECT 5, 9, 59, NULL, globalTid, NULL, 987654, 0 FROM NVTX_EVENTS LIMIT 1")
        db.execute("INSERT INTO NVTX_EVENTS SELECT 5, 9, 59, NULL, NULL, NULL, NULL, NULL FROM NVTX_EVENTS LIMIT 1")
        db.execute("UPDATE TARGET_INFO_SESSION_START_TIME SET utcEpochNs = NULL")
        db.execute("UPDATE META_DATA_EXPORT SET value = 'x''y'")
        db.execute("DELETE FROM TARGET_INFO_SYSTEM_ENV")
    (source,) = find(tmp_path).sources
    assert read(source, ReadOptions()).spans.height == 4


def test_exports_are_found_whatever_they_are_called(tmp_path: Path) -> None:
    """Other programs write *.sqlite files, too; one that cannot be read may be an export."""
    for name in ("a.sqlite", "b.db", "c.sqlite3", "d"):
        four(Export()).write(tmp_path / name)
    (tmp_path / "zero.sqlite").touch()
    (tmp_path / "cut.sqlite").write_bytes((tmp_path / "a.sqlite").read_bytes()[:50])
    (tmp_path / "notes.txt").write_text("no database")
    (tmp_path / "late.nsys-rep").write_text("a report")
    (tmp_path / "old.qdrep").write_text("a report of 2020")
    (tmp_path / "a.nsys-rep").write_text("a report that was exported")
    with changing(tmp_path / "other.db") as db:
        db.execute("CREATE TABLE runs(id)")
    result = [s.path.name for s in find(tmp_path).sources]
    assert result == ["a.sqlite", "b.db", "c.sqlite3", "cut.sqlite", "d", "late.nsys-rep", "old.qdrep", "zero.sqlite"]


def test_an_export_of_2020_is_one_of_nsight(tmp_path: Path) -> None:
    """It has neither metadata nor, in some versions, a start time."""
    path = four(Export()).write(tmp_path / "old.db")
    with changing(path) as db:
        for table in ("META_DATA_EXPORT", "TARGET_INFO_SESSION_START_TIME", "TARGET_INFO_SYSTEM_ENV"):
            db.execute(f"DROP TABLE {table}")
    (source,) = find(tmp_path).sources
    profile = read(source, ReadOptions())
    assert profile.spans.height == 4
    assert "start-time-unknown" in [n.code for n in profile.notes]


@pytest.mark.parametrize(
    ("name", "rank"),
    [("x_rank1", 1), ("rank-3.node1", 3), ("Rank12", 12), ("report2", 0), ("node7", 0), ("rank99999999", 0)],
)
def test_ranks_in_file_names(tmp_path: Path, name: str, rank: int) -> None:
    export = Export()
    block(export, A, 0, "F0.0.0")
    export.write(tmp_path / f"{name}.sqlite")
    (source,) = find(tmp_path).sources
    assert source.rank is None  # so that nobody leaves a file out because of its name
    assert ranks_of(read(source, ReadOptions())) == [(rank, "assumed")]
    export.range(A, 0, 1_000, "iter_6_0")
    export.write(source.path)
    assert ranks_of(read(source, ReadOptions())) == [(6, "recorded")]


@pytest.fixture
def fake_nsys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A program `nsys` that copies the report; fails for an empty one."""
    tools = tmp_path / "tools"
    tools.mkdir()
    program = tools / "nsys"
    program.write_text(
        '#!/bin/sh\n[ "$1 $2 $3 $4" = "export --type sqlite --output" ] && [ -s "$6" ] && cp "$6" "$5"\n'
    )
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{tools}:{os.environ['PATH']}")
    return program


def test_reports_are_exported_where_nsys_is(tmp_path: Path, fake_nsys: Path) -> None:
    reports = tmp_path / "reports"
    reports.mkdir()
    four(Export()).write(reports / "x.nsys-rep")
    (source,) = find(reports).sources
    profile = read(source, ReadOptions())
    assert profile.spans.height == 4
    assert [note.where for note in profile.notes if note.code == "report-exported"] == [str(source.path)]
    assert [p.name for p in reports.iterdir()] == ["x.nsys-rep"]
    (reports / "x.nsys-rep").write_bytes(b"")
    with pytest.raises(SourceError, match="nsys export failed"):
        read(source, ReadOptions())
    (reports / "x.nsys-rep").write_text("not a database")
    with pytest.raises(SourceError, match=r"reports/x\.nsys-rep is not an SQLite database"):
        read(source, ReadOptions())
