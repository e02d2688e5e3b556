"""The Ascend and MindSpore samples, others from their generator, and what happens when such files are damaged."""

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import polars as pl
import pytest

from samples.generators import ascend as generate_ascend
from tests.conftest import Cli
from tests.sources.ascend.test_reader import load, understood
from tests.support.databases import changing
from trace_export.errors import SourceError
from trace_export.sources.find import find
from trace_export.sources.read import read
from trace_export.sources.source import ReadOptions


def of_rank_0(folder: Path) -> Path:
    return next(folder.glob("*_4000_*/ASCEND_PROFILER_OUTPUT/*.db"))


def test_samples_of_a_quantity_without_a_name(cluster: Path) -> None:
    """The clock of the cores: a table whose rows refer to no text."""
    with changing(of_rank_0(cluster)) as db:
        db.execute("CREATE TABLE AICORE_FREQ (deviceId INTEGER, timestampNs INTEGER, freq INTEGER)")
        db.execute("INSERT INTO AICORE_FREQ SELECT min(deviceId), min(startNs), 1650 FROM TASK")
    assert load(cluster).counters.filter(name="AI Core frequency")["value"].to_list() == [1650]


@pytest.mark.parametrize("times", ["endNs = startNs - 1", "endNs = endNs + 31536000000000000"])
def test_device_tasks_with_impossible_times_are_left_out_with_a_warning(
    cluster: Path, run_cli: Cli, tmp_path: Path, times: str
) -> None:
    tasks = "FROM TASK JOIN COMPUTE_TASK_INFO USING (globalTaskId)"
    with changing(of_rank_0(cluster)) as db:
        ((number, all_tasks),) = db.execute(f"SELECT max(globalTaskId), count(*) {tasks}").fetchall()
        db.execute(f"UPDATE TASK SET {times} WHERE globalTaskId = {number}")
    done = run_cli(
        "ascend", "--log_dir", cluster, "--out", tmp_path / "out", "--detail", "kernels", "--format", "chrome"
    )
    assert "warning: device tasks without a valid time, left out" in done.stderr
    events = json.loads((tmp_path / "out" / "pipeline_profile.json").read_text())["traceEvents"]
    thread = next(e["tid"] for e in events if e["name"] == "thread_name" and e["args"]["name"] == "rank 0 · stream 2")
    assert sum(e["ph"] == "X" and e["tid"] == thread for e in events) == all_tasks - 1


def test_device_tasks_of_which_none_has_a_valid_time_are_an_error(cluster: Path, run_cli: Cli, tmp_path: Path) -> None:
    with changing(of_rank_0(cluster)) as db:
        db.execute("UPDATE TASK SET endNs = 0 WHERE connectionId < 4000000000 OR connectionId = 4294967295")
    done = run_cli(
        "export", "--source", "ascend", "--log_dir", cluster, "--out", tmp_path / "out", "--detail", "kernels"
    )
    assert done.returncode == 3
    assert "none of its device tasks has a valid time" in done.stderr
    assert (tmp_path / "out" / "pipeline_profile.pftrace").exists()


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four ranks on two hosts, one step, as databases."""
    folder = tmp_path_factory.mktemp("written")
    generate_ascend.write(folder, microbatches=4, steps=1)
    return folder


@pytest.fixture
def cluster(written: Path, tmp_path: Path) -> Path:
    """A copy of `written`, which may be damaged."""
    return shutil.copytree(written, tmp_path / "cluster")


def database(cluster: Path, rank: int) -> Path:
    return next(cluster.rglob(f"ascend_pytorch_profiler_{rank}.db"))


def change(path: Path, *statements: str) -> None:
    with changing(path) as db:
        for statement in statements:
            db.execute(statement)


def test_hosts_are_told_apart(cluster: Path) -> None:
    result = load(cluster)
    assert result.hosts["host"].to_list() == result.hosts["label"].to_list() == ["node0", "node1"]
    change(database(cluster, 2), "UPDATE HOST_INFO SET hostName = 'node0'")
    change(database(cluster, 3), "UPDATE HOST_INFO SET hostName = 'node0'")
    alike = load(cluster)
    assert alike.hosts["host"].n_unique() == 2
    assert alike.ranks.sort("rank")["host"].to_list() == [h for h in alike.hosts["host"] for _ in range(2)]
    assert result.ranks["device"].to_list() == [0, 1, 0, 1]


def test_a_second_profile_of_a_rank_in_one_folder_is_left_out(cluster: Path) -> None:
    first = database(cluster, 1)
    second = first.parent.parent / "ASCEND_PROFILER_OUTPUT" / "msmonitor_1_20251127120000000_1.db"
    shutil.copy(first, second)
    result = find(cluster)
    assert sorted(s.rank for s in result.sources if s.rank is not None) == [0, 1, 2, 3]
    assert [(n.code, n.where) for n in result.notes] == [("rank-captured-twice", str(second))]


def test_a_flat_folder_of_databases(cluster: Path, tmp_path: Path) -> None:
    flat = tmp_path / "flat"
    flat.mkdir()
    for rank in range(4):
        shutil.copy(database(cluster, rank), flat)
    assert understood(flat).spans.equals(understood(cluster).spans)


def test_a_single_card_without_a_rank(cluster: Path, tmp_path: Path) -> None:
    folder = tmp_path / "lone" / "host_1_20250101000000000_ascend_pt" / "ASCEND_PROFILER_OUTPUT"
    folder.mkdir(parents=True)
    shutil.copy(database(cluster, 3), folder / "ascend_pytorch_profiler.db")
    change(folder / "ascend_pytorch_profiler.db", "DROP TABLE RANK_DEVICE_MAP")
    ranks = load(tmp_path / "lone").ranks
    assert ranks.select("rank", "rank_origin").rows() == [(0, "assumed")]


def test_msprof_databases_are_read_where_nothing_else_is(cluster: Path, tmp_path: Path) -> None:
    folder = tmp_path / "raw" / "PROF_000001_20250101000000000_ABC"
    folder.mkdir(parents=True)
    shutil.copy(database(cluster, 2), folder / "msprof_20250101000000.db")
    assert load(tmp_path / "raw").ranks.select("rank", "rank_origin").rows() == [(2, "recorded")]
    capture = database(cluster, 2).parent.parent
    shutil.copytree(folder, capture / folder.name)
    assert len(find(cluster).sources) == 4


def test_frameworks_in_one_folder_are_told(cluster: Path) -> None:
    text = cluster / "more"
    generate_ascend.write(text, 2, 2, 1, 1, text=True)
    for capture in text.glob("*_ascend_ms"):
        for info in capture.glob("profiler_info_*.json"):
            info.rename(info.with_name(f"profiler_info_{4 + int(info.stem[-1])}.json"))
    assert "formats-mixed" in [note.code for note in find(cluster).notes]


def test_metadata_that_is_no_json_is_told_and_left_out(cluster: Path) -> None:
    change(database(cluster, 0), "UPDATE META_DATA SET value = '{not json' WHERE name = 'parallel_group_info'")
    result = load(cluster)
    assert result.ranks.sort("rank")["stage"].to_list() == [None, 1, 2, 3]
    assert [n.code for n in result.notes] == ["metadata-malformed"]
    assert understood(cluster).ranks.sort("rank")["stage"].to_list() == [0, 1, 2, 3]


@pytest.mark.parametrize(
    "value", ["[]", '{"g": 3}', '{"g": {"global_ranks": "all"}}', '{"g": {"global_ranks": [-1, true]}}', "12", "null"]
)
def test_metadata_of_another_shape_is_no_failure(cluster: Path, value: str) -> None:
    for name in ("parallel_group_info", "distributed_args", "pp_info"):
        change(
            database(cluster, 0), f"DELETE FROM META_DATA WHERE name = '{name}'",
            f"INSERT INTO META_DATA VALUES ('{name}', '{value}')",
        )  # fmt: skip
    assert len(read(find(cluster).sources[0], ReadOptions()).spans) == 8


def damages() -> Iterator[tuple[Callable[[Path], object], str]]:
    yield lambda path: path.write_bytes(path.read_bytes()[:9000]), "truncated"
    yield lambda path: path.write_bytes(b""), "is empty"
    yield lambda path: path.write_bytes(b"not a database" * 100), "not an SQLite database"
    yield lambda path: change(path, "DROP TABLE TASK"), "no device tasks"
    yield lambda path: change(path, "UPDATE TASK SET startNs = 'soon'"), "startNs|start_ns|not all of one type"


@pytest.mark.parametrize(("damage", "words"), list(damages()))
def test_a_damaged_database_is_told_in_one_sentence(
    cluster: Path, damage: Callable[[Path], object], words: str
) -> None:
    damage(database(cluster, 2))
    with pytest.raises(SourceError, match=words) as caught:
        read(find(cluster).sources[2], ReadOptions())
    assert "ascend_pytorch_profiler_2.db" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_host_ranges_on_demand(cluster: Path) -> None:
    spans = load(cluster, host_ranges=True).spans
    assert spans["origin"].unique().to_list() == ["host"]
    assert (spans["end_ns"] - spans["start_ns"]).unique().to_list() == [15_000]


def test_markers_without_a_place_on_the_device_are_host_ranges_where_there_is_no_kernel(cluster: Path) -> None:
    path = database(cluster, 0)
    change(
        path,
        "UPDATE MSTX_EVENTS SET connectionId = 4000000000",
        "DELETE FROM TASK WHERE connectionId > 4000000000 AND connectionId < 4294967295",
        "DROP TABLE COMPUTE_TASK_INFO",
    )
    spans = read(find(cluster).sources[0], ReadOptions()).spans
    assert spans["origin"].unique().to_list() == ["host"]
    assert len(spans) == 8


def test_ranges_that_never_ended_on_the_device_are_left_out(cluster: Path) -> None:
    change(database(cluster, 0), "DELETE FROM TASK WHERE connectionId IN (4000000007, 4000000008)")
    profile = read(find(cluster).sources[0], ReadOptions())
    assert len(profile.spans) == 6
    assert [(n.code, n.count) for n in profile.notes] == [("ranges-unclosed", 2)]


def test_empty_weight_gradient_ranges_are_left_out(cluster: Path) -> None:
    """A pop of an empty store is marked too: a range in which no kernel starts."""
    path = database(cluster, 0)
    with changing(path) as db:
        (last,) = db.execute("SELECT MAX(endNs) FROM TASK").fetchone()
        (first,) = db.execute("SELECT MIN(startNs) FROM MSTX_EVENTS").fetchone()
        db.execute("INSERT INTO STRING_IDS VALUES (9999, ?)", (str({"name": "WeightGradStore.pop"}),))
        for mark, start in ((4000009001, last + 1000), (4000009002, last + 9000)):
            db.execute("INSERT INTO MSTX_EVENTS VALUES (?, ?, 2, 0, 0, 9999, 1, 1, 0, ?)", (first, first + 1, mark))
            db.execute("INSERT INTO TASK VALUES (?, ?, 0, ?, ?, 1, 0, 0, 2, 0, 0)", (start, start + 4000, mark, mark))
        db.execute("INSERT INTO TASK VALUES (?, ?, 0, 0, 77777, 1, 0, 0, 2, 0, 0)", (last + 9500, last + 9900))
        db.execute("INSERT INTO COMPUTE_TASK_INFO VALUES (0, 77777, 0, 0)")
    profile = read(find(cluster).sources[0], ReadOptions())
    assert profile.spans.filter(pl.col("kind") == "W")["start_ns"].to_list() == [last + 9000]
    assert "blocks-without-work" in [note.code for note in profile.notes]


def test_communication_marked_at_level_none(cluster: Path) -> None:
    """Without tables of communication HCCL's own markers tell the operators, which are counted then."""
    for rank in range(4):
        path = database(cluster, rank)
        with changing(path) as db:
            result = db.execute(
                "SELECT s.value, g.value, o.startNs, o.endNs FROM COMMUNICATION_OP o"
                " JOIN STRING_IDS s ON s.id = o.opName JOIN STRING_IDS g ON g.id = o.groupName ORDER BY o.opId"
            ).fetchall()
            db.execute("INSERT INTO STRING_IDS VALUES (9000, 'communication')")
            kinds = {"send": "HcclSend", "receive": "HcclReceive", "allReduce": "HcclAllReduce"}
            for number, (name, group, start, end) in enumerate(result):
                message = {"streamId": "5", "count": "1", "dataType": "fp16", "groupName": group,
                           "opName": kinds[name.split("_")[1]]}  # fmt: skip
                db.execute("INSERT INTO STRING_IDS VALUES (?, ?)", (9001 + number, json.dumps(message)))
                mark = 4000100000 + number
                row = (start, start + 1, 9001 + number, 9000, mark)
                db.execute("INSERT INTO MSTX_EVENTS VALUES (?, ?, 2, 0, 0, ?, 1, 1, ?, ?)", row)
                db.execute("INSERT INTO TASK VALUES (?, ?, 0, ?, ?, 1, 0, 0, 5, 0, 0)", (start, end, mark, mark))
            for table in ("COMMUNICATION_OP", "COMMUNICATION_TASK_INFO", "COMPUTE_TASK_INFO"):
                db.execute(f"DROP TABLE {table}")
    profile = understood(cluster)
    assert len(profile.spans) == 4 * 8
    assert profile.collectives.select("op", "sequence").unique().rows() == [("HcclAllReduce", 0)]
    assert len(profile.messages) == 2 * 3 * 4


def test_named_work_around_blocks_hides_none(cluster: Path) -> None:
    path = database(cluster, 0)
    with changing(path) as db:
        (first, last) = db.execute("SELECT MIN(startNs), MAX(endNs) FROM TASK").fetchone()
        db.execute("INSERT INTO STRING_IDS VALUES (9999, 'evaluation')")
        db.execute("INSERT INTO MSTX_EVENTS VALUES (?, ?, 2, 0, 0, 9999, 1, 1, 0, 4000009001)", (first, last))
        db.execute("INSERT INTO TASK VALUES (?, ?, 0, 4000009001, 77, 1, 0, 0, 2, 0, 0)", (first - 1, last + 1))
    source = find(cluster).sources[0]
    assert len(read(source, ReadOptions()).spans) == 8
    drawn = read(source, ReadOptions(markers=("evaluation=>OTHER",))).spans
    assert drawn.filter(pl.col("kind").is_null())["marker"].to_list() == ["evaluation"]
    assert len(drawn) == 9
