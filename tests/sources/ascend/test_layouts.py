"""Where the files of a capture lie, by version of the profiler and by what users make of them."""

import re
import shutil
from pathlib import Path

import pytest

import trace_export
from samples.generators.ascend import Job, record
from tests.conftest import AscendRun, Cli
from tests.sources.ascend.test_reader import load, rows, truth_rows, understood
from tests.support.rows import crossed
from trace_export.sources.find import find

BESIDE = ("mindspore text of 2.4", "mindspore text of 2.3", "mindspore text of 2.3, rank folders")


@pytest.mark.parametrize("name", BESIDE)
def test_the_number_of_a_rank_is_recorded_by_its_folder_and_beside_it(
    ascend_run: AscendRun, tmp_path: Path, name: str
) -> None:
    """Of ranks 0 to 3 rank 2 was lost: rank 3 keeps its number."""
    folder, truth = ascend_run(name)
    shutil.copytree(folder, tmp_path / "logs")
    lost = next((tmp_path / "logs").glob("*/profiler/rank-2_*"))
    shutil.rmtree(lost)
    shutil.rmtree(lost.parent / "PROF_000002_20240820123456_ABC")
    for path in lost.parent.glob("*_2.*"):
        path.unlink()
    profile = load(tmp_path / "logs")
    assert profile.ranks.select("rank", "rank_origin").rows() == [(r, "recorded") for r in (0, 1, 3)]
    assert [row[:1] + row[3:5] for row in rows(profile)] == [
        row[:1] + row[3:5] for row in truth_rows(truth) if row[0] != 2
    ]


@pytest.mark.parametrize("name", BESIDE)
def test_what_lies_beside_a_capture_is_no_other_profile(ascend_run: AscendRun, name: str, run_cli: Cli) -> None:
    folder, truth = ascend_run(name)
    ended = run_cli("inspect", folder)
    assert ended.returncode == 0, ended.stderr
    assert "cannot be read" not in ended.stderr
    hosts = understood(folder).hosts["host"].unique().sort().to_list()
    assert len(hosts) == truth.job.hosts
    assert not any("rank" in host for host in hosts)


def test_what_beside_a_capture_belongs_to_another_rank_is_named(ascend_run: AscendRun, tmp_path: Path) -> None:
    folder, _ = ascend_run("mindspore text of 2.3")
    shutil.copytree(folder, tmp_path / "logs")
    shutil.rmtree(next((tmp_path / "logs").glob("*/profiler/rank-2_*")))
    (note,) = [n for n in find(tmp_path / "logs").notes if n.code == "capture-not-exported"]
    assert "is output of MindSpore before 2.3" in note.text or "is raw data" in note.text


def test_the_sizes_are_read_from_the_description_beside(ascend_run: AscendRun, tmp_path: Path) -> None:
    """MindSpore before 2.5 records the number of stages there; the script has recorded nothing of itself."""
    folder, truth = ascend_run("mindspore text of 2.4")
    shutil.copytree(folder, tmp_path / "logs")
    for path in (tmp_path / "logs").rglob("profiler_metadata.json"):
        path.unlink()
    assert load(tmp_path / "logs").declared.pp == truth.job.stages


def test_a_flattened_capture_keeps_what_describes_it(ascend_run: AscendRun, tmp_path: Path) -> None:
    """The files of ASCEND_PROFILER_OUTPUT beside what describes the capture: MindSpore has its sizes nowhere else."""
    folder, truth = ascend_run("mindspore text")
    for capture in folder.iterdir():
        flat = shutil.copytree(capture, tmp_path / capture.name)
        for path in list((flat / "ASCEND_PROFILER_OUTPUT").iterdir()):
            path.rename(flat / path.name)
        (flat / "ASCEND_PROFILER_OUTPUT").rmdir()
    profile = load(tmp_path)
    assert profile.declared.pp == truth.job.stages
    assert [row[0] for row in rows(profile)] == [row[0] for row in truth_rows(truth)]


@pytest.mark.parametrize(("framework", "alone"), crossed(["pytorch", "mindspore"], [False, True]))
def test_a_part_of_a_capture_keeps_what_describes_it(framework: str, alone: bool, tmp_path: Path) -> None:
    """Its folder of results, or one file in it, is given alone: the rank is recorded in the folder above."""
    record(tmp_path, Job(4, 6, 1, hosts=1, text=True, framework=framework))
    results = sorted(tmp_path.glob("*/ASCEND_PROFILER_OUTPUT"))[2]
    ranks = trace_export.load(results / "trace_view.json" if alone else results).ranks
    assert ranks.select("rank", "rank_origin").rows() == [(2, "recorded")]


@pytest.mark.parametrize("loose", [True, False])
@pytest.mark.parametrize("framework", ["pytorch", "mindspore"])
def test_a_database_of_another_name_is_read(framework: str, loose: bool, tmp_path: Path) -> None:
    """As of a second download, or where all were copied into one folder."""
    truth = record(tmp_path / "logs", Job(4, 6, 1, hosts=1, framework=framework))
    for rank, path in enumerate(sorted((tmp_path / "logs").rglob("*profiler_[0-9].db"))):
        path.rename(tmp_path / f"my rank{rank}.db" if loose else path.with_name(f"{path.stem} (1).db"))
    if loose:
        shutil.rmtree(tmp_path / "logs")
    profile = load(tmp_path)
    assert [row[:1] + row[2:5] for row in rows(profile)] == [row[:1] + row[2:5] for row in truth_rows(truth)]


def test_a_rank_that_only_the_metadata_or_the_folders_name(ascend_run: AscendRun, tmp_path: Path) -> None:
    folder, _ = ascend_run("mindspore text")
    capture = next(folder.glob("*_4003_*"))
    for name in ("told", "rank_7"):
        shutil.copytree(capture, tmp_path / "logs" / name / "run" / "ASCEND_PROFILER_OUTPUT" / "..", dirs_exist_ok=True)
        next((tmp_path / "logs" / name).rglob("profiler_info_3.json")).unlink()
    told = tmp_path / "logs" / "told" / "run" / "profiler_metadata.json"
    told.write_text(told.read_text().replace('{"distributed_args": {', '{"distributed_args": {"rank": 5, '))
    ranks = {source.rank: source.rank_origin for source in find(tmp_path / "logs").sources}
    assert ranks == {5: "recorded", 7: "assumed"}


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("text, loose", "is a trace of an Ascend rank outside its folder: give its folder, *_ascend_pt"),
        (
            "text, merged",
            "merged.json is a merge of the traces of several Ascend ranks: give their folders, *_ascend_pt",
        ),
    ],
)
def test_traces_outside_their_folders_say_what_to_give(
    ascend_run: AscendRun, run_cli: Cli, tmp_path: Path, name: str, words: str
) -> None:
    folder, _ = ascend_run(name)
    for command in ((), ("inspect",)):
        ended = run_cli(*command, folder)
        assert ended.returncode == 1
        assert words in " ".join(ended.stderr.split())
        assert "looked for" not in ended.stderr


@pytest.mark.parametrize("stamps", ["text", "numbers", "relative"])
def test_a_loose_trace_is_known_whatever_its_times_are(tmp_path: Path, run_cli: Cli, stamps: str) -> None:
    record(tmp_path, Job(2, 2, 1, text=True, stamps=stamps, layout="loose"))  # type: ignore[arg-type]
    for path in (tmp_path, tmp_path / "trace_view_rank0.json"):
        assert "a trace of an Ascend rank outside its folder" in run_cli(path).stderr


@pytest.mark.parametrize(
    "name", ["kernel_details.csv", "communication.json", "analysis.db", "msprof_0.db", "step_trace_time.csv"]
)
def test_a_file_without_its_folder_says_what_to_give(
    ascend_run: AscendRun, tmp_path: Path, run_cli: Cli, name: str
) -> None:
    folder, _ = ascend_run("text")
    table = next(folder.rglob("kernel_details.csv"))
    if name.endswith(".db"):
        (tmp_path / name).write_bytes(b"SQLite format 3\0")
    else:
        shutil.copy(table, tmp_path / name)
    assert "a file of an Ascend rank outside its folder: give its folder" in run_cli("inspect", tmp_path).stderr
    assert re.search("give (its|the) folder", run_cli(tmp_path / name).stderr)


@pytest.mark.parametrize(
    "header",
    ["Device_id,Step,Computing,Communication(Not Overlapped)", "Device_id,API Name,Time(us)", "Name,Start Time(us)"],
)
def test_a_table_given_alone_names_its_folder(header: str, tmp_path: Path, run_cli: Cli) -> None:
    table = tmp_path / "table.csv"
    table.write_text(f"{header}\n")
    said = run_cli(table)
    assert said.returncode == 1
    assert f"give the folder that the profiler wrote, {tmp_path} or above" in said.stderr
