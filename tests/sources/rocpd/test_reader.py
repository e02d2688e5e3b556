"""What the reader of rocpd makes of databases in both schemas, and of files that are not as they should be."""

import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from samples.generators.rocpd_export import Export
from tests.support.databases import changing
from tests.support.one_source import read
from trace_export.errors import SourceError
from trace_export.model import Profile
from trace_export.sources.choose import nothing_found
from trace_export.sources.find import find
from trace_export.sources.rocpd.reader import read_tasks
from trace_export.sources.source import ReadOptions, Source, TaskRequest


def block(export: Export, at: int, text: str) -> None:
    """A range with one kernel, 100 after the range's start and 50 long."""
    export.range(0, at, at + 90, text)
    export.kernel(0, at + 100, at + 150, export.call(0, at + 10))


def load(export: Export, folder: Path, options: ReadOptions | None = None) -> Profile:
    source = Source("rocpd", export.write(folder / "1_results.db"), "folder")
    return read(source, options or ReadOptions()).validate()


@pytest.mark.parametrize("schema", [3, 4])
def test_calls_of_rccl_are_those_of_nccl(tmp_path: Path, schema: int) -> None:
    export = Export(schema=schema)
    block(export, 1_000, "F0.0.0")
    for at in (1_500, 1_600):
        export.range(0, at, at + 50, "ncclAllReduce", registered=True)
    export.kernel(0, 1_700, 1_800, export.call(0, 1_610), name="ncclDevKernel_Generic_1")
    export.range(0, 2_000, 2_050, "ncclSend", registered=True)
    export.kernel(0, 2_100, 2_200, export.call(0, 2_010), name="ncclDevKernel_Generic_1")
    profile = load(export, tmp_path)
    collectives = profile.collectives.select("op", "sequence", "start_ns", "end_ns").rows()
    assert collectives == [("ncclAllReduce", 0, 1_500, 1_550), ("ncclAllReduce", 1, 1_700, 1_800)]
    sends = profile.p2p.select("role", "direction", "start_ns", "end_ns").rows()
    assert sends == [("send", "F", 2_100, 2_200)]
    assert profile.spans.select("start_ns", "end_ns").rows() == [(1_100, 1_150)]


@pytest.mark.parametrize("schema", [3, 4])
@pytest.mark.parametrize("detail", ["comm", "kernels"])
def test_device_tasks(tmp_path: Path, schema: int, detail: Any) -> None:
    export = Export(schema=schema)
    block(export, 1_000, "F0.0.0")
    export.kernel(0, 2_300, 2_400, None, name="ncclDevKernel_Generic_1", stream=20)
    export.copy(0, 2_020, 2_030, 900)
    profile = load(export, tmp_path)
    assert profile.spans["origin"].to_list() == ["device"]
    spill = tmp_path / "spill"
    spill.mkdir()
    ranks = dict(profile.ranks.select("process", "rank").iter_rows())
    source = Source("rocpd", tmp_path / "1_results.db", "folder")
    (file,) = read_tasks(TaskRequest(source, detail, ranks, None, spill))
    nccl = ("stream 20", "ncclDevKernel_Generic_1", "communication", 2_300, 2_400)
    others = [
        ("stream 7", "gemm", "compute", 1_100, 1_150),
        ("stream 3", "MEMORY_COPY_HOST_TO_DEVICE", "memory", 2_020, 2_030),
    ]
    result = pl.read_ipc(file.path).cast({"name": pl.String}).rows()
    assert result == ([nccl] if detail == "comm" else [*others, nccl])


def in_one_file(parts: Iterable[Path], merged: Path) -> Path:
    """The tables of databases in one file, as `rocpd merge` puts them there."""
    with changing(merged) as db:
        for part in parts:
            db.execute("ATTACH ? AS one", [str(part)])
            for (table,) in db.execute("SELECT name FROM one.sqlite_master WHERE type = 'table'").fetchall():
                if not table.startswith("sqlite_"):
                    db.execute(f"CREATE TABLE {table} AS SELECT * FROM one.{table}")
            db.commit()
            db.execute("DETACH one")
    return merged


def test_a_merged_database_holds_all_its_processes(tmp_path: Path) -> None:
    """The tables of two processes in one file, as `rocpd merge` puts them there; ids repeat."""
    parts = []
    for rank, host in enumerate(("node0", "node1")):
        export = Export(host=host, pid=70 + rank, environment={"RANK": str(3 + rank)})
        block(export, 1_000 * (rank + 1), "F0.0.0")
        parts.append(export.write(tmp_path / f"{rank}.part"))
    merged = in_one_file(parts, tmp_path / "merged.db")
    profile = read(Source("rocpd", merged, "folder"), ReadOptions()).validate()
    assert profile.ranks.select("rank", "process").rows() == [(3, 0), (4, 1)]
    assert profile.hosts["label"].to_list() == ["node0", "node1"]
    assert profile.spans.select("rank", "start_ns").rows() == [(3, 1_100), (4, 2_100)]


def test_a_process_without_passes_beside_one_with_them_is_named(tmp_path: Path) -> None:
    parts = []
    for rank, name in enumerate(("F0.0.0", "loss")):
        export = Export(pid=70 + rank, environment={"RANK": str(rank)})
        block(export, 1_000, name)
        parts.append(export.write(tmp_path / f"{rank}.part"))
    merged = in_one_file(parts, tmp_path / "merged.db")
    profile = read(Source("rocpd", merged, "folder"), ReadOptions()).validate()
    assert profile.ranks["rank"].to_list() == [0]
    assert [n.count for n in profile.notes if n.code == "process-without-blocks"] == [1]


def refusal(export: Export, folder: Path, options: ReadOptions | None = None) -> str:
    with pytest.raises(SourceError) as raised:
        load(export, folder, options)
    return str(raised.value)


def test_files_that_cannot_be_drawn(tmp_path: Path) -> None:
    empty = Export()
    assert "no ROCTx ranges in the database" in refusal(empty, tmp_path)
    unnamed = Export()
    block(unnamed, 1_000, "my_layer")
    alone = refusal(unnamed, tmp_path)
    assert "no pass is named, and the launches do not show any: one thread launches everything" in alone
    assert "the most frequent names here: my_layer" in alone
    assert "my_layer" in refusal(unnamed, tmp_path)
    idle = Export()
    idle.range(0, 1_000, 1_090, "F0.0.0")
    assert "no GPU work in the file: it was recorded without --kernel-trace" in refusal(idle, tmp_path)
    assert load(idle, tmp_path, ReadOptions(host_ranges=True)).spans.select("start_ns", "end_ns", "origin").rows() == [
        (1_000, 1_090, "host")
    ]
    with changing(tmp_path / "other.db") as db:
        db.execute("CREATE TABLE x (y)")
    with pytest.raises(SourceError, match="not one of rocprofv3"):
        read(Source("rocpd", tmp_path / "other.db", "folder"), ReadOptions())


def test_a_database_may_be_called_sqlite(samples: Path, tmp_path: Path) -> None:
    for path in (samples / "rocpd").rglob("*.db"):
        shutil.copy(path, tmp_path / f"{path.stem}.sqlite")
    assert {source.kind for source in find(tmp_path).sources} == {"rocpd"}


def test_older_databases_are_named(tmp_path: Path) -> None:
    with changing(tmp_path / "trace.rpd") as db:
        for table in ("rocpd_api", "rocpd_op", "rocpd_string"):
            db.execute(f"CREATE TABLE {table} (id)")
    result = find(tmp_path)
    assert not result.sources
    assert "rocmProfileData" in str(nothing_found(result, tmp_path))


@pytest.mark.parametrize("beside", [False, True], ids=["alone", "beside a database"])
def test_json_is_named_with_the_remedy(beside: bool, samples: Path, tmp_path: Path) -> None:
    """JSON says no rank; nothing is wrong where databases of the same run lie beside it."""
    (tmp_path / "7_results.json").write_text('{"rocprofiler-sdk-tool": [{"metadata": {"pid": 7}}]}')
    if beside:
        shutil.copytree(samples / "rocpd" / "two_hosts", tmp_path, dirs_exist_ok=True)
    result = find(tmp_path)
    assert bool(result.sources) is beside
    said = [u.what for u in result.unrecognised] if beside else [str(nothing_found(result, tmp_path))]
    assert any("--output-format rocpd" in what for what in said)
